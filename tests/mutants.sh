#!/bin/sh
# Shows that the suite catches what it is there to catch: each patch in tests/mutants breaks one
# guarantee, and at least one of the tests it names must fail on the program so broken: tests of the
# suite (`caught by`), or tests whose code is in the program (`caught inside by`), which reach what no
# client can bring about at will. And that the model does: each of its mutants must have a
# counterexample.
#
#   tests/mutants.sh              every mutant, and those of the model
#   tests/mutants.sh NAME...      only these patches
#   tests/mutants.sh --build DIR  builds them into an empty directory below target, and no more
#   tests/mutants.sh --built DIR  every mutant, with what was built there
#
# All patches are applied to one copy of the tree, in the order of their names, and built once: each
# breaks the program only where `crate::mutant` says its name, which is the folder's that the
# program is run from. Run from another one, none does, and every test that is to catch a mutant
# must pass: then it is the mutant that it catches.
#
# A mutant that survives beside others is met once more, alone, and both outcomes are printed: the
# machine may have been too busy for what the test waits for.
#
# A patch that does not apply any more is made again: apply those before it to a copy, make the
# change, `diff -U1`. A line that two patches change is changed by the later one on top of the
# earlier. Context that has changed is no match: without it, a patch may land anywhere.
#
# The suite is the one of the tree itself, so nothing but the program differs. The tests inside are
# built with all patches, and run from a folder of the mutant's name as well.
set -eu
cd "$(dirname "$0")/.."
top=$PWD
mkdir -p target
mode=
case ${1-} in
    --build | --built)
        mode=$1
        work=$top/$2
        shift 2
        ;;
    *) work=$top/$(mktemp -d target/mutants.XXXXXX) ;;
esac
# pid:name of those that are being tested.
testing=
[ "$mode" = --build ] ||
    trap 'for one in $testing; do kill "${one%%:*}" 2>/dev/null || true; done; wait; rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

model=
[ $# -gt 0 ] || model=too
[ $# -gt 0 ] || set -- $(cd tests/mutants && ls ./*.patch | sed 's|^\./||; s|\.patch$||')
for name in "$@"; do
    [ -f "tests/mutants/$name.patch" ] || { echo "tests/mutants.sh: there is no tests/mutants/$name.patch" >&2; exit 2; }
done

echo "tests/mutants.sh: building the suite"
cargo test --locked --test suite --no-run 2>"$work/build.log" || { cat "$work/build.log"; exit 1; }
suite=$(sed -n 's/^ *Executable .*(\(.*suite-[0-9a-f]*\))$/\1/p' "$work/build.log" | tail -n 1)
[ -n "$suite" ] || { echo "tests/mutants.sh: the suite's binary was not found"; cat "$work/build.log"; exit 1; }
case $suite in /*) ;; *) suite=$top/$suite ;; esac

build() {
    echo "tests/mutants.sh: building the mutants"
    rm -rf "$work/tree" "$work/target"
    mkdir "$work/tree"
    cp -R Cargo.toml Cargo.lock build.rs src benches docs "$work/tree/"
    # With its times: younger than what was built of it, it would be built again, and all that rests on
    # it.
    cp -Rp vendor "$work/tree/"
    # An empty suite, built along: without it cargo would build the dependencies again, with fewer
    # features.
    mkdir -p "$work/tree/tests/suite" && echo 'fn main() {}' >"$work/tree/tests/suite/main.rs"
    # The other packages of the workspace, which cargo looks for.
    cp -R tests/model "$work/tree/tests/"
    cp -R conformance "$work/tree/"
    mkdir "$work/tree/fuzz" && cp -R fuzz/Cargo.toml fuzz/src fuzz/fuzz_targets "$work/tree/fuzz/"
    for patch in tests/mutants/*.patch; do
        (cd "$work/tree" && patch -p1 -F0 -s --no-backup-if-mismatch <"$top/$patch") ||
            { echo "$patch does not apply any more: make it anew"; exit 1; }
    done
    cat >>"$work/tree/src/lib.rs" <<'MUTANT'

/// Returns whether this is to be that mutant: the program is run from a folder of its name.
pub(crate) fn mutant(name: &str) -> bool {
    static NAME: std::sync::LazyLock<Option<std::ffi::OsString>> = std::sync::LazyLock::new(|| {
        let program = std::env::current_exe().ok()?;
        Some(program.parent()?.file_name()?.to_owned())
    });
    NAME.as_deref().is_some_and(|own| own == name)
}
MUTANT
    # The dependencies are those of the suite, already built: linked, not copied. The parts of the
    # program itself is not: cargo knows it by the same name in both trees, writes its accounts in
    # place, and would take a mutant for the program, or the program for a mutant.
    built=$(dirname "$(dirname "$suite")")
    mkdir -p "$work/target/debug"
    cp -al "$built/deps" "$built/build" "$built/.fingerprint" "$work/target/debug/"
    rm -rf "$work"/target/debug/.fingerprint/fencepost-* "$work"/target/debug/build/fencepost-* \
        "$work"/target/debug/deps/*fencepost* "$work"/target/debug/deps/suite-*
    if ! (cd "$work/tree" && CARGO_TARGET_DIR="$work/target" CARGO_PROFILE_DEV_DEBUG=0 CARGO_INCREMENTAL=0 \
        cargo test --locked --lib --test suite --no-run) >"$work/build.log" 2>&1; then
        cat "$work/build.log"
        exit 1
    fi
    sed -n 's/^ *Executable unittests .*(\(.*\))$/\1/p' "$work/build.log" >"$work/inside.path"
}

[ "$mode" = --built ] && [ -s "$work/inside.path" ] || build
[ "$mode" != --build ] || exit 0
inside=$(cat "$work/inside.path")

# The tests that are to catch mutants: those of the suite, and those inside.
outside_for() { for name in "$@"; do sed -n 's/^# caught by: //p' "tests/mutants/$name.patch"; done; }
inside_for() { for name in "$@"; do sed -n 's/^# caught inside by: //p' "tests/mutants/$name.patch"; done; }

"$suite" --list >"$work/outside.list"
"$inside" --list >"$work/inside.list"
for test in $(outside_for "$@"); do
    grep -qF "$test" "$work/outside.list" || { echo "the suite has no test $test"; exit 1; }
done
for test in $(inside_for "$@"); do
    grep -qF "$test" "$work/inside.list" || { echo "the program has no test $test"; exit 1; }
done

# Has tests of the suite and tests inside meet the program as it is in a folder of this name.
meet() {
    folder=$1 tests=$2 tests_inside=$3
    shift 3
    mkdir -p "$work/$folder"
    ln "$work/target/debug/fencepost" "$work/$folder/fencepost"
    ln "$inside" "$work/$folder/inside"
    (
        export FENCEPOST_MUTANT="$work/$folder/fencepost" RUST_BACKTRACE=0
        export RUST_TEST_THREADS=$threads
        # shellcheck disable=SC2086 # lists of filters
        [ -z "$tests_inside" ] || timeout 600 "$work/$folder/inside" $tests_inside || exit
        # shellcheck disable=SC2086
        [ -z "$tests" ] || exec timeout 600 "$suite" "$@" $tests
    ) >"$work/$folder/log" 2>&1 &
    testing="$testing $!:$folder"
}

caught=0 survived=0 broken=0
# Mutants that no test has noticed beside others, and tests that fail without one.
survivors='' unsound=''

# Waits for the end of a pid:name; how it ended.
judge() {
    folder=${1#*:}
    log=$work/$folder/log
    ended=0
    wait "${1%%:*}" || ended=$?
    passed=$(awk '/^test result: / { sum += $4 } END { print sum + 0 }' "$log")
    first=$(sed -n 's/^test \(.*\) \.\.\. FAILED$/\1/p' "$log" | head -n 1)
    if [ "$ended" -eq 0 ] && [ "$passed" -gt 0 ]; then
        end=passed
    elif [ -n "$first" ]; then
        end=failed
    else
        end=nothing
        echo "$folder: the suite did not run"
        tail -n 20 "$log"
    fi
}

# Takes one that has ended from those that are being tested, and judges it.
next() {
    while :; do
        for one in $testing; do
            # The process of one that has ended stays as a zombie until `judge` waits for it.
            if ! grep -qs '^State:.[^Z]' "/proc/${one%%:*}/status"; then
                testing=$(for other in $testing; do [ "$other" = "$one" ] || echo "$other"; done)
                judge "$one"
                return
            fi
        done
        sleep 0.1
    done
}

# Says how it has fared.
report() {
    case $folder:$end in
        none*:passed) echo "$folder: $passed tests pass" ;;
        none:failed)
            cat "$log"
            unsound=$(sed -n 's/^test \(.*\) \.\.\. FAILED$/\1/p' "$log")
            ;;
        none-again:failed | none-inside:failed)
            cat "$log"
            echo "$folder: $first fails where nothing is broken, so what is caught may be nothing"
            exit 1
            ;;
        alone/*:passed)
            echo "$folder: SURVIVED ($(sed -n 's/^# breaks //p' "tests/mutants/${folder#alone/}.patch"))"
            survived=$((survived + 1))
            ;;
        *:passed)
            echo "$folder: survived beside others; it is met once more, alone"
            survivors="$survivors $folder"
            ;;
        *:failed)
            echo "$folder: caught by $(grep -c ' \.\.\. FAILED$' "$log"), $first among them"
            caught=$((caught + 1))
            ;;
        *:nothing) broken=$((broken + 1)) ;;
    esac
}

# Returns whether this many are being tested.
busy() {
    most=$1
    # shellcheck disable=SC2086 # a list
    set -- $testing
    [ $# -ge "$most" ]
}

# Says how all have fared but so many.
drain() { while busy "$(($1 + 1))"; do next && report; done; }

# The program with no mutant, whose tests must pass. They are as many as those of all mutants.
threads=$(($(nproc) * 6))
meet none "$(outside_for "$@")" ''
threads=$(($(nproc) * 2))
meet none-inside '' "$(inside_for "$@")"
# A test that notices has mostly waited in vain: many are met at a time.
for name in "$@"; do
    drain 15
    meet "$name" "$(outside_for "$name")" "$(inside_for "$name")"
done
drain 0
if [ -n "$unsound" ]; then
    meet none-again "$unsound" '' --test-threads=1 --exact
    drain 0
fi
for name in $survivors; do
    meet "alone/$name" "$(outside_for "$name")" "$(inside_for "$name")"
    drain 0
done
echo "tests/mutants.sh: $caught caught, $survived survived, $broken not to be used"

if [ -n "$model" ]; then
    echo "tests/mutants.sh: the model's"
    cargo test --locked -p fencepost-model --target-dir target/model --test mutants -- --nocapture >"$work/model.log" 2>&1 ||
        { cat "$work/model.log"; exit 1; }
    grep ' steps to ' "$work/model.log"
fi
[ "$survived" -eq 0 ] && [ "$broken" -eq 0 ]
