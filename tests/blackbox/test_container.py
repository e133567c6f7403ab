"""node-agent as PID 1 of a container, as docs/guides/containers.md has it: signals, exit status, reaping, a small /dev/shm, cgroups that
cannot be written. A process and a mount namespace of unshare(1) stand for the container. (What PID 1 adopts: F21 in test_field_failing.py.)"""
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

import agentlib
import mulib

INSIDE = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]


@pytest.fixture(autouse=True, scope="module")
def namespaces():
    if os.getuid() != 0 or subprocess.run([*INSIDE, "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("a process namespace needs root and unshare(1): apt-get install util-linux")


def first_process(a):
    """The container's PID 1, by its number out here; the agent's own child is inside too."""
    pid = a.agent_pid()
    with open(f"/proc/{pid}/status", encoding="ascii") as f:
        numbers = next(line for line in f if line.startswith("NSpid:")).split()
    assert numbers[-1] == "1"
    return pid


def mounted(*commands):
    """A prefix: in a mount namespace of its own, with these done first, as a container's runtime does."""
    return [*INSIDE, "sh", "-ec", "\n".join([*commands, 'exec "$@"']), "sh"]


@pytest.mark.parametrize("ends, status", [("os._exit(0)", 0), ("os._exit(7)", 7), ("os.kill(os.getpid(), signal.SIGKILL)", 137)])
def test_the_containers_status_is_that_of_the_worker_that_failed_first(job, ends, status):
    w = job.worker("if RANK == 1:\n    " + ends + "\nif %d:\n    hang()\n" % status)
    job.start("--standalone", "--nproc-per-node=2", "--exit-status=first", w, pre=INSIDE).ends(status)


@pytest.mark.parametrize("signo", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_reaches_the_workers_which_have_their_time_to_end(job, signo):
    """The kernel gives PID 1 no signal that it does not ask for: it asks for these."""
    w = job.worker("on(signal.SIGTERM, 'saved', 0)\non(signal.SIGINT, 'saved', 0)\nsay('up')\nhang()\n")
    a = job.start("--standalone", "--nproc-per-node=2", "--exit-status=first", w, pre=INSIDE)
    a.out.wait_count("up", 2)
    os.kill(first_process(a), signo)
    assert a.wait() == 128 + signo
    assert a.out.lines.count("saved") == 2


def test_a_stop_is_over_when_the_grace_is(job):
    w = job.worker("deaf(signal.SIGTERM)\nsay('up')\nhang()\n")
    a = job.start("--standalone", "--shutdown-timeout=1", w, pre=INSIDE)
    a.out.wait("up")
    t0 = time.monotonic()
    os.kill(first_process(a), signal.SIGTERM)
    assert a.wait() == 1
    assert time.monotonic() - t0 < 10


def test_what_workers_leave_behind_ends_with_the_job(job):
    w = job.worker("daemon('left')\nawait_file('go')\n")
    a = job.start("--standalone", w, pre=INSIDE)
    a.out.wait("left")
    Path(job.folder, "go").touch()
    a.ends(0)  # Its output is closed: nobody is there any more.


def test_sigkill_of_the_container_leaves_nothing(job):
    w = job.worker("daemon('left')\nsay('up')\nhang()\n")
    a = job.start("--standalone", "--nproc-per-node=2", w, pre=INSIDE)
    a.out.wait_count("up", 2)
    os.kill(first_process(a), signal.SIGKILL)
    a.process.wait(mulib.PATIENCE)
    a.gone(5)


def test_libmuster_needs_no_dev_shm(job):
    """Container runtimes give 64 MB of it; here it is all taken."""
    trainer, data = Path(mulib.program("trainer")), Path(os.environ["MUSTER_SOURCE"], "tests/data/digits.bin")
    if not trainer.exists():
        pytest.skip("the trainer is not built (libopenblas-dev)")
    pre = mounted("mount -t tmpfs -o size=64k tmpfs /dev/shm", "head -c 64k /dev/zero >/dev/shm/full 2>/dev/null || :")
    a = job.start("--standalone", "--nproc-per-node=2", "--no-python", trainer, "--data", data, "--epochs", "1", "--device", "cpu", pre=pre)
    a.ends(0, 120)
    assert "epoch 0: loss" in a.out.text()


def test_cgroups_that_cannot_be_written_change_nothing(job):
    """As without privileges: what left its process group is found all the same."""
    w = job.worker("daemon('left')\nsay('up')\nif RANK == 0:\n    all_up()\n    os._exit(3)\nall_up()\nhang()\n")
    pre = mounted("! mountpoint -q /sys/fs/cgroup || mount -o remount,bind,ro /sys/fs/cgroup || mount --bind -o ro /sys/fs/cgroup /sys/fs/cgroup")
    a = job.start("--standalone", "--nproc-per-node=2", "--exit-status=first", w, pre=pre)
    assert a.wait() == 3
    assert "left" in a.out.text() and "rank 0" in a.verdict()


def test_an_agent_that_is_not_the_first_process_needs_no_init_beside_it(job):
    """Under a shell that waits, as with `command: ["sh", "-c", "...; node-agent ..."]`."""
    w = job.worker("on(signal.SIGTERM, 'saved', 0)\nsay('up')\nhang()\n")
    a = job.start("--standalone", w, pre=[*INSIDE, "sh", "-c", "\"$@\"; exit $?", "sh"])
    a.out.wait("up")
    with open(f"/proc/{a.agent_pid()}/task/{a.agent_pid()}/children", encoding="ascii") as f:
        (warden,) = map(int, f.read().split())
    os.kill(warden, signal.SIGTERM)
    assert a.wait() == 1 and "saved" in a.out.lines
