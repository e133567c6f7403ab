"""--health-check: a node whose check fails takes part in no round, says why, and comes back; what could not look excludes nobody.
--quarantine: a host on which failures begin again and again is set aside where the job can do without it."""
import os
import re
import subprocess
import time

import pytest

from mulib import PATIENCE, Agent, program

WORK = """
say("up", RESTARTS, RANK, WORLD)
if RESTARTS == 0 and RANK == 0 and os.path.exists("fail_once"):
    sys.exit(3)
await_file("end")
"""


def node(server, i=0):
    return server.status()["jobs"][0]["nodes"][i]


def end(job, *agents):
    job.file("end", "")
    for a in agents:
        a.ends(0)


# --- the check ---

def test_a_check_runs_before_each_round_and_only_then(server, job):
    job.file("fail_once", "")
    w = job.worker(WORK)
    a, = job.nodes(server, 1, "--max-restarts=1", "--health-check=echo look >>looks", w)
    a.out.wait("up 1 0 1")
    assert (job.folder / "looks").read_text() == "look\n" * 2
    assert node(server)["unhealthy"] is None and node(server)["state"] == "running"
    end(job, a)
    assert (job.folder / "looks").read_text() == "look\n" * 2
    assert "health" not in a.err.text()


def test_a_node_that_fails_its_check_waits_aside_with_the_reason_and_comes_back(server, job):
    w = job.worker(WORK)
    check = "test -e good || { echo one; echo >&2 GPU 3 has fallen off the bus; exit 7; }"
    a, = job.nodes(server, 1, "--health-check-interval=0.5", "--health-check=" + check, w)
    a.err.wait(r"^node-agent: this node is unhealthy: the health check failed with status 7: GPU 3 has fallen off the bus; "
               r"it takes part in no round until the check passes")
    server.wait_status(lambda s: s["jobs"][0]["nodes"][0]["state"] == "unhealthy", "it is unhealthy")
    n = node(server)
    assert n["connected"] and n["unhealthy"]["text"] == "the health check failed with status 7: GPU 3 has fallen off the bus"
    assert "0 of 1 nodes are here" in server.status()["jobs"][0]["sentence"]
    assert re.search(r"; unhealthy: \S+ \(the health check failed with status 7: GPU 3", server.status()["jobs"][0]["sentence"])
    shown = subprocess.run([program("muster"), "nodes", "-r", f"127.0.0.1:{server.port}"], capture_output=True, text=True,
                           check=True).stdout
    assert re.search(r" unhealthy .*GPU 3 has fallen off the bus", shown), shown
    job.file("good", "")
    a.out.wait("up 0 0 1")
    assert "healthy again: its check passed" in a.err.text()
    assert node(server)["unhealthy"] is None
    end(job, a)


@pytest.mark.parametrize("check, says", [
    ("no-such-program --now", r"could not be run \(status 127\): .*no-such-program"),
    ("/etc/passwd", r"could not be run \(status 126\)"),
    ("echo here; kill -SEGV $$", r"was ended by SIGSEGV: here"),
    ("sh -c 'kill -KILL $$'; exit $?", r"was ended by SIGKILL"),
    ("sleep 1000 & echo asked; sleep 1000", r"did not end within 0.5 s: asked"),
    ("yes", r"did not end within 0.5 s: y"),
])
def test_what_could_not_look_excludes_nobody_and_is_said_once(server, job, check, says):
    job.file("fail_once", "")
    w = job.worker(WORK)
    a, = job.nodes(server, 1, "--max-restarts=1", "--health-check-timeout=0.5", "--health-check=" + check, w)
    a.out.wait("up 1 0 1")
    said = [s for s in a.err.lines if "the health check" in s]
    assert len(said) == 1 and re.search(f"the health check {says}.*; this node is counted on all the same$", said[0]), a.err.text()
    assert node(server)["unhealthy"] is None
    children = open(f"/proc/{a.agent_pid()}/task/{a.agent_pid()}/children", encoding="ascii").read().split()
    assert len(children) == 1, "only the worker is there"
    end(job, a)


def test_a_slow_check_holds_up_no_beat(start_server, job):
    server = start_server("--lease=1")
    w = job.worker(WORK)
    a, = job.nodes(server, 1, "--health-check=sleep 3", w)
    server.wait_status(lambda s: s["jobs"] and s["jobs"][0]["nodes"][0]["state"] == "checking", "it is being checked")
    seen = []
    until = time.monotonic() + 2
    while time.monotonic() < until:
        n = node(server)
        assert n["connected"] and n["state"] in ("checking", "starting", "running"), n
        seen.append(n["heard_ms_ago"])
        time.sleep(0.05)
    assert max(seen) < 1000, "it is heard as often as ever"
    a.out.wait("up 0 0 1")
    end(job, a)


def test_a_check_ends_with_its_agent(server, job):
    a, = job.nodes(server, 1, "--health-check=echo $$ >pid; sleep 1000", job.worker(WORK))
    server.wait_status(lambda s: s["jobs"] and (job.folder / "pid").exists() and (job.folder / "pid").read_text().strip(), "it runs")
    watched = job.watch([int((job.folder / "pid").read_text())])
    a.signal(15)
    a.ends(1)
    watched.gone()


def test_a_job_whose_nodes_are_all_unhealthy_ends_with_that_in_its_cause(server, job):
    w = job.worker(WORK)
    agents = job.nodes(server, 2, "--rdzv-conf=join_timeout=4", "--health-check=echo no GPU; exit 1", w)
    for a in agents:
        a.ends(1, timeout=2 * PATIENCE)
        assert re.search(r"too few nodes came in time: 0 of 2 nodes are here.*; unhealthy: \S+, \S+ \(\S+: the health check failed with "
                         r"status 1: no GPU\)", a.verdict()), a.verdict()


def test_a_spare_takes_the_place_of_a_node_that_became_unhealthy(server, job):
    job.file("fail_once", "")
    w = job.worker("""
say("up", RESTARTS, RANK, WORLD, E["ME"])
if RESTARTS == 0:
    await_file("go")
    sys.exit(3) if RANK == 0 else hang()
await_file("end")
""")
    words = ["--max-restarts=1", w]
    a, = job.nodes(server, 1, "--health-check=test ! -e bad || { echo bad memory; exit 9; }", *words, nnodes=2, env={"ME": "a"})
    b, = job.nodes(server, 1, *words, nnodes=2, env={"ME": "b"})
    b.out.wait("up 0 . 2 b")
    c, = job.nodes(server, 1, *words, nnodes=2, env={"ME": "c"})
    server.wait_status(lambda s: len(s["jobs"][0]["nodes"]) == 3, "the spare is here")
    job.file("bad", "")
    job.file("go", "")
    c.out.wait("up 1 . 2 c"), b.out.wait("up 1 . 2 b")
    states = {n["state"]: n for n in server.status()["jobs"][0]["nodes"]}
    assert "bad memory" in states["unhealthy"]["unhealthy"]["text"]
    assert "unhealthy: " in server.status()["jobs"][0]["sentence"]
    assert "up 1" not in a.out.text()
    end(job, a, b, c)


def test_who_is_healthy_again_is_taken_in_as_a_newcomer_is(server, job):
    w = job.worker(WORK)
    words = ["--on-join=restart", "--rdzv-conf=last_call_timeout=0.2", w]
    a, = job.nodes(server, 1, *words, nnodes="1:2")
    a.out.wait("up 0 0 1")
    b, = job.nodes(server, 1, "--health-check-interval=0.3", "--health-check=test -e good", *words, nnodes="1:2")
    b.err.wait("this node is unhealthy: the health check failed with status 1;")
    server.wait_status(lambda s: any(n["state"] == "unhealthy" for n in s["jobs"][0]["nodes"]), "it is shown")
    assert server.job("none")["round"] == 1, "who is not fit restarts nothing"
    job.file("good", "")
    a.out.wait("up 0 . 2"), b.out.wait("up 0 . 2")
    end(job, a, b)


def test_wrong_values_are_told(job):
    for words, says in ((["--health-check="], "--health-check is empty"), (["--health-check-timeout=0"], "--health-check-timeout"),
                        (["--health-check-timeout=soon"], "--health-check-timeout")):
        a = job.start("--standalone", *words, "x")
        assert a.wait() in (1, 2) and says in a.err.text(), a.err.text()


# --- quarantine ---

def named(host):
    """A host of that name."""
    return ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', host]


needs_names = pytest.mark.skipif(os.getuid() != 0 or subprocess.run(named("n1") + ["true"], check=False).returncode != 0,
                                 reason="a name space for host names needs root and unshare(1)")

FAILS_ON_N1 = """
say("up", RESTARTS, RANK, WORLD, os.uname().nodename)
all_up()
if os.uname().nodename == "n1":
    sys.exit(4)
await_file("end")
"""


@needs_names
def test_a_host_on_which_every_failure_begins_is_set_aside_for_a_spare(start_server, job):
    server = start_server("--quarantine=2/1h", keep=True)
    words = ["--max-restarts=5", job.worker(FAILS_ON_N1)]
    a, b = (job.nodes(server, 1, *words, nnodes=2, pre=named(f"n{i}"))[0] for i in (1, 2))
    a.out.wait("up 0 ")
    c, = job.nodes(server, 1, *words, nnodes=2, pre=named("n3"))
    c.out.wait("up 2 . 2 n3")
    server.wait_status(lambda s: {n["host"]: n["state"] for n in s["jobs"][0]["nodes"]} ==
                       {"n1": "quarantined", "n2": "running", "n3": "running"}, "n1 is set aside")
    n1 = next(n for n in server.status()["jobs"][0]["nodes"] if n["host"] == "n1")
    assert [f["round"] for f in n1["failures"]] == [1, 2] and all("on n1 exited with status 4" in f["sentence"] for f in n1["failures"])
    assert "in quarantine: n1" in server.status()["jobs"][0]["sentence"]
    shown = subprocess.run([program("muster"), "nodes", "-r", f"127.0.0.1:{server.port}"], capture_output=True, text=True,
                           check=True).stdout
    assert re.search(r" n1 .* quarantined .*2 failures began here, the last in round 2: rank \d", shown), shown
    assert server.job("none")["restarts"] == 2
    end(job, a, b, c)


@needs_names
def test_the_last_node_that_is_needed_is_never_set_aside(start_server, job):
    server = start_server("--quarantine=2/1h")
    words = ["--max-restarts=3", job.worker(FAILS_ON_N1)]
    a, b = (job.nodes(server, 1, *words, nnodes=2, pre=named(f"n{i}"))[0] for i in (1, 2))
    a.ends(1), b.ends(1)
    assert server.job("none")["round"] == 4, "every restart was tried"
    n1 = next(n for n in server.job("none")["nodes"] if n["host"] == "n1")
    assert len(n1["failures"]) == 3 and n1["state"] != "quarantined"


@needs_names
def test_an_elastic_job_shrinks_around_it_and_forgives_it_when_told(start_server, job):
    server = start_server("--quarantine=2/1h")
    words = ["--max-restarts=5", "--on-join=restart", "--rdzv-conf=last_call_timeout=5", job.worker(FAILS_ON_N1.replace('"n1"', '"n1" and not os.path.exists("mended")'))]
    a, b = (job.nodes(server, 1, *words, nnodes="1:2", pre=named(f"n{i}"))[0] for i in (1, 2))
    b.out.wait("up 2 0 1 n2")
    a.signal(15)
    a.ends(1)
    again, = job.nodes(server, 1, *words, nnodes="1:2", pre=named("n1"))
    again.err.wait(r"this node is in quarantine, since failures begin here again and again", timeout=PATIENCE)
    assert server.job("none")["round"] == 3, "a new agent there changes nothing"
    again.signal(15)
    again.ends(1)
    job.file("mended", "")
    last, = job.nodes(server, 1, "--leave-quarantine", *words, nnodes="1:2", pre=named("n1"))
    last.out.wait("up 2 . 2 n1")
    end(job, last, b)


def round_of(*agents):
    return [a.expect("start")["round"] for a in agents]


def fail(who, *others):
    for a in (who, *others):
        a.started()
    who.failed(local_rank=0, exit_code=1)
    for a in (who, *others):
        a.expect("stop"), a.stopped()


def agents_of(server, **kw):
    return [Agent(server, host=f"n{i}", boot_id="b", max_restarts=9, **kw) for i in (1, 2)]


def test_where_two_hosts_fail_as_often_it_is_the_program(start_server):
    server = start_server("--quarantine=1/1h")
    a, b = agents_of(server)
    a.expect("welcome"), b.expect("welcome")
    round_of(a, b)
    fail(a, b)  # No spare: it is needed.
    round_of(a, b)
    c = Agent(server, host="n3", boot_id="b", max_restarts=9)
    c.expect("welcome")
    fail(b, a)
    assert round_of(a, b) == [3, 3], "both failed once, nobody is set aside"
    c.close()


@pytest.mark.parametrize("boot, goes", [("b", False), ("another", True)])
def test_what_is_remembered_outlives_the_server_but_not_the_hosts_boot(start_server, boot, goes):
    server = start_server("--quarantine=1/1h", keep=True)
    a, b = agents_of(server)
    a.expect("welcome"), b.expect("welcome")
    round_of(a, b)
    fail(a, b)
    assert round_of(a, b) == [2, 2]
    a.started(), b.started()
    server.wait_status(lambda s: s["jobs"][0]["nodes"][0]["failures"], "it is remembered")
    time.sleep(0.5)  # Incidents are written when there is time.
    server.process.kill()
    server.process.wait()
    later = start_server("--quarantine=1/1h", keep=True)
    n1 = later.status()["jobs"][0]["nodes"][0]
    assert n1["host"] == "n1" and [f["round"] for f in n1["failures"]] == [1]
    fields = {"round": 2, "round_nodes": 2, "round_restarts": 1, "round_fence_ms": 600000}
    a2 = Agent(later, host="n1", node=a.node, boot_id=boot, max_restarts=9, link=2, round_node_rank=0, **fields)
    b2 = Agent(later, host="n2", node=b.node, boot_id="b", max_restarts=9, link=2, round_node_rank=1, **fields)
    c = Agent(later, host="n3", boot_id="b", max_restarts=9)
    d = Agent(later, host="n4", boot_id="b", max_restarts=9)
    for x in (a2, b2, c, d):
        x.expect("welcome")
    b2.close()  # Its end is noticed: the round is stopped.
    a2.round = 2
    a2.expect("stop"), a2.stopped()
    starts = (a2, c) if goes else (c, d)
    assert round_of(*starts) == [3, 3]
    for x in (a2, c, d):
        x.close()


@pytest.mark.parametrize("value, says", [("3", "is not N/WINDOW"), ("0/1h", "is not N/WINDOW"), ("3/1", "is not N/WINDOW"),
                                         ("3/1y", "is not N/WINDOW"), ("99/1h", "N from 1 to 32"), ("x/1h", "is not N/WINDOW")])
def test_a_quarantine_that_makes_no_sense_is_told(value, says):
    p = subprocess.run([program("rdzv-server"), f"--quarantine={value}"], capture_output=True, text=True, check=False)
    assert p.returncode == 2 and "--quarantine: " in p.stderr and says in p.stderr, p.stderr
