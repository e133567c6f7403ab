"""Several agents and one rdzv-server: a failure anywhere, restarts, budgets, one cause for all, the worker store of a round."""
import os
import re
import signal
import time

import pytest

import agentlib
import mulib
from agentlib import worker_store


def same_cause(agents):
    causes = {a.cause() for a in agents}
    assert len(causes) == 1, causes
    return causes.pop()


def stop(*agents):
    for a in agents:
        a.signal(signal.SIGTERM)
    for a in agents:
        a.ends(1)


# --- failures ---

def test_a_failure_on_one_node_restarts_the_group_on_all(server, job):
    w = job.worker("""
say("up", RESTARTS, RANK, WORLD, os.getpid())
all_up()
if RESTARTS == 0:
    sys.exit(7) if RANK == 3 else hang()
""")
    a, b = job.nodes(server, 2, "--nproc-per-node=2", "--max-restarts=1", w)
    a.ends(0), b.ends(0)
    ups = re.findall(r"up (\d) (\d) 4 (\d+)", a.out.text() + "\n" + b.out.text())
    assert sorted(u[:2] for u in ups) == [(r, n) for r in "01" for n in "0123"]
    assert len({u[2] for u in ups}) == 8, "processes of the first round went on into the second"
    said = {x.err.lines[-1] for x in (a, b)}
    assert len(said) == 1 and re.match(r"node-agent: round 1 ended: rank 3 .* exited with status 7; the group starts again "
                                       r"\(restart 1 of 1\)$", said.pop()), (a.err.text(), b.err.text())
    j = server.job("none")
    assert j["state"] == "succeeded" and j["round"] == 2 and j["restarts"] == 1


def test_who_exits_at_its_start_leaves_its_peers_the_time_to_say_why_too(server, job):
    w = job.worker("""
time.sleep(0.2 if RANK == 1 else 0.25)
say("here", RESTARTS, RANK)
if RANK == 1: sys.exit(3)
hang()
""")
    a, b = job.nodes(server, 2, "--max-restarts=2", w)
    a.ends(1), b.ends(1)
    assert re.match(r"rank 1 .* exited with status 3$", same_cause([a, b]))
    said = re.findall(r"here (\d) (\d)", a.out.text() + "\n" + b.out.text())
    assert sorted(said) == [(r, n) for r in "012" for n in "01"]


def test_the_budget_is_the_jobs_whoever_fails_and_all_print_the_same_first_cause(server, job):
    w = job.worker("""
say("up", RESTARTS, RANK)
all_up()
if RESTARTS == 0 and RANK == 0: sys.exit(10)
if RESTARTS == 1 and RANK == 1: sys.exit(11)
if RESTARTS == 2 and RANK == 2: os.kill(os.getpid(), signal.SIGABRT)
hang()
""")
    agents = job.nodes(server, 3, "--max-restarts=2", w)
    for a in agents:
        a.ends(1)
    cause = same_cause(agents)
    assert re.match(r"rank 2 \(local rank 0, pid \d+\) on \S+ .*SIGABRT", cause), cause
    assert all(re.search(r"\(round 3, 2 of 2 restarts used, by rank 0 on \S+ \(round 1\), rank 1 on \S+ \(round 2\)\)$", a.verdict()) for a in agents)
    ups = re.findall(r"up (\d) (\d)", "\n".join(a.out.text() for a in agents))
    assert sorted(ups) == [(r, n) for r in "012" for n in "012"]
    reports = [a for a in agents if "Root Cause" in a.err.text()]
    assert len(reports) == 1 and "exitcode  : -6" in reports[0].err.text(), "the failure's own node reports it"


def test_who_does_not_end_is_named_while_the_round_stops(server, job):
    w = job.worker("""
if RANK == 1:
    deaf(signal.SIGTERM)
    say("deaf", os.getpid())
all_up()
if RANK == 0: sys.exit(5)
hang()
""")
    a = job.start(f"--rdzv=127.0.0.1:{server.port}", "--nproc-per-node=2", "--shutdown-timeout=8", w)
    m = a.err.wait(r"rank 1 \(pid (\d+)\) has not ended \d s after SIGTERM; SIGKILL follows in \d s$")
    a.ends(1)
    assert f"deaf {m.group(1)}" in a.out.lines


def test_what_fails_because_of_the_first_failure_is_not_the_cause(server, job):
    w = job.worker("""
signal.signal(signal.SIGTERM, lambda *_: os._exit(99))
all_up()
if RANK == 1: sys.exit(5)
hang()
""")
    agents = job.nodes(server, 2, "--nproc-per-node=2", w)
    for a in agents:
        a.ends(1)
    assert "exited with status 5" in same_cause(agents)
    assert server.job("none")["consequences"] <= 1


def test_workers_of_other_nodes_get_sigterm_then_sigkill_after_the_grace(server, job):
    w = job.worker("""
if RANK == 1:
    on(signal.SIGTERM, "term 1", 0)
if RANK == 2:
    on(signal.SIGTERM, "term 2")  # Goes on.
say("up", RANK)
await_file("go", RANK == 0)
if RANK == 0: sys.exit(3)
hang()
""")
    agents = job.nodes(server, 3, "--shutdown-timeout=0.7", w)
    for a in agents:
        a.out.wait("up")
    (job.folder / "go").touch()
    began = time.monotonic()
    for a in agents:
        a.ends(1)
    took = time.monotonic() - began
    text = "\n".join(a.out.text() for a in agents)
    assert "term 1" in text and "term 2" in text
    assert 0.6 < took < (6 if agentlib.SANITIZED else 2), took
    assert "exited with status 3" in same_cause(agents)


def test_a_workers_own_words_reach_every_node(server, job):
    w = job.worker("""
if RANK == 1:
    open(E["TORCHELASTIC_ERROR_FILE"], "w").write('{"message": {"message": "ValueError: the loss is gone", "extraInfo": {"timestamp": "1"}}}')
    sys.exit(1)
hang()
""")
    agents = job.nodes(server, 2, w)
    for a in agents:
        a.ends(1)
    assert "ValueError: the loss is gone" in same_cause(agents)


def test_a_program_that_is_missing_on_one_node_is_the_cause_on_all(server, job):
    w = job.worker("hang()")
    good = job.nodes(server, 1, w, nnodes=2)[0]
    bad = job.nodes(server, 1, "--no-python", "./nowhere", nnodes=2)[0]
    good.ends(1), bad.ends(1)
    assert "execve './nowhere': No such file or directory" in same_cause([good, bad])


def test_nobody_exits_before_the_last_node_has_finished(server, job):
    w = job.worker("""
say("up", RANK)
if RANK == 1 and RESTARTS == 0:
    await_file("go")
    sys.exit(4)
""")
    a, b = job.nodes(server, 2, "--max-restarts=1", w)
    a.out.wait("up"), b.out.wait("up")
    server.wait_status(lambda s: "finished" in [n["state"] for n in s["jobs"][0]["nodes"]], "one is finished")
    assert a.process.poll() is None and b.process.poll() is None
    (job.folder / "go").touch()  # A late failure restarts those too that were finished.
    a.ends(0), b.ends(0)
    assert sorted(re.findall(r"up \d", a.out.text() + "\n" + b.out.text())) == ["up 0", "up 0", "up 1", "up 1"]


# --- the worker store of a round ---

def test_the_worker_store_is_fresh_in_each_round_and_dies_with_it(server, job):
    w = job.worker('say("up", RESTARTS, STORE, os.getpid())\nhang()')
    a, b = job.nodes(server, 2, "--max-restarts=1", w)
    first = {x: x.out.wait(r"up 0 (\S+) (\d+)") for x in (a, b)}
    address = {m.group(1) for m in first.values()}
    assert len(address) == 1
    s = worker_store(address.pop())
    s.set(b"round", b"1")
    assert s.get(b"round") == b"1"
    os.kill(int(first[b].group(2)), signal.SIGKILL)
    second = a.out.wait(r"up 1 (\S+) (\d+)")
    assert s.is_closed(), "a connection of the first round lives on"
    t = worker_store(second.group(1))
    t.send(mulib.CHECK, ("q", 1), b"round")
    assert t.take("B") == 1, "a key of the first round is still there"
    assert t.num_keys() == 0
    stop(a, b)
    assert t.is_closed()
    with pytest.raises(ConnectionRefusedError):
        worker_store(second.group(1))


def test_the_worker_store_serves_until_the_last_node_has_finished(server, job):
    w = job.worker("""
say("up", RANK, STORE)
if RANK == 1:
    await_file("go")
""")
    a, b = job.nodes(server, 2, w)
    where = a.out.wait(r"up \d (\S+)").group(1)
    b.out.wait("up")
    server.wait_status(lambda s: "finished" in [n["state"] for n in s["jobs"][0]["nodes"] if n["node_rank"] == 0],
                       "the lead has finished")
    s = worker_store(where)  # The lead's workers and their children are gone; others may still need it.
    s.set(b"late", b"1")
    assert s.get(b"late") == b"1"
    (job.folder / "go").touch()
    a.ends(0), b.ends(0)


def test_a_static_jobs_store_is_at_master_port_and_fresh_in_each_round(job):
    port = agentlib.unused_port()
    w = job.worker('say("up", RESTARTS, STORE, os.getpid())\nhang()')
    a, b = (job.start("--nnodes=2", f"--node-rank={n}", "--master-addr=127.0.0.1", f"--master-port={port}",
                      "--max-restarts=1", w) for n in (0, 1))
    for x in (a, b):
        assert x.out.wait(r"up 0 (\S+) (\d+)").group(1) == f"127.0.0.1:{port}"
    s = worker_store(f"127.0.0.1:{port}")
    s.set(b"round", b"1")
    os.kill(int(b.out.wait(r"up 0 \S+ (\d+)").group(1)), signal.SIGKILL)
    assert a.out.wait(r"up 1 (\S+)").group(1) == f"127.0.0.1:{port}"
    assert s.is_closed()
    assert worker_store(f"127.0.0.1:{port}").num_keys() == 0
    stop(a, b)


def test_rank_0_can_serve_the_store_itself(job):
    """TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1: the port is free on rank 0's host."""
    w = job.worker("""
import socket
say(E["TORCHELASTIC_USE_AGENT_STORE"])
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("", int(E["MASTER_PORT"])))
s.listen()
""")
    a = job.start("--max-restarts=0", w, env={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}).ends(0)
    assert a.out.text() == "False"


# --- elastic ---

def test_a_killed_node_is_no_failure_the_others_go_on_without_it(server, job):
    w = job.worker('say("up", RESTARTS, RANK, WORLD)\nif WORLD == 2: hang()')
    a, b = job.nodes(server, 2, "--rdzv-conf=last_call_timeout=20", w, nnodes="1:2")
    a.out.wait("up 0 . 2"), b.out.wait("up 0 . 2")
    b.signal(signal.SIGKILL)
    a.out.wait("up 0 0 1")
    a.ends(0)
    j = server.job("none")
    assert j["state"] == "succeeded" and j["restarts"] == 0 and j["round"] == 2


def test_a_newcomer_waits_as_a_spare_and_takes_the_place_of_a_node_that_dies(server, job):
    w = job.worker('say("up", RESTARTS, RANK, WORLD)\nhang()')
    a, b = job.nodes(server, 2, w)
    a.out.wait("up 0 . 2"), b.out.wait("up 0 . 2")
    c = job.nodes(server, 1, w, nnodes=2)[0]
    server.wait_status(lambda s: len(s["jobs"][0]["nodes"]) == 3, "the spare is in")
    assert c.out.lines == [] and server.job("none")["round"] == 1
    b.signal(signal.SIGKILL)
    c.out.wait("up . . 2")
    a.out.wait_count("up . . 2", 2)
    j = server.job("none")
    assert j["round"] == 2 and j["restarts"] == 0
    stop(a, c)


@pytest.mark.parametrize("words", [["--on-join=restart"], "c10d"])
def test_a_newcomer_restarts_the_group_where_that_is_asked_for(server, job, words):
    w = job.worker('say("up", RESTARTS, RANK, WORLD)\nif WORLD == 1: hang()')
    where = [f"--rdzv=127.0.0.1:{server.port}", *words] if words != "c10d" else [
        "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{server.port}"]
    a = job.start(*where, "--nnodes=1:2", "--rdzv-conf=last_call_timeout=0.05", w)
    a.out.wait("up 0 0 1")
    b = job.start(*where, "--nnodes=1:2", "--rdzv-conf=last_call_timeout=0.05", w)
    a.out.wait("up 0 . 2"), b.out.wait("up 0 . 2")
    a.ends(0), b.ends(0)
    assert server.job("none")["restarts"] == 0


def test_a_newcomer_to_a_round_with_room_waits_unless_asked(server, job):
    w = job.worker('say("up", WORLD)\nhang()')
    a = job.nodes(server, 1, "--rdzv-conf=last_call_timeout=0.05", w, nnodes="1:2")[0]
    a.out.wait("up 1")
    b = job.nodes(server, 1, "--rdzv-conf=last_call_timeout=0.05", w, nnodes="1:2")[0]
    server.wait_status(lambda s: len(s["jobs"][0]["nodes"]) == 2, "the newcomer is in")
    b.err.wait(r"round 1 runs: 1 workers? on 1 nodes? .*; this node waits as a spare")
    assert a.out.lines == ["up 1"] and b.out.lines == []
    stop(a, b)


# --- one server, many jobs; one id, many runs ---

def test_two_jobs_on_one_server_do_not_meet(server, job):
    w = job.worker('say("up", E["TORCHELASTIC_RUN_ID"], WORLD, RANK)')
    agents = [x for run in ("a", "b") for x in job.nodes(server, 2, f"--rdzv-id={run}", w)]
    for x in agents:
        x.ends(0)
    assert sorted(s for x in agents for s in x.out.lines) == [f"up {j} 2 {r}" for j in "ab" for r in "01"]


@pytest.mark.parametrize("former", ["success", "failure", "SIGKILL", "SIGTERM"])
def test_the_same_id_starts_again_at_once_after_any_end(server, job, former):
    w = job.worker({"success": "pass", "failure": "sys.exit(1)"}.get(former, 'say("up")\nhang()'))
    first = job.nodes(server, 2, "--rdzv-id=again", w)
    if former.startswith("SIG"):
        for a in first:
            a.out.wait("up")
        for a in first:
            a.signal(getattr(signal, former))
    for a in first:
        a.wait()
    began = time.monotonic()
    v = job.worker('say("again", WORLD)')
    second = job.nodes(server, 2, "--rdzv-id=again", v)
    for a in second:
        a.ends(0)
        assert a.out.text() == "again 2"
    assert time.monotonic() - began < (9 if agentlib.SANITIZED else 3)


def test_specs_that_disagree_are_refused_with_both_values(server, job):
    w = job.worker("hang()")
    a = job.nodes(server, 1, "--max-restarts=3", w, nnodes=3)[0]
    server.wait_status(lambda s: len(s["jobs"]) == 1, "the first is in")
    b = job.nodes(server, 1, "--max-restarts=3", w, nnodes=2)[0].ends(1)
    assert re.search(r"--nnodes is 2 on \S+ and 3 on \S+, which came first", b.verdict()), b.verdict()
    c = job.nodes(server, 1, "--max-restarts=5", w, nnodes=3)[0].ends(1)
    assert re.search(r"--max-restarts is 5 on \S+ and 3 on \S+, which came first", c.verdict()), c.verdict()
    a.signal(signal.SIGTERM)
    a.ends(1)


# --- waiting ---

def test_a_wait_names_what_is_missing_and_ends_after_the_join_timeout(server, job):
    w = job.worker("hang()")
    a = job.nodes(server, 1, "--rdzv-conf=join_timeout=2", w, nnodes=3)[0]
    began = time.monotonic()
    a.ends(1)
    assert 1.8 < time.monotonic() - began < 6
    assert re.search(r"too few nodes came in time: 1 of 3 nodes are here \(\S+\), waiting for 2 s", a.verdict()), a.verdict()


def test_a_long_wait_is_not_silent(server, job):
    w = job.worker("hang()")
    # The server is there all the time: that time-out is for one that is not.
    a = job.nodes(server, 1, "--server-timeout=0.3", w, nnodes=2)[0]
    began = time.monotonic()
    a.err.wait(r"^node-agent: job '\S+' at 127.0.0.1:\d+: 1 of 2 nodes are here \(\S+\), waiting for [34] s, giving up in 59\d s$", 9)
    assert time.monotonic() - began > 3
    a.signal(signal.SIGTERM)
    a.ends(1)
    assert "told to stop by SIGTERM" in a.verdict()
