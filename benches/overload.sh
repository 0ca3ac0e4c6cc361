#!/bin/sh
# What overload costs the work that is admitted: the rate of a closed loop of limits.in_flight clients, and the
# rate of admitted requests when many times more ask, in rounds one after the other. Clients that are refused ask
# again at once (rude), or after a tenth of a second (polite; Retry-After asks for a whole one).
#
#   cargo build --release && benches/overload.sh [TIMES] [ROUNDS]
#
# Needs wrk and python3 (Debian: apt-get install wrk python3). Everything runs on the loopback.
set -eu
cd "$(dirname "$0")/.."
times=${1:-16}
rounds=${2:-3}
places=64
seconds=8
work=$(mktemp -d)
pids=
trap 'for pid in $pids; do kill "$pid" 2>/dev/null || true; done; rm -rf "$work"' EXIT INT TERM

python3 benches/upstream.py 0.025 >"$work/upstream" &
pids="$pids $!"
while [ ! -s "$work/upstream" ]; do sleep 0.1; done
cat >"$work/fencepost.yaml" <<YAML
listen: 127.0.0.1:0
upstream: { url: "http://127.0.0.1:$(cat "$work/upstream")" }
store: { url: "sqlite:$work/marks.db" }
admin: { listen: off }
log: { format: json }
limits: { in_flight: $places, new_resources: none }
routes: [{ path: "/orders/{id}", resource: "order:{id}" }]
YAML
"${FENCEPOST:-target/release/fencepost}" serve --config "$work/fencepost.yaml" >"$work/log" 2>&1 &
pids="$pids $!"
while ! grep -q '"listening"' "$work/log"; do sleep 0.1; done
port=$(sed -n 's/.*"data":"127.0.0.1:\([0-9]*\)".*/\1/p' "$work/log")

cat >"$work/load.lua" <<'LUA'
local refused, admitted, threads = 0, 0, {}
function setup(thread) table.insert(threads, thread) end
function init(args) pause = tonumber(args[1]) or 0; ok = 0; over = 0; last = 200 end
function request()
  return wrk.format("PUT", "/orders/" .. math.random(1000), { ["X-Fencing-Token"] = "1" }, "x")
end
function delay() if last == 503 then return pause end return 0 end
function response(status) last = status; if status == 200 then ok = ok + 1 elseif status == 503 then over = over + 1 end end
function done(summary)
  for _, thread in ipairs(threads) do admitted = admitted + thread:get("ok"); refused = refused + thread:get("over") end
  local seconds = summary.duration / 1e6
  print(string.format("RATES %.0f %.0f", admitted / seconds, refused / seconds))
end
LUA
load() {
    wrk -t 1 -c "$1" -d "${seconds}s" -s "$work/load.lua" --timeout 30s "http://127.0.0.1:$port" -- "$2" |
        sed -n 's/^RATES //p'
}

load "$places" 0 >/dev/null
for round in $(seq "$rounds"); do
    unloaded=$(load "$places" 0)
    for manner in 0 100; do
        loaded=$(load $((places * times)) $manner)
        echo "$unloaded $loaded $manner $round" | awk -v times="$times" '{
            manner = $5 == 0 ? "rude" : "polite"
            printf "round %d, %s: unloaded %d/s; %d times the clients: %d/s admitted, %d/s refused; ratio %.2f\n",
                $6, manner, $1, times, $3, $4, $3 / $1 }'
    done
done
