"""Faults of the agent itself: no descriptor is left, it aborts. It says why in one sentence, and nothing of it stays behind."""
import os
import re
import resource
import signal

import pytest

from agentlib import GONE_WITHIN, SANITIZED

DIES_ONCE = """
say("up", RANK, os.getpid())
daemon("daemon")
await_file("go")
if RESTARTS == 0 and RANK == 0:
    sys.exit(7)
if RESTARTS == 0:
    hang()
"""


def test_too_few_descriptors_are_said_before_anything_is_started(job):
    a = job.start("--standalone", "--nproc-per-node=4", job.worker("say('up')"), pre=["/bin/sh", "-c", 'ulimit -Sn 24; ulimit -Hn 24; exec "$@"', "sh"])
    a.ends(1)
    assert re.search(r"the limit of open files is 24, and an agent with 4 workers needs \d+: raise it \(ulimit -n", a.err.text())
    assert not a.out.lines


def test_descriptors_that_run_out_later_end_the_job_with_one_sentence_and_nothing_orphaned(job):
    """The limit falls while a round runs, so that the next one cannot be started."""
    a = job.start("--standalone", "--nproc-per-node=2", "--max-restarts=2", "--monitor-interval=0.1", job.worker(DIES_ONCE))
    ups = a.out.wait_count(r"^up (\d) (\d+)", 2)
    daemons = a.out.wait_count(r"^daemon (\d+)", 2)
    held = job.watch([int(m[2]) for m in ups] + [int(m[1]) for m in daemons])
    pid = a.agent_pid()
    _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    used = max(int(n) for n in os.listdir(f"/proc/{pid}/fd"))
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (16, 16))
    open(job.folder / "go", "w").close()
    assert used > 16 and hard > 16
    a.ends(1)
    held.gone()
    text = a.err.text()
    assert len(re.findall(r"Too many open files", text)) >= 1, text
    assert re.search(r"job \S+ failed: .*Too many open files", text), text


@pytest.mark.parametrize("signo", [signal.SIGABRT] + ([] if SANITIZED else [signal.SIGSEGV]))
def test_no_worker_outlives_an_agent_that_aborts(job, signo):
    a = job.start("--standalone", "--nproc-per-node=2", job.worker(DIES_ONCE))
    ups = a.out.wait_count(r"^up (\d) (\d+)", 2)
    daemons = a.out.wait_count(r"^daemon (\d+)", 2)
    held = job.watch([int(m[2]) for m in ups] + [int(m[1]) for m in daemons])
    os.kill(a.agent_pid(), signo)
    held.gone(5 * GONE_WITHIN)
    a.ends(1)
    assert signal.Signals(signo).name in a.err.text() and len(a.err.lines) <= 3, a.err.text()
