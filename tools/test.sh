#!/bin/bash
# All tests. Installs what is missing, builds twice (with sanitizers, and optimised), and runs every label; the last line counts.
#   tools/test.sh              everything
#   tools/test.sh --fast       units, simulation and gates, in under two minutes
#   tools/test.sh --no-skips   a skipped test is a failure
#   MUSTER_BUILDS=DIR          where the builds are made (build)
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

fast=
skips=()
for arg in "$@"; do
    case $arg in
    --fast) fast=1 ;;
    --no-skips) skips=(--no-skips) ;;
    *)
        echo "usage: tools/test.sh [--fast] [--no-skips]" >&2
        exit 2
        ;;
    esac
done

builds=${MUSTER_BUILDS:-build}
results=$(mktemp -d "${TMPDIR:-/tmp}/muster-test.XXXXXX")
trap 'rm -rf "$results"' EXIT
say() { printf '\n== %s (%d s)\n' "$*" "$SECONDS"; }
give_up() {
    echo "tools/test.sh: $*"
    echo "0 passed, 1 failed, 0 skipped"
    exit 1
}

# build PRESET [CMAKE_ARGS...]
build() {
    local preset=$1
    shift
    say "build: $preset"
    cmake --preset "$preset" -B "$builds/$preset" "$@" >"$results/log" 2>&1 && cmake --build "$builds/$preset" >"$results/log" 2>&1 && return
    tail -60 "$results/log"
    give_up "the build of $preset failed"
}

# run PRESET LABELS [CTEST_ARGS...]: one JUnit file each; failures are counted at the end, all labels run.
run() {
    local preset=$1 labels=$2
    shift 2
    say "test: $labels on $preset"
    ctest --test-dir "$builds/$preset" -L "^($labels)\$" --output-on-failure --no-tests=ignore --test-output-size-passed 4000000 \
        --test-output-size-failed 4000000 --output-junit "$results/$preset-${labels//|/-}.xml" "$@" | sed 's/^/    /'
}

say "what the tests need"
if [[ $fast ]]; then
    tools/deps.sh build || give_up "packages are missing"
    command -v clang-format-14 >/dev/null && [[ -e /usr/include/cmocka.h ]] || tools/deps.sh test || give_up "packages are missing"
else
    tools/deps.sh test || give_up "packages are missing"
    MUSTER_TORCH_PYTHON=$(tools/venv.sh) || give_up "no virtual environment with PyTorch"
    MUSTER_FRAMEWORKS_PYTHON=$(tools/venv.sh --frameworks) || give_up "no virtual environment with accelerate, Lightning and transformers"
    MUSTER_PROMTOOL=$(tools/promtool.sh) || give_up "no promtool"
    MUSTER_API_PYTHON=$(tools/venv.sh --api) || give_up "no virtual environment with Schemathesis"
    export MUSTER_API_PYTHON MUSTER_PROMTOOL MUSTER_TORCH_PYTHON MUSTER_FRAMEWORKS_PYTHON
fi

if [[ $fast ]]; then
    build dev
    run dev "unit|sim|gate" -j2
else
    build dev
    build release
    run dev "unit|gate|fuzz" -j2
    run dev "sim"
    run release "unit|sim|proof"
    # These use the whole machine, other people's programs and their time-outs: one at a time, and once more where one fails, which the
    # log shows. A fault of ours fails twice.
    run release "blackbox" --repeat until-pass:2
    run release "compat" --repeat until-pass:2
    run release "lab" --repeat until-pass:2
fi

say "summary"
python3 tools/summary.py "${skips[@]}" "$results"/*.xml
