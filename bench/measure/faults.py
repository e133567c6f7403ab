"""Faults on four hosts of the lab: from a worker's death, an agent's death (SIGKILL each) and a host's power loss to the first instruction
of the last new worker.

Three nodes with two workers each, and the server, where there is one, on the fourth host. `shrink`: two to three nodes, so the job goes
on with what is left. `spare`: three nodes, and an agent on the fourth host that waits. Each time a fresh job.
Workers end at SIGTERM at
once, so their stop is in the time and is small. What has not started again after the limit is said in a note.
"""
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, suppress

from .common import Fifo, Missing, end_group, median, ms
from .lab import hosts

NODES, EACH = 3, 2
VICTIM = 3
LIMIT_S = 30
PEER_LIMIT_S = 60
LEASE_MS, REACT_MS = 3000.0, 20.0
PORT = 29500
FAULTS = {"worker": REACT_MS, "agent": REACT_MS, "host": LEASE_MS + REACT_MS}


class Job:
    """One launched job; ended with all that it left."""

    def __init__(self, lab, fifo, kind, variant):
        self.lab, self.fifo, self.kind = lab, fifo, kind
        self.nnodes = f"2:{NODES}" if variant == "shrink" else str(NODES)
        self.members = range(1, NODES + 1 + (variant == "spare"))
        self.procs = []

    def start(self, host, *cmd):
        self.procs.append(self.lab.start(host, *cmd, stderr=subprocess.DEVNULL))
        return self.procs[-1]

    def launch(self):
        bench = self.lab.bench
        worker = ["--no-python", bench.tool("stamp"), self.fifo.path]
        shape = [f"--nnodes={self.nnodes}", f"--nproc-per-node={EACH}", "--max-restarts=1000"]
        if self.kind == "muster":
            self.start(4, bench.ours("rdzv-server"), "--port", PORT)
            time.sleep(0.2)
            for host in self.members:
                self.start(host, bench.ours("node-agent"), "--rdzv-id=faults", f"--rdzv=10.88.0.4:{PORT}", *shape, *worker)
                if host == NODES:  # Who comes last is the spare.
                    self.fifo.take(NODES * EACH, LIMIT_S, "first starts")
        else:
            more = ["--ignore-missing-fault-tol-cfg"] if self.kind == "ft_launcher" else []
            for host in self.members:
                self.start(host, bench.peer(self.kind), *more, "--rdzv-backend=c10d", "--rdzv-endpoint=10.88.0.1:29400", "--rdzv-id=faults",
                           *shape, *worker)
                if host == NODES:
                    self.fifo.take(NODES * EACH, PEER_LIMIT_S, "first starts")
            time.sleep(2)  # Its own first turns.
        if len(self.members) > NODES:
            time.sleep(4 if self.kind == "muster" else 10)  # The spare has arrived, and all have agreed to be replaced after a lease.

    def agents(self):
        """Of the victim's host; the one that does the work is the youngest."""
        return self.lab.pids(VICTIM, "faults", "node-agent") if self.kind == "muster" else self.lab.pids(VICTIM, "--rdzv-id=faults")

    def breaks(self, fault):
        """Until the last new worker's stamp."""
        workers, agents = self.lab.pids(VICTIM, self.fifo.path, "stamp"), self.agents()
        if not workers or not agents:
            raise Missing(f"no worker or no agent runs on host {VICTIM} any more")
        due = NODES * EACH if fault == "worker" or len(self.members) > NODES else (NODES - 1) * EACH
        t0 = time.monotonic_ns()
        if fault == "host":
            self.lab.do("kill", VICTIM)
        else:
            os.kill(workers[0] if fault == "worker" else agents[-1], signal.SIGKILL)
        limit = LIMIT_S if self.kind == "muster" else PEER_LIMIT_S
        return max(s[0] for s in self.fifo.take(due, limit, f"workers after the death of a {fault}")) - t0

    def end(self):
        for p in self.procs:
            with suppress(ProcessLookupError):
                os.killpg(p.pid, signal.SIGKILL)
        for p in self.procs:
            end_group(p, 1)
        for host in range(1, 5):
            with suppress(OSError):
                for pid in self.lab.pids(host, self.fifo.path):
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
        self.fifo.drain()


def once(lab, fifo, kind, variant, fault):
    job = Job(lab, fifo, kind, variant)
    with ExitStack() as stack:
        stack.callback(job.end)
        job.launch()
        took = job.breaks(fault)
    return took


def several(bench, lab, fifo, kind, variant, fault, rounds):
    found = []
    for _ in range(rounds):
        try:
            found.append(ms(once(lab, fifo, kind, variant, fault)))
        except Missing as e:
            bench.note(f"faults, {variant}, death of a {fault}, {kind}: {e}")
            break
        finally:
            if fault == "host":
                lab.do("start", VICTIM)
    return found


def measure(bench):
    if bench.ours("node-agent") is None or bench.ours("rdzv-server") is None:
        raise Missing("node-agent and rdzv-server are not built")
    rounds = {"worker": 5, "agent": 5, "host": 3} if bench.quick else {"worker": 20, "agent": 20, "host": 10}
    kinds = ["muster"] + [k for k in ("torchrun", "ft_launcher") if bench.peer(k) is not None]
    with hosts(bench, "faults", 4) as lab:
        fifo = Fifo(bench, "faults/fifo")
        for variant in ("shrink", "spare"):
            for fault, limit in FAULTS.items():
                times = {}
                for k in kinds:
                    times[k] = several(bench, lab, fifo, k, variant, fault, rounds[fault] if k == "muster" else 1 if bench.quick else 3)
                    print(f"bench: faults: {variant}, {fault}, {k}: {[round(t, 1) for t in times[k]]} ms", file=sys.stderr, flush=True)
                for what, take in (("median", median), ("least", lambda v: min(v, default=None))):
                    bench.add("faults", f"{fault} dies, {variant}, {what}", "ms", {k: take(v) for k, v in times.items()},
                              [("max", limit)] if what == "median" else [], f"{NODES} nodes, {EACH} workers each")
        fifo.close()
