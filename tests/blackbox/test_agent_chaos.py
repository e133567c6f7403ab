"""Faults on purpose, by rule (--chaos): each is said, does what it says, and is off unless asked for."""
import re
import subprocess

import pytest

UP = """
say("up", RESTARTS, RANK, os.getpid())
await_file("finish")
"""


def chaos(agent):
    return [s for s in agent.err.lines if re.match(r"(node-agent: )?chaos: ", s)]


def test_off_unless_asked_for(job):
    a = job.start("--standalone", job.worker("pass")).ends(0)
    assert not chaos(a)


def test_a_worker_is_killed_once_and_it_is_said(job):
    a = job.start("--standalone", "--nproc-per-node=2", "--max-restarts=1", "--chaos=kill rank=1 after=700ms", job.worker(UP))
    a.out.wait_count(r"up 1 \d", 2)
    (job.folder / "finish").touch()
    a.ends(0)
    lines = chaos(a)
    victim = re.search(r"up 0 1 (\d+)", a.out.text()).group(1)
    assert "ON: this agent breaks things on purpose" in lines[0], lines
    assert f'SIGKILL to rank 1 (pid {victim}), by the rule "kill rank=1 after=700ms"' in lines[-1], lines
    assert re.search(rf"round 1 ended: rank 1 \(local rank 1, pid {victim}\) on \S+ was ended by SIGKILL", a.err.text())


def test_only_the_agent_that_has_the_rank_acts(server, job):
    both = job.nodes(server, 2, "--max-restarts=1", job.worker(UP), env={"MUSTER_CHAOS": "kill rank=1; kill rank=7"})
    for a in both:
        a.out.wait(r"up 1 \d")
    (job.folder / "finish").touch()
    for a in both:
        a.ends(0)
    assert sorted(len([s for s in chaos(a) if "SIGKILL to rank" in s]) for a in both) == [0, 1]


def test_a_frozen_worker_is_woken(job):
    w = job.worker("""
last = time.monotonic()
gap = 0
while gap < 2:
    time.sleep(0.005)
    gap, last = time.monotonic() - last, time.monotonic()
""")
    a = job.start("--standalone", "--chaos=freeze rank=0 after=1s for=3s", w).ends(0)
    assert [s for s in chaos(a) if "SIGSTOP to rank 0" in s] and [s for s in chaos(a) if "SIGCONT to rank 0" in s]


def test_the_agent_kills_itself_and_nothing_stays(job):
    a = job.start("--standalone", "--chaos=kill-agent after=50ms", job.worker('daemon("away")\nhang()'))
    assert a.wait() == 1
    assert 'chaos: SIGKILL to this agent, by the rule "kill-agent after=50ms"' in a.err.text()


def test_a_cut_and_a_standstill_end_no_round(server, job):
    both = job.nodes(server, 2, job.worker(UP), env={"MUSTER_CHAOS": "cut node=1 after=50ms for=500ms; stop-agent node=0 for=300ms"})
    for a in both:
        a.out.wait(r"up 0 \d")
    one = next(a for a in both if "up 0 1 " in a.out.text())
    one.err.wait("the server may be connected again")
    server.wait_status(lambda s: all(n["connected"] for n in s["jobs"][0]["nodes"]), "both are back")
    (job.folder / "finish").touch()
    for a in both:
        a.ends(0)
    assert server.job("none")["round"] == 1
    text = both[0].err.text() + both[1].err.text()
    assert "no connection to the server for 0.5 s" in text and "this agent stands still for 0.3 s" in text


def test_what_is_not_the_log_folders_own_is_not_filled(job):
    a = job.start("--standalone", f"--log-dir={job.folder}", "--chaos=fill-disk for=1s", job.worker("time.sleep(0.2)")).ends(0)
    (line,) = [s for s in chaos(a) if "the disk is not filled" in s]
    assert "shares its file system" in line or "more than 1 GiB" in line, line


def test_the_log_folders_own_disk_is_filled_and_emptied(job):
    disk = job.folder / "disk"
    disk.mkdir()
    if subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "none", str(disk)], capture_output=True, check=False).returncode != 0:
        pytest.skip("a tmpfs cannot be mounted here")
    w = job.worker("""
had = None
while True:
    room = os.statvfs("disk").f_bavail
    if had == 0 and room > 0:
        break
    had = room
    time.sleep(0.005)
say("used", sum(os.lstat(os.path.join(f, n)).st_size for f, _, names in os.walk("disk") for n in names))
""")
    a = job.start("--standalone", "--log-dir=disk", "--redirects=2", "--chaos=fill-disk after=100ms for=300ms", w,
                  pre=["unshare", "-m", "sh", "-c", 'mount -t tmpfs -o size=2m none disk && exec "$@"', "sh"])
    assert a.wait() == 0, a.err.text()
    assert "the log folder's file system is full for 0.3 s (20" in a.err.text(), a.err.text()
    assert "the log folder's file system has room again" in a.err.text() and "used 0" in a.out.text()


def test_a_bad_rule_is_usage(job):
    a = job.start("--standalone", "--chaos=kill rnk=1", "true").ends(2)
    assert 'node-agent: error: --chaos: "rnk=1" is no word of kill: it knows rank, node, step' in a.err.text()


def test_random_prints_its_seed(job):
    a = job.start("--standalone", "--max-restarts=1", "--chaos=random rate=600 of=kill", job.worker("hang()")).ends(1)
    a.err.wait(r'chaos: rule 1: "random rate=600 of=kill", seed=\d+')
    assert len([s for s in chaos(a) if "SIGKILL to rank 0" in s]) == 2
