#!/bin/bash
# Print the Python of a virtual environment for the tests beside other people's programs. Made once, outside the tree, and used again:
#   tools/venv.sh               PyTorch and the schemas of Kubernetes, in ${MUSTER_VENV:-/var/tmp/muster-venv}
#   tools/venv.sh --frameworks  also accelerate, Lightning and transformers, in ${MUSTER_FRAMEWORKS_VENV:-/var/tmp/muster-frameworks-venv},
#                               which sees the first one's packages: PyTorch is there once
#   tools/venv.sh --api         Schemathesis, which holds the HTTP interface against its document, in ${MUSTER_API_VENV:-/var/tmp/muster-api-venv}
# `--check` only looks: fails when there is none that works.
set -euo pipefail

venv=${MUSTER_VENV:-/var/tmp/muster-venv}
torch=2.13.0
more=${MUSTER_FRAMEWORKS_VENV:-/var/tmp/muster-frameworks-venv}
api=${MUSTER_API_VENV:-/var/tmp/muster-api-venv}
schemathesis=4.32.5
more_wanted=$(dirname "$0")/../tests/compat/frameworks/requirements.txt

torch_works() {
    [[ -x $venv/bin/python ]] && "$venv/bin/python" - "$torch" >/dev/null 2>&1 <<'PY'
import sys
import kubernetes_validate, numpy, pytest, torch
import torch.distributed
assert torch.__version__.split("+")[0] == sys.argv[1]
PY
}

# Importing them takes half a minute: the versions must do.
frameworks_work() {
    [[ -x $more/bin/python ]] && "$more/bin/python" - "$torch" "$more_wanted" >/dev/null 2>&1 <<'PY'
import sys
from importlib.metadata import version
assert version("torch").split("+")[0] == sys.argv[1]
for line in open(sys.argv[2], encoding="utf-8"):
    if not line.startswith("#"):
        name, _, wanted = line.strip().partition("==")
        assert version(name) == wanted, line
PY
}

give_up() {
    echo "tools/venv.sh: $*" >&2
    exit 1
}

# fresh FOLDER VARIABLE [OPTIONS...]: a virtual environment, unless a half-made one is there that can be completed.
fresh() {
    local folder=$1 variable=$2
    shift 2
    if [[ -e $folder && ! -e $folder/pyvenv.cfg ]]; then
        give_up "$folder is no virtual environment: move it away, or set $variable"
    fi
    "$folder/bin/python" -c "" 2>/dev/null || {
        rm -rf "$folder"
        python3 -m venv "$@" "$folder"
    }
}

with_torch() {
    torch_works && return
    [[ $check ]] && exit 1
    echo "tools/venv.sh: making $venv with torch $torch (a minute or two)" >&2
    fresh "$venv" MUSTER_VENV
    "$venv/bin/pip" install --quiet --disable-pip-version-check "torch==$torch" numpy pytest pytest-timeout jsonschema \
        kubernetes-validate >&2
    torch_works || give_up "torch $torch or kubernetes-validate does not import from $venv"
}

with_frameworks() {
    frameworks_work && return
    [[ $check ]] && exit 1
    echo "tools/venv.sh: making $more with accelerate, Lightning and transformers (a minute)" >&2
    fresh "$more" MUSTER_FRAMEWORKS_VENV --without-pip # The first one's does.
    "$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$("$more/bin/python" -c \
        'import sysconfig; print(sysconfig.get_path("purelib"))')/with-torch.pth"
    "$more/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-compile -r "$more_wanted" >&2
    # Compiles what the tests import, which is a tenth of all that is there.
    env -u PYTHONDONTWRITEBYTECODE "$more/bin/python" -c "import accelerate, lightning; from transformers import BertForSequenceClassification, Trainer" >&2
    frameworks_work || give_up "$more lacks something of $more_wanted"
}

with_api() {
    [[ $("$api/bin/schemathesis" --version 2>/dev/null) == *" $schemathesis" ]] && return
    [[ $check ]] && exit 1
    echo "tools/venv.sh: making $api with Schemathesis $schemathesis (half a minute)" >&2
    fresh "$api" MUSTER_API_VENV
    "$api/bin/pip" install --quiet --disable-pip-version-check "schemathesis==$schemathesis" >&2 || give_up "no Schemathesis in $api"
}

check=
python=$venv/bin/python
for arg in "$@"; do
    case $arg in
    --check) check=1 ;;
    --frameworks) python=$more/bin/python ;;
    --api) python=$api/bin/python ;;
    *)
        echo "usage: tools/venv.sh [--frameworks|--api] [--check]" >&2
        exit 2
        ;;
    esac
done
if [[ $python == "$api/bin/python" ]]; then
    with_api
    echo "$python"
    exit
fi
with_torch
[[ $python == "$venv/bin/python" ]] || with_frameworks
echo "$python"
