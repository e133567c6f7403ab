"""The communicator between processes, over TCP, Unix sockets and shared memory: ranks that die, stop, do not come, abort, and memory
that is not to be had."""
import ctypes
import os
import platform
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

import mulib

PROGRAM = Path(mulib.BIN).parent / "tests" / "sdk" / "comm_rank"
pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason="built without the SDK: no comm_rank")

SANITIZED = PROGRAM.exists() and re.search(rb"__[at]san_init", PROGRAM.read_bytes()) is not None
WAYS = ("memory", "unix", "tcp")
ALL = pytest.mark.parametrize("way", WAYS)
ECANCELED, ETIMEDOUT = 125, 110
WAIT = 4  # enum muster_phase


class Rank:
    def __init__(self, port, rank, world, words, way, before=None):
        env = {"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1",
               "MASTER_PORT": port, "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": "sdk-comm",
               "TORCHELASTIC_RESTART_COUNT": 0, "TORCHELASTIC_MAX_RESTARTS": 0, "MUSTER_COMM_UNIX": int(way != "tcp"),
               "MUSTER_COMM_SHM": int(way == "memory")}
        self.rank = rank
        self.process = subprocess.Popen([PROGRAM, *map(str, words)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, env={**os.environ, **{k: str(v) for k, v in env.items()}},
                                        preexec_fn=before)
        self.out = mulib.Lines(self.process.stdout)

    def failed(self):
        """What the loop said of its end: (ns of the monotonic clock, peer, code, phase, sentence)."""
        m = self.out.wait(r"^failed at=(\d+) peer=(-?\d+) code=(-?\d+) phase=(\d+) (.*)")
        return tuple(map(int, m.groups()[:4])) + (m.group(5),)

    def shares(self):
        """How many pieces of memory it shares."""
        return Path(f"/proc/{self.process.pid}/maps").read_text().count("memfd:muster-comm")

    def end(self):
        status = self.process.wait(mulib.PATIENCE)
        self.out.thread.join(mulib.PATIENCE)
        text = self.out.text()
        assert "Sanitizer" not in text and "runtime error" not in text, text
        return status, text


@pytest.fixture
def ranks(server):
    """start(world, words): Rank objects; all are ended after the test."""
    started = []

    def start(world, words, way="memory", only=None, before=None):
        new = [Rank(server.port, r, world, words, way, before) for r in (range(world) if only is None else only)]
        started.extend(new)
        return new

    yield start
    for r in started:
        if r.process.poll() is None:
            r.process.kill()
            r.process.wait()


def all_end_well(some):
    for r in some:
        status, text = r.end()
        assert status == 0, f"rank {r.rank}: {text}"


@ALL
def test_communicators_live_side_by_side(ranks, way):
    """Three communicators at once, a thread each, give what each of them should."""
    some = ranks(3, ["many"], way)
    all_end_well(some)
    assert all("ok" in r.out.lines for r in some)


@ALL
def test_nothing_is_left_over(ranks, way):
    """Opening and closing a communicator of the same name again and again leaves no descriptor, no thread and no mapping, and nothing
    in the place where shared memory has names."""
    before = set(os.listdir("/dev/shm"))
    some = ranks(2, ["again", 12], way)
    all_end_well(some)
    for r in some:
        assert "left fds=0 threads=0 mappings=0" in r.out.lines
    assert not [name for name in set(os.listdir("/dev/shm")) - before if "muster" in name]


@ALL
@pytest.mark.parametrize("world", [2, 4, 8])
def test_more_ranks_than_cpus_go_on(ranks, way, world):
    """Ranks that take turns on few CPUs give what they should."""
    some = ranks(world, ["many"], way)
    all_end_well(some)
    assert all("ok" in r.out.lines for r in some)


def test_memory_is_shared_by_pairs_and_can_be_turned_off(ranks):
    """Each rank shares one piece of memory with each other one; with MUSTER_COMM_SHM=0, or without Unix sockets, none."""
    for way in WAYS:
        some = ranks(3, ["loop", 1000, 20000], way)
        for r in some:
            r.out.wait("^ready")
        assert [r.shares() for r in some] == [2 if way == "memory" else 0] * 3
        some[0].process.kill()
        assert all(r.failed()[1] == 0 for r in some[1:])
        all_end_well(some[1:])


def test_a_rank_that_shares_no_memory_is_met_by_sockets(ranks):
    """Rank 1 does not want to share; the others do, among themselves."""
    some = ranks(3, ["loop", 1000, 20000], only=[0, 2]) + ranks(3, ["loop", 1000, 20000], "unix", only=[1])
    for r in some:
        r.out.wait("^ready")
    assert [r.shares() for r in some] == [1, 1, 0]
    some[0].process.kill()
    assert all(r.failed()[1] == 0 for r in some[1:])
    all_end_well(some[1:])


class Bpf(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint16), ("jt", ctypes.c_uint8), ("jf", ctypes.c_uint8), ("k", ctypes.c_uint32)]


class Program(ctypes.Structure):
    _fields_ = [("count", ctypes.c_uint16), ("filter", ctypes.POINTER(Bpf))]


def forbid(number):
    """That system call gives EPERM, in this process and what it starts."""
    libc = ctypes.CDLL(None, use_errno=True)
    steps = (Bpf * 4)(Bpf(0x20, 0, 0, 0), Bpf(0x15, 0, 1, number), Bpf(0x06, 0, 0, 0x00050000 | 1), Bpf(0x06, 0, 0, 0x7FFF0000))
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.byref(Program(4, steps)), 0, 0):  # No new privileges; a filter.
        raise OSError(ctypes.get_errno(), "seccomp")


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers of system calls are x86_64's")
def test_forbidden_memory_is_replaced_by_sockets_without_a_word(ranks):
    """Where memfd_create() is forbidden, ranks use their Unix sockets, say nothing, and are noticed as ever."""
    some = ranks(2, ["loop", 500000, 20000], before=lambda: forbid(319))
    for r in some:
        r.out.wait("^ready")
    assert [r.shares() for r in some] == [0, 0]
    some[0].process.kill()
    assert some[1].failed()[1] == 0
    status, text = some[1].end()
    assert status == 0 and re.fullmatch(r"ready\nfailed .*\nend", text.strip()), text


@ALL
@pytest.mark.parametrize("count", [16, 500000])
def test_abort_ends_the_waits_of_all_within_a_millisecond(ranks, way, count):
    """One rank aborts while the others wait for it: all waits end within 1 ms, at best of some tries, and name it; a sanitizer needs
    longer."""
    best, limit = None, 10 if SANITIZED else 1
    for _ in range(20):
        some = ranks(3, ["abort", count, 20000], way)
        ends = [r.failed() for r in some]
        assert {e[1:3] for e in ends} == {(2, -ECANCELED)}, ends
        all_end_well(some)
        took = max(e[0] for e in ends[:2]) - int(some[2].out.wait(r"^aborts at=(\d+)").group(1))
        best = min(took / 1e6, best or 1e9)
        if best < limit:
            return
    raise AssertionError(f"the last wait ended {best:.1f} ms after the abort, at best")


@ALL
@pytest.mark.parametrize("count", [16, 500000])
def test_killed_rank_is_named_by_all_at_once(ranks, way, count):
    """SIGKILL of one rank: the others' tickets fail within 10 ms, all naming the dead one. A machine that is busy with other
    things may be late, so the best of some tries counts; the name must be right in each. The kernel unmaps a process before it
    closes its sockets, which takes long for one with a sanitizer's shadow memory."""
    best, limit = None, 100 if SANITIZED else 10
    for attempt in range(8):
        some = ranks(4, ["loop", count, 20000], way)
        for r in some:
            r.out.wait("^ready")
        victim = some[(attempt + 1) % 4]
        killed_ns = time.monotonic_ns()
        victim.process.kill()
        took = []
        for r in some:
            if r is victim:
                continue
            at, peer, code, phase, text = r.failed()
            assert peer == victim.rank, f"rank {r.rank} blames {peer} for the death of {victim.rank}: {text}"
            assert code < 0 and text.startswith(f"rank {victim.rank} on "), text
            took.append((at - killed_ns) / 1e6)
        all_end_well(r for r in some if r is not victim)
        best = min(max(took), best or 1e9)
        if best < limit:
            return
    raise AssertionError(f"the last rank failed {best:.1f} ms after the kill, at best")


@ALL
@pytest.mark.parametrize("count", [16, 500000])
def test_stopped_rank_is_named_at_the_deadline(ranks, way, count):
    """SIGSTOP of one rank: the others' waits end at their deadline and name it; woken up, it learns of that."""
    some = ranks(4, ["loop", count, 1500], way)
    for r in some:
        r.out.wait("^ready")
    victim = some[2]
    stopped_ns = time.monotonic_ns()
    victim.process.send_signal(signal.SIGSTOP)
    for r in some:
        if r is not victim:
            at, peer, code, phase, text = r.failed()
            assert (peer, code, phase) == (2, -ETIMEDOUT, WAIT), text
            assert re.search(r"rank 2 on \S+: no answer", text), text
            assert 1.4e9 < at - stopped_ns < 10e9
    victim.process.send_signal(signal.SIGCONT)
    assert victim.failed()[1:4] == (2, -ETIMEDOUT, WAIT)
    all_end_well(some)


def test_missing_rank_is_named_when_the_start_ends(ranks):
    """A rank that never starts: the others' start ends in time, names it, and says the same everywhere."""
    begun = time.monotonic()
    some = ranks(3, ["open", 1500], only=[0, 2])
    for r in some:
        status, text = r.end()
        assert status == 1 and "rank 1" in text, text
        assert f"code=-{ETIMEDOUT}" in text, text
    assert time.monotonic() - begun < mulib.PATIENCE


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_the_start_ends_in_time_though_the_store_is_gone(server, ranks, how):
    """Not one time-out after another: for the wait, for the question who is missing, for the last words."""
    limit, slack = 4, 3
    some = ranks(3, ["open", limit * 1000], only=[0, 2])
    server.wait_status(lambda s: s["server"]["store"]["keys"] >= 4, "both ranks' marks")
    begun = time.monotonic()
    server.process.send_signal(how)
    try:
        for r in some:
            status, text = r.end()
            assert status == 1 and re.search(r"^error code=-\d+ ", text, re.M), text
        assert time.monotonic() - begun < limit + slack
    finally:
        if how == signal.SIGSTOP:
            server.process.send_signal(signal.SIGCONT)
        else:
            server.process.wait(mulib.PATIENCE)


def test_alone_needs_no_store(ranks):
    """A world of one opens, and everything else is nothing."""
    all_end_well(ranks(1, ["open", 1000]))
