"""Field cases F13, F15 to F18, F21 and F22, on this machine alone: restarts and the store, what is left of a job, preemption, how a
worker ended, PID 1 of a container, and workers that hang.

Bounds are those of the cases; the usual figure is far below them."""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import agentlib
import mulib

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "faults"))
from faults import ENDED, record  # noqa: E402

WORKER = Path(__file__).resolve().parent.parent / "lab" / "field_worker.py"
Told = namedtuple("Told", "time what host pid rank world group restarts store")


def work(job, name, *words):
    """The words that start the field worker, and what reads its file."""
    path = job.folder / name
    path.touch()
    return ["--no-python", "/usr/bin/python3", "-ESsB", WORKER, path, *words], lambda: told(path)


def told(path):
    return [Told(float(t), what, host, int(pid), int(rank), int(world), int(group), int(restarts), store)
            for t, what, host, pid, rank, world, group, restarts, store in (s.split() for s in path.read_text().splitlines())]


def wait_for(read, count, what="start", limit_s=mulib.PATIENCE):
    end = time.monotonic() + limit_s
    while True:
        got = [t for t in read() if t.what == what]
        if len(got) >= count:
            return got
        assert time.monotonic() < end, f"{len(got)} of {count} '{what}' came: {read()}"
        time.sleep(0.01)


@pytest.fixture(params=["standing", "hosted"])
def endpoint(request, start_server):
    """endpoint(): where the agents of a job meet."""
    server = start_server() if request.param == "standing" else None
    return lambda: f"127.0.0.1:{server.port if server else agentlib.unused_port()}"


# --- F13 ---

def test_f13_a_restart_counts_on_all_nodes_and_has_a_fresh_store(job, endpoint):
    def one_run(i):
        words, read = work(job, f"told{i}", "60", f"fail=1:*:0:{0.2 + 0.05 * i}:5", "store")
        at = endpoint()
        nodes = [job.start(f"--rdzv={at}", f"--rdzv-id=run{i}", "--nnodes=2", "--max-restarts=3", *words) for _ in range(2)]
        second = wait_for(read, 4)[2:]
        assert sorted((t.rank, t.restarts) for t in second) == [(0, 1), (1, 1)], read()
        (job.folder / f"told{i}.go").touch()
        for a in nodes:
            a.ends(0)
        assert sorted(t.what for t in read()) == ["end"] * 2 + ["start"] * 4 + ["term"], read()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(one_run, range(10)))


# --- F15 ---

HELPERS = """#!/bin/sh
sleep 3001 &
echo helper $!
[ "$RANK" = "$1" ] && { sleep 0.5; exit 9; }
sleep 3002 &
echo helper $!
wait $!
"""


def with_helpers(job, *words, **kw):
    """Two shell workers, each with two processes that know nothing of it."""
    w = job.file("helpers", HELPERS, 0o755)
    count = 3 if words else 4
    a = job.start("--nproc-per-node=2", "--shutdown-timeout=2", w, *words, **kw)
    a.left = job.watch(int(m.group(1)) for m in a.out.wait_count(r"^helper (\d+)", count))
    return a


def test_f15_the_agent_is_killed_and_no_helper_stays(job):
    a = with_helpers(job)
    os.kill(a.agent_pid(), signal.SIGKILL)
    a.process.wait(mulib.PATIENCE)
    a.left.gone(1)
    a.gone(1)


def test_f15_a_worker_fails_and_no_helper_stays(job):
    a = with_helpers(job, "1")
    assert a.process.wait(mulib.PATIENCE) == 1
    a.left.gone(1)
    a.gone(1)
    assert "exited with status 9" in a.verdict()


def test_f15_sigterm_and_no_helper_stays(job):
    a = with_helpers(job)
    a.signal(signal.SIGTERM)
    assert a.process.wait(mulib.PATIENCE) == 1
    a.left.gone(1)
    a.gone(1)


def test_f15_the_launching_shell_is_killed_and_its_pipes_close(job):
    """Output to a closed pipe ends nobody, and nothing is left without an owner."""
    w = job.worker("""
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
pid = os.getpid()
open("pid", "w").write("%d %d" % (pid, os.getppid()))
while not os.path.exists("go"):
    os.write(2, b"words on stderr\\n" * 100)
    time.sleep(0.01)
open("done", "w").write("well")
""")
    shell = subprocess.Popen(["/bin/sh", "-c", f'"{mulib.program("node-agent")}" --standalone {w}; :'], cwd=job.folder,
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=agentlib.environment())
    agentlib_wait(lambda: (job.folder / "pid").exists() and (job.folder / "pid").read_text().count(" ") == 1)
    left = job.watch(map(int, (job.folder / "pid").read_text().split()))
    shell.kill()
    shell.wait(mulib.PATIENCE)
    for f in (shell.stdin, shell.stdout, shell.stderr):
        f.close()
    time.sleep(0.3)  # Something is written to nobody.
    assert all(agentlib.alive(p) for p in left.pids), "it runs on, owned by its agent"
    (job.folder / "go").touch()
    left.gone(mulib.PATIENCE)
    assert (job.folder / "done").read_text() == "well"


def agentlib_wait(condition, limit_s=mulib.PATIENCE):
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


# --- F16 ---

def closing(a):
    """What the agent itself said."""
    return [s for s in a.err.lines if "OMP_NUM_THREADS" not in s]


def test_f16_default_grace_is_long_enough_to_save(job):
    words, read = work(job, "told", "60", "save=8")
    a = job.start("--nproc-per-node=2", *words)
    wait_for(read, 2)
    a.signal(signal.SIGTERM)
    a.ends(1)
    assert sorted(t.what for t in read()) == ["saved"] * 2 + ["start"] * 2 + ["term"] * 2, read()
    assert len(closing(a)) <= 5 and "SIGTERM" in a.verdict(), a.err.text()


@pytest.mark.parametrize("again", [False, True])
def test_f16_a_short_grace_ends_with_sigkill_of_who_is_named(job, again):
    words, read = work(job, "told", "60", "save=8")
    a = job.start("--nproc-per-node=2", "--shutdown-timeout=4", *words)
    pids = {t.rank: t.pid for t in wait_for(read, 2)}
    began = time.monotonic()
    a.signal(signal.SIGTERM)
    if again:
        time.sleep(1.2)
        a.signal(signal.SIGTERM)
    a.ends(1)
    took = time.monotonic() - began
    assert took <= 5 and (again or took >= 3), took
    assert [t.what for t in read()].count("term") == 2 and not [t for t in read() if t.what == "saved"]
    text = a.err.text()
    for rank, pid in pids.items():
        assert re.search(rf"rank {rank} \(pid {pid}\).* had not ended [\d.]+ s after SIGTERM: SIGKILL", text), text
    assert len(closing(a)) <= 5 and "told to stop by SIGTERM" in a.verdict() and "Traceback" not in text, text
    assert not [p for p in pids.values() if agentlib.alive(p)]


def test_f16_the_grace_counts_too_where_another_rank_failed(job):
    words, read = work(job, "told", "60", "save=8", "fail=*:1:*:0.3:3")
    a = job.start("--nproc-per-node=2", "--shutdown-timeout=4", *words)
    wait_for(read, 2)
    wait_for(read, 1, "term")
    began = time.monotonic()
    a.ends(1)
    took = time.monotonic() - began
    assert 3 <= took <= 5, took
    assert re.search(r"rank 0 \(pid \d+\) had not ended 4\.\d s after SIGTERM: SIGKILL", a.err.text()), a.err.text()
    assert "rank 1" in a.verdict() and "exited with status 3" in a.verdict()


# --- F17 ---

def test_f17_a_schedulers_warning_ends_the_job_in_order(job):
    words, read = work(job, "told", "30", "usr1")
    a = job.start("--nproc-per-node=2", *words)
    wait_for(read, 2)
    a.signal(signal.SIGUSR1)
    a.ends(1, 10)
    assert sorted(t.what for t in read()) == ["start"] * 2 + ["term"] * 2, read()
    assert "told to stop by SIGUSR1" in a.verdict()


def test_f17_workers_get_the_warning_itself_where_that_is_wanted(job):
    words, read = work(job, "told", "30", "usr1")
    a = job.start("--nproc-per-node=2", "--signals-to-handle=SIGTERM,SIGUSR1", "--shutdown-timeout=1", *words)
    pids = [t.pid for t in wait_for(read, 2)]
    a.signal(signal.SIGUSR1)
    a.ends(1, 10)
    assert sorted(t.what for t in read()) == ["start"] * 2 + ["usr1"] * 2, read()
    assert not [p for p in pids if agentlib.alive(p)]


# --- F18: an out-of-memory kill; the other ends are in test_agent_run.py ---

def memory_group(folder):
    """A cgroup with 64 MiB, of either version: (tasks file, what it is removed by)."""
    name = f"muster-test-{os.getpid()}-{folder.name}"
    for top, limit in ((own_group("memory", "/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
                       (own_group("", "/sys/fs/cgroup"), "memory.max")):
        group = top / name
        try:
            group.mkdir()
            (group / limit).write_text(str(64 * 1024 * 1024))
            swap = group / "memory.swap.max"
            if swap.exists():
                swap.write_text("0")
            return group
        except OSError:
            if group.is_dir():
                group.rmdir()
    pytest.skip("no cgroup with a memory limit can be made here: neither version's memory controller can be written")
    return None


def own_group(controller, mount):
    for line in Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines():
        _, names, path = line.split(":", 2)
        if controller in names.split(","):
            return Path(mount + path)
    return Path("/nonexistent")


def test_fault_worker_oom(job, start_server):
    """F18: a kill for memory is called that."""
    if agentlib.SANITIZED:
        pytest.skip("a sanitizer needs more memory than the limit that this test sets")
    group = memory_group(job.folder)
    server = start_server()
    w = job.worker("""
if RANK == 1:
    hog = []
    while True:
        hog.append(bytearray(os.urandom(1)) * (4 << 20))
        say("at", time.time())
hang()
""")
    try:
        a = job.start(f"--rdzv=127.0.0.1:{server.port}", "--rdzv-id=oom", "--nnodes=1", "--nproc-per-node=2", w,
                      pre=["/bin/sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"])
        a.ends(1)
        seconds = time.time() - float(re.findall(r"^at (\S+)", a.out.text(), re.M)[-1])
    finally:
        agentlib_wait(lambda: not (group / "cgroup.procs").read_text())
        for below in group.glob("muster-*"):
            below.rmdir()
        group.rmdir()
    assert re.search(r"rank 1 \(local rank 1, pid \d+\) on \S+ was ended by SIGKILL: killed by the kernel: out of memory \(round", a.verdict())
    record("worker_oom", a.verdict(), seconds, ENDED)
    cause = next(j for j in server.status()["jobs"] if j["id"] == "oom")["last_cause"]
    assert cause["signal_name"] == "SIGKILL" and cause["message"] == "killed by the kernel: out of memory" and cause["rank"] == 1, cause


# --- F21 ---

ORPHANS = """
for _ in range(20):
    if os.fork() == 0:
        if os.fork() == 0:
            time.sleep(0.5)
            os._exit(0)
        os._exit(0)
    os.wait()
say("up")
on(signal.SIGTERM, "term", 0)
hang()
"""


def test_f21_as_the_first_process_of_a_container_it_reaps_and_ends_in_order(job):
    if os.getuid() != 0 or subprocess.run(["unshare", "--pid", "--fork", "--mount-proc", "true"], check=False).returncode != 0:
        pytest.skip("a process namespace needs root and unshare(1)")
    w = job.worker(ORPHANS)
    a = job.start("--standalone", w, pre=["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"])
    a.out.wait("up")
    init = a.agent_pid()  # The namespace's first process; unshare is outside.
    space = os.stat(f"/proc/{init}/ns/pid").st_ino

    def zombies():
        found = []
        for p in filter(str.isdigit, os.listdir("/proc")):
            try:
                if os.stat(f"/proc/{p}/ns/pid").st_ino == space or parent_is_inside(p, space):
                    stat = Path(f"/proc/{p}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
                    found += [p] if stat[0] == "Z" else []
            except OSError:
                pass
        return found

    since, end = {}, time.monotonic() + 3
    while time.monotonic() < end:
        now = time.monotonic()
        since = {p: since.get(p, now) for p in zombies()}
        old = [p for p, t in since.items() if now - t > 1]
        assert not old, f"zombies for more than a second: {old}"
        time.sleep(0.1)
    os.kill(init, signal.SIGTERM)
    assert a.wait(35) == 1
    assert "term" in a.out.lines and "told to stop by SIGTERM" in a.verdict()


def parent_is_inside(pid, space):
    """A zombie has no namespaces to look at."""
    parent = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()[1]
    return os.stat(f"/proc/{parent}/ns/pid").st_ino == space


# --- F22 ---

SDK = """
import os, signal, sys, time
import muster
me = muster.env()
def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())
if len(sys.argv) > 1:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
store = muster.store(timeout=120)
for step in range(1, 100000):
    muster.progress(step)
    store.barrier("step%d" % step)
    if step == 5:
        say("up", me.restart_count, me.rank, os.getpid())
        if me.restart_count == 1:
            break
    time.sleep(0.02)
"""


def sdk_variables():
    source = os.environ.get("MUSTER_SOURCE", os.path.join(os.path.dirname(__file__), "..", ".."))
    return {"PYTHONPATH": os.path.join(source, "worker-sdk", "python"), "PYTHON_EXEC": "/usr/bin/python3",
            "MUSTER_LIBRARY": os.path.abspath(os.path.join(mulib.BIN, "..", "lib", "libmuster.so.0"))}


needs_sdk = pytest.mark.skipif(agentlib.SANITIZED, reason="a sanitized library cannot be loaded into a Python that is not")


def stop_rank_1(agents, count=2):
    """SIGSTOP; returns when, and its pid."""
    ups = [m for a in agents for m in a.out.wait_count(r"^up 0 (\d+) (\d+)", count // len(agents))]
    pid = next(int(m.group(2)) for m in ups if m.group(1) == "1")
    time.sleep(0.5)
    os.kill(pid, signal.SIGSTOP)
    return time.monotonic(), pid


@needs_sdk
def test_f22_a_worker_without_progress_is_found_and_the_group_starts_again(job):
    """It is deaf to SIGTERM, too: SIGKILL after the grace."""
    a = job.start("--standalone", "--nproc-per-node=2", "--max-restarts=1", "--progress-timeout=5", "--shutdown-timeout=1", "--hang-hook=none",
                  job.file("w.py", SDK), "deaf", env=sdk_variables())
    began, pid = stop_rank_1([a])
    held = job.watch([pid])
    a.err.wait(rf"round 1 ended: rank 1 \(local rank 1, pid {pid}\) on \S+ made no progress: no step since \d{{4}}-\S+Z \(5\.\d s; the limit is "
               r"5\.0 s\), the last step was \d+, it is stopped by a signal; the group starts again \(restart 1 of 1\)", 20)
    held.gone(mulib.PATIENCE)
    took = time.monotonic() - began
    assert took <= 8, f"{took:.1f} s"
    a.err.wait(rf"rank 1 \(pid {pid}\) had not ended 1\.\d s after SIGTERM: SIGKILL")
    a.ends(0)
    assert len([s for s in a.out.lines if s.startswith("up 1 ")]) == 2


@needs_sdk
def test_f22_the_one_on_another_node_is_to_blame(job, server):
    """Both nodes notice; the one whose worker only waits may be the first."""
    nodes = job.nodes(server, 2, "--max-restarts=1", "--progress-timeout=3", job.file("w.py", SDK), env=sdk_variables())
    _, pid = stop_rank_1(nodes)
    for a in nodes:
        a.err.wait(rf"round 1 ended: rank 1 \(local rank 0, pid {pid}\) on \S+ made no progress: ", 20)
        a.ends(0)


HANGS = """
say("up", RESTARTS, RANK, os.getpid())
if RESTARTS == 1:
    sys.exit(0)
while True:
    os.write(2, b"words\\n")
    time.sleep(0.2)
"""


def test_f22_silence_is_found_without_the_sdk(job):
    a = job.start("--nproc-per-node=2", "--max-restarts=1", "--silence-timeout=3", job.worker(HANGS))
    began, pid = stop_rank_1([a])
    a.err.wait(rf"round 1 ended: rank 1 \(local rank 1, pid {pid}\) on \S+ made no progress: no sign of life since \S+Z \(3\.\d s; the limit "
               r"is 3\.0 s\), it is stopped by a signal;", 20)
    took = time.monotonic() - began
    assert 2.5 <= took <= 6, f"{took:.1f} s"
    a.ends(0)


def test_f22_without_a_limit_status_tells_and_nothing_ends(job, start_server):
    server = start_server()
    a = job.start(f"--rdzv=127.0.0.1:{server.port}", "--rdzv-id=still", "--nnodes=1", "--nproc-per-node=2", job.worker(HANGS))
    _, pid = stop_rank_1([a])
    stopped_at = time.time()

    def workers():
        return {w["rank"]: w for w in next(j for j in server.status()["jobs"] if j["id"] == "still")["nodes"][0]["workers"]}

    agentlib_wait(lambda: workers()[1]["silent_since"] is not None, 15)
    assert abs(mulib.unix_ms(workers()[1]["silent_since"]) / 1000 - stopped_at) < 2.5 and workers()[1]["state"] == "running"
    assert workers()[0]["silent_since"] is None
    os.kill(pid, signal.SIGCONT)
    agentlib_wait(lambda: workers()[1]["silent_since"] is None, 15)
    assert a.process.poll() is None and len([s for s in a.out.lines if s.startswith("up")]) == 2
    a.signal(signal.SIGTERM)
    a.ends(1)


@needs_sdk
def test_status_and_the_cause_tell_the_step(job, start_server):
    server = start_server()
    w = job.file("steps.py", """
import os, signal, time
import muster
signal.signal(signal.SIGUSR1, lambda *_: os._exit(3))
for step in range(5):
    muster.progress(step)
    time.sleep(0.12)  # The library tells at most ten a second.
print("up", os.getpid(), flush=True)
while True:
    signal.pause()
""")
    a = job.start(f"--rdzv=127.0.0.1:{server.port}", "--rdzv-id=steps", "--nnodes=1", "--nproc-per-node=1", w, env=sdk_variables())
    pid = int(a.out.wait(r"up (\d+)").group(1))
    agentlib_wait(lambda: server.job("steps")["nodes"][0]["workers"][0]["step"] == 4, 15)
    os.kill(pid, signal.SIGUSR1)
    a.err.wait(rf"rank 0 \(local rank 0, pid {pid}\) on \S+ exited with status 3 after step 4")
    a.ends(1)
    assert server.job("steps")["last_cause"]["step"] == 4
