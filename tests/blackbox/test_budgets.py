"""Restart budgets: within a window, given back, and not spent on the same failure once more; and messages of rounds that are over."""
import json
import os
import re

import pytest

import agentlib
import mulib
from mulib import Agent

ELSEWHERE = {"host_addr": "192.0.2.1"}  # Not this machine's: these agents hold no port that would prove that they live.


def sdk_variables(**more):
    source = os.environ.get("MUSTER_SOURCE", os.path.join(os.path.dirname(__file__), "..", ".."))
    return {"PYTHONPATH": os.path.join(source, "worker-sdk", "python"), "PYTHON_EXEC": "/usr/bin/python3",
            "MUSTER_LIBRARY": os.path.abspath(os.path.join(mulib.BIN, "..", "lib", "libmuster.so.0")), **more}


needs_sdk = pytest.mark.skipif(agentlib.SANITIZED, reason="a sanitized library cannot be loaded into a Python that is not")


def incidents(server, run_id="none"):
    return json.loads(server.get(f"/jobs/{run_id}/incidents")[2])["incidents"]


def two(server, **fields):
    agents = [Agent(server, host=f"n{i + 1}", link=1, **{"max_restarts": 1, **ELSEWHERE, **fields}) for i in range(2)]
    for a in agents:
        a.expect("welcome")
        a.start = a.expect("start")
        a.started()
    return agents


def fail(agents, **fields):
    """The first of them fails, all stop."""
    agents[0].failed(**{"exit_code": 1, **fields})
    stops = []
    for a in agents:
        stops.append(a.expect("stop"))
        a.stopped()
    return stops[0]


def start_again(agents):
    for a in agents:
        a.start = a.expect("start")
        a.started()


# --- a window ---

FAILS = """
say("up", RESTARTS, os.environ["TORCHELASTIC_MAX_RESTARTS"])
if RESTARTS == 1: time.sleep(4)  # The first restart is out of the window then.
sys.exit(9)
"""


@pytest.mark.parametrize("words, env", [(["--max-restarts=1/3s"], {}), ([], {"PET_MAX_RESTARTS": "1/3s"})])
def test_a_restart_counts_only_within_the_window(server, job, words, env):
    agents = job.nodes(server, 2, *words, job.worker(FAILS), env=env)
    for a in agents:
        a.ends(1)
        assert re.search(r"\(round 3, 1 of 1 restarts within 3 s used, by rank \d on \S+ \(round 2\)\)$", a.verdict()), a.err.text()
        assert [line for line in a.out.lines if line.startswith("up")] == ["up 0 1", "up 1 1", "up 2 1"]
        assert len(re.findall(r"the group starts again \(restart 1 of 1 within 3 s\)", a.err.text())) == 2
    j = server.job("none")
    assert (j["restarts"], j["max_restarts"], j["restart_window_s"]) == (2, 1, 3)
    records = incidents(server)
    assert [r["decision"] for r in records] == ["restart", "restart", "fail"]
    assert records[2]["reason"] == "a failure, and no restart is left: 1 of 1 restarts within 3 s are spent"
    assert records[0]["reason"] == "a failure: the group starts again (restart 1 of 1 within 3 s)"


def test_the_times_of_restarts_outlive_the_server(start_server):
    first = start_server(keep=True)
    agents = two(first, restart_window_ms=3600000)
    fail(agents)
    start_again(agents)
    first.wait_status(lambda s: s["jobs"][0]["round"] == 2, "round 2")
    first.kill()
    second = start_server(keep=True, port=first.port)
    j = second.job("job")
    assert (j["restarts"], j["restarts_spent"], j["restart_window_s"]) == (1, 1, 3600), j
    back = []
    for old in agents:
        s = old.start
        old.close()
        back.append(Agent(second, **{**old.fields, "nnodes": (2, 2), "link": 2, "round": 2, "round_seen": 2, "round_node_rank": s["node_rank"],
                                     "round_nodes": 2, "round_restarts": 1, "round_spent": 1, "round_fence_ms": s["fence_ms"]}))
        back[-1].expect("welcome")
        back[-1].round = 2
    second.wait_status(lambda s: s["jobs"][0]["state"] == "running", "all are back")
    assert fail(back)["final"] == 1
    for a in back:
        assert a.expect("end")["success"] == 0
        a.close()


def test_agents_whose_budgets_differ_are_refused_with_both_values(server, job):
    w = job.worker("hang()")
    a = job.start(f"--rdzv=127.0.0.1:{server.port}", "--nnodes=3", "--max-restarts=3/1h", "--restarts-given-back-after=500steps", w)
    server.wait_status(lambda s: s["jobs"] != [], "the first one")
    for words, said in ((["--max-restarts=3", "--restarts-given-back-after=500steps"], r"--max-restarts is 3 on \S+ and 3/1h on \S+, which came first"),
                        (["--max-restarts=3/1h"], r"--restarts-given-back-after is never on \S+ and 500steps on \S+, which came first"),
                        (["--max-restarts=3/1h", "--restarts-given-back-after=500steps", "--same-failure=restart"],
                         r"--same-failure is restart on \S+ and end on \S+, which came first")):
        b = job.start(f"--rdzv=127.0.0.1:{server.port}", "--nnodes=3", *words, w).ends(1)
        assert re.search(said, b.verdict()), b.verdict()
    j = server.job("none")
    assert (j["restart_window_s"], j["give_back_after_s"], j["give_back_after_steps"], j["same_failure"]) == (3600, None, 500, "end")
    a.signal(15)
    a.ends(1)


# --- given back ---

def test_a_round_that_has_run_for_long_gives_the_restarts_back(server, job):
    w = job.worker("""
say("up", RESTARTS)
if RESTARTS == 1: time.sleep(4)
if RESTARTS < 2: sys.exit(9)
""")
    a = job.nodes(server, 1, "--max-restarts=1", "--restarts-given-back-after=2s", w)[0]
    server.wait_status(lambda s: s["jobs"] != [] and s["jobs"][0]["restarts_given_back"] == 1, "what was spent is given back")
    j = server.job("none")
    assert (j["state"], j["restarts"], j["restarts_spent"], j["give_back_after_s"]) == ("running", 1, 0, 2)
    a.ends(0)
    assert a.out.lines == ["up 0", "up 1", "up 2"]  # The count goes on.
    j = server.job("none")
    assert (j["restarts"], j["restarts_spent"], j["restarts_given_back"]) == (2, 1, 1)
    assert [(r["restarts"], r["restarts_spent"], r["restarts_given_back"]) for r in incidents(server)] == [(1, 1, 0), (2, 1, 1), (2, 1, 0)]


STEPS = """
import os, sys, time
import muster
me = muster.env()
os.write(1, b"up %d\\n" % me.restart_count)
for step in range(40):
    muster.progress(100 + step)
    time.sleep(0.1)
    if me.restart_count == 0 and step == 3:
        sys.exit(9)
if me.restart_count == 1 and me.rank == 0:
    sys.exit(9)
"""


@needs_sdk
def test_steps_of_the_slowest_rank_give_the_restarts_back(server, job):
    a = job.nodes(server, 1, "--nproc-per-node=2", "--max-restarts=1", "--restarts-given-back-after=15steps", job.file("w.py", STEPS),
                  env=sdk_variables())[0]
    a.ends(0, 60)
    assert sorted(a.out.lines) == ["up 0"] * 2 + ["up 1"] * 2 + ["up 2"] * 2
    assert [(r["decision"], r["restarts_spent"], r["restarts_given_back"]) for r in incidents(server)] == [
        ("restart", 1, 0), ("restart", 1, 1), ("succeed", 0, 1)]


# --- the same failure once more ---

SAME = """
import os, sys, time
import muster
me = muster.env()
os.write(1, b"up %d\\n" % me.restart_count)
muster.progress(41)
time.sleep(0.5)
if me.rank == 3 and me.restart_count < int(os.environ["FAILURES"]):
    if "KILL" in os.environ:
        os.kill(os.getpid(), 9)
    sys.exit(17)
time.sleep(0 if me.restart_count >= int(os.environ["FAILURES"]) else 600)
"""


def same(server, job, *words, failures=9, **env):
    return job.nodes(server, 2, "--nproc-per-node=2", "--max-restarts=5", *words, job.file("w.py", SAME),
                     env=sdk_variables(FAILURES=str(failures), **env))


@needs_sdk
def test_the_same_failure_at_the_same_step_twice_ends_the_job(server, job):
    for a in same(server, job):
        a.ends(65, 60)
        assert re.search(r"rank 3 \(local rank 1, pid \d+\) on \S+ exited with status 17 after step 41; rank 3 failed with status 17 after step 41 twice: "
                         r"starting again does not help \(round 2, 1 of 5 restarts used, by rank 3 on \S+ \(round 1\)\)$", a.verdict()), a.verdict()
        assert a.out.lines.count("up 1") == 2 and "up 2" not in a.out.lines
    first, last = incidents(server)
    assert (first["decision"], first["same_failure"], last["decision"], last["same_failure"]) == ("restart", False, "fail", True)
    assert last["reason"] == "rank 3 failed with status 17 after step 41 twice: starting again does not help"
    assert "twice: starting again does not help" in server.job("none")["sentence"]


@needs_sdk
def test_the_first_failures_own_status_beats_65(server, job):
    for a in same(server, job, "--exit-status=first", KILL="1"):
        a.ends(137, 60)
        assert "rank 3 was ended by SIGKILL after step 41 twice: starting again does not help" in a.verdict()


@needs_sdk
def test_same_failure_restart_starts_again(server, job):
    for a in same(server, job, "--same-failure=restart", failures=2):
        a.ends(0, 60)
    assert [r["decision"] for r in incidents(server)] == ["restart", "restart", "succeed"]


def test_a_worker_that_reports_no_steps_is_started_again(server, job):
    a = job.nodes(server, 1, "--max-restarts=2", job.worker("if RESTARTS < 2: sys.exit(17)"))[0]
    a.ends(0)


# --- rounds that are over ---

KINDS = ("reached", "started", "exited", "failed", "silent", "finished", "stopped", "beat")


def test_messages_of_a_round_that_is_over_change_nothing_and_are_counted(server):
    agents = two(server, max_restarts=3)
    fail(agents)
    start_again(agents)
    a = agents[0]
    server.wait_status(lambda s: all(n["state"] == "running" for n in s["jobs"][0]["nodes"]), "round 2 runs")
    before = server.job("job")
    assert before["round"] == 2 and before["stale_messages"] == dict.fromkeys(KINDS, 0)
    more = {"failed": {"cause": {"kind": "worker_exit", "exit_code": 3, "local_rank": 0}}, "stopped": {"store_port": 7},
            "exited": {"local_rank": 1}, "silent": {"workers": [0, 9000, 1, 1]}, "started": {"pids": [1, 2]}, "beat": {"steps": [7, 7]}}
    for kind in KINDS:
        a.send(kind, round=1, **more.get(kind, {}))
    server.wait_status(lambda s: s["jobs"][0]["stale_messages"] == dict.fromkeys(KINDS, 1), "each was counted")
    after = server.job("job")
    for j in (before, after):
        del j["stale_messages"], j["sentence"]
        for n in j["nodes"]:
            del n["heard_ms_ago"]
    assert before == after
    server.log.wait(r"job\.stale")  # It is read by a thread of its own.
    lines = [line for line in server.log.lines if "job.stale" in line]
    assert re.search(r'job=job node="n1" msg=reached round=1 live_round=2 left_out=0', lines[0]), lines
    assert 0 < len(lines) < len(KINDS), "the line is rate-limited"
    for x in agents:
        x.finished()
    for x in agents:
        assert x.expect("end")["success"] == 1
        x.close()
