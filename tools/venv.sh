#!/bin/bash
# Print the Python of a virtual environment with PyTorch and the schemas of Kubernetes, for the tests beside them. Made once, outside the tree, and used again:
# ${MUSTER_VENV:-/var/tmp/muster-venv}. `--check` only looks: fails when there is none that works.
set -euo pipefail

venv=${MUSTER_VENV:-/var/tmp/muster-venv}
torch=2.13.0
works() {
    [[ -x $venv/bin/python ]] && "$venv/bin/python" - "$torch" >/dev/null 2>&1 <<'PY'
import sys
import kubernetes_validate, numpy, pytest, torch
import torch.distributed
assert torch.__version__.split("+")[0] == sys.argv[1]
PY
}

if works; then
    echo "$venv/bin/python"
    exit
fi
[[ ${1:-} == --check ]] && exit 1
echo "tools/venv.sh: making $venv with torch $torch (a minute or two)" >&2
if [[ -e $venv && ! -e $venv/pyvenv.cfg ]]; then
    echo "tools/venv.sh: $venv is no virtual environment: move it away, or set MUSTER_VENV" >&2
    exit 1
fi
"$venv/bin/python" -c "" 2>/dev/null || {
    rm -rf "$venv"
    python3 -m venv "$venv"
}
# Takes what is there already: a half-made one is completed.
"$venv/bin/pip" install --quiet --disable-pip-version-check "torch==$torch" numpy pytest pytest-timeout jsonschema \
    kubernetes-validate >&2
works || {
    echo "tools/venv.sh: torch $torch or kubernetes-validate does not import from $venv" >&2
    exit 1
}
echo "$venv/bin/python"
