#!/bin/sh
# Instructions of each part that benches/micro measures, counted by callgrind (Debian: valgrind).
#
#   benches/instructions.sh              every part
#   benches/instructions.sh token key    these
#
# Prints a table. Each part runs few times and many; the difference divided by that of the counts
# leaves out the start of the program. Parts that use a store vary a little: threads and fsyncs.
set -eu
cd "$(dirname "$0")/.."
command -v valgrind >/dev/null || {
    echo "benches/instructions.sh: valgrind is not installed (Debian: apt-get install valgrind)" >&2
    exit 1
}

program=$(cargo bench --locked --bench micro --no-run --message-format=json |
    python3 -c '
import json, sys
for line in sys.stdin:
    said = json.loads(line)
    if said.get("executable") and said["target"]["name"] == "micro":
        print(said["executable"])')
[ $# -gt 0 ] || set -- $("$program" --names)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

count() {
    valgrind --tool=callgrind --callgrind-out-file="$work/out" "$program" --repeat "$1" "$2" \
        >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
    awk '$1 == "summary:" || $1 == "totals:" { print $2; exit }' "$work/out"
}

echo '| part | instructions |'
echo '|---|---|'
for part in "$@"; do
    case $part in
        lane*) few=20 more=120 ;;
        *) few=200 more=1200 ;;
    esac
    low=$(count "$part" "$few")
    high=$(count "$part" "$more")
    echo "| $part | $(((high - low) / (more - few))) |"
done
