"""A node leaves in order: all ranks stop after one step, and the others go on without it."""
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

import agentlib
import mulib

SOURCE = os.environ.get("MUSTER_SOURCE", os.path.join(os.path.dirname(__file__), "..", ".."))
LIMIT_S = 60

pytestmark = pytest.mark.skipif(agentlib.SANITIZED, reason="a sanitized library cannot be loaded into a Python that is not")

# Goes on from the step that rank 0 noted; no word between ranks but the step that the agents name.
TRAINS = """
import os, sys, time
import muster
rank, round_no = muster.env().rank, muster.env().round
def say(*w):
    os.write(1, (" ".join(map(str, w)) + "\\n").encode())
step = int(open("checkpoint").read()) if os.path.exists("checkpoint") else 0
say("start", rank, round_no, step)
last = int(sys.argv[1])
while step < last:
    time.sleep(0.05)
    step += 1
    muster.progress(step)
    if muster.should_stop():
        say("halt", rank, round_no, step)
        if rank == 0:
            open("checkpoint.new", "w").write(str(step))
            os.rename("checkpoint.new", "checkpoint")
        sys.exit(0)
say("done", rank, round_no, step)
"""
PLAIN = "say('up', RANK)\nhang()\n"


def variables():
    library = os.path.abspath(os.path.join(mulib.BIN, "..", "lib", "libmuster.so.0"))
    assert os.path.exists(library), f"{library} is not there: build muster_sdk first"
    return {"PYTHONPATH": os.path.join(SOURCE, "worker-sdk", "python"), "MUSTER_LIBRARY": library, "PYTHON_EXEC": sys.executable}


class Group:
    """Agents of one job with SDK workers that do so many steps."""

    def __init__(self, job, server, nnodes, last):
        self.job, self.server, self.nnodes, self.last = job, server, nnodes, last
        self.script = job.file("train.py", TRAINS)

    def add(self, *words):
        return self.job.start(f"--rdzv=127.0.0.1:{self.server.port}", f"--nnodes={self.nnodes}", "--rdzv-id=d", "--nproc-per-node=2",
                              *words, self.script, self.last, env=variables())

    def node(self, agent):
        """Its id, as status shows it."""
        found = [n for j in self.server.status()["jobs"] for n in j["nodes"] if n["pid"] == agent.agent_pid()]
        assert len(found) == 1, found
        return found[0]


def halts(agents):
    return [tuple(map(int, m.groups())) for a in agents for m in (re.match(r"halt (\d+) (\d+) (\d+)$", s) for s in a.out.lines) if m]


def starts(agents):
    return [tuple(map(int, m.groups())) for a in agents for m in (re.match(r"start (\d+) (\d+) (\d+)$", s) for s in a.out.lines) if m]


def wait_steps(server, at_least):
    """Until all workers have told of that many steps."""
    def far(s):
        steps = [w["step"] for j in s["jobs"] for n in j["nodes"] for w in n["workers"] if n["state"] == "running"]
        return len(steps) > 0 and all(x is not None and x >= at_least for x in steps)
    server.wait_status(far, f"{at_least} steps")


def check_halts(agents, ranks, round_no=1):
    """All ranks of that round stopped after one and the same step, which is returned."""
    found = [h for h in halts(agents) if h[1] == round_no]
    assert sorted(h[0] for h in found) == list(range(ranks)), found
    assert len({h[2] for h in found}) == 1, found
    return found[0][2]


def test_a_smaller_group_goes_on_after_the_step_that_all_stopped_at(job, server):
    g = Group(job, server, "1:2", 120)
    stays, leaves = g.add("--node-rank=0"), g.add("--node-rank=1")
    wait_steps(server, 10)
    leaves.signal(signal.SIGUSR1)
    leaves.ends(0, LIMIT_S)
    stays.ends(0, LIMIT_S)
    step = check_halts([stays, leaves], 4)
    assert sorted(s for s in starts([stays]) if s[1] == 2) == [(0, 2, step), (1, 2, step)]
    assert "this node has left job d in order (told to stop by SIGUSR1)" in leaves.err.text()
    assert re.search(r"is to leave \(told to stop by SIGUSR1\): the workers stop after step %d$" % step, stays.err.text(), re.M)
    job_now = server.status()["jobs"][0]
    assert job_now["restarts"] == 0 and job_now["state"] == "succeeded"


def test_a_spare_takes_the_place(job, server):
    g = Group(job, server, "2", 120)
    stays, leaves = g.add(), g.add()
    wait_steps(server, 5)
    spare = g.add()
    server.wait_status(lambda s: len(s["jobs"][0]["nodes"]) == 3, "a spare")
    leaves.signal(signal.SIGUSR1)
    leaves.ends(0, LIMIT_S)
    stays.ends(0, LIMIT_S)
    spare.ends(0, LIMIT_S)
    step = check_halts([stays, leaves], 4)
    assert sorted(s for s in starts([stays, spare]) if s[1] == 2) == [(r, 2, step) for r in range(4)]


def test_without_a_spare_the_others_wait_for_one_and_say_so(job, server):
    g = Group(job, server, "2", 100)
    stays, leaves = g.add(), g.add()
    wait_steps(server, 5)
    leaves.signal(signal.SIGUSR1)
    leaves.ends(0, LIMIT_S)
    step = check_halts([stays, leaves], 4)
    stays.err.wait(r"1 of 2 nodes are here", timeout=LIMIT_S)
    comes = g.add()
    stays.ends(0, LIMIT_S)
    comes.ends(0, LIMIT_S)
    assert sorted(s for s in starts([stays, comes]) if s[1] == 2) == [(r, 2, step) for r in range(4)]
    assert server.status()["jobs"][0]["restarts"] == 0


def test_two_that_leave_at_once_stop_at_one_step(job, server):
    g = Group(job, server, "1:3", 120)
    agents = [g.add(f"--node-rank={i}") for i in range(3)]
    wait_steps(server, 5)
    agents[1].signal(signal.SIGUSR1)
    agents[2].signal(signal.SIGUSR1)
    for a in agents:
        a.ends(0, LIMIT_S)
    step = check_halts(agents, 6)
    assert sorted(s for s in starts(agents) if s[1] == 2) == [(0, 2, step), (1, 2, step)]


def test_the_deadline_ends_workers_that_do_not_listen(job, server):
    script = job.file("deaf.py", TRAINS.replace("muster.should_stop()", "False"))
    words = [f"--rdzv=127.0.0.1:{server.port}", "--nnodes=1:2", "--rdzv-id=d"]
    stays, leaves = [job.start(*words, "--drain-timeout=2", script, 150, env=variables()) for _ in range(2)]
    wait_steps(server, 5)
    leaves.signal(signal.SIGUSR1)
    leaves.ends(0, LIMIT_S)
    assert "the time to leave in order is over" in leaves.err.text()
    stays.ends(0, LIMIT_S)
    assert server.status()["jobs"][0]["restarts"] == 0


def test_without_the_sdk_workers_get_sigterm_at_once(job, server):
    worker = job.worker("on(signal.SIGTERM, 'term', 0)\n" + PLAIN)
    stays, leaves = job.nodes(server, 2, "--rdzv-id=d", worker, nnodes="1:2")
    for a in (stays, leaves):
        a.out.wait(r"^up")
    leaves.signal(signal.SIGUSR1)
    leaves.ends(0, LIMIT_S)
    assert "term" in leaves.out.text()
    stays.err.wait(r"round 1 ended: the agent on \S+ left: drained: told to stop by SIGUSR1; .*no restart is spent")
    stays.out.wait_count(r"^up", 2, timeout=LIMIT_S)  # Alone.
    stays.signal(signal.SIGTERM)
    stays.ends(1, LIMIT_S)


def test_a_job_of_one_node_stops_at_a_step_and_ends_as_one_that_was_told_to(job):
    script = job.file("train.py", TRAINS)
    a = job.start("--standalone", "--nproc-per-node=2", script, 100000, env=variables())
    a.out.wait_count(r"^start", 2, timeout=LIMIT_S)
    time.sleep(1.5)  # Some steps: no server tells of them.
    a.signal(signal.SIGUSR1)
    a.ends(1, LIMIT_S)
    check_halts([a], 2)
    assert "told to stop by SIGUSR1" in a.verdict()


@pytest.mark.parametrize("keep", [True, False])
def test_a_server_that_dies_meanwhile_changes_nothing_of_it(job, start_server, keep):
    first = start_server(keep=keep)
    g = Group(job, first, "1:2", 150)
    stays, leaves = g.add("--node-rank=0"), g.add("--node-rank=1")
    wait_steps(first, 10)
    leaves.signal(signal.SIGUSR1)
    for a in (stays, leaves):
        a.err.wait(r"the workers stop after step \d+", timeout=LIMIT_S)
    first.kill()
    second = start_server(keep=keep, port=first.port)
    leaves.ends(0, LIMIT_S)
    stays.ends(0, LIMIT_S)
    check_halts([stays, leaves], 4)
    assert second.status()["jobs"][0]["restarts"] == 0


def test_a_warning_to_all_nodes_stops_them_at_one_step_and_ends_the_job(job):
    """As Slurm's --signal=USR1@120 sends it: each agent gets it, the one that serves the rendezvous too."""
    script = job.file("train.py", TRAINS)
    port = agentlib.unused_port()
    agents = [job.start(f"--rdzv=127.0.0.1:{port}", "--nnodes=2", f"--node-rank={i}", "--rdzv-id=d", "--nproc-per-node=2", script, 100000,
                        env=variables()) for i in range(2)]
    for a in agents:
        a.out.wait_count(r"^start", 2, timeout=LIMIT_S)
    time.sleep(1.5)  # Some steps.
    for a in agents:
        a.signal(signal.SIGUSR1)
    assert sorted(a.wait(LIMIT_S) for a in agents) == [0, 1]
    check_halts(agents, 4)


# --- asked through the server ---

def post(server, path, host=None, body=None):
    """(status, answer)"""
    c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=mulib.PATIENCE)
    try:
        c.putrequest("POST", path, skip_host=True)
        c.putheader("Host", f"localhost:{server.port}" if host is None else host)
        if body is not None:
            c.putheader("Content-Length", str(len(body)))
        c.endheaders(body)
        r = c.getresponse()
        return r.status, json.loads(r.read())
    finally:
        c.close()


def muster(server, *words):
    return subprocess.run([mulib.program("muster"), *map(str, words), f"--rdzv=127.0.0.1:{server.port}"], capture_output=True, text=True,
                          timeout=mulib.PATIENCE, check=False, stdin=subprocess.DEVNULL)


def test_a_post_drains_a_node_and_status_shows_it(job, server):
    g = Group(job, server, "1:2", 150)
    stays, leaves = g.add("--node-rank=0"), g.add("--node-rank=1")
    wait_steps(server, 10)
    node = g.node(leaves)
    assert node["drain"] is None
    code, answer = post(server, f"/nodes/{node['id']}/drain?timeout=30&job=d")
    assert code == 202, answer
    assert (answer["job"], answer["node"], answer["host"], answer["timeout_ms"]) == ("d", node["id"], node["host"], 30000)
    assert "is to leave (asked through the server)" in answer["sentence"]
    shown = g.node(leaves)
    assert shown["drain"]["reason"] == "asked through the server"
    assert mulib.unix_ms(shown["drain"]["until"]) - mulib.unix_ms(shown["drain"]["since"]) == 30000
    code, again = post(server, f"/nodes/{node['id']}/drain")
    assert code == 409 and "is leaving already" in again["error"]
    leaves.ends(0, LIMIT_S)
    stays.ends(0, LIMIT_S)
    check_halts([stays, leaves], 4)
    code, _, body = server.get("/jobs/d/incidents")
    first = json.loads(body)["incidents"][0]
    assert code == 200 and first["decision"] == "regroup" and first["cause"]["kind"] == "node_left", first
    assert first["cause"]["message"] == "drained: asked through the server" and first["restarts"] == 0


def test_muster_drain(job, server):
    g = Group(job, server, "1:2", 150)
    stays, leaves = g.add("--node-rank=0"), g.add("--node-rank=1")
    wait_steps(server, 10)
    host = g.node(leaves)["host"]
    both = muster(server, "drain", host)  # Two agents on one host.
    assert both.returncode == 1 and f'2 nodes are called "{host}"' in both.stderr, both.stderr
    p = muster(server, "drain", g.node(leaves)["id"], "--job", "d", "--drain-timeout", "20")
    assert p.returncode == 0 and p.stdout.startswith(f"{host} leaves job d within 20 s: round 1 runs"), p.stdout + p.stderr
    leaves.ends(0, LIMIT_S)
    p = muster(server, "drain", g.node(stays)["id"], "--json")  # The last one: the job ends.
    assert p.returncode == 0 and json.loads(p.stdout)["timeout_ms"] == 60000, p.stderr
    stays.ends(0, LIMIT_S)
    assert server.status()["jobs"][0]["state"] == "failed"


def test_a_spare_leaves_at_once(job, server):
    g = Group(job, server, "1", 60)
    runs = g.add()
    wait_steps(server, 3)
    spare = g.add()
    server.wait_status(lambda s: len(s["jobs"][0]["nodes"]) == 2, "a spare")
    assert post(server, f"/nodes/{g.node(spare)['id']}/drain")[0] == 202
    spare.wait(LIMIT_S)
    runs.ends(0, LIMIT_S)
    assert not halts([runs]) and server.status()["jobs"][0]["round"] == 1


def test_what_a_post_is_refused_for(job, server):
    g = Group(job, server, "1", 100000)
    a = g.add()
    wait_steps(server, 1)
    node = g.node(a)["id"]
    cases = [(404, "/nodes/nobody/drain", None, 'no living job has a node "nobody", nor has the pool: muster nodes and muster pool list those that are there'),
             (404, f"/nodes/{node}/drain?job=x", None, "there is no living job of that id"),
             (400, f"/nodes/{node}/drain?timeout=soon", None, "timeout"),
             (403, f"/nodes/{node}/drain", "evil.example:80", "the Host field must name this machine"),
             (403, f"/nodes/{node}/drain", "", "the Host field must name this machine"),
             (404, "/nodes//drain", None, "there is no such page")]
    for code, path, host, text in cases:
        got, answer = post(server, path, host)
        assert got == code and text in answer["error"], (path, host, got, answer)
    got, headers, body = server.get(f"/nodes/{node}/drain")
    assert got == 405 and headers["Allow"] == "POST" and "only POST" in json.loads(body)["error"]
    got, answer = post(server, f"/nodes/{node}/drain", None, b"x" * ((1 << 20) + 1))
    assert got == 413 and "1 MiB" in answer["error"]
    with pytest.raises((http.client.HTTPException, OSError)):  # It is not read to its end.
        post(server, f"/nodes/{node}/drain", None, b"x" * (64 << 20))
    assert g.node(a)["drain"] is None
    for host in ("127.0.0.1", "[::1]:1", "localhost"):
        assert post(server, "/nodes/nobody/drain", host)[0] == 404
    a.signal(signal.SIGTERM)
    a.ends(1, LIMIT_S)


def test_only_this_machine_may_ask(server):
    own = [s.split()[0] for s in subprocess.run(["hostname", "-I"], capture_output=True, text=True, check=False).stdout.splitlines() if s.split()]
    if not own:
        pytest.skip("this machine has loopback addresses only")
    c = http.client.HTTPConnection(own[0], server.port, timeout=mulib.PATIENCE)
    c.request("POST", "/nodes/x/drain", headers={"Host": "localhost"})
    r = c.getresponse()
    assert r.status == 403 and "only a process on the server's own machine" in json.loads(r.read())["error"]
    c.close()
