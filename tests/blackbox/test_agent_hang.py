"""What is known of a hang: the stacks of all workers, taken before they are stopped, by whatever there is to take them with."""
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import urllib.parse

import pytest

from mulib import PATIENCE

SILENT = "--silence-timeout=1"


def stacks(folder):
    return {p.parent.name: p for p in folder.glob("*/attempt_0/*/stacks.log")}


def incident(server, run_id):
    (one,) = json.loads(server.get(f"/jobs/{urllib.parse.quote(run_id)}/incidents")[2])["incidents"]
    return one


def is_left(text):
    return subprocess.run(["pgrep", "-f", text], stdout=subprocess.DEVNULL).returncode == 0


def bin_with(folder, **scripts):
    """A PATH that holds nothing but these."""
    folder.mkdir()
    for name, text in scripts.items():
        (folder / name.replace("_", "-")).write_text("#!/bin/sh\n" + text)
        (folder / name.replace("_", "-")).chmod(0o755)
    return {"PATH": str(folder)}


def test_a_hook_of_the_user_is_run_for_each_worker_before_any_is_stopped(job, tmp_path, server):
    hook = 'echo "rank $MUSTER_HANG_RANK local $MUSTER_HANG_LOCAL_RANK"; kill -0 $MUSTER_HANG_PID && echo lives; cat'
    a = job.start(f"--rdzv=127.0.0.1:{server.port}", "--rdzv-id=h", "--nproc-per-node=3", SILENT, f"--log-dir={tmp_path}/logs",
                  f"--hang-hook={hook}", "--no-python", "/bin/sleep", "600")
    a.err.wait(r"stacks of 3 of 3 workers were taken: see stacks.log of each worker in \S+/logs")
    assert a.wait() == 1
    found = stacks(tmp_path / "logs")
    assert {k: p.read_text() for k, p in found.items()} == {str(i): f"rank {i} local {i}\nlives\n" for i in range(3)}
    assert all(stat.S_IMODE(p.stat().st_mode) == 0o600 for p in found.values())
    one = incident(server, "h")
    assert one["cause"]["kind"] == "no_progress" and one["trace"] == f"rank {one['cause']['rank']} local {one['cause']['rank']}\nlives\n"


def test_a_hook_that_ends_the_worker_is_not_the_cause(job, server):
    a = job.start(f"--rdzv=127.0.0.1:{server.port}", "--rdzv-id=h", "--nproc-per-node=1", SILENT, "--hang-hook=kill -9 $MUSTER_HANG_PID; echo shot; sleep 1",
                  "--no-python", "/bin/sleep", "600")
    assert a.wait() == 1
    one = incident(server, "h")
    assert one["cause"]["kind"] == "no_progress"


def test_without_debuggers_proc_tells(job, tmp_path, server):
    a = job.start(f"--rdzv=127.0.0.1:{server.port}", "--rdzv-id=h", "--nproc-per-node=2", SILENT, "--no-python", "/bin/sleep", "600",
                  env=bin_with(tmp_path / "bin"))
    assert a.wait() == 1
    trace = incident(server, "h")["trace"]
    assert "as /proc has it" in trace and "State:\tS (sleeping)" in trace and "wchan:" in trace and "\nstack:" in trace


def test_py_spy_is_for_python_and_gdb_for_the_rest(job, tmp_path, server):
    env = bin_with(tmp_path / "bin", py_spy='echo "py-spy $@"', gdb='echo "gdb $@"')
    for run_id, words in (("c", ["/bin/sleep", "600"]), ("py", [os.path.realpath(sys.executable), "-c", "import time; time.sleep(600)"])):
        a = job.start(f"--rdzv=127.0.0.1:{server.port}", f"--rdzv-id={run_id}", SILENT, "--no-python", *words, env=env)
        assert a.wait() == 1
        one = incident(server, run_id)
        pid = one["cause"]["pid"]
        assert one["trace"].startswith(f"py-spy dump --pid {pid}" if run_id == "py" else f"gdb -nx -q -p {pid} -batch"), one["trace"]


@pytest.mark.skipif(shutil.which("gdb") is None or shutil.which("cc") is None, reason="no gdb or no C compiler")
def test_gdb_shows_where_a_c_worker_hangs(job, tmp_path, server):
    (tmp_path / "w.c").write_text("#include <unistd.h>\nint wait_for_nobody(void) { return pause(); }\nint main(void) { return wait_for_nobody(); }\n")
    subprocess.run(["cc", "-g", "-O0", "-o", tmp_path / "w", tmp_path / "w.c"], check=True)
    a = job.start(f"--rdzv=127.0.0.1:{server.port}", "--rdzv-id=h", SILENT, "--hang-hook-timeout=60", "--no-python", str(tmp_path / "w"))
    assert a.wait(PATIENCE + 60) == 1
    assert "wait_for_nobody" in incident(server, "h")["trace"]


@pytest.mark.parametrize("hook, says", [
    ("echo began; sleep 98761; true", r"the hang hook had not ended for 2 within 2 s, and was killed"),
    ("exit 3", r"stacks of 2 of 2 workers were taken"),
    ("no-such-program-here", r"stacks of 2 of 2 workers were taken"),
    ("sleep 98761 & yes | head -c 300000", r"stacks of 2 of 2 workers were taken"),
])
def test_a_hook_that_hangs_fails_floods_or_is_not_there_changes_nothing_else(job, tmp_path, start_server, hook, says):
    """Beats go on: with a lease of a second the node is not given up in the two that it takes."""
    server = start_server("--lease=1")
    a = job.start(f"--rdzv=127.0.0.1:{server.port}", "--rdzv-id=h", "--nproc-per-node=2", "--max-restarts=1", SILENT, f"--hang-hook={hook}",
                  "--hang-hook-timeout=2", f"--log-dir={tmp_path}/logs", "--no-python", "/bin/sh", "-c",
                  '[ "$TORCHELASTIC_RESTART_COUNT" = 1 ] || exec sleep 98762')
    a.err.wait(says)
    assert a.wait() == 0
    first = json.loads(server.get("/jobs/h/incidents")[2])["incidents"][0]
    assert (first["cause"]["kind"], first["decision"]) == ("no_progress", "restart")
    for p in stacks(tmp_path / "logs").values():
        text = p.read_text()
        assert len(text) <= 65536 and ("as /proc has it" in text) == (not hook.startswith(("sleep", "no-such")))
    assert not is_left("sleep 9876")


@pytest.mark.parametrize("words", [["--hang-hook=none"], ["--hang-hook="], ["--hang-hook-timeout=0"]])
def test_none_takes_nothing(job, tmp_path, server, words):
    a = job.start(f"--rdzv=127.0.0.1:{server.port}", "--rdzv-id=h", SILENT, *words, f"--log-dir={tmp_path}/logs", "--no-python", "/bin/sleep", "600")
    assert a.wait() == 1
    assert incident(server, "h")["trace"] is None and not stacks(tmp_path / "logs") and "stacks" not in a.err.text()


def test_the_blamed_one_of_another_node_tells_what_it_was_doing(job, tmp_path, server):
    """The first node's limit is shorter; the second one's worker is stopped by a signal, so it is to blame."""
    common = [f"--rdzv=127.0.0.1:{server.port}", "--rdzv-id=h", "--nnodes=2", "--nproc-per-node=1", "--hang-hook=echo of rank $MUSTER_HANG_RANK"]
    a = job.start(*common, "--silence-timeout=12", f"--log-dir={tmp_path}/a", "--no-python", "/bin/sleep", "600")
    b = job.start(*common, f"--log-dir={tmp_path}/b", "--no-python", "/bin/sleep", "600")
    found = server.wait_status(lambda s: s["jobs"] and s["jobs"][0]["state"] == "running"
                               and all(n["state"] == "running" for n in s["jobs"][0]["nodes"]), "both run")
    workers = {n["pid"]: n["workers"][0] for n in found["jobs"][0]["nodes"]}
    victim = workers[b.agent_pid()]
    os.kill(victim["pid"], signal.SIGSTOP)
    assert (a.wait(), b.wait()) == (1, 1)
    one = incident(server, "h")
    assert one["cause"]["rank"] == victim["rank"] and "stopped by a signal" in one["cause"]["message"]
    assert one["trace"] == f"of rank {victim['rank']}\n" and one["consequences"] == []
    assert [p.read_text() for p in stacks(tmp_path / "b").values()] == [f"of rank {victim['rank']}\n"]
    assert len(stacks(tmp_path / "a")) == 1
