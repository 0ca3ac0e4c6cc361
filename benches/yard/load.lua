-- What wrk sends: the same bytes to every proxy, so that making them costs the same everywhere.
-- Thread i of n takes the keys that are i modulo n, one after the other, so that no two threads
-- meet. After each pass over its keys the token grows by STEP: 0 keeps it.
--
--   wrk -t N … -s load.lua URL -- METHOD PREFIX KEYS THREADS TOKEN STEP BODY
--
-- A key is sent again only after all the others of its thread: with rising tokens no request is
-- overtaken by its successor, unless it takes longer than the whole pass. Prints one line of JSON.
local threads = 0

function setup(thread)
    thread:set("index", threads)
    threads = threads + 1
end

function init(args)
    local method, prefix, keys, count = args[1], args[2], tonumber(args[3]), tonumber(args[4])
    token, step = tonumber(args[5]), tonumber(args[6])
    local size = tonumber(args[7])
    heads, at = {}, 0
    for key = index, keys - 1, count do
        heads[#heads + 1] = method .. " " .. prefix .. key .. " HTTP/1.1\r\nHost: bench.local\r\nX-Fencing-Token: "
    end
    body = method == "GET" and "\r\n\r\n"
        or "\r\nContent-Length: " .. size .. "\r\n\r\n" .. string.rep("x", size)
    tail = string.format("%d", token) .. body
end

function request()
    at = at + 1
    if at > #heads then
        at = 1
        token = token + step
        tail = string.format("%d", token) .. body
    end
    return heads[at] .. tail
end

function done(summary, latency)
    local errors = summary.errors
    print(string.format(
        '{"requests": %d, "seconds": %.6f, "p50": %.1f, "p99": %.1f, "slowest": %.1f, "mean": %.1f, '
        .. '"refused": %d, "broken": %d, "bytes": %d}',
        summary.requests, summary.duration / 1e6, latency:percentile(50), latency:percentile(99), latency.max,
        latency.mean, errors.status, errors.connect + errors.read + errors.write + errors.timeout, summary.bytes))
end
