"""docs/openapi.json as Schemathesis reads it from a running server: hundreds of requests that the document allows and forbids, made up
from it, each answer held against it. The stream of events, which never ends, is tests/blackbox/test_server_events.py's."""
import json
import os
import subprocess
import urllib.request

import pytest

from conftest import BIN, ROOT, start_server
from procs import Proc

SCHEMATHESIS = os.environ.get("MUSTER_API_PYTHON", "/var/tmp/muster-api-venv/bin/python").removesuffix("python") + "schemathesis"


@pytest.fixture
def server_with_job(tmp_path):
    server, port = start_server(tmp_path)
    agent = Proc("node-agent", [BIN / "node-agent", f"--rdzv=127.0.0.1:{port}", "--rdzv-id=train", "--nnodes=1", "--nproc-per-node=2",
                                "--max-restarts=3", "--no-python", "sleep", "600"])
    server.wait_line("GATHERING->RUNNING", 20)
    yield port
    agent.end()
    server.end()
    print(server.story())


def schemathesis(tmp_path, port, *words, config=""):
    file = tmp_path / "schemathesis.toml"
    file.write_text(config)
    r = subprocess.run([SCHEMATHESIS, "--config-file", file, "run", f"http://127.0.0.1:{port}/v1/openapi.json", "--no-color",
                        "--exclude-path=/events", "--phases=examples,coverage,fuzzing", "--generation-database=none", *words],
                       capture_output=True, text=True, timeout=240, cwd=tmp_path)
    print((r.stdout + r.stderr)[-6000:])
    return r


def test_schemathesis_finds_no_answer_that_the_document_does_not_allow(tmp_path, server_with_job):
    if not os.access(SCHEMATHESIS, os.X_OK):
        pytest.skip(f"{SCHEMATHESIS} is not there: tools/venv.sh --api")
    node = json.load(urllib.request.urlopen(f"http://127.0.0.1:{server_with_job}/v1/status", timeout=20))["jobs"][0]["nodes"][0]
    assert schemathesis(tmp_path, server_with_job, "--max-examples=40").returncode == 0
    known = f'[parameters]\n"path.id" = "train"\n"path.node" = "{node["id"]}"\n'
    assert schemathesis(tmp_path, server_with_job, "--max-examples=15", config=known).returncode == 0
    with urllib.request.urlopen(f"http://127.0.0.1:{server_with_job}/v1/metrics", timeout=20) as r:
        text = r.read().decode()
    assert 'path="/jobs/{id}/incidents",code="200"' in text and 'path="/nodes/{node}/drain",code="202"' in text, "the job was met"
    assert 'code="500"' not in text and 'code="other"' not in text


def test_the_document_is_the_one_in_docs(server_with_job):
    with urllib.request.urlopen(f"http://127.0.0.1:{server_with_job}/v1/openapi.json", timeout=20) as r:
        assert r.read() == (ROOT / "docs" / "openapi.json").read_bytes()
