"""rdzv-server --state-dir: jobs outlive the server that kept them."""
import json
import os
import re
import signal
import sqlite3
import subprocess
import time

import pytest

import mulib
import poollib
from mulib import Agent

# Not an address of this machine: these agents hold no port that would prove that they live.
ELSEWHERE = {"host_addr": "192.0.2.1"}


def start_two(server, **fields):
    agents = [Agent(server, host=f"n{i + 1}", link=1, **{"nnodes": (2, 2), "max_restarts": 3, **ELSEWHERE, **fields}) for i in range(2)]
    for a in agents:
        a.expect("welcome")
        a.start = a.expect("start")
        a.started()
    return agents


def resume(server, old, state=0, **fields):
    """The same agent on a new connection. state: of its round, as hello says it."""
    s = old.start
    old.close()
    a = Agent(server, **{**old.fields, "nnodes": (2, 2), "link": old.fields["link"] + 1, "round": s["round"], "round_seen": s["round"],
                         "round_node_rank": s["node_rank"], "round_nodes": s["node_count"], "round_restarts": s["restarts"],
                         "round_fence_ms": s["fence_ms"], "round_state": state, **fields})
    a.expect("welcome")
    a.start, a.round = s, s["round"]
    return a


@pytest.fixture
def keeping(start_server):
    """A server that keeps its jobs, and its successors at the same port."""
    servers = []

    def start(*options, **kwargs):
        servers.append(start_server(*options, keep=True, port=servers[0].port if servers else 0, **kwargs))
        return servers[-1]

    return start


def database(server):
    return server.state_dir / "rdzv.db"


def incidents(server, run_id="job"):
    code, headers, body = server.get(f"/jobs/{run_id}/incidents")
    assert code == 200 and headers["Content-Type"].startswith("application/json"), (code, body)
    return json.loads(body)


def test_a_running_round_goes_on_and_is_known_before_anybody_is_back(keeping):
    first = keeping()
    a, b = start_two(first)
    assert first.status()["server"]["state"] == "kept"
    first.kill()
    second = keeping()
    j = second.job("job")
    assert j["state"] == "recovering" and j["round"] == 1 and j["world"] == 4, j
    assert [n["host"] for n in j["nodes"]] == ["n1", "n2"] and not any(n["connected"] for n in j["nodes"])
    a, b = resume(second, a), resume(second, b)
    j = second.wait_status(lambda s: s["jobs"][0]["state"] == "running", "both are back")["jobs"][0]
    assert j["round"] == 1 and j["restarts"] == 0
    a.finished(), b.finished()
    assert a.expect("end")["success"] == 1 and b.expect("end")["success"] == 1
    a.close(), b.close()


def test_files_are_for_their_owner_alone(keeping):
    s = keeping()
    for a in start_two(s):
        a.close()
    assert oct(os.stat(s.state_dir).st_mode & 0o777) == "0o700"
    with os.scandir(s.state_dir) as entries:
        modes = {e.name: e.stat().st_mode for e in entries if os.path.exists(e)}  # SQLite's journal comes and goes.
    assert "rdzv.db" in modes
    for name, mode in modes.items():
        assert oct(mode & 0o777) == "0o600", name


def test_budget_rounds_and_cause_outlive_each_death(keeping):
    s = keeping()
    a, b = start_two(s)
    for n in range(1, 4):
        a.failed(local_rank=1, kind="worker_exit", exit_code=n)
        for x in (a, b):
            assert x.expect("stop")["final"] == 0
        s.kill()
        s = keeping()
        j = s.job("job")
        assert (j["state"], j["round"], j["restarts"]) == ("stopping", n, n), j
        assert j["last_cause"]["exit_code"] == n
        a, b = resume(s, a, 3), resume(s, b, 3)
        for x in (a, b):
            x.start = x.expect("start")
            assert (x.start["round"], x.start["restarts"]) == (n + 1, n)
    a.failed(exit_code=9)
    assert a.expect("stop")["final"] == 1
    b.expect("stop")
    s.kill()
    s = keeping()
    a, b = resume(s, a, 3), resume(s, b, 3)
    for x in (a, b):
        m = x.expect("end")
        assert m["success"] == 0 and m["cause"]["exit_code"] == 9 and m["restarts"] == 3
        x.close()
    found = incidents(s)
    assert [i["number"] for i in found["incidents"]] == [1, 2, 3, 4] and found["left_out"] == 0
    assert [i["decision"] for i in found["incidents"]] == ["restart", "restart", "restart", "fail"]


def test_who_comes_late_is_told_how_it_ended(keeping):
    first = keeping()
    a, b = start_two(first)
    a.finished(), b.finished()
    a.expect("end")
    first.kill()  # b has not read its END.
    second = keeping()
    j = second.job("job")
    assert j["state"] == "succeeded" and j["ended_at"] is not None
    assert resume(second, b, 1).expect("end")["success"] == 1
    # A new job of the same id begins at its first round.
    for x in start_two(second):
        assert x.start["round"] == 1
        x.close()


def test_a_spare_of_a_job_that_ended_is_no_new_job(keeping):
    first = keeping()
    a, b = start_two(first)
    spare = Agent(first, host="n3", link=1, nnodes=(2, 2), max_restarts=3, **ELSEWHERE)
    spare.expect("welcome")
    a.finished(), b.finished()
    a.expect("end")
    first.kill()
    second = keeping()
    again = Agent(second, **{**spare.fields, "nnodes": (2, 2), "link": 2})
    again.expect("welcome")
    assert again.expect("end")["success"] == 1
    assert len(second.status()["jobs"]) == 1
    again.close()


def test_two_servers_on_one_folder_are_refused(keeping, tmp_path):
    first = keeping()
    p = subprocess.run([mulib.program("rdzv-server"), "--port", "0", "--state-dir", str(first.state_dir)], stdin=subprocess.DEVNULL,
                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=mulib.PATIENCE, text=True)
    assert p.returncode == 1
    assert f"is used by another rdzv-server (pid {first.process.pid}): give each its own" in p.stderr


def test_a_newer_schema_is_refused_and_left_alone(keeping, tmp_path):
    first = keeping()
    for a in start_two(first):
        a.close()
    first.stop()
    with sqlite3.connect(database(first)) as db:
        db.execute("PRAGMA user_version=7")
    db.close()
    p = subprocess.run([mulib.program("rdzv-server"), "--port", "0", "--state-dir", str(first.state_dir)], stdin=subprocess.DEVNULL,
                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=mulib.PATIENCE, text=True)
    assert p.returncode == 1 and "is of schema 7, and this version knows up to 4: use a newer rdzv-server" in p.stderr
    assert not [n for n in os.listdir(first.state_dir) if "damaged" in n]


@pytest.mark.parametrize("how", ["overwritten", "cut", "another"])
def test_a_damaged_file_is_moved_aside(keeping, how):
    first = keeping()
    a, b = start_two(first)
    first.stop()
    a.close(), b.close()
    path = database(first)
    if how == "overwritten":
        size = os.stat(path).st_size
        with open(path, "r+b") as f:
            f.write(b"\xa5" * size)
    elif how == "cut":
        with open(path, "r+b") as f:
            f.truncate(os.stat(path).st_size // 2 + 100)
    else:  # The right schema number, and no table of ours.
        os.unlink(path)
        db = sqlite3.connect(path)
        db.execute("CREATE TABLE other (x)")
        db.execute("PRAGMA user_version=1")
        db.commit()
        db.close()
    second = keeping()
    second.log.wait(r"state\.aside .*damaged-")
    assert [n for n in os.listdir(second.state_dir) if re.search(r"damaged-\d+$", n)]
    assert second.status()["server"]["state"] == "kept"
    x, y = start_two(second, run_id="next")
    second.kill()
    third = keeping()
    assert third.job("next")["state"] == "recovering"
    x.close(), y.close()


def test_what_cannot_be_read_at_the_start_is_not_thrown_away(keeping):
    first = keeping()
    a, b = start_two(first)
    first.kill()
    other = sqlite3.connect(database(first), isolation_level=None)
    other.execute("PRAGMA locking_mode=EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")
    second = keeping()
    second.log.wait(r"state\.failed .*locked")
    assert second.status()["server"]["state"].endswith("database is locked")
    x, y = start_two(second, run_id="next")
    other.close()
    second.wait_status(lambda s: s["server"]["state"] == "kept", "nobody locks it any more")
    (aside,) = [n for n in os.listdir(second.state_dir) if re.search(r"unread-\d+$", n)]
    old = sqlite3.connect(second.state_dir / aside)
    assert old.execute("SELECT run_id, round FROM jobs").fetchall() == [("job", 1)]
    old.close()
    second.kill()
    third = keeping()
    assert [j["id"] for j in third.status()["jobs"]] == ["next"]
    for z in (a, b, x, y):
        z.close()


def test_a_row_that_makes_no_sense_costs_its_job_alone(keeping):
    first = keeping()
    agents = [*start_two(first, run_id="bad"), *start_two(first, run_id="good")]
    first.stop()
    for a in agents:
        a.close()
    db = sqlite3.connect(database(first))
    db.execute("UPDATE jobs SET spent = 77 WHERE run_id = 'bad'")
    db.commit()
    db.close()
    second = keeping()
    second.log.wait(r"state\.job job=\"bad\" error=its kept budget makes no sense")
    assert [j["id"] for j in second.status()["jobs"]] == ["good"]


def test_a_folder_that_cannot_be_is_refused_at_once(tmp_path):
    (tmp_path / "file").touch()
    for folder, why in ((tmp_path / "no" / "such", "make '.*no/such': No such file or directory: make the folder that it is in first"),
                        (tmp_path / "file", "Not a directory")):
        r = subprocess.run([mulib.program("rdzv-server"), "--port=0", f"--state-dir={folder}"], capture_output=True, text=True, timeout=20)
        assert r.returncode == 1 and re.search(f"rdzv-server: .*{why}", r.stderr), r.stderr


def test_a_file_that_was_removed_is_said_and_written_anew(keeping):
    s = keeping()
    a, b = start_two(s)
    s.wait_status(lambda st: all(n["state"] == "running" for n in st["jobs"][0]["nodes"]), "both run")
    os.unlink(database(s))
    a.failed(exit_code=1)
    a.expect("stop"), b.expect("stop")
    s.log.wait(r"state\.failed .*was removed")
    assert "was removed" in s.status()["server"]["state"]
    s.log.wait(r"state\.kept", timeout=20)
    s.kill()
    second = keeping()
    assert (second.job("job")["round"], second.job("job")["restarts"]) == (1, 1)
    a.close(), b.close()


def test_incidents_say_what_ended_a_round_and_what_was_decided(keeping):
    s = keeping()
    a, b = start_two(s)
    s.wait_status(lambda st: all(n["state"] == "running" for n in st["jobs"][0]["nodes"]), "both run")
    b.failed(local_rank=1, kind="worker_signal", signo=9, pid=77, message="killed", tail="one\ntwo\n", trace="File x, line 1")
    a.expect("stop"), b.expect("stop")
    a.failed(exit_code=1)
    a.stopped(stop_ms=30, reclaim_ms=4), b.stopped(stop_ms=5)
    a.expect("start"), b.expect("start")
    a.started(), b.started()
    a.send("beat", round=a.round, seq=1, steps=[0, 1])
    s.wait_status(lambda st: incidents(s)["incidents"][0]["next_step_at"], "a step is told of")
    a.finished(), b.finished()
    a.expect("end"), b.expect("end")
    first, last = incidents(s)["incidents"]
    assert (first["round"], first["decision"], first["restarts"], first["max_restarts"]) == (1, "restart", 1, 3)
    assert first["cause"]["signal_name"] == "SIGKILL" and first["cause"]["rank"] == 3 and first["cause"]["host"] == "n2"
    assert "restart 1 of 3" in first["reason"] and (first["nodes"], first["world"]) == (2, 4)
    times = [mulib.unix_ms(first[k]) for k in ("gathering_at", "started_at", "running_at", "decided_at", "stopped_at", "next_at")]
    assert times == sorted(times)
    assert all(v >= 0 for v in first["phases_s"].values())
    assert (first["phases_s"]["stop"], first["phases_s"]["reclaim"]) == (0.03, 0.004)
    assert [(c["rank"], c["host"], c["sentence"]) for c in first["consequences"]] == [(0, "n1", "rank 0 (local rank 0) on n1 exited with status 1")]
    assert first["consequences_left_out"] == 0 and first["last_lines"] == ["one", "two"] and first["trace"] == "File x, line 1"
    assert last["decision"] == "succeed" and last["cause"] is None and last["next_at"] is None
    assert s.get("/jobs/nobody/incidents")[0] == 404
    a.close(), b.close()


def test_incidents_are_shown_without_a_folder_and_old_ones_are_left_out(start_server):
    s = start_server()
    a, b = start_two(s, max_restarts=1000, run_id="a/b c")
    for n in range(1, 121):
        a.failed(exit_code=1)
        for x in (a, b):
            x.expect("stop")
            x.stopped()
        for x in (a, b):
            x.expect("start")
    found = incidents(s, "a/b%20c")
    assert found["id"] == "a/b c" and found["left_out"] == 20
    assert [i["number"] for i in found["incidents"]] == list(range(21, 121))
    assert s.status()["server"]["state"] is None
    a.close(), b.close()


def test_answers_fit_their_schema(keeping):
    jsonschema = pytest.importorskip("jsonschema")
    s = keeping()
    a, b = start_two(s)
    a.failed(exit_code=1)
    a.expect("stop"), b.expect("stop")
    docs = os.path.join(os.environ["MUSTER_SOURCE"], "docs")
    for name, answer in (("incidents", incidents(s)), ("status", s.status())):
        schema = json.load(open(os.path.join(docs, name + ".schema.json"), encoding="utf-8"))
        jsonschema.Draft202012Validator(schema).validate(answer)
    a.close(), b.close()


def test_a_thousand_nodes_join_and_start_within_a_lease(keeping):
    """The file must not stall the loop: a beat that is sent in the middle of it is answered."""
    s = keeping("--fence", "600")
    n = 1000
    agents = [Agent(s, host=f"n{i}", nproc=1, nnodes=(n, n), max_restarts=1, **ELSEWHERE) for i in range(n)]
    for a in agents:
        a.expect("welcome")
    for a in agents:
        a.expect("start")
    began = time.monotonic()
    for a in agents:
        a.started()
    agents[0].send("beat", round=1, seq=1)
    agents[0].expect("beat", skip=())
    took = time.monotonic() - began
    assert took < 3, f"a beat took {took:.2f} s"
    s.wait_status(lambda st: all(x["state"] == "running" for x in st["jobs"][0]["nodes"]), "all run")
    s.stop()  # Everything is written.
    db = sqlite3.connect(database(s))
    assert db.execute("SELECT count(*) FROM nodes WHERE state = 'running'").fetchone() == (n,)
    db.close()
    for a in agents:
        a.close()


# --- a disk that is full, and one that does not answer ---

needs_mount = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")


@pytest.fixture
def small_disk(tmp_path):
    where = tmp_path / "disk"
    where.mkdir()
    r = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k,mode=700", "none", str(where)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if r.returncode != 0:
        pytest.skip(f"no tmpfs can be mounted here: {r.stdout.decode().strip()}")
    yield where
    subprocess.run(["umount", "-l", str(where)], check=True)


@needs_mount
def test_a_full_disk_stops_no_job_and_is_made_up_for(small_disk, start_server):
    s = start_server("--state-dir", str(small_disk))
    a, b = start_two(s)
    ballast = small_disk / "ballast"
    with open(ballast, "wb", buffering=0) as f:
        try:
            while True:
                f.write(b"x" * 4096)
        except OSError:
            pass
    n = 0
    while s.status()["server"]["state"] == "kept":  # Until what was set aside in the file is used up.
        n += 1
        assert n < 400
        a.failed(exit_code=1)
        for x in (a, b):
            if x.expect("stop")["final"]:
                x.stopped(), x.close()
        if n % 4 == 0:
            a.stopped(), b.stopped()
            a.expect("end"), b.expect("end")
            a.close(), b.close()
            a, b = start_two(s, run_id=f"job{n}")
        else:
            for x in (a, b):
                x.stopped()
            for x in (a, b):
                x.expect("start")
    s.log.wait(r"state\.failed .*full")
    assert "full" in s.status()["server"]["state"]
    assert s.log.text().count("state.failed") == 1
    ballast.unlink()
    s.wait_status(lambda st: st["server"]["state"] == "kept", "there is room again")
    s.log.wait(r"state\.kept")
    live = next(j for j in s.status()["jobs"] if j["ended_at"] is None)
    s.kill()
    second = start_server("--state-dir", str(small_disk), port=s.port)
    j = second.job(live["id"])
    assert (j["round"], j["restarts"]) == (live["round"], live["restarts"])
    a.close(), b.close()


def fill(small_disk):
    """Until nothing more goes in; the file that can be removed."""
    ballast = small_disk / "ballast"
    with open(ballast, "ab", buffering=0) as f:
        for size in (4096, 1):
            try:
                while True:
                    f.write(b"x" * size)
            except OSError:
                pass
    return ballast


@needs_mount
def test_what_a_full_disk_does_not_take_is_not_promised(small_disk, start_server):
    s = start_server("--state-dir", str(small_disk), "--lease", "60")
    n = poollib.Node(s, "n1", slots=2)
    poollib.submit(s, id="runs")
    a = n.run()
    poollib.wait_state(s, "runs", "running")
    promised, refused = [poollib.submit(s, id=f"p{i}", nnodes=2) for i in range(3)], None
    ballast = fill(small_disk)
    for i in range(400):  # Until what was set aside in the file is used up.
        code, answer = poollib.ask(s, "POST", "/v1/jobs", {"argv": ["x", "y" * 4000], "id": f"j{i}", "nnodes": 2})
        if code != 201:
            refused = (code, answer, f"j{i}")
            break
        promised.append(f"j{i}")
    code, answer, name = refused
    assert code == 507 and "the job was not taken on" in answer["error"], refused
    assert "the disk of --state-dir" in answer["error"] and str(small_disk / "rdzv.db") in answer["error"] and "full" in answer["error"], answer
    assert poollib.ask(s, "GET", f"/v1/jobs/{name}")[0] == 404
    for path in ("/v1/jobs", f"/v1/jobs/{promised[0]}/resume", "/v1/nodes/n1/undrain"):
        code, answer = poollib.ask(s, "POST", path, {"argv": ["x"], "id": "other"} if path == "/v1/jobs" else None)
        assert code == 507 and answer["error"].startswith("nothing was done: the disk of --state-dir"), (path, answer)
    assert poollib.ask(s, "GET", "/v1/jobs/other")[0] == 404
    assert poollib.job(s, "runs")["state"] == "running" and s.status()["pool"]["drained"] == []
    assert [q["id"] for q in s.status()["pool"]["queue"]] == promised
    # What frees machines is done all the same, though a restart does not know of it.
    assert poollib.ask(s, "POST", f"/v1/jobs/{promised[0]}/stop")[0] == 202 and poollib.job(s, promised[0])["state"] == "stopped"
    assert poollib.ask(s, "POST", "/v1/nodes/n1/drain")[0] == 202 and s.status()["pool"]["drained"] == ["n1"]
    s.kill()
    ballast.unlink()
    s = start_server("--state-dir", str(small_disk), "--lease", "60", port=s.port)
    assert [q["id"] for q in s.status()["pool"]["queue"]] == promised  # Every one, and no other.
    assert poollib.submit(s, id="other") == "other"
    assert poollib.ask(s, "POST", "/v1/jobs/runs/stop")[0] == 202
    assert a["job"] == "runs"


@needs_mount
def test_a_read_only_disk_is_said_and_made_up_for(small_disk, start_server):
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    s = start_server("--state-dir", str(small_disk))
    s.log.wait(r"state\.failed .*Read-only file system")
    a, b = start_two(s)
    assert s.status()["server"]["state"].startswith("not kept: ")
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    s.wait_status(lambda st: st["server"]["state"] == "kept", "it may be written again")
    s.kill()
    second = start_server("--state-dir", str(small_disk), port=s.port)
    assert second.job("job")["state"] == "recovering"
    a.close(), b.close()


def test_a_server_that_stands_still_disturbs_no_worker(keeping, job):
    """For thirty seconds nobody is answered; in a round that cannot go on without its nodes the fence time is ten minutes."""
    s = keeping()
    w = job.worker("""
def go(*_):
    say("done", RANK); os._exit(0)
signal.signal(signal.SIGUSR1, go)
say("up", RANK, os.getpid())
n = 0
while True:
    time.sleep(1); n += 1; say("tick", RANK, n)
""")
    agents = job.nodes(s, 2, "--nproc-per-node=1", w)
    pids = [int(a.out.wait(r"up \d (\d+)").group(1)) for a in agents]
    s.process.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    os.kill(pids[0], signal.SIGUSR1)  # The first node's work is done while nobody listens.
    agents[0].err.wait(r"no rendezvous server for \d+ s.*does not answer", timeout=30)
    agents[1].out.wait_count(r"tick", 29, timeout=90)
    time.sleep(max(0, began + 30 - time.monotonic()))
    s.process.send_signal(signal.SIGCONT)
    s.wait_status(lambda st: st["jobs"][0]["state"] == "running" and st["jobs"][0]["restarts"] == 0, "the round goes on")
    os.kill(pids[1], signal.SIGUSR1)
    for a in agents:
        a.ends(0)
    assert "the workers run on" in agents[1].err.text()
