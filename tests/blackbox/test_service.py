"""Service mode's node: jobs placed on it by a server that the test plays, run by real agents with real workers, their output kept and sent."""
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

import agentlib
import mulib
import poollib
from mulib import PATIENCE, Server, program
from servicelib import Pool, Service, gone, script


@pytest.fixture
def rig(tmp_path):
    made = []

    class Rig:
        server = Server(tmp_path, "--lease", "3")
        pool = Pool(server)

        def service(self, *options, server=None, **more):
            s = Service(tmp_path, (server or self.pool).port, *options, **more)
            made.append(s)
            return s

        def script(self, name, text):
            return script(tmp_path, name, text)
    r = Rig()
    r.folder = tmp_path
    yield r
    for s in made:
        s.check_end()
    r.pool.close()
    r.server.check_end()


def kept_files(rig):
    return sorted(f for f in os.listdir(rig.folder / "kept") if f != ".lock")


def test_node_offers_itself(rig):
    rig.service("--slots=3")
    o = rig.pool.node().offer
    assert o["slots"] == 3 and o["cpus"] >= 1 and o["host"] == os.uname().nodename and len(o["node"]) == 36
    assert o["user"] == subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
    assert rig.pool.node().has() == []


def test_job_runs_and_its_output_has_ranks(rig):
    rig.service("--slots=4")
    node = rig.pool.node()
    prog = rig.script("w.py", 'say("hello", RANK, E["WHAT"], os.getcwd())\nos.write(2, b"to stderr %d\\n" % RANK)\nsys.exit(3 * (RANK == 1))\n')
    node.assign("j-1", [prog], rig.folder, nproc=2, env={"WHAT": "there"})
    assert node.placed("j-1", 0)["attempt"] == 1
    node.placed("j-1", 1)
    assert node.placed("j-1", 2)["status"] == 3
    out = node.log("j-1", 7)
    by_rank = {(m["rank"], m["channel"]): m["text"] for m in out if m.get("rank", -1) >= 0}
    assert by_rank == {(0, 1): f"hello 0 there {rig.folder}", (1, 1): f"hello 1 there {rig.folder}", (0, 2): "to stderr 0", (1, 2): "to stderr 1"}
    assert any("exit" in m["text"] for m in out if m.get("rank", -1) == -1), out  # The agent's own words of the failure.
    assert all(abs(m["unix_ms"] / 1000 - time.time()) < 60 for m in out)
    assert [m["text"] for m in node.log("j-1", 8, rank=1) if m["channel"] == 1] == [f"hello 1 there {rig.folder}"]
    assert node.log("j-1", 9, since_ms=int(time.time() * 1000) + 60000) == []
    assert node.log("nothing-like-it", 10) == []
    files = kept_files(rig)
    assert files == ["j-1.1.0.log"]
    assert os.stat(rig.folder / "kept").st_mode & 0o777 == 0o700 and os.stat(rig.folder / "kept" / files[0]).st_mode & 0o777 == 0o600
    first = json.loads((rig.folder / "kept" / files[0]).read_text().splitlines()[0])
    assert set(first) == {"at", "unix_ms", "host", "rank", "stream", "text"}


def test_environment_is_clean(rig):
    rig.service(env={"NOTIFY_SOCKET": "/nowhere", "WATCHDOG_USEC": "60000000", "MUSTER_TOKEN_FILE": "/x", "SECRET": "s", "LANG": "C.UTF-8",
                     "CREDENTIALS_DIRECTORY": str(rig.folder)})
    node = rig.pool.node()
    node.assign("env", [rig.script("w.py", "for k in E: say(k + '=' + E[k])\n")], rig.folder,
                env={"MINE": "1", "NOTIFY_SOCKET": "/theirs", "PET_NNODES": "7", "MUSTER_TOKEN": "t"})
    assert node.placed("env", 2)["status"] == 0, node.texts("env", 1)
    seen = dict(t.split("=", 1) for t in node.texts("env", 1, rank=0))
    assert seen["MINE"] == "1" and seen["LANG"] == "C.UTF-8" and seen["HOME"] and seen["PATH"]
    assert not [k for k in seen if re.match("NOTIFY|WATCHDOG|CREDENTIALS|MUSTER_TOKEN|SECRET|PET_|MUSTER_SERVICE", k)], seen


@pytest.mark.parametrize("change, why", [
    ({"cwd": "/not/there"}, "folder .*/not/there"), ({"argv": ["./nothing"]}, "program .*nothing.* is not on this node"),
    ({"argv": []}, "argv"), ({"cwd": "relative"}, "cwd"), ({"agent_args": ["word"]}, "agent_args"), ({"agent_args": ["--service"]}, "agent_args"),
    ({"user": "somebody-else"}, "run as .* alone"), ({"env": {"A=B": "c"}}, "env"), ({"nnodes": "many"}, "nnodes")])
def test_assignment_that_cannot_be_is_refused(rig, change, why):
    rig.service("--slots=2")
    node = rig.pool.node()
    spec = {"argv": ["/bin/true"], "cwd": "/", **change}
    node.assign("bad", spec.pop("argv"), spec.pop("cwd"), **spec)
    text = node.placed("bad", 3)["text"]
    assert re.search(why, text) and "\n" not in text, text
    assert kept_files(rig) == []


def test_more_than_there_is_room_for_is_refused(rig):
    rig.service("--slots=2")
    node = rig.pool.node()
    prog = rig.script("w.py", "hang()\n")
    node.assign("a", [prog], rig.folder, nproc=2)
    node.placed("a", 1)
    node.assign("b", [prog], rig.folder, nproc=1)
    assert "slots" in node.placed("b", 3)["text"]
    node.assign("../../etc", [prog], rig.folder)
    node.placed("../../etc", 3)
    node.assign("g", ["/bin/true"], "/", nproc=1, gpus=[9])
    node.placed("g", 3)
    node.send("unassign", job="a", attempt=1, signo=15, grace_ms=20000)
    assert node.placed("a", 2)["status"] in (143, 1)
    node.send("unassign", job="never-heard-of", attempt=1, signo=15, grace_ms=1000)
    node.placed("never-heard-of", 2)


def test_deaf_job_is_killed_after_its_grace(rig):
    rig.service()
    node = rig.pool.node()
    node.assign("deaf", [rig.script("w.py", 'deaf(signal.SIGTERM)\nsay("pid", os.getpid())\nhang()\n')], rig.folder)
    node.tail("deaf", 1, follow=1)
    pid = int(node.wait(lambda m: m["type"] == "output" and m.get("text", "").startswith("pid"))["text"].split()[1])
    node.send("unassign", job="deaf", attempt=1, signo=15, grace_ms=300)
    m = node.placed("deaf", 2)
    assert m["status"] == 137 and "grace" in m["text"], m
    gone([pid])
    node.output(1)


def test_output_is_followed_while_it_comes_and_costs_credit(rig):
    rig.service()
    node = rig.pool.node()
    prog = rig.script("w.py", 'say("x" * 1000)\nsay("y" * 1000)\nawait_file("on")\nfor i in range(50): say(i, "z" * 1000)\nsay("")\nsay("last")\n')
    node.assign("f", [prog], rig.folder)
    node.tail("f", 5, follow=1, rank=0, credit=1500)
    node.wait(lambda m: m["type"] == "output" and m["text"] == "x" * 1000)
    node.tail("f", 4, follow=1, rank=0)
    assert [node.wait(lambda m: m.get("stream") == 4)["type"] for _ in range(3)] == ["output", "output", "caught"]  # That is all, so far.
    node.send("untail", stream=4)
    (rig.folder / "on").touch()
    node.placed("f", 2)  # The job does not wait for whom we do not read.
    assert not [m for m in node.messages if m["type"] == "output"]
    node.send("more", stream=5, credit=100000)
    texts = [m.get("text", "") for m in node.output(5)]
    assert texts == ["y" * 1000, *[f"{i} " + "z" * 1000 for i in range(50)], "", "last"]
    assert node.texts("f", 6, rank=0, lines=3) == ["49 " + "z" * 1000, "", "last"]
    assert node.texts("f", 7, lines=0) == []
    node.tail("f", 8, credit=0)
    node.send("untail", stream=8)


def test_who_is_one_reader_too_many_is_told(rig):
    rig.service()
    node = rig.pool.node()
    node.assign("f", [rig.script("w.py", 'say("up")\nhang()\n')], rig.folder)
    node.placed("f", 1)
    node.tail("f", 1, follow=1)
    node.wait(lambda m: m["type"] == "output" and m["text"] == "up")
    for stream in range(2, 257):
        node.tail("f", stream, follow=1, lines=0)
    (m,) = node.log("f", 300)
    assert (m["rank"], m["channel"]) == (-1, 2) and re.search("missing: it sends output to 256 readers already", m["text"]), m
    node.send("untail", stream=7)
    assert node.texts("f", 301) == ["up"]


def test_long_lines_and_strange_bytes(rig):
    rig.service()
    node = rig.pool.node()
    prog = rig.script("w.py", r'''os.write(1, b"a" * 40000 + b"\n"); os.write(1, b"nul\0 bad\xff quote\" back\\ tab\t\x1b[0m \xc3\xa4\r\n"); os.write(1, b"no end")
''')
    node.assign("l", [prog], rig.folder)
    node.placed("l", 2)
    texts = node.texts("l", 1, rank=0)
    assert "".join(texts[:-2]) == "a" * 40000 and max(map(len, texts)) <= 16384
    assert texts[-2] == 'nul\ufffd bad\ufffd quote" back\\ tab\t\x1b[0m ä' and texts[-1] == "no end"


def test_a_killed_service_leaves_nothing(rig):
    s = rig.service("--slots=4")
    node = rig.pool.node()
    node.assign("k", [rig.script("w.py", 'say("pid", os.getpid())\nhang()\n')], rig.folder, nproc=3)
    node.tail("k", 1, follow=1)
    pids = [int(node.wait(lambda m: m["type"] == "output" and m.get("text", "").startswith("pid"))["text"].split()[1]) for _ in range(3)]
    with open(f"/proc/{s.pid}/task/{s.pid}/children", encoding="ascii") as f:
        pids += [int(p) for p in f.read().split()]
    s.process.kill()
    s.process.wait()
    gone(pids)


def recorded_cause(rig, job):
    """What the server of the rendezvous has as the cause of the job's last incident."""
    status = rig.server.wait_status(lambda s: any(j["id"] == job and (j.get("last_cause") or {}).get("message") for j in s["jobs"]), f"a cause of {job}")
    return next(j["last_cause"] for j in status["jobs"] if j["id"] == job)


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as f:
        return [int(p) for p in f.read().split()]


def assign_and_wait(rig, node, job, folder=None):
    folder = folder or rig.folder
    node.assign(job, [script(folder, f"{job}.py", 'say("up")\nhang()\n')], folder)
    node.tail(job, 77, follow=1)
    node.wait(lambda m: m["type"] == "output" and m.get("text") == "up")


def test_a_killed_service_is_the_cause_that_its_agents_tell(rig):
    s = rig.service()
    assign_and_wait(rig, rig.pool.node(), "k")
    s.process.kill()
    s.process.wait()
    cause = recorded_cause(rig, "k")
    assert cause["kind"] == "node_left" and cause["message"] == f"its service (node-agent --service, pid {s.pid}) died", cause


def test_the_cause_of_a_job_that_is_killed_on_request_says_so(rig):
    """Without a cgroup: else the kernel kills all of it, and no agent is left that could say a word."""
    pre = agentlib.as_nobody()
    if pre is None:
        pytest.skip("needs root, setpriv, and programs that anybody may run, to become a user who may make no cgroup")
    with tempfile.TemporaryDirectory(prefix="service_", dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o777)
        s = rig.service(pre=pre, log_dir=folder / "kept")
        node = rig.pool.node()
        assign_and_wait(rig, node, "k", folder=folder)
        node.send("unassign", job="k", attempt=1, signo=9, grace_ms=0)
        assert node.placed("k", 2)["status"] == 137
        cause = recorded_cause(rig, "k")
        assert cause["kind"] == "node_left" and cause["message"] == f"its service (node-agent --service, pid {s.pid}) ended it with SIGKILL, on request", cause
        s.check_end()


def test_a_stopped_agent_is_killed_on_request_all_the_same(rig):
    s = rig.service()
    node = rig.pool.node()
    assign_and_wait(rig, node, "z")
    agent, = children(s.pid)
    os.kill(agent, signal.SIGSTOP)
    node.send("unassign", job="z", attempt=1, signo=9, grace_ms=0)
    assert node.placed("z", 2)["status"] == 137
    gone([agent])


def test_each_further_attempt_begins_with_a_line(rig):
    rig.service()
    node = rig.pool.node()
    prog = rig.script("w.py", 'say("hello")\n')
    for attempt in (1, 2, 3):
        node.assign("again", [prog], rig.folder, attempt=attempt)
        assert node.placed("again", 2)["status"] == 0
    out = [(m["rank"], m["channel"], m["text"]) for m in node.log("again", 1)]
    assert out == [(0, 1, "hello"), (-1, 2, "node-agent: attempt 2 begins"), (0, 1, "hello"), (-1, 2, "node-agent: attempt 3 begins"), (0, 1, "hello")]


def says(rig, word):
    return [rig.script(f"{word}.py", f'say("{word}")\n')]


def test_the_output_of_another_job_of_the_same_id_is_not_shown(rig):
    """A server that lost its memory gave the id again."""
    s = rig.service("--log-bytes=1M", "--log-bytes-all=1M")
    node = rig.pool.node()
    for attempt in (1, 2):
        node.assign("train", says(rig, f"old{attempt}"), rig.folder, attempt=attempt, submitted_ms=1000)
        node.placed("train", 2)
    assert node.texts("train", 1, submitted_ms=1000, rank=0) == ["old1", "old2"]
    assert node.texts("train", 2, submitted_ms=2000) == []
    node.assign("train", ["./not-there"], rig.folder, submitted_ms=2000)  # Even one that cannot be started.
    node.placed("train", 3)
    assert node.texts("train", 3) == [] and node.texts("train", 4, submitted_ms=1000) == []
    assert s.err.wait("service.namesake job=train moved_to=(\\S+)").group(1) == "train~1000"
    for attempt in (1, 2):
        node.assign("train", says(rig, f"new{attempt}"), rig.folder, attempt=attempt, submitted_ms=2000)
        node.placed("train", 2)
    assert node.texts("train", 5, submitted_ms=2000) == ["new1", "node-agent: attempt 2 begins", "new2"]
    assert [f for f in kept_files(rig) if not f.startswith(".")] == ["train.1.0.log", "train.2.0.log", "train~1000.1.0.log", "train~1000.2.0.log"]
    assert "old1" in (rig.folder / "kept" / "train~1000.1.0.log").read_text()
    s.signal(signal.SIGHUP)
    node = rig.pool.node(1)
    assert node.texts("train", 6, submitted_ms=2000, rank=0) == ["new1", "new2"] and node.texts("train", 7, submitted_ms=3000) == []
    big = [rig.script("big.py", 'for i in range(8000): os.write(1, b"x" * 200 + b"\\n")\n')]
    for i in range(2):  # What was moved aside goes as others do, and so does the mark.
        node.assign(f"big{i}", big, rig.folder, submitted_ms=3000)
        node.placed(f"big{i}", 2)
    assert [node.wait(lambda m: m["type"] == "release")["job"] for _ in range(1)] == ["train"]
    assert not [f for f in kept_files(rig) if "train" in f]


def test_a_server_that_was_started_anew_without_a_state_dir_mixes_no_jobs_output(rig):
    first = Server(rig.folder, "--lease", "3", name="first")
    s = rig.service(server=first)
    s.err.wait("service.offered")

    def run(server, word):
        poollib.submit(server, id="train", argv=[str(a) for a in says(rig, word)], cwd=str(rig.folder))
        poollib.wait_state(server, "train", "done")
        logs = poollib.Logs(server, "train")
        texts = []
        while not (line := logs.line()).get("end"):
            texts.append(line["text"])
        return texts
    assert run(first, "old") == ["old"]
    first.kill()
    second = Server(rig.folder, "--lease", "3", port=first.port, name="second")
    second.wait_status(lambda x: x["pool"]["nodes"], "the node is back")
    assert run(second, "new") == ["new"]
    assert len([f for f in kept_files(rig) if f.startswith("train~")]) == 1
    second.check_end()


def test_a_job_whose_id_was_given_again_is_started_and_does_not_disturb_who_runs(rig):
    rig.service("--slots=2")
    node = rig.pool.node()
    node.beats = False  # So that the node cannot know that its word was heard.
    node.assign("a", says(rig, "old"), rig.folder, submitted_ms=1000)
    node.placed("a", 2)
    node.assign("a", [rig.script("w.py", 'say("new")\nhang()\n')], rig.folder, submitted_ms=2000)
    node.placed("a", 1)
    node.tail("a", 1, follow=1)
    assert node.wait(lambda m: m["type"] == "output")["text"] == "new"
    node.assign("a", says(rig, "newest"), rig.folder, submitted_ms=3000)
    assert "another job of this id" in node.placed("a", 3)["text"]
    node.assign("a", says(rig, "again"), rig.folder, submitted_ms=2000)  # Said again: it runs.
    node.placed("a", 1)
    assert node.texts("a", 2) == ["new"]


def test_an_agents_report_is_one_write(rig):
    """What it says at the end is read at once, and has one time: nothing of another agent comes between."""
    rig.service("--slots=2")
    node = rig.pool.node()
    prog = rig.script("w.py", 'os.write(2, b"x" * 200 + b"\\n")\nsys.exit(3)\n')
    for i in range(5):
        node.assign(f"r{i}", [prog], rig.folder, nproc=2)
        node.placed(f"r{i}", 2)
        out = [m for m in node.log(f"r{i}", i + 1) if m["rank"] == -1]
        at = next(n for n, m in enumerate(out) if "failed: rank" in m["text"])
        texts = [m["text"] for m in out[at:]]
        assert any("Root Cause" in t for t in texts) and len({m["unix_ms"] for m in out[at:]}) == 1, out


def test_a_relative_token_file_is_the_services_own_folders(rig):
    (rig.folder / "token").write_text("a" * 64 + "\n")
    (rig.folder / "token").chmod(0o600)
    rig.server.check_end()
    rig.server = rig.pool.server = Server(rig.folder, "--lease", "3", "--token-file", str(rig.folder / "token"), name="guarded")
    s = rig.service("--token-file=token", server=rig.server)
    s.err.wait("service.offered")
    folder = rig.folder / "elsewhere"
    folder.mkdir()
    r = subprocess.run([program("muster"), "run", f"--rdzv=127.0.0.1:{rig.server.port}", f"--token-file={rig.folder}/token", f"--cwd={folder}", "--",
                        "/bin/pwd"], capture_output=True, text=True, timeout=PATIENCE, cwd=folder, stdin=subprocess.DEVNULL, check=False)
    assert r.returncode == 0 and str(folder) in r.stdout, r


def test_a_new_start_keeps_jobs_and_their_output(rig):
    s = rig.service("--slots=4")
    node = rig.pool.node()
    prog = rig.script("w.py", '''n = 0
os.write(1, b"begun ")
while n < 300 or not os.path.exists("enough"):
    say(n); n += 1; time.sleep(0.001)
say("end", n)
''')
    node.assign("r", [prog], rig.folder, nproc=2)
    node.placed("r", 1)
    for start in range(1, 4):
        s.signal(signal.SIGHUP)
        node = rig.pool.node(start)
        assert node.offer["node"] == rig.pool.node(0).offer["node"] and node.offer["pid"] == s.pid
        assert [(h["job"], h["attempt"], h.get("state", 0)) for h in node.has()] == [("r", 1, 0)]
        node.tail("r", start, follow=1, rank=0, lines=0)
        node.wait(lambda m: m["type"] == "output", "output after a new start")
    (rig.folder / "enough").touch()
    assert node.placed("r", 2)["status"] == 0
    for rank in range(2):
        texts = node.texts("r", 10 + rank, rank=rank)
        n = int(texts[-1].split()[1])
        assert texts == ["begun 0", *map(str, range(1, n)), f"end {n}"]
    assert s.process.poll() is None
    with open(f"/proc/{s.pid}/task/{s.pid}/children", encoding="ascii") as f:
        assert f.read() == ""


def test_a_job_of_two_nodes(rig):
    first = rig.service("--slots=2")
    a = rig.pool.node(0)
    rig.service("--slots=2", log_dir=rig.folder / "kept2")
    b = rig.pool.node(1)
    prog = rig.script("w.py", 'say("rank", RANK, "of", WORLD, "node", NODE)\n')
    for n in (a, b):
        n.assign("two", [prog], rig.folder, nproc=2, nnodes="2")
    assert a.placed("two", 2)["status"] == 0 and b.placed("two", 2)["status"] == 0
    texts = sorted(a.texts("two", 1) + b.texts("two", 1))
    assert [t for t in texts if t.startswith("rank")] == [f"rank {r} of 4 node {r // 2}" for r in range(4)]
    assert first.process.poll() is None


def test_an_agent_that_is_killed_takes_its_workers_along(rig):
    s = rig.service("--slots=2")
    node = rig.pool.node()
    node.assign("k", [rig.script("w.py", 'say("pid", os.getpid())\nhang()\n')], rig.folder, nproc=2)
    node.tail("k", 1, follow=1)
    pids = [int(node.wait(lambda m: m["type"] == "output" and m["text"].startswith("pid"))["text"].split()[1]) for _ in range(2)]
    with open(f"/proc/{s.pid}/task/{s.pid}/children", encoding="ascii") as f:
        agent, = map(int, f.read().split())
    os.kill(agent, signal.SIGKILL)
    assert node.placed("k", 2)["status"] == 137
    gone(pids)
    node.assign("k", ["/bin/true"], "/", attempt=2)  # The same id again.
    assert node.placed("k", 2)["status"] == 0


def test_much_output_is_whole_over_new_starts(rig):
    s = rig.service("--log-bytes=1G", "--log-bytes-all=1G")
    node = rig.pool.node()
    lines = 200000 if not mulib.is_sanitized() else 20000
    prog = rig.script("w.py", f'for i in range({lines // 100}): os.write(1, b"".join(b"%d %s\\n" % (i * 100 + k, b"x" * 50) for k in range(100)))\n')
    node.assign("m", [prog], rig.folder)
    node.placed("m", 1)
    starts = 0
    while not [m for m in rig.pool.node(starts).messages if m["type"] == "placed" and m["state"] == 2]:
        s.signal(signal.SIGHUP)
        starts += 1
        if [h for h in rig.pool.node(starts).has() if h["state"] == 1]:
            break
    assert starts >= 3
    numbers = []
    with open(rig.folder / "kept" / "m.1.0.log", encoding="utf-8") as f:
        for line in f:
            r = json.loads(line)
            if r["rank"] == 0:
                assert r["text"].endswith("x" * 50)
                numbers.append(int(r["text"].split()[0]))
    assert numbers == list(range(lines))


def test_a_new_start_that_fails_changes_nothing(rig):
    exe = rig.folder / "node-agent"
    exe.write_bytes(open(program("node-agent"), "rb").read())
    exe.chmod(0o755)
    s = rig.service(exe=str(exe))
    node = rig.pool.node()
    node.assign("r", [rig.script("w.py", 'await_file("on")\nsay("done")\n')], rig.folder)
    node.placed("r", 1)
    exe.unlink()
    s.signal(signal.SIGHUP)
    s.err.wait("service.reload .*cannot be started")
    node = rig.pool.node(1)
    assert len(node.has()) == 1
    (rig.folder / "on").touch()
    assert node.placed("r", 2)["status"] == 0
    assert node.texts("r", 1, rank=0) == ["done"]
    node.assign("again", [rig.script("w2.py", 'say("from the old file")\n')], rig.folder)  # The program itself is gone from the disk.
    assert node.placed("again", 2)["status"] == 0


def test_what_is_here_is_told_after_a_lost_connection(rig):
    rig.service("--slots=4")
    node = rig.pool.node()
    node.beats = False  # So that the node cannot know that its word was heard.
    node.assign("ends", ["/bin/true"], "/")
    node.placed("ends", 2)
    prog = rig.script("w.py", 'await_file("on")\n')
    node.assign("runs", [prog], rig.folder)
    node.placed("runs", 1)
    mulib.reset(node.sock)
    node = rig.pool.node(1)
    assert {(h["job"], h["attempt"], h.get("state", 0), h.get("status", 0)) for h in node.has()} == {("ends", 1, 1, 0), ("runs", 1, 0, 0)}
    (rig.folder / "on").touch()
    node.placed("runs", 2)
    with node.changed:
        node.messages.clear()
    for _ in range(3):  # The answer to the first has been read when the third comes.
        node.wait(lambda m: m["type"] == "beat")
    mulib.reset(node.sock)
    assert rig.pool.node(2).has() == []


def test_a_full_disk_stops_no_job(rig):
    # A limit on files' sizes stands in for a disk that is full at that point.
    s = rig.service("--log-bytes=1G", "--log-bytes-all=1G")
    resource.prlimit(s.pid, resource.RLIMIT_FSIZE, (100000, 100000))
    node = rig.pool.node()
    prog = rig.script("w.py", 'for i in range(2000): say(i, "x" * 100)\n')
    node.assign("full", [prog], rig.folder)
    assert node.placed("full", 2)["status"] == 0
    s.err.wait("service.disk .*full")
    s.err.wait("service.lost job=full lines=[0-9]+")
    texts = node.texts("full", 1, rank=0)
    assert texts and texts == [f"{i} " + "x" * 100 for i in range(len(texts))] and len(texts) < 2000


def test_a_folder_that_was_removed_is_made_anew_for_the_next_job(rig):
    kept = rig.folder / "away" / "kept"
    rig.service(log_dir=kept)
    node = rig.pool.node()
    for attempt, job in enumerate(("one", "two"), 1):
        node.assign(job, [rig.script(f"{job}.py", f'say("{job}")\n')], rig.folder)
        node.placed(job, 2)
        assert node.texts(job, attempt, rank=0) == [job]
        shutil.rmtree(kept.parent)
    assert kept.parent.exists() is False
    third = rig.script("three.py", 'say("three")\n')
    node.assign("three", [third], rig.folder)
    node.placed("three", 2)
    assert node.texts("three", 3, rank=0) == ["three"] and kept.stat().st_mode & 0o777 == 0o700


def lost_at_the_end(s, node, job, stream, **options):
    """How many lines of the worker are there, and how many its end says are not; both in the service's words too."""
    out = node.log(job, stream, **options)
    m = re.fullmatch(r"\[(\d+) lines are missing here: File too large\]", out[-1]["text"])
    assert m and (out[-1]["rank"], out[-1]["channel"]) == (-1, 2), out[-1]
    assert s.err.wait(rf"service.lost job={job} lines=(\d+) why=\"File too large\"").group(1) == m[1]
    return len([x for x in out if x["rank"] == 0]), int(m[1])


@pytest.mark.parametrize("when", ["behind", "follow", "new start", "room again"])
def test_what_a_full_disk_lost_at_a_jobs_end_is_said_there(rig, when):
    s = rig.service("--log-bytes=1G", "--log-bytes-all=1G")
    resource.prlimit(s.pid, resource.RLIMIT_FSIZE, (100000, 100000))
    node = rig.pool.node()
    node.assign("full", [rig.script("w.py", 'await_file("on")\nfor i in range(2000): say(i, "x" * 100)\n')], rig.folder)
    node.placed("full", 1)
    if when == "follow":
        node.tail("full", 1, follow=1)
    (rig.folder / "on").touch()
    if when == "follow":
        out = node.output(1)
        assert re.match(r"\[\d+ lines are missing here: File too large\]", out[-1]["text"]) and out[-1]["rank"] == -1, out[-1]
    node.placed("full", 2)
    there, lost = lost_at_the_end(s, node, "full", 2)
    assert 0 < there < 2000 and there + lost == 2000
    assert node.texts("full", 3, rank=0, lines=1) == [f"{there - 1} " + "x" * 100]
    assert node.texts("full", 4, lines=0) == []
    if when == "new start":
        s.signal(signal.SIGHUP)
        node = rig.pool.node(1)
        assert lost_at_the_end(s, node, "full", 5) == (there, lost)
    if when == "room again":  # The next start of it begins with what the last one lost.
        node.assign("full", [rig.script("w2.py", 'say("again")\n')], rig.folder, attempt=2)
        node.placed("full", 2)
        texts = node.texts("full", 6)
        at = texts.index("again")
        assert texts[there:at + 1] == [f"[{lost} lines are missing here: File too large]", "node-agent: attempt 2 begins", "again"]


def test_output_is_bounded_and_says_so(rig):
    rig.service("--log-bytes=1M", "--log-bytes-all=2M")
    node = rig.pool.node()
    prog = rig.script("w.py", 'for i in range(20000): os.write(1, b"%d %s\\n" % (i, b"x" * 100))\n')
    node.assign("big", [prog], rig.folder)
    node.placed("big", 2)
    kept = rig.folder / "kept"
    assert sum(os.stat(kept / f).st_size for f in os.listdir(kept)) < 2 << 20 and len(kept_files(rig)) == 2
    out = node.log("big", 1)
    assert re.search("older lines .* dropped", out[0]["text"]) and out[0].get("rank", -1) == -1
    numbers = [int(m["text"].split()[0]) for m in out if m.get("rank", -1) == 0]
    assert numbers[-1] == 19999 and numbers == list(range(numbers[0], 20000)) and 2000 < len(numbers) < 15000
    for i in range(3):  # More jobs than there is room for: the oldest ended ones go.
        node.assign(f"next{i}", [prog], rig.folder)
        node.placed(f"next{i}", 2)
    assert node.wait(lambda m: m["type"] == "release")["job"] == "big"
    assert not [f for f in os.listdir(kept) if f.startswith("big.")]


def test_service_told_to_stop_ends_its_jobs_in_order(rig):
    s = rig.service("--slots=4")
    node = rig.pool.node()
    prog = rig.script("w.py", '''told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(1))
say("up")
while not told: time.sleep(0.002)
await_file("on")
say("in order")
''')
    node.assign("s", [prog], rig.folder, nproc=2)
    node.tail("s", 1, follow=1, rank=0)
    node.wait(lambda m: m["type"] == "output" and m["text"] == "up")
    s.signal(signal.SIGTERM)
    s.err.wait("service.stop")
    node.assign("late", [prog], rig.folder)
    assert "being stopped" in node.placed("late", 3)["text"]
    (rig.folder / "on").touch()
    node.placed("s", 2)
    node.wait(lambda m: m["type"] == "bye")
    assert s.process.wait(PATIENCE) == 0
    assert "in order" in (rig.folder / "kept" / "s.1.0.log").read_text()


def test_drained_node_takes_no_more(rig):
    s = rig.service("--slots=4")
    node = rig.pool.node()
    node.assign("d", [rig.script("w.py", 'await_file("on")\n')], rig.folder)
    node.placed("d", 1)
    s.signal(signal.SIGUSR1)
    node.wait(lambda m: m["type"] == "drain")
    node.assign("n", ["/bin/true"], "/")
    assert "drained" in node.placed("n", 3)["text"]
    (rig.folder / "on").touch()
    node.placed("d", 2)


def test_a_drained_node_takes_jobs_again_when_the_server_says_so(rig):
    s = rig.service("--slots=4")
    node = rig.pool.node()
    s.signal(signal.SIGUSR1)
    node.wait(lambda m: m["type"] == "drain")
    node.send("undrain", reason="asked through the server")
    node.assign("n", ["/bin/true"], "/")
    node.placed("n", 2)
    s.err.wait(r"service\.undrain")
    s.signal(signal.SIGUSR1)  # And it can be told again.
    node.wait(lambda m: m["type"] == "drain")
    node.assign("m", ["/bin/true"], "/")
    assert "drained" in node.placed("m", 3)["text"]


def test_service_waits_for_its_server_for_ever_and_says_so(tmp_path):
    s = Service(tmp_path, 1)
    s.err.wait("service.waiting .*127.0.0.1:1 .*refused")
    s.check_end()


def test_service_that_is_refused_asks_again(rig):
    rig.pool.refuse = "not with this token"
    s = rig.service()
    s.err.wait("service.not_taken .*not with this token")


def test_two_services_do_not_share_a_folder(rig):
    rig.service()
    rig.pool.node()
    r = subprocess.run([program("node-agent"), "--service", "--rdzv=127.0.0.1", f"--log-dir={rig.folder}/kept"], capture_output=True, text=True, timeout=PATIENCE)
    assert r.returncode == 1 and "another service keeps" in r.stderr, r


def test_many_jobs_leak_nothing(rig):
    s = rig.service("--slots=8")
    node = rig.pool.node()
    count = 200 if not mulib.is_sanitized() else 40
    node.assign("first", ["/bin/true"], "/")
    node.placed("first", 2)
    before = s.fds()
    for i in range(count):
        node.assign(f"n{i}", ["/bin/true"], "/")
        assert node.placed(f"n{i}", 2)["status"] == 0
    end = time.monotonic() + PATIENCE
    while s.fds() > before + 1 and time.monotonic() < end:
        time.sleep(0.01)
    assert s.fds() <= before + 1
    with open(f"/proc/{s.pid}/task/{s.pid}/children", encoding="ascii") as f:
        assert f.read() == ""


@pytest.mark.parametrize("words, why", [
    (["--rdzv=10.9.8.7"], "needs a token"), ([], "--service needs --rdzv"), (["--rdzv=localhost", "./x"], "takes no program"),
    (["--rdzv=localhost", "--nnodes=2"], "--nnodes is a job's"), (["--rdzv=localhost", "--token-file=/not/there"], "cannot be read.*copy the server's file"),
    (["--rdzv=localhost", "--slots=0"], "--slots"), (["--rdzv=localhost", "--log-bytes=2G", "--log-bytes-all=1G"], "--log-bytes")])
def test_bad_usage_gets_a_sentence(words, why):
    r = subprocess.run([program("node-agent"), "--service", *words], capture_output=True, text=True, timeout=PATIENCE)
    assert r.returncode in (1, 2) and re.search(why, r.stderr), r
