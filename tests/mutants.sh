#!/bin/sh
# Shows that the suite catches what it is there to catch: each patch in tests/mutants breaks one
# guarantee, and at least one of the tests it names must fail on the program so broken. And that the
# model does: each of its mutants must have a counterexample.
#
#   tests/mutants.sh              every mutant, and those of the model
#   tests/mutants.sh NAME...      only these patches
#
# The mutants are built in a copy of the tree. The suite is the one of the tree itself, so nothing but
# the program differs; tests whose code is in the program are left to `cargo test`.
set -eu
cd "$(dirname "$0")/.."
top=$PWD
mkdir -p target
work=$(mktemp -d target/mutants.XXXXXX)
work=$top/$work
lanes=
# shellcheck disable=SC2086 # a list
trap '[ -z "$lanes" ] || { kill $lanes 2>/dev/null || true; wait; }; rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

echo "tests/mutants.sh: building the suite"
cargo test --locked --test suite --no-run 2>"$work/build.log" || { cat "$work/build.log"; exit 1; }
suite=$(sed -n 's/^ *Executable .*(\(.*suite-[0-9a-f]*\))$/\1/p' "$work/build.log" | tail -n 1)
[ -n "$suite" ] || { echo "tests/mutants.sh: the suite's binary was not found"; cat "$work/build.log"; exit 1; }
case $suite in /*) ;; *) suite=$top/$suite ;; esac

# The dependencies are those of the suite, already built: linked, not copied. What belongs to the program
# itself is not: cargo knows it by the same name in both trees, writes its accounts in place, and would
# take a mutant for the program, or the program for a mutant.
built=$(dirname "$(dirname "$suite")")
model=
[ $# -gt 0 ] || model=too
[ $# -gt 0 ] || set -- $(cd tests/mutants && ls ./*.patch | sed 's|^\./||; s|\.patch$||')

# Links the dependencies into $work/target.
stock() {
    mkdir -p "$work/target/debug"
    cp -al "$built/deps" "$built/build" "$built/.fingerprint" "$work/target/debug/"
    rm -rf "$work"/target/debug/.fingerprint/fencepost-* "$work"/target/debug/build/fencepost-* \
        "$work"/target/debug/deps/*fencepost* "$work"/target/debug/deps/suite-*
}

# Builds the mutant as $work/$1/fencepost; says why not.
build() {
    rm -rf "$work/tree"
    mkdir "$work/tree"
    cp -R Cargo.toml Cargo.lock src benches "$work/tree/" 2>/dev/null || cp -R Cargo.toml Cargo.lock src "$work/tree/"
    # An empty suite, built along: without it cargo would build the dependencies anew, with fewer features.
    mkdir -p "$work/tree/tests/suite" && echo 'fn main() {}' >"$work/tree/tests/suite/main.rs"
    # The other packages of the workspace, which cargo looks for.
    cp -R tests/model "$work/tree/tests/"
    mkdir "$work/tree/fuzz" && cp -R fuzz/Cargo.toml fuzz/src fuzz/fuzz_targets "$work/tree/fuzz/"
    if ! (cd "$work/tree" && patch -p1 -s --no-backup-if-mismatch <"$top/tests/mutants/$1.patch"); then
        echo "$1: the patch does not apply any more; make it anew"
        return 1
    fi
    if ! (cd "$work/tree" && CARGO_TARGET_DIR="$work/target" CARGO_PROFILE_DEV_DEBUG=0 \
        nice -n 19 cargo build --locked --quiet --bin fencepost --test suite) >"$work/mutant.log" 2>&1; then
        echo "$1: does not build"
        cat "$work/mutant.log"
        return 1
    fi
    mkdir "$work/$1"
    cp "$work/target/debug/fencepost" "$work/$1/fencepost"
}

# Has the suite meet the mutant.
meet() {
    tests=$(sed -n 's/^# caught by: //p' "tests/mutants/$1.patch")
    # shellcheck disable=SC2086 # a list of filters
    FENCEPOST_MUTANT="$work/$1/fencepost" RUST_BACKTRACE=0 timeout 600 "$suite" $tests >"$work/$1/log" 2>&1 &
    testing="$testing $!:$1"
}

# Waits for the end of the oldest, and says how it went.
judge() {
    # shellcheck disable=SC2086 # a list
    set -- $testing
    tested=${1#*:}
    pid=${1%%:*}
    shift
    testing=$*
    if wait "$pid"; then
        echo "$tested: SURVIVED ($(sed -n 's/^# breaks //p' "tests/mutants/$tested.patch"))"
        survived=$((survived + 1))
    else
        first=$(sed -n 's/^test \(.*\) \.\.\. FAILED$/\1/p' "$work/$tested/log" | head -n 1)
        if [ -z "$first" ]; then
            echo "$tested: the suite did not run"
            tail -n 20 "$work/$tested/log"
            broken=$((broken + 1))
        else
            echo "$tested: caught by $(grep -c ' \.\.\. FAILED$' "$work/$tested/log"), $first among them"
            caught=$((caught + 1))
        fi
    fi
}

# Whether so many are being tested.
busy() {
    most=$1
    # shellcheck disable=SC2086 # a list
    set -- $testing
    [ $# -ge "$most" ]
}

# Takes every second of the mutants, from the $1st on, in a folder of its own. A compiler keeps one core busy, and a
# test that notices has mostly waited in vain: two are tested while the next is built.
lane() {
    mine=$1
    shift
    work=$work/$mine
    # pid:name of those that are being tested, the oldest first.
    testing=
    trap 'for one in $testing; do kill "${one%%:*}" 2>/dev/null; done' EXIT
    trap 'exit 143' TERM
    caught=0
    survived=0
    broken=0
    stock
    at=0
    for name in "$@"; do
        at=$((at + 1))
        [ $((at % 2)) -eq $((mine % 2)) ] || continue
        if build "$name"; then
            while busy 2; do judge; done
            meet "$name"
        else
            broken=$((broken + 1))
        fi
    done
    while busy 1; do judge; done
    echo "$caught $survived $broken" >"$work/tally"
}

for n in 1 2; do
    (lane $n "$@") &
    lanes="$lanes $!"
done
# shellcheck disable=SC2086 # a list
for one in $lanes; do wait "$one"; done
lanes=
set -- $(cat "$work/1/tally" "$work/2/tally")
caught=$(($1 + $4)) survived=$(($2 + $5)) broken=$(($3 + $6))
echo "tests/mutants.sh: $caught caught, $survived survived, $broken not to be used"
if [ -n "$model" ]; then
    echo "tests/mutants.sh: the model's"
    cargo test --locked -p fencepost-model --test mutants -- --nocapture >"$work/model.log" 2>&1 ||
        { cat "$work/model.log"; exit 1; }
    grep ' steps to ' "$work/model.log"
fi
[ "$survived" -eq 0 ] && [ "$broken" -eq 0 ]
