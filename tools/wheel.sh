#!/bin/bash
# Makes the wheel to hand on: muster_launch-VERSION-py3-none-manylinux_2_NN_x86_64.whl, with the libraries that the programs need inside.
#   tools/wheel.sh [DIR]        into DIR (dist); prints its path
#   MUSTER_BUILDS=DIR           where it is built, to be built upon again (build)
#   MUSTER_WHEEL_VENV=DIR       the virtual environment with the build tools, made once (/var/tmp/muster-wheel-venv)
set -euo pipefail
cd "$(dirname "$0")/.."

venv=${MUSTER_WHEEL_VENV:-/var/tmp/muster-wheel-venv}
build=$(realpath -m "${MUSTER_BUILDS:-build}/wheel")
to=$(realpath -m "${1:-dist}")

works() { "$venv/bin/python" -c "import scikit_build_core, wheel, elftools" 2>/dev/null; }
works || {
    echo "tools/wheel.sh: making $venv with scikit-build-core" >&2
    if [[ -e $venv && ! -e $venv/pyvenv.cfg ]]; then
        echo "tools/wheel.sh: $venv is no virtual environment: move it away, or set MUSTER_WHEEL_VENV" >&2
        exit 1
    fi
    python3 -m venv "$venv" && "$venv/bin/pip" install --quiet --disable-pip-version-check "scikit-build-core>=0.10" wheel pyelftools >&2
    works || {
        echo "tools/wheel.sh: scikit-build-core cannot be had: pip must reach its index" >&2
        exit 1
    }
}

log=$(mktemp "${TMPDIR:-/tmp}/muster-wheel.XXXXXX")
made=$(mktemp -d "${TMPDIR:-/tmp}/muster-wheel.XXXXXX")
trap 'rm -rf "$log" "$made"' EXIT
"$venv/bin/python" -m pip wheel . --no-deps --no-build-isolation --disable-pip-version-check --config-settings="build-dir=$build" -w "$made" \
    >"$log" 2>&1 || {
    tail -60 "$log" >&2
    echo "tools/wheel.sh: the wheel could not be built" >&2
    exit 1
}
mkdir -p "$to"
"$venv/bin/python" tools/wheel_check.py "$made"/*.whl >"$log" || {
    cat "$log" >&2
    exit 1
}
"$venv/bin/python" -m wheel tags --remove --platform-tag "$(<"$log")" "$made"/*.whl >/dev/null
rm -f "$to"/muster_launch-*.whl
mv "$made"/*.whl "$to/"
echo "$to"/muster_launch-*.whl
