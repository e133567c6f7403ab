"""docs/openapi.json as Schemathesis reads it from a running server: hundreds of requests that the document allows and forbids, made up
from it, each answer held against it. The stream of events, which never ends, is tests/blackbox/test_server_events.py's; output is not
followed either. No node runs what is submitted: the one on offer is made by hand, and does nothing."""
import json
import os
import re
import socket
import subprocess
import sys
import urllib.request

import pytest

from conftest import BIN, ROOT, start_server
from procs import Proc

sys.path.append(str(ROOT / "tests" / "blackbox"))
import poollib  # noqa: E402

SCHEMATHESIS = os.environ.get("MUSTER_API_PYTHON", "/var/tmp/muster-api-venv/bin/python").removesuffix("python") + "schemathesis"

# A body of more than 1 MiB is refused as such, whatever else is wrong with it. Of a submission a schema does not say all: of MIN:MAX the
# second number is not the smaller one, bytes are counted, not letters, and all of it has a limit.
CHECKS = """
[checks.negative_data_rejection]
expected-statuses = [400, 401, 403, 404, 405, 409, 413, 414]

[[operations]]
include-path = "/jobs"
[operations.checks.positive_data_acceptance]
expected-statuses = ["2xx", 400, 401, 409, 413]

[[operations]]
include-path = "/jobs/{id}/logs"
parameters = { "query.follow" = 0 }
"""

KNOWN = """
[parameters]
"path.id" = "waiting"
"path.key" = "known"
"path.node" = "n9"

[[operations]]
include-path = "/jobs/{id}/incidents"
parameters = { "path.id" = "train" }

[[operations]]
include-path = "/nodes/{node}/drain"
parameters = { "path.node" = "NODE" }
"""


class Port:
    def __init__(self, port):
        self.port = port

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=20)

    def ask(self, path, method="GET", body=None, **headers):
        q = urllib.request.Request(f"http://127.0.0.1:{self.port}/v1{path}", method=method, data=body, headers=headers)
        with urllib.request.urlopen(q, timeout=20) as r:
            return r.read()


@pytest.fixture
def server_with_job(tmp_path):
    server, port = start_server(tmp_path)
    agent = Proc("node-agent", [BIN / "node-agent", f"--rdzv=127.0.0.1:{port}", "--rdzv-id=train", "--nnodes=1", "--nproc-per-node=2",
                                "--max-restarts=3", "--no-python", "sleep", "600"])
    server.wait_line("GATHERING->RUNNING", 20)
    yield Port(port)
    agent.end()
    server.end()
    print(server.story())


def schemathesis(tmp_path, port, *words, config=""):
    if not os.access(SCHEMATHESIS, os.X_OK):
        pytest.skip(f"{SCHEMATHESIS} is not there: tools/venv.sh --api")
    file = tmp_path / "schemathesis.toml"
    file.write_text(config + CHECKS)
    r = subprocess.run([SCHEMATHESIS, "--config-file", file, "run", ROOT / "docs" / "openapi.json", f"--url=http://127.0.0.1:{port.port}/v1",
                        "--no-color", "--exclude-path=/events", "--phases=examples,coverage,fuzzing", "--generation-database=none",
                        "--request-timeout=20", *words], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    print("\n".join(line[:300] for line in (r.stdout + r.stderr).splitlines()))
    return r


def answers(metrics):
    """{(path, code)} of what was asked so far."""
    return set(re.findall(r'path="([^"]+)",code="([^"]+)"', metrics.decode()))


def test_schemathesis_finds_no_answer_that_the_document_does_not_allow(tmp_path, server_with_job):
    assert schemathesis(tmp_path, server_with_job, "--max-examples=40").returncode == 0
    told = answers(server_with_job.ask("/metrics"))
    assert ("/jobs", "201") in told and ("/jobs", "400") in told and ("/store/{key}", "200") in told
    assert not {code for _, code in told} & {"500", "503", "507", "other"}


def test_schemathesis_finds_none_where_names_are_known(tmp_path, server_with_job):
    train = json.loads(server_with_job.ask("/status"))["jobs"][0]["nodes"][0]["id"]
    node = poollib.Node(server_with_job, host="n9", slots=1)
    server_with_job.ask("/nodes/n9/drain", "POST")
    server_with_job.ask("/store/known", "PUT", b"value")
    server_with_job.ask("/jobs", "POST", json.dumps({"argv": ["sleep", "600"], "id": "waiting", "nproc_per_node": 2}).encode())
    with poollib.Beating(node):
        assert schemathesis(tmp_path, server_with_job, "--max-examples=15", config=KNOWN.replace("NODE", train)).returncode == 0
    told = answers(server_with_job.ask("/metrics"))
    assert {("/jobs/{id}/incidents", "200"), ("/nodes/{node}/drain", "202"), ("/nodes/{node}/undrain", "202"), ("/jobs/{id}", "200"),
            ("/jobs/{id}/stop", "202"), ("/jobs/{id}/resume", "202"), ("/jobs/{id}/logs", "200")} <= told, "the job was met"
    assert not {code for _, code in told} & {"500", "503", "507", "other"}


def test_schemathesis_finds_none_where_a_token_is_missing(tmp_path):
    token = tmp_path / "token"
    subprocess.run([BIN / "muster", "token", "new", token], check=True, timeout=20)
    server, port = start_server(tmp_path, "--token-file", token, "--read=token")
    try:
        assert schemathesis(tmp_path, Port(port), "--max-examples=5").returncode == 0
        told = answers(Port(port).ask("/metrics", Authorization="Bearer " + token.read_text().strip()))
        assert {path for path, code in told if code in ("200", "304")} <= {"/healthz", "/", "/page.css", "/page.js"}
        assert ("/jobs", "401") in told and ("/status", "401") in told and ("/jobs/{id}/logs", "401") in told
    finally:
        server.end()
        print(server.story())


def test_the_document_is_the_one_in_docs(server_with_job):
    assert server_with_job.ask("/openapi.json") == (ROOT / "docs" / "openapi.json").read_bytes()
