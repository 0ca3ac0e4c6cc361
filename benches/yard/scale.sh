#!/bin/sh
# What very many resources cost: requests at a steady rate, each of which raises a mark, over 10,000 resources and then
# over a million, each touched once. An epoch stays open for a minute, so that 300,000 are open at once, and as many
# are closed behind them. On SQLite, on Postgres, and on SQLite with room for a third of them only.
#
#   cargo build --release && benches/yard/scale.sh [sqlite|postgres|crowded]...
#
# Prints, for each: p50, p99, p99.9 and the slowest, in milliseconds, counted from when a request was due; how many
# epochs were open at the most; answers of 503; and the time a clean stop takes, with the rows it leaves. Ends with
# whether the bars are met: p99 within three times its value at 10,000, no 503, no row left. About six minutes for each.
#
# RATE: requests per second, 5000 unless given: so many two cores can take, together with those that send and answer
# them. RESOURCES: how many in place of a million. Needs wrk, nginx, and Postgres' own programs
# (Debian: apt-get install wrk nginx-light postgresql). Everything runs on the loopback; fsync is left on, so the
# directory for temporary files should be on a disk (TMPDIR).
set -eu
cd "$(dirname "$0")/../.."
top=$PWD
rate=${RATE:-5000}
resources=${RESOURCES:-1000000}
few=${FEW:-10000}
connections=${CONNECTIONS:-256}
program=${FENCEPOST:-$top/target/release/fencepost}
[ $# -gt 0 ] || set -- sqlite postgres crowded
ulimit -n "$(ulimit -Hn)"

work=$(mktemp -d)
chmod 755 "$work"
upstream= proxy= server= watcher=
stop() { [ -z "$1" ] || { kill "$1" 2>/dev/null && wait "$1" 2>/dev/null || true; }; }
trap 'stop "$watcher"; stop "$proxy"; stop "$upstream"; [ -z "$server" ] || as_postgres "$pg/pg_ctl -D $work/pg -m immediate stop" >/dev/null; rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Postgres does not run as root.
as_postgres() { if [ "$(id -u)" = 0 ]; then su postgres -s /bin/sh -c "$1"; else sh -c "$1"; fi; }
free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
until_it() { n=0; until "$@" >/dev/null 2>&1; do n=$((n + 1)); [ $n -lt 200 ] || { echo "never: $*" >&2; cat "$work/log" >&2; exit 1; }; sleep 0.1; done; }

nginx_port=$(free_port)
cat >"$work/nginx.conf" <<NGINX
daemon off;
worker_processes 1;
pid $work/nginx.pid;
error_log $work/nginx.log;
events { worker_connections 4096; }
http {
  access_log off;
  client_body_temp_path $work/body;
  keepalive_requests 1000000000;
  server {
    listen 127.0.0.1:$nginx_port;
    location / { add_header X-Due \$http_x_due; return 200 "ok"; }
  }
}
NGINX
nginx -c "$work/nginx.conf" 2>/dev/null &
upstream=$!

start_postgres() {
    pg=$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -V | tail -n 1)
    [ -n "$pg" ] || pg=$(dirname "$(command -v initdb)")
    pg_port=$(free_port)
    mkdir "$work/pg" && { [ "$(id -u)" != 0 ] || chown postgres "$work/pg"; }
    as_postgres "$pg/initdb -D $work/pg -A trust -U postgres" >/dev/null
    printf '%s\n' "port = $pg_port" "listen_addresses = '127.0.0.1'" "unix_socket_directories = ''" \
        "shared_buffers = '512MB'" "max_wal_size = '4GB'" >>"$work/pg/postgresql.conf"
    as_postgres "$pg/pg_ctl -D $work/pg -l $work/pg/log -w start" >/dev/null
    server=1
}

metric() { sed -n "s/^$1 //p" "$work/metrics"; }
# The most epochs that were open at once, looked at every second.
watch() {
    most=0
    while curl -sf "http://$admin/metrics" >"$work/metrics" 2>/dev/null; do
        open=$(metric fencepost_open_epochs)
        [ "${open:-0}" -le "$most" ] || { most=$open; echo "$most" >"$work/most"; }
        sleep 1
    done
}

# How long, at which rate, over how many resources, from which token on, how many requests at the most.
load() {
    wrk -t 1 -c "$connections" -d "$1s" -s "$top/benches/yard/scale.lua" --timeout 60s "http://$data" -- "$2" "$3" "$4" "$5" |
        tee -a "$work/wrk" | sed -n 's/^FIGURES //p'
}

report() {
    echo "$*" | awk '{ printf "%-9s %9d resources: %d/s; p50 %s ms, p99 %s ms, p99.9 %s ms, slowest %s ms; 503: %d; other: %d; broken: %d\n",
        $1, $2, $3, $4, $5, $6, $7, $9, $10, $11 }'
}

verdict=0
for case in "$@"; do
    rm -f "$work"/marks.db* "$work/most"
    cached=1000000
    case $case in
        sqlite) store="url: \"sqlite:$work/marks.db\", volatile: true" ;;
        crowded) store="url: \"sqlite:$work/marks.db\", volatile: true" cached=$((resources / 3)) ;;
        postgres)
            [ -n "$server" ] || start_postgres
            "$pg/psql" -q -h 127.0.0.1 -p "$pg_port" -U postgres -c 'DROP DATABASE IF EXISTS scale' -c 'CREATE DATABASE scale'
            store="url: \"postgres://postgres@127.0.0.1:$pg_port/scale\", namespace: scale"
            ;;
        *) echo "benches/yard/scale.sh: no case is called $case" >&2; exit 2 ;;
    esac
    cat >"$work/fencepost.yaml" <<YAML
listen: 127.0.0.1:0
upstream: { url: "http://127.0.0.1:$nginx_port" }
store: { $store, cached_marks: $cached }
admin: { listen: "127.0.0.1:0" }
log: { format: json }
routes: [{ path: "/orders/{id}", resource: "order:{id}" }]
YAML
    "$program" serve --config "$work/fencepost.yaml" >"$work/log" 2>&1 &
    proxy=$!
    until_it grep -q '"listening"' "$work/log"
    data=$(sed -n 's/.*"data":"\(127.0.0.1:[0-9]*\)".*/\1/p' "$work/log")
    admin=$(sed -n 's/.*"admin":"\(127.0.0.1:[0-9]*\)".*/\1/p' "$work/log")
    watch &
    watcher=$!

    load 10 "$rate" "$few" 1 0 >/dev/null
    small=$(load 60 "$rate" "$few" 1000000 0)
    report "$case" "$few" $small
    # Until each was touched once, and a minute more, in which the first of them are touched again.
    seconds=$((resources / rate + 60))
    large=$(load "$seconds" "$rate" "$resources" 2000000 0)
    report "$case" "$resources" $large
    kill -TERM "$proxy"
    before=$(date +%s.%N)
    wait "$proxy" || true
    proxy=
    took=$(echo "$(date +%s.%N) $before" | awk '{ printf "%.1f", $1 - $2 }')
    stop "$watcher"
    watcher=
    case $case in
        postgres) left=$("$pg/psql" -qtA -h 127.0.0.1 -p "$pg_port" -U postgres -d scale -c 'SELECT count(*) FROM instances WHERE state < 2') ;;
        *) left=$(python3 -c "import sqlite3; print(sqlite3.connect('$work/marks.db').execute('SELECT count(*) FROM instances WHERE state < 2').fetchone()[0])") ;;
    esac
    echo "$case: at most $(cat "$work/most") epochs open; a clean stop took $took s and left $left"
    echo "$small $large $left" | awk -v case="$case" '{
        ratio = $12 / $3
        met = ratio <= 3 && $7 == 0 && $16 == 0 && $19 == 0
        printf "%s: p99 at %s times its value; bars %s\n", case, sprintf("%.2f", ratio), met ? "met" : "MISSED"
        exit !met }' || verdict=1
done
exit $verdict
