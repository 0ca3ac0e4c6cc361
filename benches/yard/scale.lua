-- What benches/yard/scale.sh has wrk send: fenced requests at a steady rate, each for the next of many resources, with a
-- token that rises by one each time round. A request's latency counts from the moment at which it was due, not from
-- when a connection was free for it: a stall shows in all that it delayed.
--
--   wrk -t 1 -c C -d S -s scale.lua URL -- RATE RESOURCES FIRST_TOKEN MOST
--
-- MOST: after so many requests there are no more; 0: without end. Prints one line of figures.
local ffi = require("ffi")
ffi.cdef [[
  typedef struct { long sec; long nsec; } fencepost_time;
  int clock_gettime(int id, fencepost_time *time);
]]
local time = ffi.new("fencepost_time")

local function now()
    ffi.C.clock_gettime(1, time)
    return tonumber(time.sec) * 1e3 + tonumber(time.nsec) / 1e6
end

-- A latency's bucket: 48 to each factor of ten, from 10 µs on.
local PER_DECADE = 48
local function bucket(ms)
    return math.max(0, math.floor(math.log10(math.max(ms, 0.01) / 0.01) * PER_DECADE))
end

function setup(thread)
    threads = threads or {}
    table.insert(threads, thread)
end

function init(args)
    rate, resources, token, most = tonumber(args[1]) / 1e3, tonumber(args[2]), tonumber(args[3]), tonumber(args[4])
    began, sent, due = nil, 0, 0
    counts, statuses, slowest = {}, {}, 0
end

function delay()
    began = began or now()
    local wait = began + due / rate - now()
    due = due + 1
    if most > 0 and due > most then return 1e7 end
    return wait > 1 and math.floor(wait) or 0
end

function request()
    began = began or now()
    -- A timer may fire up to two milliseconds early: such a request counts from when it is sent.
    local at = math.min(began + sent / rate, now())
    -- Not in the order of their keys: neighbours in time are none in the store.
    local resource, round = (sent * 7919) % resources, math.floor(sent / resources)
    sent = sent + 1
    return wrk.format("PUT", "/orders/" .. resource,
        { ["X-Fencing-Token"] = tostring(token + round), ["X-Due"] = string.format("%.3f", at) }, "x")
end

function response(status, headers)
    statuses[status] = (statuses[status] or 0) + 1
    local due_at = tonumber(headers["X-Due"] or headers["x-due"])
    if due_at then
        local ms = now() - due_at
        local at = bucket(ms)
        counts[at] = (counts[at] or 0) + 1
        if ms > slowest then slowest = ms end
    end
end

function done(summary)
    local all, counted, codes, worst = {}, 0, {}, 0
    for _, thread in ipairs(threads) do
        for at, count in pairs(thread:get("counts")) do
            all[at] = (all[at] or 0) + count
            counted = counted + count
        end
        for status, count in pairs(thread:get("statuses")) do codes[status] = (codes[status] or 0) + count end
        worst = math.max(worst, thread:get("slowest"))
    end
    local function quantile(share)
        local left = counted * share
        for at = 0, 1000 do
            left = left - (all[at] or 0)
            if left <= 0 then return 0.01 * 10 ^ ((at + 1) / PER_DECADE) end
        end
        return worst
    end
    local other = 0
    for status, count in pairs(codes) do
        if status ~= 200 and status ~= 503 then other = other + count end
    end
    local errors = summary.errors
    print(string.format("FIGURES %.0f %.2f %.2f %.2f %.1f %d %d %d %d", counted / (summary.duration / 1e6),
        quantile(0.5), quantile(0.99), quantile(0.999), worst, codes[200] or 0, codes[503] or 0, other,
        errors.connect + errors.read + errors.write + errors.timeout))
end
