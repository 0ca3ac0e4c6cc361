#!/bin/sh
# How long a dead instance's epochs take to be deleted, and what that costs the requests meanwhile: so many epochs of an
# instance that is dead are put on record, a proxy is started, and a steady rate of requests for other resources goes on
# while it waits until their work has settled, and then buries them.
#
#   cargo build --release && benches/burial.sh [sqlite|postgres]...
#
# Prints, for each: how long the deletion took from the first epoch to the last, looked at four times a second, and the
# latencies of the requests over all of it.
#
# EPOCHS: how many; RATE: requests per second. Needs wrk, nginx, and Postgres' own programs, as benches/scale.sh does.
set -eu
cd "$(dirname "$0")/.."
top=$PWD
epochs=${EPOCHS:-300000}
rate=${RATE:-500}
seconds=25
program=${FENCEPOST:-$top/target/release/fencepost}
[ $# -gt 0 ] || set -- sqlite postgres

work=$(mktemp -d)
chmod 755 "$work"
upstream= proxy= server= load=
stop() { [ -z "$1" ] || { kill "$1" 2>/dev/null && wait "$1" 2>/dev/null || true; }; }
trap 'stop "$load"; stop "$proxy"; stop "$upstream"; [ -z "$server" ] || as_postgres "$pg/pg_ctl -D $work/pg -m immediate stop" >/dev/null; rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Postgres does not run as root.
as_postgres() { if [ "$(id -u)" = 0 ]; then su postgres -s /bin/sh -c "$1"; else sh -c "$1"; fi; }
free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

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
    sql 'CREATE DATABASE burial' postgres
}
sql() { "$pg/psql" -qtA -h 127.0.0.1 -p "$pg_port" -U postgres -d "${2:-burial}" -c "$1"; }

# The dead instance has a name that none takes by chance.
dead=$(printf '%032d' 1)
for case in "$@"; do
    case $case in
        sqlite) store="url: \"sqlite:$work/marks.db\", volatile: true" ;;
        postgres)
            start_postgres
            store="url: \"postgres://postgres@127.0.0.1:$pg_port/burial\""
            ;;
        *) echo "benches/burial.sh: no case is called $case" >&2; exit 2 ;;
    esac
    cat >"$work/fencepost.yaml" <<YAML
listen: 127.0.0.1:0
upstream: { url: "http://127.0.0.1:$nginx_port", timeout: 1s, undelivered: 1s }
store: { $store, namespace: burial }
barrier: { settle: 2s }
admin: { listen: "127.0.0.1:0" }
log: { format: json }
routes: [{ path: "/orders/{id}", resource: "order:{id}" }]
YAML
    "$program" migrate --config "$work/fencepost.yaml" >/dev/null 2>&1
    case $case in
        sqlite) python3 - "$work/marks.db" "$epochs" "$dead" <<'FILL' ;;
import sqlite3, sys
store, most = sqlite3.connect(sys.argv[1]), int(sys.argv[2])
store.executemany("INSERT INTO epochs VALUES ('burial', ?, ?, ?, 1)",
                  (("old:%d" % (n * 7919 % most), sys.argv[3], n) for n in range(most)))
store.commit()
FILL
        postgres)
            sql "INSERT INTO epochs SELECT 'burial', 'old:' || n * 7919 % $epochs, '$dead', n, 1
                FROM generate_series(1, $epochs::bigint) AS n"
            ;;
    esac
    "$program" serve --config "$work/fencepost.yaml" >"$work/log" 2>&1 &
    proxy=$!
    n=0
    until grep -q '"listening"' "$work/log" 2>/dev/null; do
        n=$((n + 1))
        [ $n -lt 200 ] || { cat "$work/log" >&2; exit 1; }
        sleep 0.1
    done
    data=$(sed -n 's/.*"data":"\(127.0.0.1:[0-9]*\)".*/\1/p' "$work/log")
    wrk -t 1 -c 64 -d "${seconds}s" -s "$top/benches/scale.lua" --timeout 60s "http://$data" -- "$rate" 10000 1 0 >"$work/wrk" &
    load=$!
    python3 - "$case" "$work/marks.db" "$dead" "$epochs" "${pg:-}/psql" "${pg_port:-}" <<'LOOK'
import sqlite3, subprocess, sys, time

case, path, dead, epochs, psql, port = sys.argv[1:]
QUERY = "SELECT count(*) FROM epochs WHERE instance = '%s'" % dead

def left():
    if case == "postgres":
        shell = [psql, "-qtA", "-h", "127.0.0.1", "-p", port, "-U", "postgres", "-d", "burial", "-c", QUERY]
        return int(subprocess.run(shell, check=True, capture_output=True, text=True).stdout)
    store = sqlite3.connect("file:%s?mode=ro" % path, uri=True)
    try:
        return store.execute(QUERY).fetchone()[0]
    finally:
        store.close()

began = None
for _ in range(1200):
    now, count = time.monotonic(), left()
    if began is None and count < int(epochs):
        began = now - 0.25
    if count == 0:
        print("%-9s %s epochs deleted in %.1f s" % (case, epochs, now - began))
        break
    time.sleep(0.25)
else:
    sys.exit("%s: %d are left after five minutes" % (case, count))
LOOK
    wait "$load"
    load=
    sed -n 's/^FIGURES //p' "$work/wrk" | awk -v case="$case" '{
        printf "%-9s %d requests/s meanwhile: p50 %s ms, p99 %s ms, slowest %s ms; 503: %d; other: %d; broken: %d\n",
            case, $1, $2, $3, $5, $7, $8, $9 }'
    stop "$proxy"
    proxy=
done
