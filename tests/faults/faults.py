"""The faults whose rows stand in docs/faults.md, in its order; and where a test tells what it saw.

Tests call record(). With MUSTER_FAULTS_OUT=FILE it appends a line to FILE; without it, it does nothing. render.py makes the table of the
lines in tests/data/faults.jsonl.
"""
import json
import os
import re
import socket

# Name of the row and its test's name: what is shown for it, and what the seconds are.
FAULTS = {
    "worker_exit": "a worker exits with a failure",
    "worker_signal": "a worker is killed by a signal",
    "worker_oom": "the kernel kills a worker for memory (cgroup limit)",
    "worker_exec_fails": "the program cannot be executed on one node",
    "worker_hangs": "a worker hangs (stopped; `--silence-timeout=2 --hang-hook=none`)",
    "agent_killed": "an agent is killed (SIGKILL)",
    "agent_aborts": "an agent's assertion fails (SIGABRT)",
    "host_loses_power": "a host loses its power",
    "cut_shorter_than_the_lease": "a host is off the network for 1 s",
    "cut_longer_than_the_lease": "a host is off the network for longer than the lease",
    "cut_one_way": "a host hears and is not heard",
    "server_killed": "the server is killed and started again (`--state-dir`)",
    "server_frozen": "the server stands still for 30 s, nodes fixed (`--nnodes=2`)",
    "server_frozen_elastic": "the server stands still for 30 s, the job may shrink (`--nnodes=1:2`)",
    "server_disk_full": "the server's disk is full when a worker fails",
    "log_disk_full": "the disk of the log folder is full",
    "descriptors_exhausted": "an agent may open too few files",
    "stale_agent": "an agent that was stopped past the lease comes back",
}
WENT_ON, RAN_ON, ENDED = "the job went on after", "nothing restarts", "the job ended after"


def shown(text):
    """The same on every machine and in every run, as far as that can be."""
    text = re.sub(r"\b20\d\d-\d\d-\d\dT[\d:.]+Z", "2026-01-01T00:00:00.000Z", text)
    text = re.sub(r"(/[\w.+-]+){2,}/([\w.+-]+)", r"/.../\2", text)
    text = re.sub(rf"\bon {re.escape(socket.gethostname())}\b", "on n1", text)
    return re.sub(r"\b(lab-[0-9a-f]+(-\d+)?|job oom)\b", lambda m: "job train" if m[0] == "job oom" else "train", text)


def record(fault, seen, seconds, what=WENT_ON):
    """seen: the first line that a user sees of it; "": none. seconds: from the fault until the job went on."""
    assert fault in FAULTS, fault
    assert what in (WENT_ON, RAN_ON, ENDED), what
    name = os.environ.get("MUSTER_FAULTS_OUT")
    if not name:
        return
    line = json.dumps({"fault": fault, "seen": shown(seen), "what": what, "seconds": round(seconds, 3)}) + "\n"
    fd = os.open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(fd, line.encode())
    finally:
        os.close(fd)
