#!/bin/sh
# Fault histories, one after the other, for as long as you like (tests/suite/fencing/fire.rs).
#
#   tests/soak.sh MINUTES SEED     from this seed on
#
# Prints counts each minute: histories, requests, forwards, refusals by kind, waits, faults by kind
# and point, violations. Ends with 0 if no history broke a rule, and every kind of thing occurred. A
# history that does break one lies in target/fire/SEED.log, with the command that plays it again;
# the soak goes on.
set -eu
cd "$(dirname "$0")/.."

if [ $# -ne 2 ]; then
    sed -n 's/^# \{0,1\}//; 2,4p' "$0" >&2
    exit 2
fi
export FENCEPOST_FIRE_MINUTES="$1" FENCEPOST_FIRE_SEED="$2"
exec cargo test --locked --test suite -- fencing::fire::histories --exact --nocapture
