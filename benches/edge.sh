#!/bin/sh
# The long form of tests/suite/load.rs with the release build: 10,000 idle connections, slow clients by the
# thousand, bodies of 1 GiB, streams opened to be reset, slowhttptest and h2load for a minute each. Beside each of
# them a client sends a fenced request every 100 ms, and all have to be served. Prints one line of figures for each.
#
#   benches/edge.sh            all
#   benches/edge.sh idle       those whose name has this in it
#
# Takes about ten minutes, 2 GB of memory for the clients, and 20,000 file descriptors for each process.
set -eu
cd "$(dirname "$0")/.."
ulimit -n "$(ulimit -Hn)"
for tool in slowhttptest h2load; do
    command -v $tool >/dev/null || echo "benches/edge.sh: $tool is not installed; not measured: what it does" >&2
done
cargo build --locked --release --bin fencepost
top=$(cd "$(dirname "${CARGO_TARGET_DIR:-target}")" && pwd)/$(basename "${CARGO_TARGET_DIR:-target}")
FENCEPOST_MUTANT=$top/release/fencepost FENCEPOST_LONG=1 \
    cargo test --locked --test suite -- --test-threads=1 --nocapture "load::${1:-}" |
    sed -En 's/^test load::[a-z0-9_:]+ \.\.\. (load:|skipped)/\1/; /^(load:|test result|skipped)|FAILED|panicked/p'
