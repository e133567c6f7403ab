"""A job of the pool whose nodes are lost starts again by itself: real services and agents, the real server, muster run attached."""
import contextlib
import os
import signal

import pytest

import mulib
from musterlib import Muster
from poollib import ask, job, wait_job, wait_state
from servicelib import Service, gone, script

QUICK = ("--lease", "2", "--beat", "0.2")


@pytest.fixture
def cluster(start_server, tmp_path):
    class Cluster:
        def __init__(self):
            self.server = start_server(*QUICK, keep=True)
            self.services = []
            self.musters = []
            self.folder = tmp_path

        def service(self):
            s = Service(self.folder, self.server.port, "--slots=1", log_dir=self.folder / f"kept{len(self.services)}")
            self.services.append(s)
            s.err.wait(r"service\.offered")
            return s

        def restart(self):
            self.server = start_server(*QUICK, keep=True)

        def run(self, *words):
            self.musters.append(self.muster("run", "--name=t", *words))
            return self.musters[-1]

        def muster(self, *words):
            return Muster(*words, env={"MUSTER_RDZV": f"127.0.0.1:{self.server.port}"}, cwd=self.folder)

        def job(self):
            return wait_job(self.server, "t", lambda _: True, "t")

    c = Cluster()
    yield c
    for m in c.musters:
        if m.p.poll() is None:
            m.p.kill()
        m.p.wait(mulib.PATIENCE)
    for s in c.services:
        s.check_end()


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as f:
        return [int(x) for x in f.read().split()]


def descendants(pid):
    return [d for c in children(pid) for d in (c, *descendants(c))]


def power_off(s):
    """Service, agent and workers end in the same moment, and say nothing."""
    os.kill(s.pid, signal.SIGSTOP)
    all_of_it = [s.pid, *descendants(s.pid)]
    for p in all_of_it:
        with contextlib.suppress(ProcessLookupError):  # A child of the agent that had just done its work.
            os.kill(p, signal.SIGKILL)
    s.process.wait(mulib.PATIENCE)
    gone(all_of_it[1:])


WORKER = """
print("start on", os.getppid(), flush=True)
while not os.path.exists("on"):
    time.sleep(0.05)
print("end", flush=True)
"""


def named(m):
    """The id that muster run tells."""
    return m.err.wait(r"job (t-[0-9a-f]{6})").group(1)


def one_that_runs(cluster, *words):
    """A service, and a job of one worker on it: (service, muster run, the job's id)."""
    worker = script(cluster.folder, "worker", WORKER)
    s = cluster.service()
    m = cluster.run(*words, "--", str(worker))
    name = named(m)
    m.out.wait("start on")
    return s, m, name


def test_a_job_whose_node_dies_goes_on_at_another_and_muster_run_follows(cluster):
    first, m, name = one_that_runs(cluster)
    wait_state(cluster.server, name, "running")
    behind = ask(cluster.server, "POST", "/v1/jobs", {"argv": ["true"], "id": "behind"})
    assert behind[0] == 201
    power_off(first)
    j = wait_job(cluster.server, name, lambda j: j["state"] == "queued", "it waits again")
    host = j["placed"][0]["host"]
    assert j["sentence"].startswith(f"starts again: {host} was lost; waits for 1 node"), j
    assert (j["attempt"], j["requeue"], j["requeues"], j["exit_status"], j["cause"]) == (1, True, 1, None, None)
    shown = cluster.muster("jobs")
    assert shown.end() == 0 and f"starts again: {host} was lost" in shown.out.text(), shown.out.text()
    shown = cluster.muster("status", name)
    assert shown.end() == 0 and f"starts again: {host} was lost" in shown.out.text(), shown.out.text()
    cluster.service()
    j = wait_state(cluster.server, name, "running")
    assert j["attempt"] == 2 and f"started again: {host} was lost" in j["sentence"] and job(cluster.server, "behind")["state"] == "queued"
    m.err.wait(r"start(s|ed) again: .* was lost")
    (cluster.folder / "on").touch()
    assert m.end() == 0, m.err.text()
    assert m.out.text().count("start on") >= 1 and m.out.text().count("end") == 1
    assert wait_state(cluster.server, "behind", "done")


def test_a_killed_service_is_a_lost_node_and_a_killed_agent_is_not(cluster):
    s, m, name = one_that_runs(cluster)
    s.process.kill()  # Its agent says that it has to leave.
    s.process.wait(mulib.PATIENCE)
    s = cluster.service()
    wait_job(cluster.server, name, lambda j: j["attempt"] == 2 and j["state"] == "running", "the second start")
    agent, = children(s.pid)
    os.kill(agent, signal.SIGKILL)
    j = wait_state(cluster.server, name, "failed")
    assert j["attempt"] == 2 and j["exit_status"] != 0 and m.end() != 0


def test_a_job_that_is_killed_on_request_ends_with_137(cluster):
    worker = script(cluster.folder, "worker", WORKER)
    cluster.service(), cluster.service()
    m = cluster.run("--nnodes=2", "--", str(worker))
    name = named(m)
    wait_state(cluster.server, name, "running")
    m.out.wait("start on")
    stop = cluster.muster("stop", name, "--signal", "SIGKILL", "--wait")
    assert stop.end() == 0, stop.err.text()
    j = job(cluster.server, name)
    assert (j["state"], j["exit_status"], j["attempt"]) == ("stopped", 137, 1), j
    assert m.end() == 137, m.err.text()


def test_who_does_not_want_that_says_so(cluster):
    s, m, name = one_that_runs(cluster, "--no-requeue")
    wait_state(cluster.server, name, "running")
    power_off(s)
    j = wait_state(cluster.server, name, "failed")
    assert j["requeue"] is False and j["requeues"] == 0 and j["attempt"] == 1
    assert m.end() == 1 and "failed" in m.err.text()
    code, answer = ask(cluster.server, "POST", "/v1/jobs", {"argv": ["x"], "requeue": 1})
    assert code == 400 and "'requeue'" in answer["error"]


def test_a_successor_of_the_server_starts_it_again_once(cluster):
    """The server dies between the loss and the next start."""
    worker = script(cluster.folder, "worker", WORKER)
    s = cluster.service()
    m = cluster.run("-d", "--", str(worker))
    assert m.end() == 0
    name = m.out.text().strip()
    wait_state(cluster.server, name, "running")
    power_off(s)
    wait_job(cluster.server, name, lambda j: j["state"] == "queued", "it waits again")
    cluster.server.kill()
    cluster.restart()
    j = job(cluster.server, name)
    assert j["state"] == "queued" and j["requeues"] == 1 and "starts again: " in j["sentence"]
    cluster.service()
    (cluster.folder / "on").touch()
    assert wait_state(cluster.server, name, "done")["attempt"] == 2
