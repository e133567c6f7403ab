"""Every fault of docs/faults.md: what the user sees first, and how long it takes until the job goes on.

Three hosts for all of them: agents with two workers each on n1 and n2, the server on n3. MUSTER_FAULTS_OUT=FILE keeps what was seen, from
which the table is rendered (tests/faults)."""
import json
import os
import re
import signal
import sys
import time

import pytest
from conftest import BIN, HERE, Hosts
from procs import Events, Late, pids_with

sys.path.insert(0, str(HERE.parent / "faults"))
from faults import ENDED, RAN_ON, record  # noqa: E402

PROGRAM = ("--no-python", "/usr/bin/python3", "-ESsB", HERE / "worker.py")  # Without its site it starts in a tenth of the time.
LEASE_S = 3
SLACK_S = 4  # Of a busy machine.
ports = iter(range(29500, 30500))


class Case:
    """One job on n1 and n2."""

    def __init__(self, lab, name):
        self.lab, self.port, self.first = lab, next(ports), len(lab.procs)
        self.run_id = f"{lab.run_id}-{self.port}"
        self.events = Events(lab.share / f"events-{self.port}")
        self.one = self.two = None
        self.t0 = 0

    def server(self, *more):
        return self.lab.server(3, self.port, *more)

    def agent(self, host, *words, program=PROGRAM, pre=()):
        cmd = [*pre, BIN / "node-agent", f"--rdzv-id={self.run_id}", f"--rdzv=n3:{self.port}", "--nproc-per-node=2", *words, *program,
               *([self.events.path] if program is PROGRAM else [])]
        return self.lab.start(f"agent on n{host}", host, *cmd, env={"OMP_NUM_THREADS": "1", "PYTHON_EXEC": "/usr/bin/python3"})

    def start(self, *words, nnodes="1:2"):
        self.one, self.two = (self.agent(host, f"--nnodes={nnodes}", *words) for host in (1, 2))
        return self.events.take(4, 40)

    def worker(self, started, host=2):
        """One of that host's, as a number of this machine."""
        first = next(e for e in started if e["host"] == f"n{host}")
        return next(p for p in pids_with(self.events.path, "python3") if self.lab.is_on(p, host) and inner(p) == first["pid"])

    def agents_of(self, host):
        found = [p for p in pids_with(f"--rdzv-id={self.run_id}", "node-agent") if self.lab.is_on(p, host)]
        return sorted(found, key=inner)

    def servers(self):
        return [p for p in pids_with(f"{self.port}", "rdzv-server") if self.lab.is_on(p, 3)]

    def breaks(self):
        self.t0 = time.monotonic_ns()

    def back(self, count, limit_s):
        """Until so many workers have started: seconds, and who they are."""
        got = self.events.take(count, limit_s)
        return (got[-1]["ns"] - self.t0) / 1e9, got

    def seen(self, agent=None, limit_s=5):
        """The agent's first own line since then; "": there is none."""
        try:
            _, m = (agent or self.one).wait_line(r"^node-agent: .*", limit_s, self.t0)
            return m.group(0)
        except Late:
            return ""

    def runs_on(self, seconds):
        """No worker starts, and no round ends."""
        assert self.events.nothing(seconds), "a worker started anew"
        assert self.status()["round"] == 1

    def status(self):
        text = self.lab.lab("exec", 3, "curl", "-s", "-m", "5", f"http://n3:{self.port}/status")
        return next(j for j in json.loads(text)["jobs"] if j["id"] == self.run_id)

    def end(self):
        for p in self.lab.procs[self.first:]:
            p.end()
        for p in pids_with(self.run_id, "node-agent") + self.servers():
            try:
                os.kill(p, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.events.close()


def inner(pid):
    """Its number on its own host."""
    return int(re.search(r"^NSpid:.*\s(\d+)$", open(f"/proc/{pid}/status").read(), re.M).group(1))


@pytest.fixture(scope="module")
def three(lab_ready, tmp_path_factory):
    lab = Hosts(3, tmp_path_factory.mktemp("faults"))
    yield lab
    lab.down()


@pytest.fixture
def case(request, three):
    c = Case(three, request.node.name)
    yield c
    failed = getattr(request.node, "rep_call", None) is not None and request.node.rep_call.failed
    if failed:
        print("\n".join(p.story() for p in three.procs[c.first:]))
    c.end()


# --- workers ---

def worker_dies(case, name, signo, says):
    case.server()
    started = case.start("--max-restarts=1")
    pid = case.worker(started)
    case.breaks()
    os.kill(pid, signo)
    seconds, _ = case.back(4, 20)
    seen = case.seen()
    assert re.search(says, seen), seen
    record(name, seen, seconds)


def test_fault_worker_exit(case):
    worker_dies(case, "worker_exit", signal.SIGUSR1, r"round 1 ended: rank \d .* on n2 exited with status 7; the group starts again")


def test_fault_worker_signal(case):
    worker_dies(case, "worker_signal", signal.SIGKILL, r"round 1 ended: rank \d .* on n2 was ended by SIGKILL; the group starts again")


def test_fault_worker_exec_fails(case):
    case.server()
    case.one = case.agent(1, "--nnodes=2")
    case.breaks()
    case.two = case.agent(2, "--nnodes=2", "--no-python", program=("/opt/train/missing",))
    assert [p.wait(20) for p in (case.one, case.two)] == [1, 1]
    seconds = (time.monotonic_ns() - case.t0) / 1e9
    seen = case.seen()
    assert "missing" in seen and "n2" in seen and "No such file" in seen, case.one.text()
    record("worker_exec_fails", seen, seconds, ENDED)


def test_fault_worker_hangs(case):
    case.server()
    started = case.start("--max-restarts=1", "--silence-timeout=2", "--hang-hook=none", "--shutdown-timeout=2")
    pid = case.worker(started)
    case.breaks()
    os.kill(pid, signal.SIGSTOP)
    seconds, _ = case.back(4, 30)
    seen = case.seen()
    assert "made no progress: no sign of life" in seen, seen
    record("worker_hangs", seen, seconds)


# --- agents and hosts ---

def agent_dies(case, name, signo):
    case.server()
    case.start()
    pid = case.agents_of(2)[-1]
    case.breaks()
    os.kill(pid, signo)
    seconds, alone = case.back(2, 20)
    assert {e["world"] for e in alone} == {2}
    seen = case.seen()
    assert re.search(r"round 1 ended: the agent on n2 (died|left)", seen), seen
    record(name, seen, seconds)


def test_fault_agent_killed(case):
    agent_dies(case, "agent_killed", signal.SIGKILL)


def test_fault_agent_aborts(case):
    agent_dies(case, "agent_aborts", signal.SIGABRT)


def test_fault_host_loses_power(case):
    case.server()
    case.start()
    case.breaks()
    case.lab.lab("kill", 2)
    try:
        seconds, _ = case.back(2, LEASE_S + SLACK_S + 10)
        seen = case.seen()
        assert "the agent on n2 was not heard for its whole lease" in seen, seen
        assert seconds <= LEASE_S + SLACK_S
        record("host_loses_power", seen, seconds)
    finally:
        case.lab.lab("start", 2)


# --- the network ---

def test_fault_cut_shorter_than_the_lease(case):
    case.server()
    case.start()
    case.breaks()
    case.lab.lab("cut", 2)
    quiet = case.events.nothing(1)
    case.lab.lab("heal", 2)
    assert quiet
    case.runs_on(3)
    record("cut_shorter_than_the_lease", case.seen(limit_s=0), 0, RAN_ON)


def test_fault_cut_longer_than_the_lease(case):
    case.server()
    case.start()
    case.breaks()
    case.lab.lab("cut", 2)
    try:
        seconds, alone = case.back(2, 20)
        assert {e["host"] for e in alone} == {"n1"}
        _, m = case.two.wait_line("not heard for 0.7 of the fence time: workers are stopped before", 10, case.t0)
    finally:
        case.lab.lab("heal", 2)
    seen = case.seen()
    assert "the agent on n2 was not heard for its whole lease" in seen, seen
    case.two.wait_line("waits as a spare", 20, case.t0)
    record("cut_longer_than_the_lease", seen, seconds)


def test_fault_cut_one_way(case):
    """What n2 sends is lost; what it is sent arrives."""
    case.server()
    case.start()
    case.breaks()
    rule = "add table inet oneway; add chain inet oneway out { type filter hook output priority 0; }; add rule inet oneway out oifname eth0 drop"
    case.lab.lab("exec", 2, "nft", rule)
    try:
        seconds, alone = case.back(2, 20)
        assert {e["host"] for e in alone} == {"n1"}
        case.two.wait_line("workers are stopped before", 10, case.t0)
    finally:
        case.lab.lab("exec", 2, "nft", "delete table inet oneway")
    seen = case.seen()
    record("cut_one_way", seen, seconds)


# --- the server ---

def test_fault_server_killed(case):
    folder = case.lab.share / f"state-{case.port}"
    server = case.server("--state-dir", folder)
    case.start()
    case.breaks()
    os.kill(case.servers()[0], signal.SIGKILL)
    server.wait(10)
    case.server("--state-dir", folder).wait_line(r"RECOVERING->RUNNING", 20)
    case.runs_on(2)
    record("server_killed", case.seen(limit_s=0), 0, RAN_ON)


def frozen(case):
    pid = case.servers()[0]
    case.breaks()
    os.kill(pid, signal.SIGSTOP)
    quiet = case.events.nothing(30)
    os.kill(pid, signal.SIGCONT)
    assert quiet
    return (time.monotonic_ns() - case.t0) / 1e9


def test_fault_server_frozen(case):
    case.server()
    case.start(nnodes="2")
    frozen(case)
    case.runs_on(4)
    record("server_frozen", case.seen(limit_s=0), 0, RAN_ON)


def test_fault_server_frozen_elastic(case):
    """Whoever could be replaced cannot know whether it was: it stops, and starts again when the server is back."""
    case.server()
    case.start()
    frozen(case)
    seconds, _ = case.back(4, 20)
    seen = case.seen()
    assert "not heard for 0.7 of the fence time: workers are stopped before" in seen, seen
    record("server_frozen_elastic", seen, seconds)


def test_fault_server_disk_full(case):
    case.lab.lab("exec", 3, "sh", "-c", f"mkdir -p /state-{case.port} && mount -t tmpfs -o size=2m tmpfs /state-{case.port}")
    server = case.server("--state-dir", f"/state-{case.port}/s")
    started = case.start("--max-restarts=1")
    case.lab.lab("exec", 3, "sh", "-c", f"cat /dev/zero > /state-{case.port}/ballast; true")
    pid = case.worker(started)
    case.breaks()
    os.kill(pid, signal.SIGKILL)
    seconds, _ = case.back(4, 20)
    seen = case.seen()
    server.wait_line(r"state\.|not kept|No space|full", 10)
    assert "was ended by SIGKILL; the group starts again" in seen, seen
    record("server_disk_full", seen, seconds)


# --- what a host runs out of ---

def test_fault_log_disk_full(case):
    case.lab.lab("exec", 2, "sh", "-c", f"mkdir -p /logs-{case.port} && mount -t tmpfs -o size=1m tmpfs /logs-{case.port}")
    case.server()
    logs = f"--log-dir=/logs-{case.port}"
    talks = ("-c", "import os, sys, time; open(sys.argv[1], 'w').write('start %s 0 %d n 1\\n' % (os.environ['RANK'], os.getpid()))\n"
             "while 1: print('x' * 1000, flush=True); time.sleep(0.001)", case.events.path)
    case.breaks()
    case.two = case.one = case.agent(2, "--nnodes=1", "--no-python", "--redirects=1", logs, program=("python3", *talks))
    case.events.take(2, 20)
    case.breaks()
    seen = case.seen(limit_s=30)
    assert "No space left" in seen, seen
    case.runs_on(1)
    record("log_disk_full", seen, 0, RAN_ON)


def test_fault_descriptors_exhausted(case):
    case.server()
    case.breaks()
    case.two = case.agent(2, "--nnodes=1:2", pre=("prlimit", "--nofile=24:24"))
    assert case.two.wait(20) == 1
    seconds = (time.monotonic_ns() - case.t0) / 1e9
    seen = case.seen(case.two)
    assert "the limit of open files is 24, and an agent with 2 workers needs" in seen and "raise it" in seen, seen
    record("descriptors_exhausted", seen, seconds, ENDED)


def test_fault_stale_agent(case):
    """Stopped past the lease, it comes back with what it had to say of a round that is over."""
    case.server()
    case.start()
    pid = case.agents_of(2)[-1]
    case.breaks()
    os.kill(pid, signal.SIGSTOP)
    try:
        seconds, alone = case.back(2, 20)
        assert {e["host"] for e in alone} == {"n1"}
    finally:
        os.kill(pid, signal.SIGCONT)
    case.two.wait_line("waits as a spare", 20, case.t0)
    assert case.events.nothing(2) and case.status()["round"] == 2, "its late words disturb nobody"
    record("stale_agent", case.seen(), seconds)
