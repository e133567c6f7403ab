#!/bin/bash
# Show that the simulation can fail: bring each planted bug into a copy of the cores, and demand that some seed finds it.
# Usage: find_bugs.sh SOURCE_DIR CFLAGS...   (libraries' flags for cJSON and uthash)
set -euo pipefail
src=$1; shift
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
found=0; missed=0
for patch in "$src"/tests/sim/bugs/*.patch; do
    name=$(basename "$patch" .patch)
    rm -rf "$work/copy"; mkdir -p "$work/copy/agent" "$work/copy/rendezvous" "$work/copy/tests"
    cp -r "$src/base" "$work/copy/"; cp -r "$src/agent/life" "$work/copy/agent/"
    cp -r "$src/rendezvous/job" "$work/copy/rendezvous/"; cp -r "$src/tests/sim" "$work/copy/tests/"
    patch -s -p1 -d "$work/copy" < "$patch" || { echo "$name: does not apply any more: write it anew"; exit 1; }
    (cd "$work/copy" && cc -std=c11 -D_GNU_SOURCE -O1 -g -I. "$@" -o "$work/sim" \
        base/check.c base/err.c base/mem.c base/str.c base/parse.c base/json.c base/cause.c base/ctl.c \
        rendezvous/job/*.c agent/life/*.c tests/sim/main.c tests/sim/world.c -lcjson -lm)
    # What the simulation says goes out, so that the log shows which invariant broke and by which seed.
    if out=$("$work/sim" --seed 1 --count 60000 --jobs 2 2>&1); then
        echo "$name: NOT found in 60000 seeds"; missed=$((missed + 1))
    else
        echo "$name: found: $(grep -m1 -E 'seed [0-9]+:|internal error' <<< "$out")"; found=$((found + 1))
    fi
done
echo "$found planted bugs found, $missed missed"
[ "$missed" = 0 ] && [ "$found" -ge 3 ]
