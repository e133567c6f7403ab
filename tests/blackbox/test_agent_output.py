"""What becomes of workers' output: files, prefixes, whole lines; how a job's end is told."""
import json
import os
import re
import resource
import select
import shutil
import signal
import socket
import subprocess
import threading
import time

import pytest

import agentlib
import mulib

SLOW = 5 if agentlib.SANITIZED else 1


def log(job, name, rank=0, attempt=0):
    found = list((job.folder / "logs").glob(f"*/attempt_{attempt}/{rank}/{name}.log"))
    assert len(found) == 1, found
    return found[0].read_bytes()


LOGS = ["--log-dir=logs"]


# --- F20: whole lines, all of them ---

MANY = """
if RANK < 2:
    for i in range(200):
        os.write(1 + RANK, b"piece %d " % i)
        time.sleep(0.005)
        os.write(1 + RANK, b"and rest\\n")
else:
    text = b"".join(b"line %d\\n" % i for i in range(20000)) + b"last words"
    while text:
        text = text[os.write(1, text[:70001]):]
    os.kill(os.getpid(), signal.SIGSEGV)
"""


def check_many(out, err):
    """No line torn or mixed, order kept per rank, nothing missing."""
    seen = {"0": [], "1": [], "2": []}
    for stream in (out, err):
        for line in stream:
            m = re.fullmatch(r"\[default(\d)\]:(.*)", line)
            if m is not None:
                seen[m.group(1)].append(m.group(2))
    assert seen["0"] == seen["1"] == [f"piece {i} and rest" for i in range(200)]
    assert seen["2"] == [f"line {i}" for i in range(20000)] + ["last words"]


@pytest.mark.parametrize("sink", ["pipe", "file"])
def test_f20_lines_of_many_ranks_are_whole_and_none_is_missing(job, sink):
    """F20: two ranks write lines in pieces, a third writes 20,000 and unterminated words, and dies of a signal."""
    w = job.worker("if RANK == 2: await_file('ready0'), await_file('ready1')\n" + MANY + "open('ready%d' % RANK, 'w').close()\nhang()\n")
    words = ["--tee=3", "--log-dir=logs", "--nproc-per-node=3", "--shutdown-timeout=2", w]
    if sink == "pipe":
        a = job.start(*words).ends(1)
        out, err = a.out.lines, a.err.lines
    else:
        out_path, err_path = job.folder / "out", job.folder / "err"
        with open(out_path, "wb") as out_file, open(err_path, "wb") as err_file:
            p = subprocess.run([mulib.program("node-agent"), *words], stdout=out_file, stderr=err_file, cwd=job.folder,
                               env=agentlib.environment(), timeout=mulib.PATIENCE, check=False)
        assert p.returncode == 1
        out, err = out_path.read_text().splitlines(), err_path.read_text().splitlines()
    check_many(out, err)
    assert log(job, "stdout", 2) == b"".join(b"line %d\n" % i for i in range(20000)) + b"last words"
    assert log(job, "stdout", 0) == b"".join(b"piece %d and rest\n" % i for i in range(200))
    assert any("SIGSEGV" in s and "last words" not in s for s in err if ": job " in s)  # They stood on stdout.


def test_f20_lines_appear_at_once_when_stdout_is_a_pipe(job):
    """F20: a line is there within a second of being written."""
    w = job.worker("say('now', time.time())\nhang()\n")
    a = job.start("--tee=1", *LOGS, w)
    m = a.out.wait(r"\[default0\]:now (\S+)")
    assert time.time() - float(m.group(1)) < 1 * SLOW
    a.signal(signal.SIGTERM)
    a.ends(1)


def test_f20_ten_megabytes_at_once_from_each_of_four_ranks(job):
    """F20: bursts; every line once, in order, prefixed, in the file as well."""
    w = job.worker("""
text = b"".join(b"%d %d %s\\n" % (RANK, i, b"x" * 80) for i in range(120000))
while text:
    text = text[os.write(1, text):]
""")
    with open(job.folder / "out", "wb") as out:
        p = subprocess.run([mulib.program("node-agent"), "--tee=1", "--log-dir=logs", "--nproc-per-node=4", w], stdout=out, cwd=job.folder,
                           stderr=subprocess.PIPE, env=agentlib.environment(), timeout=mulib.PATIENCE * 2, check=False)
    assert p.returncode == 0, p.stderr
    nexts = [0] * 4
    with open(job.folder / "out", "rb") as lines:
        for line in lines:
            m = re.fullmatch(rb"\[default(\d)\]:(\d) (\d+) x{80}\n", line)
            assert m is not None and m.group(1) == m.group(2), line
            rank = int(m.group(1))
            assert int(m.group(3)) == nexts[rank]
            nexts[rank] += 1
    assert nexts == [120000] * 4
    for rank in range(4):
        assert log(job, "stdout", rank).count(b"\n") == 120000


def test_two_agents_on_one_pipe_do_not_tear_each_others_lines(job):
    w = job.worker("""
text = b"".join(b"%d %s\\n" % (i, b"y" * (i % 300)) for i in range(20000))
while text:
    text = text[os.write(1, text[:65536]):]
""")
    read_end, write_end = os.pipe()
    agents = [subprocess.Popen([mulib.program("node-agent"), "--label", f"--role=agent{n}x", w], stdout=write_end, cwd=job.folder,
                               stderr=subprocess.DEVNULL, env=agentlib.environment()) for n in range(2)]
    os.close(write_end)
    nexts = {"agent0x0": 0, "agent1x0": 0}
    with os.fdopen(read_end, "rb") as pipe:
        for line in pipe:
            m = re.fullmatch(r"\[(\w+)\]:(\d+) (y*)\n", line.decode())
            assert m is not None, line
            assert int(m.group(2)) == nexts[m.group(1)] and len(m.group(3)) == nexts[m.group(1)] % 300
            nexts[m.group(1)] += 1
    assert [a.wait(mulib.PATIENCE) for a in agents] == [0, 0] and set(nexts.values()) == {20000}


# --- a reader's pace ---

def test_a_slow_reader_slows_the_worker_and_loses_nothing_and_a_quiet_rank_goes_on(job):
    """Rank 0 writes more than pipes hold to a reader who reads nothing until rank 1, which writes to its file alone, is done."""
    w = job.worker("""
if RANK == 0:
    text = b"".join(b"%d\\n" % i for i in range(1000000))
    while text:
        text = text[os.write(1, text):]
    open("written", "w").close()
else:
    for i in range(2000):
        os.write(1, b"z" * 4000 + b"\\n")
    open("done", "w").close()
""")
    p = subprocess.Popen([mulib.program("node-agent"), "--tee=0:1,1:0", "--redirects=1:1", "--log-dir=logs", "--nproc-per-node=2", w],
                         stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=job.folder, env=agentlib.environment())
    end = time.monotonic() + mulib.PATIENCE
    while not (job.folder / "done").exists():
        assert time.monotonic() < end
        time.sleep(0.01)
    assert not (job.folder / "written").exists()  # 7 MB do not fit between it and the reader.
    out, _ = p.communicate(timeout=mulib.PATIENCE)
    assert p.returncode == 0
    assert out == b"".join(b"[default0]:%d\n" % i for i in range(1000000))
    assert len(log(job, "stdout", 1)) == 2000 * 4001


def test_a_reader_that_takes_nothing_does_not_hold_the_agents_beats(job, start_server):
    """The console stands still for longer than the lease; the server never misses the agent."""
    server = start_server("--lease", "1", "--beat", "0.2")
    w = job.worker("""
os.set_blocking(1, False)
try:
    while True:
        os.write(1, b"q" * 999 + b"\\n")
except BlockingIOError:
    open("full", "w").close()
hang()
""")
    read_end, write_end = os.pipe()
    p = subprocess.Popen([mulib.program("node-agent"), f"--rdzv=127.0.0.1:{server.port}", "--rdzv-id=still", "--label", "--shutdown-timeout=1", w],
                         stdout=write_end, stderr=write_end, cwd=job.folder, env=agentlib.environment())
    os.close(write_end)
    end = time.monotonic() + mulib.PATIENCE
    while not (job.folder / "full").exists():
        assert time.monotonic() < end
        time.sleep(0.01)
    time.sleep(2.5)  # The time that is tested: two and a half leases.
    assert p.poll() is None and server.job("still")["state"] == "running"
    p.send_signal(signal.SIGTERM)  # What it has to say on that waits for the reader too; the server hears it at once.
    server.wait_status(lambda s: all(j["state"] != "running" for j in s["jobs"]), "the job's end")
    with os.fdopen(read_end, "rb") as pipe:
        lines = pipe.read().splitlines()
    assert p.wait(mulib.PATIENCE) == 1
    own = [s for s in lines if not s.startswith(b"[default0]:q")]
    assert len(own) == 2 and b"SIGTERM: the workers have 1 s to end" in own[0] and b"told to stop by SIGTERM" in own[1], own
    assert {s for s in lines if s not in own} == {b"[default0]:" + b"q" * 999}, "a line was torn"


def test_at_the_end_a_signal_gives_up_a_reader_that_takes_nothing(job):
    w = job.worker("""
text = b"w" * 99 + b"\\n"
for i in range(15000):
    os.write(1, text)
""")
    read_end, write_end = os.pipe()
    p = subprocess.Popen([mulib.program("node-agent"), "--label", w], stdout=write_end, stderr=subprocess.PIPE, cwd=job.folder,
                         env=agentlib.environment())
    os.close(write_end)
    line = b""
    while b"wait for a reader that takes none" not in line:
        assert select.select([p.stderr], [], [], mulib.PATIENCE)[0], "no word about the reader"
        line = p.stderr.readline()
        assert line != b""
    assert p.poll() is None
    p.send_signal(signal.SIGTERM)
    _, err = p.communicate(timeout=mulib.PATIENCE)
    os.close(read_end)
    assert re.search(rb"\d+ lines of workers were not shown: nobody took them", err), err
    assert p.returncode == 0


def test_a_reader_that_has_seen_enough_ends_nothing_and_files_are_whole(job):
    w = job.worker("""
for i in range(20000):
    os.write(1, b"%d\\n" % i)
""")
    read_end, write_end = os.pipe()
    os.close(read_end)
    p = subprocess.run([mulib.program("node-agent"), "--tee=1", "--log-dir=logs", w], stdout=write_end, stderr=subprocess.PIPE,
                       cwd=job.folder, env=agentlib.environment(), timeout=mulib.PATIENCE, check=False)
    os.close(write_end)
    assert p.returncode == 0 and p.stderr == b"" and log(job, "stdout").count(b"\n") == 20000


def test_a_console_that_is_anothers_is_written_all_the_same(job):
    """A pipe of root's cannot be opened anew by nobody, so it cannot be made non-blocking."""
    prefix = agentlib.as_nobody()
    if prefix is None:
        pytest.skip("needs root and setpriv")
    body = """
import os
text = b"".join(b"%d %s\\n" % (i, b"v" * (i * 37 % 9000)) for i in range(2000))
while text:
    text = text[os.write(1, text):]
"""
    a = job.start("--label", "--log-dir=/dev/null", "--no-python", "/usr/bin/python3", "-ESsc", body, pre=prefix).ends(0)
    assert [len(s) for s in a.out.lines] == [len(f"[default0]:{i} ") + i * 37 % 9000 for i in range(2000)]


# --- a full disk ---

FULL = """
for i in range(3000):
    os.write(1, b"%d %s\\n" % (i, b"f" * 90))
open("trained", "w").close()
"""


@pytest.mark.parametrize("flag", ["--redirects=1", "--tee=1"])
def test_a_full_disk_stops_no_worker_and_is_said_once(job, flag):
    """A limit on the size of files stands for the disk."""
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (100000, 100000))
    w = job.worker(FULL)
    p = subprocess.run([mulib.program("node-agent"), flag, "--log-dir=logs", w], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                       preexec_fn=limit, cwd=job.folder, env=agentlib.environment(), timeout=mulib.PATIENCE, check=False)
    err = p.stderr.decode().splitlines()
    assert p.returncode == 0 and (job.folder / "trained").exists(), err
    said = [s for s in err if "stdout.log cannot be written: File too large" in s]
    assert len(said) == 1 and "the workers go on" in said[0], err
    kept = log(job, "stdout")
    assert len(kept) == 100000
    lost = [re.search(r"(\d+) lines are missing from log files: File too large", s) for s in err]
    assert [int(m.group(1)) + kept.count(b"\n") for m in lost if m] == [3000], err
    if flag == "--tee=1":
        assert p.stdout.count(b"\n") == 3000


def test_when_there_is_room_again_a_note_stands_for_what_is_missing(job):
    """A real full disk: a tmpfs of 600 KiB, half of it filled by a ballast file."""
    (job.folder / "disk").mkdir()
    if subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "none", str(job.folder / "disk")], capture_output=True,
                      check=False).returncode != 0:
        pytest.skip("a tmpfs cannot be mounted here")
    w = job.worker("""
for i in range(500):
    os.write(1, b"first %d %s\\n" % (i, b"a" * 980))
os.write(1, b"half a line ")
open("filled", "w").close()
await_file("room")
os.write(1, b"and its rest\\n")
for i in range(10):
    os.write(1, b"second %d\\n" % i)
""")
    # In a mount namespace of its own, which ends with it.
    script = f"""mount -t tmpfs -o size=600k none disk && head -c 300000 /dev/zero > disk/ballast || exit 77
"$@" & while [ ! -e filled ]; do sleep 0.01; done; rm disk/ballast; touch room; wait $!; code=$?
cat disk/*/attempt_0/0/stdout.log > copy; exit $code"""
    p = subprocess.run(["unshare", "-m", "bash", "-c", script, "x", mulib.program("node-agent"), "--redirects=1", "--log-dir=disk", w],
                       capture_output=True, cwd=job.folder, env=agentlib.environment(), timeout=mulib.PATIENCE, check=False)
    if p.returncode == 77:
        pytest.skip("a tmpfs cannot be mounted here")
    assert p.returncode == 0, p.stderr
    text = (job.folder / "copy").read_bytes().decode()
    m = re.search(r"\n\[(\d+) lines are missing here: No space left on device\]\n", text)
    assert m is not None, text[-300:]
    before, after = text[:m.start()], text[m.end():]
    assert after == "".join(f"second {i}\n" for i in range(10))
    assert before.count("\n") + int(m.group(1)) == 501  # The line torn by the gap is one of the missing.
    assert b"No space left on device" in p.stderr


# --- torchrun's flags about output ---

def test_filters_templates_and_maps(job):
    w = job.worker("say('apple', RANK)\nsay('pear', RANK)\nos.write(2, b'x,y %d\\n' % RANK)\n")
    a = job.start("--nproc-per-node=3", "--tee=0:3,1:1", "--redirects=2:3", "--local-ranks-filter=0,2", "--role=r", *LOGS,
                  "--duplicate-stdout-filters=apple", "--duplicate-stderr-filters=x,,y", w,
                  env={"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "${role_name} $rank $$ $other|"}).ends(0)
    assert sorted(a.out.lines) == ["r 0 $ $other|apple 0", "r 0 $ $other|pear 0"]
    assert [s for s in a.err.lines if "OMP" not in s] == ["r 0 $ $other|x,y 0"]  # Rank 1's stderr is nobody's.
    assert log(job, "stdout", 1) == b"apple 1\npear 1\n" and log(job, "stderr", 2) == b"x,y 2\n"
    copies = list((job.folder / "logs").glob("*/attempt_0/filtered_stdout.log"))[0].read_text().splitlines()
    assert sorted(copies) == ["r 0 $ $other|apple 0", "r 1 $ $other|apple 1"]
    assert list((job.folder / "logs").glob("*/attempt_0/filtered_stderr.log"))[0].read_text() == "r 0 $ $other|x,y 0\n"


def test_label_prefixes_the_plain_console_and_makes_no_files(job):
    w = job.worker("say('out', RANK)\nos.write(2, b'err\\n')\n")
    a = job.start("--label", "--nproc-per-node=2", w).ends(0)
    assert sorted(a.out.lines) == ["[default0]:out 0", "[default1]:out 1"]
    assert sorted(s for s in a.err.lines if "OMP" not in s) == ["[default0]:err", "[default1]:err"]
    assert list((job.folder / "tmp").iterdir()) == []


@pytest.mark.parametrize("lines", [0, 10])
def test_without_tee_workers_hold_the_agents_own_streams(job, lines):
    """But for stderr, whose last lines the agent wants to know."""
    w = job.worker("say(os.stat(1).st_ino, os.stat(2).st_ino)\n")
    a = job.start(f"--last-lines={lines}", w)
    own = [str(os.fstat(f.fileno()).st_ino) for f in (a.process.stdout, a.process.stderr)]
    a.ends(0)
    told = a.out.lines[0].split()
    assert told[0] == own[0] and (told[1] == own[1]) == (lines == 0)


def test_a_terminal_stays_the_workers_own(job):
    w = job.worker("os.write(1, b'%d %d\\n' % (os.isatty(1), os.isatty(2)))\nsys.exit(7)\n")
    ours, theirs = os.openpty()
    try:
        a = subprocess.run([mulib.program("node-agent"), "--standalone", w], stdin=theirs, stdout=theirs, stderr=theirs, timeout=60,
                           env=agentlib.environment(), check=False)
        os.close(theirs)
        text = b""
        while b"Root Cause" not in text:
            text += os.read(ours, 65536)
    finally:
        os.close(ours)
    assert a.returncode == 1 and text.startswith(b"1 1\r\n"), text


def test_stderr_passes_byte_by_byte_and_in_order_with_stdout(job):
    """No line is needed, nothing is added; what goes to one place keeps its order."""
    w = job.worker("""
for i in range(200):
    os.write(1 + i % 2, b"%d " % i)
os.write(2, b"50%\\r")
os.write(1, b"\\x00\\xff no end")
""")
    log = job.folder / "log"
    with open(log, "wb") as f:
        subprocess.run([mulib.program("node-agent"), "--standalone", w], stdout=f, stderr=f, timeout=60, env=agentlib.environment(),
                       check=True)
    assert log.read_bytes() == b"".join(b"%d " % i for i in range(200)) + b"50%\r\x00\xff no end"


def test_more_last_lines_than_fit_are_cut_and_control_bytes_are_shown(job):
    w = job.worker("os.write(2, b''.join(b'line %d ' % i + b'x' * 300 + b'\\n' for i in range(40)) + b'\\x1b[2Jend\\n')\nsys.exit(7)\n")
    a = job.start("--last-lines=20", w).ends(1)
    text = a.err.text()
    shown = re.findall(r"^    \| (.*)$", text, re.M)
    assert shown[-1] == "\\x1b[2Jend" and 2 < len(shown) <= 20 and sum(map(len, shown)) <= 2048, shown
    assert "exited with status 7: " in a.verdict()


def test_restarts_and_what_outlives_a_worker_by_a_moment(job):
    """A child goes on writing when its worker has ended, and is ended itself; the second attempt has files of its own."""
    w = job.worker("""
say("attempt", RESTARTS)
if os.fork() == 0:
    say("child", RESTARTS)
    open("child%d" % RESTARTS, "w").close()
    hang()
await_file("child%d" % RESTARTS)
os._exit(4 if RESTARTS == 0 else 0)
""")
    a = job.start("--tee=1", *LOGS, "--max-restarts=1", w).ends(0)
    assert a.out.lines == ["[default0]:attempt 0", "[default0]:child 0", "[default0]:attempt 1", "[default0]:child 1"]
    assert log(job, "stdout", 0, 1) == b"attempt 1\nchild 1\n"


def test_events_on_the_console_are_torchruns(job):
    w = job.worker("sys.exit(3 if RANK == 1 else hang())\n")
    a = job.start("--event-log-handler=console", "--nproc-per-node=2", "--role=r", w).ends(1)
    events = [json.loads(s) for s in a.err.lines if s.startswith("{")]
    seen = [(e["source"], e["metadata"]["state"], e["metadata"]["global_rank"]) for e in events]
    assert seen == [("AGENT", "RENDEZVOUS", None), ("AGENT", "ASSIGN_WORKER_RANKS", None), ("WORKER", "START", 0), ("WORKER", "START", 1),
                    ("WORKER", "FAILED", 1), ("WORKER", "TERMINATED", 0), ("AGENT", "FAILED", None)]
    failed = events[4]
    assert failed["name"] == "torchelastic.worker.status.FAILED" and failed["timestamp"] == 0
    assert set(failed["metadata"]) == {"run_id", "global_rank", "group_rank", "worker_id", "role", "hostname", "state", "total_run_time",
                                       "rdzv_backend", "raw_error", "metadata", "agent_restarts", "duration_ms"}
    inner = json.loads(failed["metadata"]["metadata"])
    assert inner["local_rank"] == [1] and inner["exit_code"] == [3] and inner["role_world_size"] == [2]


def test_run_path_runs_as_main_and_records_the_exception(job):
    s = job.file("script.py", "import sys, os\nprint(__name__, sys.argv[1:])\nsys.stdout.flush()\nif 'bad' in sys.argv: raise KeyError('why')\n")
    a = job.start("--run-path", "--no-python", "-m", s, "x", "y z").ends(0)
    assert a.out.lines == ["__main__ ['x', 'y z']"]
    a = job.start("--run-path", s, "bad").ends(1)
    assert "run_script_path FAILED" in a.err.lines and "KeyError: 'why'" in a.verdict()
    assert any(re.search(r"traceback : Traceback", line) for line in a.err.lines)


@pytest.mark.parametrize("mode", ["node", "socket", "exclusive", "core-complex"])
def test_numa_binding_gives_each_worker_cpus_of_ours(job, mode):
    w = job.worker("say(*sorted(os.sched_getaffinity(0)))\n")
    a = job.start(f"--numa-binding={mode}", "--nproc-per-node=1", w).ends(0)
    got = set(map(int, a.out.lines[0].split()))
    assert got and got <= os.sched_getaffinity(0)


def test_numa_binding_exclusive_gives_no_cpu_twice_or_says_why_not(job):
    w = job.worker("say(*sorted(os.sched_getaffinity(0)))\n")
    a = job.start("--numa-binding=exclusive", "--nproc-per-node=2", w)
    if a.wait() == 0:
        one, two = [set(map(int, s.split())) for s in a.out.lines]
        assert one and two and not one & two
    else:
        assert "fewer free cores than the 2 workers" in a.err.lines[-1]


def test_a_script_without_its_execute_bit_goes_to_python_with_a_warning(job):
    job.file("shell", "#!/bin/sh\nprint('python')\n", 0o644)
    job.file("py", "#!/usr/bin/env python3\nprint('python')\n", 0o644)
    a = job.start("./shell").ends(0)
    assert a.out.lines == ["python"]
    assert len(a.err.lines) == 1 and "chmod +x" in a.err.lines[0] and "#!/bin/sh" in a.err.lines[0]
    assert job.start("py").ends(0).err.lines == []


# --- how a job's end is told ---

def test_a_worker_in_uninterruptible_sleep_ends_the_job_where_asked(job):
    """A parent in vfork() is in D state."""
    cc = shutil.which("cc")
    if cc is None:
        pytest.skip("no C compiler")
    src = job.file("stuck.c", "#include <unistd.h>\nint main(void) { if (vfork() == 0) { sleep(60); _exit(0); } return 0; }\n")
    subprocess.run([cc, "-w", "-o", src[:-2], src], check=True)
    a = job.start("--max-restarts=3", "--shutdown-timeout=0.5", src[:-2],
                  env={"TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT": "0.3"}).ends(1)
    assert re.search(r"worker 0 \(pid \d+\) has been in uninterruptible sleep \(D state\)", a.verdict())
    assert "starts again" not in a.err.text()


@pytest.mark.parametrize("body, code, words", [
    ("sys.exit(3)", 3, "exited with status 3"),
    ("sys.exit(75)", 75, "exited with status 75"),
    ("os.kill(os.getpid(), signal.SIGKILL)", 128 + 9, "SIGKILL"),
    ("os.kill(os.getpid(), signal.SIGSEGV)", 128 + 11, "SIGSEGV"),
    ("os.abort()", 128 + 6, "SIGABRT"),
])
def test_f18_how_it_ended_reaches_the_caller(job, body, code, words):
    """F18: the exact status or the signal's name in the closing text; with --exit-status=first in the exit status too."""
    w = job.worker(f"import resource\nresource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n{body}\n")
    assert words in job.start(w).ends(1).verdict()
    a = job.start("--exit-status=first", w).ends(code)
    assert words in a.verdict() and len(a.err.lines) <= 20


@pytest.mark.parametrize("words, text", [
    (["--no-python", "./missing"], "execve './missing': No such file or directory"),
    (["--no-python", "./plain"], "execve './plain': Permission denied"),
    (["--no-python", "./bad"], "execve './bad': its interpreter '/no/such/interpreter'"),
    (["--no-python", "./broken"], "execve './broken': Exec format error"),
])
def test_f18_start_errors_are_sentences(job, words, text):
    """F18: a program that cannot be started: path and reason, at most 10 lines, no stack trace."""
    job.file("plain", "#!/bin/sh\n", 0o644)
    job.file("bad", "#!/no/such/interpreter\n", 0o755)
    job.file("broken", "no program\n", 0o755)
    for more in ([], ["--tee=3", *LOGS]):
        a = job.start(*more, *words).ends(1)
        assert text in a.err.text() and len(a.err.lines) <= 10 and "Traceback" not in a.err.text()


def test_f19_the_first_failure_comes_first_on_every_node(job, server):
    """F19: rank 3 on the second node prints `disk full` and exits 3; the others then complain at length and exit 1."""
    w = job.worker("""
def late(*_):
    for i in range(30):
        os.write(2, b"complaint %d\\n" % i)
    os._exit(1)
signal.signal(signal.SIGTERM, late)
open("up.x.%d" % RANK, "w").close()
if RANK == 3:
    for r in range(4):
        await_file("up.x.%d" % r)
    os.write(2, b"working\\ndisk full\\n")
    os._exit(3)
hang()
""")
    nodes = job.nodes(server, 2, "--nproc-per-node=2", "--tee=3", *LOGS, w)
    for a in nodes:
        a.ends(1, 5 * SLOW)
    for a in nodes:
        own = [s for s in a.err.lines if not s.startswith("[default") and "OMP_NUM" not in s]
        assert len(own) <= 40, own
        assert re.match(r"node-agent: job \S+ failed: rank 3 \(local rank 1, pid \d+\) on \S+ exited with status 3: disk full \(round 1", own[-1]
                        if len(own) == 1 else own[0]), own
    report = [a.err.text() for a in nodes if "Root Cause" in a.err.text()]
    assert len(report) == 1
    root = report[0].split("Root Cause")[1]
    assert re.search(r"rank +: 3 \(local_rank: 1\)", root) and "its last lines stand above" in root
    for a in nodes:
        assert "node-agent: its last lines:\n    | working\n    | disk full\n" in a.err.text()


def test_last_lines_come_from_log_files_too(job):
    w = job.worker("for i in range(40): say('out', i)\nsys.exit(7)\n")
    a = job.start("--redirects=3", *LOGS, w).ends(1)
    assert a.out.lines == [] and "exited with status 7 (" in a.verdict()  # What stood on stdout is no reason.
    shown = re.findall(r"^    \| out (\d+)$", a.err.text(), re.M)
    assert shown == [str(i) for i in range(30, 40)]


def test_the_last_line_is_no_cause_of_a_kill_from_outside(job):
    w = job.worker("say('all is well')\nos.kill(os.getpid(), signal.SIGKILL)\n")
    a = job.start("--redirects=3", *LOGS, w).ends(1)
    assert "SIGKILL (" in a.verdict() and "all is well" not in a.verdict() and "    | all is well" in a.err.text()


def test_a_descriptor_that_outlives_the_round_does_not_hold_the_end(job):
    """The worker's stdout is handed to a process that is none of ours: here, to this test."""
    path = str(job.folder / "s")
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen(1)
    kept = []

    def keep():
        peer, _ = server.accept()
        kept.extend(socket.recv_fds(peer, 1, 1)[1])
        peer.close()
    t = threading.Thread(target=keep)
    t.start()
    w = job.worker(f"""
import socket
s = socket.socket(socket.AF_UNIX)
s.connect({path!r})
socket.send_fds(s, [b"x"], [1])
s.recv(1)
say("done")
""")
    a = job.start("--label", w).ends(0)
    t.join(mulib.PATIENCE)
    assert a.out.lines == ["[default0]:done"] and len(kept) == 1
    os.close(kept[0])
    server.close()


def test_a_stranger_who_writes_to_a_workers_stream_does_not_hold_the_end(job):
    """The worker's stdout is handed to this test, which never stops writing to it."""
    path = str(job.folder / "s")
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen(1)

    def write_on():
        peer, _ = server.accept()
        fd = socket.recv_fds(peer, 1, 1)[1][0]
        peer.close()
        try:
            while True:
                os.write(fd, b"stranger " * 100 + b"\n")
        except BrokenPipeError:
            os.close(fd)
    t = threading.Thread(target=write_on)
    t.start()
    w = job.worker(f"""
import socket
s = socket.socket(socket.AF_UNIX)
s.connect({path!r})
socket.send_fds(s, [b"x"], [1])
s.recv(1)
""")
    job.start("--tee=1", "--local-ranks-filter=1", *LOGS, w).ends(0)
    t.join(mulib.PATIENCE)
    assert not t.is_alive()
    server.close()
