"""Nothing outlives its owner: signals, kills, and what is left of a job then."""
import os
import re
import shutil
import signal
import tempfile
import time
from pathlib import Path

import pytest

import agentlib
import mulib
from agentlib import alive


@pytest.fixture(params=["cgroup", "no-cgroup"])
def job(request, tmp_path):
    """As root with a cgroup of its own where the machine has them, and as nobody, who may not make one."""
    if request.param == "cgroup":
        j = agentlib.Job(tmp_path)
        j.pre = []
        yield j
        j.check_end()
        return
    pre = agentlib.as_nobody()
    if pre is None:
        pytest.skip("needs root, setpriv, and programs that anybody may run, to become a user who may make no cgroup")
    folder = Path(tempfile.mkdtemp(prefix="agent_ends_", dir="/tmp"))
    folder.chmod(0o777)
    j = agentlib.Job(folder)
    j.pre = pre
    yield j
    j.check_end()
    shutil.rmtree(folder)


def pids_of(agent, word, count):
    return [int(m.group(1)) for m in agent.out.wait_count(rf"^{word} (\d+)", count)]


def family(job, body="", nproc=2, words=()):
    """An agent whose workers each have: a child in their group, a daemon (own session, deaf), and one that hides its origin
    behind an empty environment."""
    w = job.worker("""
if os.fork() == 0:
    deaf(signal.SIGTERM, signal.SIGINT)
    say("left", os.getpid())
    hang()
daemon("left")
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve("/bin/sh", ["sh", "-c", "trap '' TERM INT HUP; echo left $$; while :; do sleep 600; done"], {})
    os._exit(0)
""" + body + """
say("up", os.getpid())
hang()
""")
    a = job.start(f"--nproc-per-node={nproc}", *words, w, pre=job.pre)
    a.out.wait_count("up", nproc)
    a.left = job.watch(pids_of(a, "left", 3 * nproc))
    return a


def nothing_left(agent, within=agentlib.GONE_WITHIN):
    """All that we know of have ended within that time, and nobody holds its output any more."""
    within *= 3 if agentlib.SANITIZED else 1
    agent.left.gone(within)
    agent.gone(within)


# --- signals ---

@pytest.mark.parametrize("signo", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
@pytest.mark.parametrize("word", ["one", "first"])
def test_a_signal_is_passed_on_once_and_the_agent_exits_with_1_or_says_which(job, signo, word):
    w = job.worker("""
def saved(s, _):
    say("got", s)
    await_file("go")
    os._exit(0)
signal.signal(int(sys.argv[1]), saved)
say("up")
hang()
""")
    a = job.start("--nproc-per-node=2", f"--exit-status={word}", w, int(signo), pre=job.pre)
    a.out.wait_count("up", 2)
    a.signal(signo)
    a.out.wait_count("got", 2)
    (job.folder / "go").touch()
    a.ends(1 if word == "one" else 128 + signo)
    assert len([s for s in a.out.lines if s == f"got {int(signo)}"]) == 2, a.out.text()
    assert f"told to stop by {signo.name}" in a.verdict()
    assert "Traceback" not in a.err.text() and "FAILED" not in a.err.text()


def test_a_second_signal_kills_and_nothing_is_left(job):
    a = family(job, "deaf(signal.SIGTERM)")
    a.signal(signal.SIGTERM)
    a.signal(signal.SIGTERM)  # May merge with the first while that is not taken.
    end = time.monotonic() + mulib.PATIENCE
    while a.process.poll() is None and time.monotonic() < end:
        a.signal(signal.SIGTERM)
        try:
            a.process.wait(0.05)
        except Exception:  # pylint: disable=broad-except
            continue
    assert a.process.returncode == 1
    nothing_left(a)


def test_what_workers_left_behind_ends_with_a_job_that_ends_well(job):
    w = job.worker("""
daemon("left")
if os.fork() == 0:
    deaf(signal.SIGTERM)
    say("left", os.getpid())
    hang()
await_file("go")
""")
    a = job.start(w, pre=job.pre)
    a.left = job.watch(pids_of(a, "left", 2))
    (job.folder / "go").touch()
    a.ends(0)
    nothing_left(a)
    assert a.is_quiet(), a.err.text()  # The server that it hosts has closed meanwhile, and that is no loss to tell of.


def test_a_dead_workers_children_do_not_live_on_while_others_run(job):
    w = job.worker("""
if LOCAL == 0:
    daemon("left")
    if os.fork() == 0:
        say("left", os.getpid())
        hang()
    await_file("go")
    sys.exit(0)
daemon("stays")
say("up")
hang()
""")
    a = job.start("--nproc-per-node=2", w, pre=job.pre)
    left = job.watch(pids_of(a, "left", 2))
    a.left = job.watch(pids_of(a, "stays", 1))
    a.out.wait("up")
    (job.folder / "go").touch()
    left.gone()
    assert alive(a.left.pids[0]) and a.process.poll() is None, "the living worker's own child was touched"
    a.signal(signal.SIGTERM)
    a.ends(1)
    nothing_left(a)


def test_a_signal_that_is_not_handled_has_its_default_effect(job):
    a = family(job)
    os.kill(a.agent_pid(), signal.SIGUSR2)
    assert a.process.wait(mulib.PATIENCE) == 1
    nothing_left(a)
    assert "killed by SIGUSR2" in a.err.text()


def test_under_nohup_the_end_of_the_terminal_is_no_reason_to_end(job):
    w = job.worker('say("up")\nawait_file("go")')
    a = job.start(w, pre=[*job.pre, "nohup"])
    a.out.wait("up")
    a.signal(signal.SIGHUP)
    (job.folder / "go").touch()
    a.ends(0)


# --- kills ---

@pytest.mark.parametrize("who", ["agent", "warden", "group", "name"])
def test_killed_in_whatever_way_nothing_is_left_after_a_second(job, who):
    a = family(job)
    agent = a.agent_pid()
    os.kill(agent, signal.SIGSTOP)  # It cannot clean up by itself in the last moment.
    if who == "agent":
        os.kill(agent, signal.SIGKILL)
    elif who == "warden":
        os.kill(agent, signal.SIGCONT)
        a.signal(signal.SIGKILL)
    elif who == "group":
        os.kill(agent, signal.SIGCONT)
        os.killpg(agent, signal.SIGKILL)
    else:  # As pkill -9 node-agent would.
        os.kill(agent, signal.SIGCONT)
        for pid in (a.pid, agent):
            if "node-agent" in Path(f"/proc/{pid}/comm").read_text(encoding="ascii"):
                os.kill(pid, signal.SIGKILL)
    a.process.wait(mulib.PATIENCE)
    nothing_left(a)


def test_warden_and_agent_killed_at_once_no_worker_is_left(job):
    """What workers forked has no parent then; only a supervisor of the whole cgroup could end that."""
    w = job.worker('say("up", os.getpid())\nhang()')
    a = job.start("--nproc-per-node=4", w, pre=job.pre)
    a.left = job.watch(pids_of(a, "up", 4))
    agent = a.agent_pid()
    os.kill(a.pid, signal.SIGSTOP)
    os.kill(agent, signal.SIGKILL)
    os.kill(a.pid, signal.SIGKILL)
    a.process.wait(mulib.PATIENCE)
    nothing_left(a)


def test_a_killed_agent_is_told_of_by_its_warden(job):
    a = family(job)
    os.kill(a.agent_pid(), signal.SIGKILL)
    assert a.process.wait(mulib.PATIENCE) == 1
    nothing_left(a)
    assert a.err.text().splitlines()[-1] == "node-agent: the agent process was killed by SIGKILL; its workers were ended"


@pytest.mark.parametrize("tmp", ["given", "default"])
def test_a_killed_agents_log_folder_goes_unless_it_holds_what_somebody_wrote(job, tmp):
    """By default it lies in memory, where nothing may stay; in a folder that TMPDIR names error files do."""
    w = job.worker("""
path = E["TORCHELASTIC_ERROR_FILE"]
if LOCAL == 1:
    open(path, "w").write("{}")
say("at", LOCAL, path)
hang()
""")
    a = job.start("--nproc-per-node=2", w, pre=job.pre, env={} if tmp == "given" else {"TMPDIR": None})
    paths = {int(m.group(1)): Path(m.group(2)) for m in a.out.wait_count(r"^at (\d) (.*)", 2)}
    base = paths[0].parents[3]
    assert re.match(r"torchelastic_\w{8}$", base.name) and paths[0].parent.exists()
    os.kill(a.agent_pid(), signal.SIGKILL)
    assert a.process.wait(mulib.PATIENCE) == 1
    a.gone()
    assert not paths[0].parent.exists(), f"{paths[0].parent} is left"
    if str(base).startswith("/dev/shm"):
        assert not base.exists(), f"{base} is left in memory"
    else:
        assert paths[1].exists()
        shutil.rmtree(base)


def test_a_stopped_worker_hears_sigterm_too(job):
    w = job.worker("""
on(signal.SIGTERM, "term", 0)
say("up", os.getpid())
hang()
""")
    a = job.start(w, pre=job.pre)
    os.kill(int(a.out.wait(r"up (\d+)").group(1)), signal.SIGSTOP)
    a.signal(signal.SIGTERM)
    a.ends(1)
    assert "term" in a.out.lines


def our_cgroups(agent):
    tops = [t for t in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified") if os.path.isdir(t)]
    return [d for t in tops for d in os.listdir(t) if re.match(rf"muster-({agent.pid}|{agent.pid + 1})-", d)]


def test_no_cgroup_and_no_folder_is_left(job):
    a = family(job, words=("--max-restarts=1",))
    os.kill(a.left.pids[0], signal.SIGKILL)
    a.signal(signal.SIGTERM)
    a.signal(signal.SIGKILL)
    a.process.wait(mulib.PATIENCE)
    nothing_left(a)
    deadline = time.monotonic() + mulib.PATIENCE  # The last of it goes when nothing holds it any more.
    while found := our_cgroups(a):
        assert time.monotonic() < deadline, found
        time.sleep(0.01)
