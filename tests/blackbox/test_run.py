"""muster run, attach, logs, stop, resume and pool: what a person gives, sees and gets back, at a server that keeps to the interface and
does what the test tells it. Each wait is for a line or an end."""
import json
import os
import re
import signal
import subprocess
import time

import pytest

import fakepool
from mulib import PATIENCE, program
from musterlib import Muster, Terminal

ID = "train-5f3a9c"


@pytest.fixture
def pool():
    p = fakepool.Pool()
    yield p
    p.stop()


@pytest.fixture
def muster(pool):
    started = []

    def start(*words, env=None, **kwargs):
        started.append(Muster(*words, env={"MUSTER_RDZV": f"127.0.0.1:{pool.port}", **(env or {})}, **kwargs))
        return started[-1]

    yield start
    for m in started:
        m.close()


def test_run_submits_what_was_asked_streams_and_ends_as_the_job_does(pool, muster, tmp_path):
    m = muster("run", "--nnodes=1:2", "--nproc_per_node=2", "--gpus-per-node", "1", "--name=train", "--env", "A=b=c \u00fc", "--env=FROM_HERE",
               "--max-restarts", "3", "--tee=3", "-m", "--", "./trainer", "--epochs", "10", "", env={"FROM_HERE": "x"}, cwd=tmp_path)
    job = pool.wait_job()
    assert {k: v for k, v in job.spec.items() if k != "submitter"} == {
        "argv": ["./trainer", "--epochs", "10", ""], "cwd": str(tmp_path), "env": {"A": "b=c \u00fc", "FROM_HERE": "x"}, "nnodes": "1:2",
        "nproc_per_node": 2, "gpus_per_node": 1, "name": "train", "agent_args": ["--max-restarts=3", "--tee=3", "--module"]}
    assert "@" in job.spec["submitter"]
    m.err.wait(f"job {ID} is queued: 1 of 2 nodes is free")
    job.become("running", "round 1 runs")
    job.say("hello", rank=0)
    job.say("oh dear", rank=1, stream="stderr", host="n2")
    job.say("round 1", rank=-1, stream="stderr", host="n2")
    job.say("\033[31mraw\tand \u00fc", rank=1)
    m.out.wait(r"^\[1\] \x1b\[31mraw\tand \u00fc$")
    job.become("failed", "it is over", exit_status=7, cause="rank 1 on n2 exited with status 7")
    assert m.end() == 7
    assert m.out.lines == ["[0] hello", "[1] \x1b[31mraw\tand \u00fc"]
    assert m.err.lines[1:] == ["[1] oh dear", "[n2] round 1",
                               f"muster run: job {ID} failed: rank 1 on n2 exited with status 7; all about it: muster incidents {ID}"]


@pytest.mark.parametrize("state, status, wanted", [("done", 0, 0), ("failed", 139, 139), ("stopped", None, 1), ("done", None, 0)])
def test_the_exit_status_is_the_jobs(pool, muster, state, status, wanted):
    m = muster("run", "--", "true")
    pool.wait_job().become(state, exit_status=status)
    assert m.end() == wanted


def test_detached_it_prints_the_id_alone(pool, muster):
    m = muster("run", "-d", "--name=train", "./trainer", "-x")
    assert m.end() == 0 and m.out.lines == [ID] and m.err.lines == []
    assert pool.jobs[ID].spec["argv"] == ["./trainer", "-x"]
    m = muster("run", "--json", "--name=third", "./trainer")
    pool.wait(lambda: "third-5f3a9c" in pool.jobs, "no third job")
    pool.jobs["third-5f3a9c"].say("one")
    pool.jobs["third-5f3a9c"].become("done", exit_status=0)
    assert m.end() == 0
    first, line, end = map(json.loads, m.out.lines)
    assert first["id"] == "third-5f3a9c" and line["text"] == "one" and end == {"end": True, "state": "done", "exit_status": 0}
    m = muster("run", "-d", "--json", "--name=other", "./trainer")
    assert m.end() == 0 and json.loads(m.out.text())["id"] == "other-5f3a9c"


def test_what_a_queued_job_waits_for_is_said_and_ever_less_often(pool, muster):
    m = muster("run", "--", "true")
    job = pool.wait_job()
    m.err.wait("job .* is queued: 1 of 2 nodes is free", after=1)
    job.become("queued", "it waits for 2 GPUs on n3")
    m.err.wait("is queued: it waits for 2 GPUs on n3")
    job.become("done", exit_status=0)
    assert m.end() == 0


def test_ctrl_c_stops_then_kills_then_leaves(pool, muster):
    m = muster("run", "--name=train", "--", "sleep", "600")
    job = pool.wait_job()
    job.become("running")
    job.say("up")
    m.out.wait("up")
    m.p.send_signal(signal.SIGINT)
    m.err.wait(rf"job {ID} is told to stop \(SIGINT\); Ctrl-C again kills it")
    m.p.send_signal(signal.SIGINT)
    m.err.wait(rf"job {ID} is killed")
    assert [s["signal"] for s in job.stops] == ["SIGINT", "SIGKILL"]
    m.p.send_signal(signal.SIGINT)
    assert m.end() == 130
    m.err.wait(f"may still run: muster attach {ID}, muster stop {ID}")


@pytest.mark.parametrize("says, wanted", [(143, 143), (1, 143), (None, 143), (137, 137)])
def test_sigterm_stops_the_job_and_its_status_comes_back(pool, muster, says, wanted):
    m = muster("run", "--name=train", "--", "sleep", "600")
    job = pool.wait_job()
    job.on_stop = lambda body: job.become("stopped", exit_status=says, cause="it was told to stop")
    job.become("running")
    job.say("up")
    m.out.wait("up")
    m.p.send_signal(signal.SIGTERM)
    assert m.end() == wanted and job.stops == [{"signal": "SIGTERM"}]
    m.err.wait(f"job {ID} stopped: it was told to stop")


@pytest.mark.parametrize("way", ["cut", "away"])
def test_a_server_that_goes_away_in_the_middle_loses_and_repeats_no_line(pool, muster, way):
    m = muster("run", "--", "train")
    job = pool.wait_job()
    job.become("running")
    for i in range(300):
        job.say(f"line {i}", rank=i % 3, at_ms=1000 + i // 10)  # Many of one millisecond.
    m.out.wait("line 299")
    if way == "cut":
        for i in range(3):
            pool.cut()
            job.say(f"between {i}", rank=1, at_ms=1029)
            m.out.wait(f"between {i}")
    else:
        pool.go_away()
        for i in range(3):
            job.say(f"between {i}", rank=1, at_ms=1029 + i)
        m.err.wait("no rdzv-server answers at .*; trying again for 60 s")
        pool.come_back()
        m.out.wait("between 2")
        m.err.wait("answers again")
    job.become("done", exit_status=0)
    assert m.end() == 0
    assert m.out.lines == [f"[{i % 3}] line {i}" for i in range(300)] + [f"[1] between {i}" for i in range(3)]


def test_a_server_that_came_back_without_memory_is_given_time_to_hear_of_the_job(pool, muster):
    """Its nodes tell it what runs, and they may be back later than muster."""
    m = muster("run", "--", "train")
    job = pool.wait_job()
    job.become("running")
    job.say("before")
    m.out.wait("before")
    pool.go_away()
    with pool.changed:
        del pool.jobs[job.id]
    pool.come_back()
    m.err.wait(f"has not heard of job {job.id} from its nodes yet; trying again")
    assert m.p.poll() is None
    with pool.changed:
        pool.jobs[job.id] = job
        pool.changed.notify_all()
    job.say("after")
    m.out.wait("after")
    job.become("failed", exit_status=3)
    assert m.end() == 3 and m.out.lines == ["[0] before", "[0] after"]


def test_one_reader_too_many_is_told_at_once_and_a_job_that_was_submitted_goes_on(pool, muster):
    full = "96 read the output of jobs already: end one"
    pool.refuse = {"/jobs/job-5f3a9c/logs": (503, {"error": full})}
    m = muster("run", "--", "train")
    job = pool.wait_job()
    m.err.wait(f"{full}; trying again for 60 s, the job goes on")
    logs = muster("logs", "-f", job.id)
    assert logs.end() == 1 and full in logs.err.text() and len(logs.err.lines) == 1
    pool.refuse = {}
    m.err.wait("answers again")
    job.become("done", exit_status=0)
    assert m.end() == 0


def test_a_stream_that_is_cut_again_and_again_comes_to_its_end(pool, muster):
    job = pool.add()
    for i in range(50):
        job.say(f"line {i}", rank=i % 2, at_ms=5000 + i)
    job.become("done", exit_status=0)
    pool.cut_after = 30
    m = muster("logs", ID)
    m.out.wait("line 29")
    pool.cut_after = None
    assert m.end() == 0
    assert m.out.lines == [f"[{i % 2}] line {i}" for i in range(50)]


def test_logs_of_a_rank_of_a_host_and_the_last(pool, muster):
    job = pool.add()
    for i in range(20):
        job.say(f"line {i}", rank=i % 2, host=f"n{i % 2 + 1}", at_ms=1000 + i)
    assert muster("logs", ID, "--rank", "1").end() == 0
    m = muster("logs", ID, "--rank=1", "-n", "2")
    assert m.end() == 0 and m.out.lines == ["[1] line 17", "[1] line 19"]
    m = muster("logs", "--host", "n1", ID)
    assert m.end() == 0 and m.out.lines == [f"[0] line {i}" for i in range(0, 20, 2)]
    m = muster("logs", ID, "--since", "1h")
    assert m.end() == 0 and m.out.lines == []
    m = muster("logs", ID, "--since=1970-01-01")
    assert m.end() == 0 and len(m.out.lines) == 20
    m = muster("logs", ID, "--rank=0", "--json", "-n1")
    assert m.end() == 0 and [json.loads(line)["text"] for line in m.out.lines] == ["line 18"]


def test_the_last_lines_are_those_of_all_nodes_and_come_to_stdout(pool, muster):
    job = pool.add()
    for i in range(10):
        job.say(f"a {i}", rank=0, host="n1", at_ms=1000 + 10 * i)
    for i in range(10):
        job.say(f"b {i}", rank=1, host="n2", at_ms=1005 + 10 * i, stream="stderr")
    m = muster("logs", ID, "-n", "3")
    assert m.end() == 0 and m.out.lines == ["[1] b 8", "[0] a 9", "[1] b 9"] and m.err.lines == []
    m = muster("logs", ID)
    assert m.end() == 0 and len(m.out.lines) == 20 and m.err.lines == []


def test_logs_of_what_cannot_be_is_a_sentence(pool, muster):
    job = pool.add(nnodes="1", nproc_per_node=2)
    job.placed = [{"node": "a1", "host": "n1", "gpus": []}]
    pool.status["pool"]["nodes"] = [{"id": "a2", "host": "n2"}]
    for words, says in ((("--rank", "9"), f"job {ID} has no rank 9: its ranks are 0 to 1"),
                        (("--host", "zz"), f"job {ID} is not on zz, nor is such a node here: n1")):
        for command in ("logs", "attach"):
            m = muster(command, ID, *words)
            assert m.end() == 1 and m.err.lines == [f"muster {command}: {says}"], m.err.text()
    for words in (("--rank", "1"), ("--host", "n1"), ("--host", "n2")):
        assert muster("logs", ID, *words).end() == 0
    job.become("queued", "waits for 1 node with 2 free slots")
    job.attempt = 0
    m = muster("logs", ID)
    assert m.end() == 0 and m.err.lines == [f"muster logs: job {ID} has printed nothing yet: it is queued: waits for 1 node with 2 free slots"]
    job.become("stopped", "was stopped: it was stopped before it began", cause="it was stopped before it began")
    m = muster("logs", ID)
    assert m.end() == 0 and m.err.lines == [f"muster logs: job {ID} has printed nothing: it was stopped before it began"]


def test_a_job_that_has_no_round_is_shown_as_the_pool_has_it(pool, muster):
    job = pool.add(state="queued")
    job.incidents, job.sentence = None, "waits for 1 node with 1 free slot: no node is on offer"
    m = muster("status", ID)
    assert m.end() == 0 and m.out.lines == [f"{ID}  queued", "  waits for 1 node with 1 free slot: no node is on offer"], m.err.text()
    for command, says in (("incidents", "so it has no incident"), ("workers", "no worker of it runs yet"), ("nodes", "no agent of it is known")):
        m = muster(command, ID)
        assert m.end() == 0 and m.out.lines[0] == f"{ID}  queued" and says in m.out.lines[-1] and m.err.lines == [], m.err.text()
    m = muster("status", ID, "--json")
    assert m.end() == 0 and json.loads(m.out.text())["state"] == "queued"
    m = muster("workers", ID, "--json")
    assert m.end() == 0 and json.loads(m.out.text()) == []
    m = muster("incidents", ID, "--json")
    assert m.end() == 0 and json.loads(m.out.text()) == {"id": ID, "left_out": 0, "incidents": []}
    m = muster("incidents", ID, "1")
    assert m.end() == 1 and "has no incident" in m.err.text()
    w = muster("status", ID, "--watch=0.1")
    w.out.wait("queued")
    job.become("failed", "has failed: n1 refused it", exit_status=127, cause="n1 refused it")
    assert w.end() == 1 and w.out.lines[-2:] == [f"{ID}  failed, exit status 127", "  has failed: n1 refused it"]
    m = muster("attach", ID)
    assert m.end() == 127 and m.err.lines == [f"muster attach: job {ID} failed: n1 refused it"]
    m = muster("status", "nobody")
    assert m.end() == 1 and 'there is no job "nobody" at' in m.err.text()


def test_watch_of_a_waiting_job_outlives_an_absent_server(pool, muster):
    job = pool.add(state="queued")
    w = muster("status", ID, "--watch=0.1")
    w.out.wait("queued")
    pool.go_away()
    w.out.wait("no rdzv-server answers at")
    pool.come_back()
    job.become("done", "has ended well", exit_status=0)
    assert w.end() == 0 and w.out.lines[-2:] == [f"{ID}  done, exit status 0", "  has ended well"], w.out.text()


def test_a_token_that_is_wanted_is_said_with_where_it_was_looked_for(pool, muster, tmp_path):
    pool.refuse["/jobs"] = (401, {"error": "this needs the token"})
    home = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": ""}
    m = muster("run", "--", "true", env=home)
    assert m.end() == 1 and len(m.err.lines) == 1
    if not os.path.exists("/etc/muster/token"):
        assert "wants its token, and there is none in /" in m.err.text() and "or /etc/muster/token: copy the server's token file" in m.err.text()
    token = tmp_path / "mine"
    token.write_text("7" * 64 + "\n")
    token.chmod(0o600)
    m = muster("run", "--", "true", env={**home, "MUSTER_TOKEN_FILE": str(token)})
    assert m.end() == 1 and "has another token than /" in m.err.text() and "(muster token new made it) there" in m.err.text()
    m = muster("run", "--token-file", str(tmp_path / "mistyped"), "--", "true")
    assert m.end() == 1 and "there is no file" in m.err.text() and "muster token new" not in m.err.text()


def test_watch_goes_on_with_the_job_once_it_has_a_round(pool, muster):
    pool.add(state="queued")
    w = muster("status", ID, "--watch=0.1")
    w.out.wait("queued")
    pool.status = {**pool.status, "jobs": [{"id": ID, "state": "succeeded", "sentence": "it is over", "nodes": []}]}
    assert w.end() == 0 and any("succeeded" in line for line in w.out.lines), w.out.text()


def test_a_status_without_jobs_tells_of_the_pool(pool, muster):
    m = muster("status")
    assert m.end() == 0 and "no job yet" in m.out.text() and "node-agent --service" in m.out.text()
    pool.status["pool"]["nodes"] = [{"id": "a1", "host": "n1", "state": "idle"}]
    m = muster("status")
    assert m.end() == 0 and "pool: 1 node, 1 idle; no job waits\n\nno job runs: muster run -- PROGRAM" in m.out.text()
    pool.status["pool"] = {"nodes": [], "queue": [{"id": "x-1", "state": "queued"}]}
    m = muster("status")
    assert m.end() == 0 and "1 job waits: muster pool" in m.out.text() and "node-agent --service" in m.out.text() and "no job yet" not in m.out.text()


def test_attach_shows_the_last_lines_and_ctrl_c_leaves_the_job_alone(pool, muster):
    job = pool.add()
    for i in range(20):
        job.say(f"line {i}", at_ms=1000 + i)
    m = muster("attach", ID)
    m.out.wait("line 19")
    assert len(m.out.lines) == 10
    m.p.send_signal(signal.SIGINT)
    assert m.end() == 130 and not job.stops
    m.err.wait(f"job {ID} goes on; muster attach {ID} follows it again, muster stop {ID} ends it")
    m = muster("attach", ID)
    m.out.wait("line 19")
    job.become("done", exit_status=0)
    assert m.end() == 0


def test_after_a_cut_attach_shows_what_came_meanwhile_and_nothing_older(pool, muster):
    job = pool.add()
    now = int(time.time() * 1000)
    job.say("long ago, and never again", rank=7, at_ms=now - 5000)
    for i in range(20):
        job.say(f"line {i}", at_ms=now - 4000 + i)
    m = muster("attach", ID)
    m.out.wait("line 19")
    for i in range(30):
        job.say(f"more {i}", rank=i % 3, at_ms=now + i)
        if i % 10 == 0:
            pool.cut()
    m.out.wait("more 29")
    job.become("done", exit_status=0)
    assert m.end() == 0
    assert m.out.lines == [f"[0] line {i}" for i in range(10, 20)] + [f"[{i % 3}] more {i}" for i in range(30)]
    job.become("running")
    before = pool.streams
    m = muster("attach", "-n0", ID)
    pool.wait(lambda: pool.streams > before, "it did not ask")
    job.say("first")
    m.out.wait("first")
    pool.cut()
    job.say("new", at_ms=int(time.time() * 1000) + 1000)
    m.out.wait("new")
    job.become("done", exit_status=0)
    assert m.end() == 0 and m.out.lines == ["[0] first", "[0] new"]


def test_logs_f_goes_on_to_the_end_and_a_reader_that_leaves_is_no_failure(pool, muster):
    job = pool.add()
    job.say("one")
    m = muster("logs", "-f", ID)
    m.out.wait("one")
    job.say("two")
    m.out.wait("two")
    job.become("failed", exit_status=3)
    assert m.end() == 0 and m.err.lines == []
    for i in range(5000):
        job.say(f"line {i}", at_ms=1000 + i)
    sh = subprocess.run(["sh", "-c", f"'{program('muster')}' logs {ID} -r 127.0.0.1:{pool.port} | head -n1"], capture_output=True, text=True,
                        timeout=PATIENCE * 2)
    assert sh.stderr == "" and sh.stdout == "[0] one\n"


def test_a_job_that_no_service_started_is_looked_for_where_it_is(pool, muster):
    pool.status["jobs"] = [{"id": "old", "state": "running", "nodes": [{"host": "n1"}, {"host": "n2"}]}]
    for words, says in ((("logs", "old"), r"not started by muster run: its output is where its node-agents write on n1, n2 \(journalctl"),
                        (("attach", "old"), "its output is where"),
                        (("stop", "old"), "who started its node-agents on n1, n2 stops them"),
                        (("resume", "old"), "starts them"),
                        (("logs", "nobody"), 'there is no job "nobody" at .*: muster jobs lists all')):
        m = muster(*words)
        assert m.end() == 1 and re.search(says, m.err.text()) and m.err.text().count("\n") == 0, m.err.text()


def test_stop_says_what_it_does_and_can_wait(pool, muster):
    job = pool.add()
    m = muster("stop", ID, "--signal=INT", "--grace", "2.5")
    assert m.end() == 0 and m.out.lines == [f"job {ID} is told to stop: its workers are told to end"]
    assert job.stops == [{"signal": "SIGINT", "grace_s": 2.5}]
    m = muster("stop", ID, "--wait")
    pool.wait(lambda: len(job.stops) == 2, "it was not told")
    job.become("stopped", cause="it was told to stop")
    assert m.end() == 0 and m.out.lines == [f"job {ID} is over: stopped: it was told to stop"]
    m = muster("stop", ID, "--wait", "--json")
    assert m.end() == 0 and json.loads(m.out.text())["state"] == "stopped"
    m = muster("stop", ID, "--wait")
    assert m.end() == 0 and m.out.lines == [f"job {ID} is over: stopped: it was told to stop"] and len(job.stops) == 2


def test_resume_follows_what_is_new(pool, muster):
    job = pool.add()
    m = muster("resume", ID)
    assert m.end() == 1 and "only one that has ended can be resumed" in m.err.text()
    job.say("of the first time", at_ms=1000)
    job.become("failed", exit_status=1)
    m = muster("resume", ID)
    m.err.wait("waits again: it is the first in the queue")
    job.say("of the second", at_ms=10**15)
    m.out.wait("of the second")
    job.become("done", exit_status=0)
    assert m.end() == 0 and m.out.lines == ["[0] of the second"]
    m = muster("resume", "-d", ID)
    assert m.end() == 0 and m.out.lines == [ID]


def test_the_pool_its_queue_and_queued_jobs(pool, muster):
    pool.status["pool"] = {
        "nodes": [{"id": "a1", "host": "n1", "addr": "10.0.0.1", "state": "busy", "cpus": 8, "gpus": 4, "slots": 8, "slots_free": 6,
                   "gpus_free": [2, 3], "jobs": ["train-1"], "version": "0.1.0", "since": "2026-11-30T11:59:00.000Z"}],
        "queue": [{"id": "next-2", "name": "next", "state": "queued", "nodes": "2", "waits_for": "1 more node with 8 free workers",
                   "submitted_at": "2026-11-30T11:58:00.000Z"}]}
    m = muster("pool")
    assert m.end() == 0
    assert re.search(r"^n1 +10\.0\.0\.1 +busy +1 min +6/8 +2/4 +train-1 +a1$", m.out.text(), re.M), m.out.text()
    assert re.search(r"^1 +next-2 +queued +2 +2 min +1 more node with 8 free workers$", m.out.text(), re.M), m.out.text()
    m = muster("pool", "--json")
    assert m.end() == 0 and json.loads(m.out.text()) == pool.status["pool"]
    m = muster("status")
    assert m.end() == 0 and "\npool: 1 node; 1 job waits: muster pool\n" in m.out.text()
    m = muster("jobs")
    assert m.end() == 0 and re.search(r"^next-2 +queued .* 1 more node with 8 free workers$", m.out.text(), re.M)
    m = muster("jobs", "--json")
    assert m.end() == 0 and [j["id"] for j in json.loads(m.out.text())] == ["next-2"]


def test_a_node_of_the_pool_is_drained_and_taken_back(pool, muster):
    m = muster("drain", "n1", "--drain-timeout=9")
    assert m.end() == 0 and m.out.lines == ["n1 takes no new jobs, and 1 on it is asked to leave"]
    m = muster("undrain", "n1")
    assert m.end() == 0 and m.out.lines == ["n1 takes jobs again"]
    assert [path for _, path in pool.asked] == ["/nodes/n1/drain?timeout=9.000", "/nodes/n1/undrain"]
    m = muster("undrain", "n9")
    assert m.end() == 1 and m.err.lines == [f"muster undrain: 127.0.0.1:{pool.port}: no node on offer has that id or name: muster pool lists them"]
    m = muster("undrain")
    assert m.end() == 2 and "muster undrain needs a node" in m.err.text()


def on_terminal(pool, command, *words):
    """muster's exit status at a terminal, and what it shows there."""
    return Terminal(command, f"--rdzv=127.0.0.1:{pool.port}", *words).end()


@pytest.mark.parametrize("command, says", [("jobs", "no job is known here; muster run"), ("nodes", "no job lives here"),
                                           ("workers", "no worker runs here"), ("pool", "no node is on offer")])
def test_at_a_terminal_nothing_is_said_to_be_nothing(pool, muster, command, says):
    code, text = on_terminal(pool, command)
    assert code == 0 and text.startswith(says), text
    m = muster(command)
    assert m.end() == 0 and (m.out.text() == "" or command == "pool"), m.out.text()


def test_at_a_terminal_ranks_have_colours_and_workers_move_no_cursor(pool):
    job = pool.add()
    job.say("\033[2Jdone \033]0;title\a\x07 10%\r 20%\r 30%\r", rank=3)
    job.become("done", exit_status=0)
    code, text = on_terminal(pool, "logs", ID)
    assert code == 0 and text == "\033[35m[3]\033[0m  30%\n"
    code, text = on_terminal(pool, "logs", ID, "--color=never")
    assert text == "[3]  30%\n"
    code, text = on_terminal(pool, "logs", ID, "--rank=4")
    assert code == 0 and text.startswith(f"muster logs: no such line of job {ID} is there: nothing was printed"), text
    job.become("failed", exit_status=3)
    code, text = on_terminal(pool, "attach", ID, "--rank=4")
    assert code == 3 and f"all about it: muster incidents {ID} --rdzv=127.0.0.1:{pool.port}\n" in text, text


def test_what_goes_wrong_is_one_sentence_with_its_remedy(pool, muster):
    pool.refuse["/jobs"] = (409, {"error": "no node takes 99 workers: the largest takes 8"})
    m = muster("run", "--", "true")
    assert m.end() == 1 and m.err.lines == [f"muster run: 127.0.0.1:{pool.port}: no node takes 99 workers: the largest takes 8"]
    pool.refuse["/jobs"] = (404, {"error": "there is no such page", "paths": ["/status"]})
    m = muster("run", "--", "true")
    assert m.end() == 1 and "is older than this muster" in m.err.text()
    pool.refuse["/jobs"] = (200, b"<html>")
    m = muster("run", "--", "true")
    assert m.end() == 1 and "is this the right port?" in m.err.text()
    for words in (("run", "--", "true"), ("logs", ID), ("attach", ID), ("stop", ID), ("resume", ID), ("pool",)):
        m = muster(*words, env={"MUSTER_RDZV": "127.0.0.1:1"})
        assert m.end() == 1 and "no rdzv-server answers at 127.0.0.1:1" in m.err.text() and len(m.err.lines) == 1, m.err.text()
    m = muster("run", "--env", "NOT_SET_ANYWHERE", "--", "true")
    assert m.end() == 2 and "it is not set here" in m.err.text()


def test_every_flag_of_node_agent_is_passed_on_or_is_musters_own(pool, muster):
    own = {"nnodes", "nproc-per-node", "rdzv", "rdzv-backend", "rdzv-endpoint", "rdzv-id", "standalone", "node-rank", "master-addr", "master-port",
           "local-addr", "help", "version", "surroundings", "hostfile", "service", "slots", "log-bytes", "log-bytes-all", "token-file", "no-doctor"}
    text = subprocess.run([program("node-agent"), "--help"], capture_output=True, text=True, timeout=PATIENCE).stdout
    theirs = set(re.findall(r"^ +(?:-\w, )?--([a-z-]+)", text, re.M))
    shown = subprocess.run([program("muster"), "run", "--help"], capture_output=True, text=True, timeout=PATIENCE).stdout
    passed = set(re.search(r"passed on:\n(.*?)\n\n", shown, re.S).group(1).split())
    assert passed == theirs - own
