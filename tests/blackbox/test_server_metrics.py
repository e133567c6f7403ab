"""GET /metrics: in Prometheus's format, as its own parsers read it, with the numbers of what was done."""
import json
import os
import re
import shutil
import subprocess
import time

import pytest

import mulib
from eventlib import metrics_text, samples, wait_sample
from mulib import Agent, StoreClient

DOCS = os.path.join(os.environ.get("MUSTER_SOURCE", os.path.join(os.path.dirname(__file__), "..", "..")), "docs")
FETCHED = "/var/tmp/muster-promtool/usr/bin/promtool"  # tools/promtool.sh
PROMTOOL = os.environ.get("MUSTER_PROMTOOL") or shutil.which("promtool") or (FETCHED if os.access(FETCHED, os.X_OK) else None)


def begin(*agents):
    for a in agents:
        a.expect("start", skip=("welcome", "waiting", "beat", "go"))
        a.started()


def pair(server, run_id="job", **fields):
    a, b = (Agent(server, run_id=run_id, host=h, nproc=2, **fields) for h in ("n1", "n2"))
    begin(a, b)
    return a, b


def again(a, b):
    a.expect("stop"), b.expect("stop")
    a.stopped(stop_ms=120, reclaim_ms=3), b.stopped(stop_ms=40, reclaim_ms=2)
    begin(a, b)


def busy(server):
    """A server that has seen a bit of all."""
    a, b = pair(server, max_restarts=3)
    b.failed(kind="worker_signal", signo=9, pid=12)
    again(a, b)
    wait_sample(server, 'muster_workers{state="running"}', lambda v: v == 4)  # Both have said so, each on a connection of its own.
    a.send("exited", round=1, local_rank=0)  # Of a round that is over.
    a.send("beat", round=2, steps=[3, 3])
    a.expect("beat")
    store = StoreClient(server)
    store.set(b"k", b"v")
    assert store.get(b"k") == b"v"
    return a, b, store


def test_the_page_is_what_prometheus_reads(server):
    parser = pytest.importorskip("prometheus_client.parser", reason="python3-prometheus-client is missing")
    things = busy(server)
    hostile = Agent(server, run_id='a"b\\c\nd\u202e{}', host="n1", nnodes=(2, 2))
    hostile.expect("welcome")
    families = {f.name: f for f in parser.text_string_to_metric_families(metrics_text(server))}
    assert all(f.documentation and f.type in ("counter", "gauge", "histogram") for f in families.values())
    assert len(families) > 35 and not [n for n in families if not re.match(r"(muster|process)_[a-z_]+$", n)]
    jobs = {s.labels["job"] for s in families["muster_job_round"].samples}
    assert jobs == {"job", 'a"b\\c\nd\u202e{}'}
    series = [(s.name, tuple(sorted(s.labels.items()))) for f in families.values() for s in f.samples]
    assert len(series) == len(set(series)), "no series twice"
    for t in (*things, hostile):
        t.close()


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is missing (Debian's package prometheus): tools/promtool.sh")
def test_promtool_has_nothing_to_say(server):
    things = busy(server)
    r = subprocess.run([PROMTOOL, "check", "metrics"], input=metrics_text(server), capture_output=True, text=True, timeout=60)
    assert r.returncode == 0 and r.stdout + r.stderr == "", r.stdout + r.stderr
    for t in things:
        t.close()


def test_values_are_those_of_what_was_done(server):
    before = time.time()
    a, b, store = busy(server)
    wait_sample(server, 'muster_stale_messages_total{message="exited"}', lambda v: v == 1)
    got = wait_sample(server, 'muster_phase_seconds_count{phase="first_step"}', lambda v: v == 1)
    want = {
        "muster_agents": 2, 'muster_jobs{state="running"}': 1, 'muster_jobs{state="gathering"}': 0,
        'muster_nodes{state="running"}': 2, 'muster_workers{state="running"}': 4, "muster_rounds_started_total": 2,
        'muster_rounds_total{decision="restart"}': 1, 'muster_rounds_total{decision="fail"}': 0,
        'muster_restarts_total{cause="worker_signal"}': 1, 'muster_restarts_total{cause="worker_exit"}': 0,
        "muster_incidents_total": 1, "muster_drains_total": 0, "muster_nodes_draining": 0,
        'muster_phase_seconds_count{phase="stop"}': 1, 'muster_phase_seconds_sum{phase="stop"}': 0.12,
        'muster_phase_seconds_bucket{phase="stop",le="0.1"}': 0, 'muster_phase_seconds_bucket{phase="stop",le="0.25"}': 1,
        'muster_phase_seconds_sum{phase="reclaim"}': 0.003, 'muster_phase_seconds_count{phase="rendezvous"}': 1,
        'muster_phase_seconds_count{phase="spawn"}': 1, 'muster_phase_seconds_count{phase="first_step"}': 1,
        'muster_store_operations_total{command="set"}': 1, 'muster_store_operations_total{command="get"}': 1,
        'muster_store_operations_total{command="append"}': 0, "muster_store_keys": 1, "muster_store_clients": 1,
        'muster_job_round{job="job"}': 2, 'muster_job_nodes{job="job"}': 2, 'muster_job_workers{job="job"}': 4,
        'muster_job_restarts{job="job"}': 1, 'muster_job_step{job="job"}': 3,
    }
    assert {k: got.get(k) for k in want} == want
    status = server.status()
    assert got["muster_store_memory_bytes"] > 0
    pid = server.process.pid
    assert 0 <= got["process_cpu_seconds_total"] < 60 and abs(got["process_start_time_seconds"] - before) < mulib.PATIENCE + 5
    assert 0.5 < got["process_resident_memory_bytes"] / status["server"]["memory_bytes"] < 2
    assert abs(got["process_open_fds"] - len(os.listdir(f"/proc/{pid}/fd"))) <= 3
    assert got["process_max_fds"] >= got["process_open_fds"]
    server.get("/status"), server.get("/v1/status"), server.get("/nothing"), server.get("/jobs/nobody/incidents")
    server.get("/status", "DELETE")
    code, _, body = server.get("/v1/nodes/n2/drain", "POST")
    assert code == 202, body
    a.finished(), b.finished()
    a.expect("end", skip=("waiting", "beat", "halt")), b.expect("end", skip=("waiting", "beat", "halt"))
    got = wait_sample(server, 'muster_jobs_ended_total{state="succeeded"}', lambda v: v == 1)
    assert got['muster_http_requests_total{path="/status",code="200"}'] >= 3
    assert got['muster_http_requests_total{path="/status",code="405"}'] == 1
    assert got['muster_http_requests_total{path="other",code="404"}'] == 1
    assert got['muster_http_requests_total{path="/jobs/{id}/incidents",code="404"}'] == 1
    assert got['muster_http_requests_total{path="/nodes/{node}/drain",code="202"}'] == 1
    assert got["muster_drains_total"] == 1 and got['muster_rounds_total{decision="succeed"}'] == 1
    assert got['muster_jobs{state="succeeded"}'] == 1 and got['muster_nodes{state="running"}'] == 0
    for t in (a, b, store):
        t.close()


def test_nodes_in_quarantine_are_counted(start_server):
    server = start_server("--quarantine=1/1h")
    agents = [Agent(server, host=f"n{i}", nproc=1, nnodes=(1, 2), max_restarts=3, last_call_ms=100, boot_id=f"boot{i}") for i in (1, 2)]
    begin(*agents)
    agents[1].failed()
    for a in agents:
        a.expect("stop")
        a.stopped()
    begin(agents[0])
    wait_sample(server, 'muster_nodes{state="quarantined"}', lambda v: v == 1)
    for a in agents:
        a.close()


def test_goodput_counts_each_step_once(server):
    """Steps 0 to 10 take a second; a failure; 0 to 8 again; then 12 to 20 take half a second more."""
    a = Agent(server, host="n1", nproc=1, nnodes=(1, 1), max_restarts=1)
    begun = time.monotonic()

    def step(n):
        a.send("beat", round=a.round, steps=[n])
        a.expect("beat")

    def productive():
        return samples(server)['muster_job_productive_seconds_total{job="job"}']

    begin(a)
    assert 'muster_job_goodput_ratio{job="job"}' not in samples(server)
    step(0), time.sleep(1), step(10)
    assert 0.99 < productive() < 1.5
    first = productive()
    time.sleep(0.2)
    a.failed()
    a.expect("stop")
    a.stopped()
    begin(a)
    step(0), time.sleep(0.3), step(8)
    assert productive() == first, "what is done again does not count"
    step(12)
    assert productive() == first
    time.sleep(0.5), step(20)
    got = samples(server)
    gained = got['muster_job_productive_seconds_total{job="job"}'] - first
    assert 0.49 < gained < 1 and got['muster_job_step{job="job"}'] == 20
    wall = got['muster_job_wall_seconds_total{job="job"}']
    assert 2 <= wall <= time.monotonic() - begun + 0.1
    assert abs(got['muster_job_goodput_ratio{job="job"}'] - (first + gained) / wall) < 0.002
    a.finished()
    a.expect("end")
    a.close()
    ended = wait_sample(server, 'muster_jobs_ended_total{state="succeeded"}', lambda v: v == 1)
    time.sleep(0.1)
    assert samples(server)['muster_job_wall_seconds_total{job="job"}'] == ended['muster_job_wall_seconds_total{job="job"}']


def test_series_of_jobs_have_an_end(server):
    for n in range(20):
        a = Agent(server, run_id=f"j{n % 15}", host="n1", nproc=1, nnodes=(1, 1))
        begin(a)
        a.finished()
        a.expect("end")
        a.close()
    server.wait_status(lambda s: s["server"]["jobs_ended"] == 20, "all have ended")
    named = [name for name in samples(server) if name.startswith("muster_job_round{")]
    assert len(named) == 8 and 'muster_job_round{job="j4"}' in named and 'muster_job_round{job="j5"}' not in named


def test_the_dashboard_names_what_there_is(server):
    things = busy(server)
    server.status()  # A request of its own is counted behind its answer.
    with open(os.path.join(DOCS, "grafana", "muster.json"), encoding="utf-8") as f:
        board = json.load(f)
    there = {re.match(r"[a-z_]+", name).group() for name in samples(server)}
    named = set()
    for panel in board["panels"]:
        for target in panel.get("targets", []):
            named |= set(re.findall(r"\b(?:muster|process)_[a-z_]+", target["expr"]))
    assert len(named) > 20 and named <= there, named - there
    assert board["uid"] == "muster" and len({p["id"] for p in board["panels"]}) == len(board["panels"])
    for t in things:
        t.close()
