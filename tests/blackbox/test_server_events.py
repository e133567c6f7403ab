"""GET /events: the status at once and after each change, for one reader and for many, slow ones and dead ones."""
import json
import os
import signal
import statistics
import subprocess
import time

import pytest

import mulib
from eventlib import Events, samples, wait_sample
from mulib import Agent, program

LOAD = os.path.join(os.path.dirname(mulib.BIN.rstrip("/")), "bench", "rdzv_load")
needs_load = pytest.mark.skipif(not os.access(LOAD, os.X_OK), reason="bench/rdzv_load is not built: MUSTER_BENCH=ON")


@pytest.fixture
def events(server):
    """Opens readers of the server's stream; closes what is left."""
    with mulib.closing_all() as readers:
        def open_one(**kwargs):
            readers.append(Events(server, **kwargs))
            return readers[-1]
        yield open_one


def load(server, *words):
    return subprocess.Popen([LOAD, "--port", str(server.port), *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(p):
    out, err = p.communicate(timeout=120)
    assert p.returncode == 0, err
    return [json.loads(line) for line in out.splitlines()]


def test_the_status_comes_at_once_and_after_each_change(server, events):
    e = events()
    first = e.wait(lambda s: True, "the first one")
    assert e.answer.status == 200 and e.answer.headers["Content-Type"] == "text/event-stream" and e.retry == 1000
    assert set(first.status) == set(server.status()) and first.status["jobs"] == []
    a = Agent(server, host="n1")
    a.expect("welcome")
    e.wait(lambda s: s["jobs"] and s["jobs"][0]["state"] == "gathering", "a node came")
    b = Agent(server, host="n2")
    b.expect("welcome")
    a.expect("start"), b.expect("start")
    e.wait(lambda s: s["jobs"] and s["jobs"][0]["state"] == "running", "the round began")
    a.started([11, 12]), b.started([21, 22])
    e.wait(lambda s: [n["state"] for j in s["jobs"] for n in j["nodes"]] == ["running", "running"], "all run")
    b.close()
    gone = e.wait(lambda s: s["jobs"] and s["jobs"][0]["last_cause"] is not None, "a node is gone")
    assert gone.status["jobs"][0]["last_cause"]["kind"] == "node_lost" and gone.status["server"]["agents"] == 1
    numbers = [event.number for event in e.events]
    assert numbers == sorted(set(numbers)), "each has a number of its own"
    a.close()


def test_both_paths_and_the_head_alone(server):
    for path in ("/events", "/v1/events"):
        e = Events(server, path)
        e.wait(lambda s: True, path)
        e.close()
        code, headers, body = server.get(path, "HEAD")
        assert (code, headers["Content-Type"], body) == (200, "text/event-stream", b"")
    assert server.get("/events", "POST")[0] == 405


def test_a_workers_death_is_told_within_a_tenth_of_a_second(server, events):
    """Of a real worker of a real agent, five times. The best counts: the machine may be busy with others."""
    p = subprocess.Popen([program("node-agent"), f"--rdzv=127.0.0.1:{server.port}", "--rdzv-id=job", "--nnodes=1", "--nproc-per-node=2",
                          "--max-restarts=9", "--same-failure=restart", "--no-python", "sleep", "600"], stdin=subprocess.DEVNULL,
                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    e, took = events(), []
    try:
        for n in range(1, 6):
            def running(s, n=n):
                j = s["jobs"][0] if s["jobs"] else {"round": 0}
                return j["round"] == n and all(w["state"] == "running" and w["pid"] for w in j["nodes"][0]["workers"])
            at = e.wait(running, f"round {n} runs")
            pid = at.status["jobs"][0]["nodes"][0]["workers"][1]["pid"]
            killed = time.monotonic()
            os.kill(pid, signal.SIGKILL)
            told = e.wait(lambda s, n=n: (s["jobs"][0]["last_cause"] or {}).get("round") == n, "its death is told",
                          after=e.events.index(at))
            took.append(told.at - killed)
            assert told.status["jobs"][0]["last_cause"]["pid"] == pid
    finally:
        p.terminate()
        p.wait(mulib.PATIENCE)
    print(f"ms: {[round(t * 1000, 1) for t in took]}, median {statistics.median(took) * 1000:.1f}")
    assert min(took) < 0.1, took


def test_what_changes_close_behind_each_other_is_told_once(server, events):
    e = events()
    e.wait(lambda s: True, "the first one")
    begun = time.monotonic()
    with mulib.closing_all() as agents:
        for i in range(300):
            agents.append(Agent(server, run_id=f"job{i % 3}", host=f"n{i}", nnodes=(300, 300)))
        e.wait(lambda s: s["server"]["agents"] == 300, "all are there")
        took = time.monotonic() - begun
        assert e.count() <= took / 0.05 + 3, f"{e.count()} events in {took:.2f} s"


def test_beats_alone_are_told_once_a_second(server, events):
    a = Agent(server, host="n1", nnodes=(1, 1))
    a.expect("welcome"), a.expect("start")
    a.started()
    e = events()
    e.wait(lambda s: s["jobs"][0]["nodes"][0]["state"] == "running", "it runs")
    had, begun, step = e.count(), time.monotonic(), 0
    while time.monotonic() < begun + 2.5:
        a.send("beat", round=1, steps=[step, step])
        a.expect("beat")
        step += 1
        time.sleep(0.02)
    e.wait(lambda s: (s["jobs"][0]["nodes"][0]["workers"][0]["step"] or 0) >= step - 1, "the last step")
    assert 2 <= e.count() - had <= 5, e.count() - had
    a.close()


def test_a_comment_comes_when_nothing_does(server, events):
    e = events()
    assert e.wait_comment(1, 25) and e.count() == 1


@needs_load
def test_64_nodes_with_8_workers_each(server, events):
    e = events()
    rows = finish(load(server, "--agents", "64", "--nproc", "8", "--restarts", "2"))
    last = e.wait(lambda s: s["jobs"] and s["jobs"][0]["state"] == "succeeded", "its end")
    assert last.status["jobs"][0]["restarts"] == 2 and len(last.status["jobs"][0]["nodes"]) == 64
    assert {row["phase"] for row in rows} >= {"join", "restart", "finish"}


@needs_load
def test_a_status_larger_than_what_a_stream_may_hold_comes_whole(server, events):
    p = load(server, "--agents", "3000", "--nproc", "8", "--restarts", "1")
    e = events()
    last = e.wait(lambda s: s["jobs"] and s["jobs"][0]["state"] == "succeeded", "its end", timeout=90)
    assert len(json.dumps(last.status)) > 4 << 20 and sum(len(n["workers"]) for n in last.status["jobs"][0]["nodes"]) == 24000
    finish(p)


@needs_load
def test_who_reads_slowly_gets_only_the_newest_and_holds_nobody_up(server, events):
    slow, quick = events(start=False), events()
    over = lambda s: s["jobs"] and s["jobs"][0]["state"] == "succeeded"  # noqa: E731
    finish(load(server, "--agents", "1000", "--restarts", "8"))
    quick.wait(over, "the quick one has seen it all", timeout=60)
    memory = mulib.memory_kb(server.process.pid)
    slow.start()
    last = slow.wait(over, "the slow one sees the end", timeout=60)
    end = time.monotonic() + mulib.PATIENCE  # The last one may be on its way to the quick one.
    while quick.events[-1].number < last.number and time.monotonic() < end:
        time.sleep(0.01)
    assert slow.count() < quick.count() and last.number <= quick.events[-1].number, (slow.count(), quick.count())
    assert memory < 64 * 1024 or mulib.is_sanitized(), memory


def test_many_readers_all_hear_and_one_too_many_is_told_so(server, events):
    readers = [events() for _ in range(128)]
    e = events(start=False)
    assert e.answer.status == 503 and "128 streams (events, output of jobs) are open already" in json.loads(e.answer.read())["error"]
    a = Agent(server, host="n1")
    a.expect("welcome")
    for r in readers:
        r.wait(lambda s: s["server"]["agents"] == 1, "each hears of it")
    assert samples(server)["muster_event_readers"] == 128
    assert server.get("/healthz")[0] == 200
    a.close()


def test_a_reader_that_dies_is_forgotten(server, events):
    e = events()
    e.wait(lambda s: True, "the first one")
    dead = [server.connect() for _ in range(5)]
    for d in dead:
        d.sendall(b"GET /v1/events HTTP/1.1\r\nHost: x\r\n\r\n")
        assert d.recv(4) == b"HTTP"
    wait_sample(server, "muster_event_readers", lambda v: v == 6)
    for d in dead:
        mulib.reset(d)
    for n in range(3):  # The kernel tells of it when something is written.
        a = Agent(server, run_id=f"j{n}", host="n1")
        a.expect("welcome")
        e.wait(lambda s, n=n: any(j["id"] == f"j{n}" for j in s["jobs"]), "the others go on")
        a.close()
    wait_sample(server, "muster_event_readers", lambda v: v == 1)


def test_streams_end_with_the_server(start_server):
    server = start_server()
    readers = [Events(server) for _ in range(3)]
    for r in readers:
        r.wait(lambda s: True, "each is there")
    assert server.stop() == 0
    assert [r.wait_end() for r in readers] == ["clean"] * 3
