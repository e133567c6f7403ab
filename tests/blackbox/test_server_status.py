"""GET /status, /healthz and what is not there; the schema in docs/ is a promise, checked against real answers."""
import contextlib
import json
import os
import shutil
import socket
import subprocess
import threading
import time

import pytest

import mulib
from mulib import Agent, Server, StoreClient

jsonschema = pytest.importorskip("jsonschema", reason="python3-jsonschema is missing")

DOCS = os.path.join(os.environ.get("MUSTER_SOURCE", os.path.join(os.path.dirname(__file__), "..", "..")), "docs")


@pytest.fixture(scope="module")
def schema():
    with open(os.path.join(DOCS, "status.schema.json"), encoding="utf-8") as f:
        s = json.load(f)
    jsonschema.Draft202012Validator.check_schema(s)
    return jsonschema.Draft202012Validator(s, format_checker=jsonschema.FormatChecker())


def fields_of(root, schema, path=""):
    """Every field the schema names, as (dotted path, its schema)."""
    if "$ref" in schema:
        schema = {**root["$defs"][schema["$ref"].rsplit("/", 1)[1]], **schema}
    for sub in schema.get("oneOf", []):
        yield from fields_of(root, sub, path)
    if "items" in schema:
        yield from fields_of(root, schema["items"], path + "[]")
    for name, sub in schema.get("properties", {}).items():
        yield f"{path}.{name}".lstrip("."), sub
        yield from fields_of(root, sub, f"{path}.{name}")


def test_every_field_is_described_and_named_in_the_reference_page(schema):
    with open(os.path.join(DOCS, "status.md"), encoding="utf-8") as f:
        page = f.read()
    fields = list(fields_of(schema.schema, schema.schema))
    assert len(fields) > 70 and "jobs[].nodes[].workers[].pid" in dict(fields)
    for path, sub in fields:
        assert len(sub.get("description", "")) > 5, f"{path} has no description"
        assert f"`{path}`" in page, f"{path} is not in docs/status.md"


def test_status_of_an_empty_server(server, schema):
    s = server.status()
    schema.validate(s)
    assert s["jobs"] == [] and s["address"] == f"[::]:{server.port}" and s["server"]["pid"] == server.process.pid


def test_status_through_a_jobs_life(server, schema):
    def status():
        s = server.status()
        schema.validate(s)
        return s["jobs"][0]

    store = StoreClient(server)
    store.set(b"/k", b"v")
    a = Agent(server, host="n1", max_restarts=1)
    a.expect("welcome")
    j = status()
    assert j["state"] == "gathering" and "1 of 2 nodes" in j["sentence"] and j["round"] == 0
    assert j["nodes"][0]["state"] == "waiting" and j["nodes"][0]["node_rank"] is None and j["nodes"][0]["workers"] == []
    b = Agent(server, host="n2", nproc=3, max_restarts=1)
    b.expect("welcome")
    for agent in (a, b):
        agent.expect("start")
    assert status()["nodes"][1]["workers"][0]["state"] == "starting"
    a.started([11, 12]), b.started([21, 22, 23])
    for agent in (a, b):
        agent.send("beat", round=1)
        agent.expect("beat")
    server.wait_status(lambda s: s["jobs"][0]["nodes"][1]["state"] == "running", "b runs")
    j = status()
    assert j["state"] == "running" and j["world"] == 5 and j["round"] == 1 and j["last_cause"] is None
    n1, n2 = j["nodes"]
    assert (n1["host"], n1["node_rank"], n1["rank_base"], n1["workers_count"], n1["gpus"], n1["cpus"]) == ("n1", 0, 0, 2, 1, 8)
    assert [(w["rank"], w["local_rank"], w["pid"], w["state"]) for w in n2["workers"]] == \
        [(2, 0, 21, "running"), (3, 1, 22, "running"), (4, 2, 23, "running")]
    b.failed(local_rank=2, kind="worker_signal", signo=11, pid=23, message="segv \u2603")
    a.expect("stop"), b.expect("stop")
    server.wait_status(lambda s: s["jobs"][0]["state"] == "stopping", "it stops")
    j = status()
    assert j["nodes"][1]["workers"][2]["state"] == "killed" and j["nodes"][1]["workers"][2]["signal_name"] == "SIGSEGV"
    c = j["last_cause"]
    assert (c["kind"], c["host"], c["rank"], c["local_rank"], c["pid"], c["signal"], c["message"], c["round"]) == \
        ("worker_signal", "n2", 4, 2, 23, 11, "segv \u2603", 1)
    a.stopped(), b.stopped(exits=[-15, -15, -11])
    a.expect("start"), b.expect("start")
    a.started(), b.started()
    a.send("exited", round=2, local_rank=0)
    a.finished(), b.finished()
    a.expect("end"), b.expect("end")
    server.wait_status(lambda s: s["jobs"][0]["state"] == "succeeded", "it succeeds")
    j = status()
    assert j["restarts"] == 1 and j["ended_at"] is not None
    assert all(w["state"] == "succeeded" and w["exit_code"] == 0 for n in j["nodes"] for w in n["workers"])
    for agent in (a, b, store):
        agent.close()


def test_hostile_texts_stay_valid_json(server, schema):
    a = Agent(server, run_id='"}],\u0000\u202e'.replace("\0", ""), host="<script>\"\\\n\u0001", nnodes=(1, 1))
    a.expect("welcome")
    s = server.status()
    schema.validate(s)
    assert s["jobs"][0]["nodes"][0]["host"] == "<script>\"\\\n\u0001"
    a.close()


def test_healthz(server):
    code, _, body = server.get("/healthz")
    assert (code, body) == (200, b'{"status":"ok"}\n')


def test_head_has_no_body(server):
    code, headers, body = server.get("/status", method="HEAD")
    assert code == 200 and body == b"" and int(headers["Content-Length"]) > 100


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_other_methods_are_refused(server, method):
    code, headers, body = server.get("/status", method=method, body=b"x" * 1000 if method in ("POST", "PUT") else None)
    assert code == 405 and headers["Allow"] == "GET, HEAD" and "error" in json.loads(body)


def test_unknown_path_names_the_known_ones(server):
    code, _, body = server.get("/nope?x=1")
    paths = json.loads(body)["paths"]
    assert code == 404 and len(set(paths)) == len(paths) and {
        "/healthz", "/status", "/", "/page.css", "/page.js", "/jobs/{id}/incidents", "/nodes/{node}/drain", "/store", "/store/{key}",
        "/nodes/{node}/undrain", "/jobs", "/jobs/{id}/stop", "/jobs/{id}/resume", "/jobs/{id}/logs", "/jobs/{id}"} <= set(paths)


def test_kept_connection_answers_again(server):
    import http.client
    c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=mulib.PATIENCE)
    for _ in range(3):
        c.request("GET", "/healthz")
        assert c.getresponse().read() == b'{"status":"ok"}\n'
    c.close()


def test_request_that_comes_one_byte_at_a_time(server):
    s = server.connect()
    for byte in b"GET /healthz HTTP/1.0\r\n\r\n":
        s.sendall(bytes([byte]))
    got = b""
    while part := s.recv(4096):
        got += part
    assert got.startswith(b"HTTP/1.0 200") or got.startswith(b"HTTP/1.1 200")
    assert got.endswith(b'{"status":"ok"}\n')
    s.close()


def test_curl_and_jq_read_it(server):
    if not shutil.which("curl") or not shutil.which("jq"):
        pytest.skip("curl or jq is missing")
    r = subprocess.run(f"curl -s 127.0.0.1:{server.port}/status | jq -r .server.pid", shell=True, text=True,
                       capture_output=True, timeout=mulib.PATIENCE, check=True)
    assert r.stdout == f"{server.process.pid}\n"


def test_without_its_module_http_says_so_and_the_rest_works(tmp_path):
    exe = tmp_path / "bin" / "rdzv-server"
    exe.parent.mkdir()
    shutil.copy2(mulib.program("rdzv-server"), exe)
    s = Server(tmp_path, exe=str(exe))
    for _ in range(2):
        code, _, body = s.get("/status")
        assert code == 503 and "muster-http.so" in json.loads(body)["error"]
    c = StoreClient(s)
    assert c.num_keys() == 0
    c.close()
    s.check_end()
    assert s.log.text().count("http.module") == 1


def test_a_slow_reader_gets_the_answer_that_was_begun(server, schema):
    """Larger than what the sockets hold, so that it is still being sent when others ask; then others' answers are other ones."""
    nodes, workers = 60, 1024
    agents = [Agent(server, host=f"n{i}", nproc=workers, nnodes=(nodes, nodes)) for i in range(nodes)]
    for a in agents:
        a.expect("welcome"), a.expect("start")
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    slow.settimeout(mulib.PATIENCE)
    slow.connect(("127.0.0.1", server.port))
    slow.sendall(b"GET /status HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    begun = slow.recv(1024)
    for a in agents:
        a.started()
    now = server.wait_status(lambda s: all(n["state"] == "running" for n in s["jobs"][0]["nodes"]), "all run")
    while part := slow.recv(1 << 20):
        begun += part
    head, _, body = begun.partition(b"\r\n\r\n")
    then = json.loads(body)
    assert f"Content-Length: {len(body)}".encode() in head
    for s, state in ((then, "starting"), (now, "running")):
        schema.validate({**s, "jobs": []})
        assert [n["host"] for n in s["jobs"][0]["nodes"]] == [f"n{i}" for i in range(nodes)]
        assert {w["state"] for n in s["jobs"][0]["nodes"] for w in n["workers"]} == {state}
    slow.close()
    for a in agents:
        a.close()


def test_a_thousand_nodes_join_while_status_answers(server, schema):
    """Many viewers and many joiners at once: every answer is whole, and no joiner is lost."""
    n = 1000
    stop = threading.Event()
    answers = []

    def view():
        while not stop.is_set():
            answers.append(server.status())

    viewer = threading.Thread(target=view)
    viewer.start()
    agents = [Agent(server, host=f"n{i}", nproc=1, nnodes=(n, n)) for i in range(n)]
    try:
        ranks = []
        for a in agents:
            a.expect("welcome")
            ranks.append(a.expect("start")["node_rank"])
        assert ranks == list(range(n))
    finally:
        stop.set()
        viewer.join()
        last = server.status()
        for a in agents:
            a.close()
    schema.validate(last)
    assert len(last["jobs"][0]["nodes"]) == n and len(answers) > 1


def test_who_never_ends_asking_keeps_no_agent_waiting(server):
    """A timer set to "at once" in its own callback once kept the loop from looking at anything else."""
    a = mulib.Agent(server, nnodes=(2, 2))
    a.expect("welcome")
    end = time.monotonic() + 3
    with server.connect() as s:
        def ask():
            with contextlib.suppress(OSError):
                while time.monotonic() < end:
                    s.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n" * 50)

        def drop():
            with contextlib.suppress(OSError):
                while s.recv(1 << 16):
                    pass
        threads = [threading.Thread(target=f, daemon=True) for f in (ask, drop)]
        for t in threads:
            t.start()
        seq = 0
        while time.monotonic() < end:
            seq, asked = seq + 1, time.monotonic()
            a.send("beat", round=0, seq=seq)
            assert a.expect("beat", skip=("waiting",))["seq"] == seq
            assert time.monotonic() - asked < 1
            time.sleep(0.05)
        s.shutdown(socket.SHUT_RDWR)
    a.close()
