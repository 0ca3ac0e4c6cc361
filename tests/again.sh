#!/bin/sh
# Runs `cargo test` with these arguments. A test that fails beside others is run again once, alone,
# and both outcomes are printed: on a machine that others use too, a deadline may pass that is long
# enough otherwise.
#
#   tests/again.sh --locked -- --skip fire::
#
# Not run again: a test that catches a mutant or plays with crashes, since it may have seen a broken
# guarantee; and every test where more than five fail.
#
# A test that never ends is ended after half an hour, with all others, and named.
set -eu
cd "$(dirname "$0")/.."

log=$(mktemp)
pid=$(mktemp)
# The tests that were left out, since FENCEPOST_SKIP names their tools.
FENCEPOST_IGNORED=$(mktemp)
export FENCEPOST_IGNORED
# `timeout` puts its command into a process group of its own, which Ctrl-C does not reach.
trap 'kill "$(cat "$pid")" 2>/dev/null || true; rm -f "$log" "$pid" "$FENCEPOST_IGNORED"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Which tests show guarantees: beginnings of their names, one per line.
guarantees() {
    printf '%s\n' fencing::concurrency:: fencing::crash:: store::failover:: fencing::fire:: operations::operator:: fencing::rolling::
    sed -n 's/^# caught by: //p' tests/mutants/*.patch | tr -s ', ' '\n\n'
}

tests() {
    sh -c 'echo $$ >"$0"; exec timeout --kill-after=10 1800 cargo test --no-fail-fast "$@"' "$pid" "$@"
}

# A pipe has the status of its last command, so cargo's goes along in the text.
{ tests "$@" && printf '\nstatus: 0\n' || printf '\nstatus: %s\n' "$?"; } 2>&1 |
    tee "$log" | sed -u '/^status: [0-9]*$/d'
: >"$pid"
sort -u "$FENCEPOST_IGNORED"
ended=$(sed -n 's/^test result: .* \([0-9]*\) passed; \([0-9]*\) failed;.*/\1 \2/p' "$log" | awk '{ sum += $1 + $2 } END { print sum + 0 }')
ignored=$(sed 's/ \.\.\. ignored.*//' "$FENCEPOST_IGNORED" | sort -u | wc -l)
echo "tests/again.sh: $((ended - ignored)) tests ran; $ignored ignored, or ran in part"
status=$(tail -n 1 "$log")
[ "$status" != "status: 0" ] || exit 0
if [ "$status" = "status: 124" ] || [ "$status" = "status: 137" ]; then
    echo "tests/again.sh: ended after half an hour; these tests ran for over a minute, and had not ended:" >&2
    sed -n 's/^test \(.*\) has been running for over 60 seconds$/\1/p' "$log" | while read -r name; do
        grep -q "^test $name \.\.\. " "$log" || echo "    $name" >&2
    done
    exit 1
fi

failed=$(sed -n 's/^test \(.*\) \.\.\. FAILED$/\1/p' "$log")
told=$(sed -n 's/^test result: FAILED\. .* \([0-9]*\) failed;.*/\1/p' "$log" | awk '{ sum += $1 } END { print sum + 0 }')
# shellcheck disable=SC2086 # a list
set -- $failed
if [ $# -eq 0 ] || [ $# -ne "$told" ] || [ $# -gt 5 ]; then
    echo "tests/again.sh: failed tests: $told; none is run again" >&2
    exit 1
fi
end=0
for name in "$@"; do
    if guarantees | awk -v name="$name" '$0 != "" && index(name, $0) == 1 { found = 1 } END { exit !found }'; then
        echo "tests/again.sh: $name failed; it shows that a guarantee holds, so it is not run again" >&2
        end=1
    elif timeout --kill-after=10 600 cargo test --locked -- --exact "$name" >"$log" 2>&1 && grep -q '^test result: ok\. 1 passed' "$log"; then
        echo "tests/again.sh: $name failed beside others, and passed alone" >&2
    else
        cat "$log"
        echo "tests/again.sh: $name failed beside others, and failed alone" >&2
        end=1
    fi
done
exit $end
