"""The Kubernetes manifests of the guide are what Kubernetes takes."""
import os
import subprocess

import pytest
from conftest import HERE, ROOT, TORCH_PYTHON


def test_manifests_pass_their_schemas():
    has = os.path.exists(TORCH_PYTHON) and subprocess.run([TORCH_PYTHON, "-c", "import kubernetes_validate"], capture_output=True,
                                                          timeout=60, check=False).returncode == 0
    if not has:
        pytest.skip(f"{TORCH_PYTHON} has no kubernetes-validate: tools/venv.sh installs it, or MUSTER_TORCH_PYTHON names a Python that does")
    p = subprocess.run([TORCH_PYTHON, HERE / "kubernetes_cases.py", ROOT], capture_output=True, text=True, timeout=120, check=False)
    print(p.stdout, p.stderr)
    assert p.returncode == 0 and p.stdout.count(": valid") == 4, p.stdout + p.stderr
