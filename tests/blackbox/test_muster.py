"""muster, the command: what a person sees of a real server with real jobs, and what the exit status says."""
import json
import os
import socket
import subprocess
import sys
import time

import pytest

import mulib
from mulib import Server, program
from musterlib import Muster, Terminal

WORKER = "import os, sys, time; time.sleep(0.1); sys.exit(7 if os.environ['RANK'] == '1' and {fail} else 0)"


def muster(*words, env=None, timeout=30):
    return subprocess.run([program("muster"), *words], env={**os.environ, "MUSTER_RDZV": "", **(env or {})}, timeout=timeout,
                          capture_output=True, text=True, stdin=subprocess.DEVNULL)


def agent(server, run_id, *words, nnodes="1", nproc=2):
    cmd = [program("node-agent"), f"--nnodes={nnodes}", f"--nproc-per-node={nproc}", f"--rdzv=127.0.0.1:{server.port}",
           f"--rdzv-id={run_id}", "--no-python", *words]
    return subprocess.Popen(cmd, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def wait_for(what, limit_s=mulib.PATIENCE):
    end = time.monotonic() + limit_s
    while not (got := what()):
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.02)
    return got


@pytest.fixture
def job(server):
    """A job of one node and two workers that sleep."""
    p = agent(server, "train", "sleep", "600")
    wait_for(lambda: [w for j in server.status()["jobs"] for n in j["nodes"] for w in n["workers"] if w["state"] == "running"][1:])
    yield server
    p.terminate()
    p.wait(timeout=mulib.PATIENCE)


def at(server):
    return f"--rdzv=127.0.0.1:{server.port}"


def test_status_jobs_nodes_and_workers_of_a_running_job(job):
    r = muster("status", at(job))
    assert r.returncode == 0 and r.stderr == ""
    first, rest = r.stdout.split("\n\n", 1)
    assert first.startswith(f"127.0.0.1:{job.port}: rdzv-server ") and first.endswith("1 job, 1 agent")
    assert rest.startswith("train  running  for ") and "2 running" in rest and "0-1" in rest and "\033" not in r.stdout
    r = muster("jobs", env={"MUSTER_RDZV": f"127.0.0.1:{job.port}"})
    assert r.returncode == 0 and [line.split()[:2] for line in r.stdout.splitlines()] == [["JOB", "STATE"], ["train", "running"]]
    assert [line.split()[2] for line in muster("nodes", at(job)).stdout.splitlines()[1:]] == [socket.gethostname()]
    pids = {str(w["pid"]) for w in job.status()["jobs"][0]["nodes"][0]["workers"]}
    assert {line.split()[4] for line in muster("workers", "train", at(job)).stdout.splitlines()[1:] if "tell no steps" not in line} == pids


def test_json_has_the_servers_names(job):
    status = job.status()
    whole = json.loads(muster("status", "--json", at(job)).stdout)
    assert whole.keys() == status.keys()
    assert json.loads(muster("status", "train", "--json", at(job)).stdout)["id"] == "train"
    (node,) = json.loads(muster("nodes", "--json", at(job)).stdout)
    assert node["job"] == "train" and set(node) == {*status["jobs"][0]["nodes"][0], "job"}
    workers = json.loads(muster("workers", "--json", at(job)).stdout)
    assert [(w["rank"], w["job"], w["node_rank"]) for w in workers] == [(0, "train", 0), (1, "train", 0)]


FAILS = """
import json, os, sys, time
for i in range(60):
    print("line", i, file=sys.stderr)
if os.environ["RANK"] == "1":
    open(os.environ["TORCHELASTIC_ERROR_FILE"], "w").write(json.dumps({"message": {"message": "ValueError: no such file",
        "extraInfo": {"py_callstack": "Traceback\\n  File 'train.py', line 7\\nValueError: no such file", "timestamp": "1"}}}))
    sys.exit(7)
time.sleep(600)
"""


def test_incidents_tell_why_rounds_ended_and_all_about_one(server):
    p = agent(server, "a/b c", "--max-restarts=1", sys.executable, "-c", FAILS)
    assert p.wait(timeout=mulib.PATIENCE) == 1
    r = muster("incidents", "a/b c", at(server))
    head, first, last = r.stdout.splitlines()
    assert head.split() == ["JOB", "N", "ROUND", "WHEN", "DECISION", "TOOK", "WHAT"] and r.stderr == ""
    assert first.startswith("a/b c") and " restart " in first and "rank 1" in first and " fail " in last
    assert muster("incidents", at(server)).stdout == r.stdout
    r = muster("incidents", "a/b c", "1", at(server))
    assert r.returncode == 0 and len(r.stdout.splitlines()) < 50
    for words in ("exited with status 7: ValueError: no such file", "restart 1 of 1", "    | line 59", "File 'train.py', line 7",
                  "until all its workers ran", "(30 more before them: --json)"):
        assert words in r.stdout, words
    one = json.loads(muster("incidents", "a/b c", "1", "--json", at(server)).stdout)
    assert one["last_lines"] == [f"line {i}" for i in range(10, 60)] and one["trace"].endswith("ValueError: no such file")
    assert one["cause"]["exit_code"] == 7 and not one["cause"]["core_dumped"]
    answer = json.loads(muster("incidents", "a/b c", "--json", at(server)).stdout)
    assert answer["id"] == "a/b c" and answer["incidents"][0] == one
    (listed,) = json.loads(muster("incidents", "--json", at(server)).stdout)
    assert listed == answer
    r = muster("incidents", "nobody", at(server))
    assert r.returncode == 1 and 'there is no job "nobody"' in r.stderr and r.stderr.count("\n") == 1
    r = muster("incidents", "a/b c", "9", at(server))
    assert r.returncode == 1 and "there are 1 to 2" in r.stderr and r.stderr.count("\n") == 1


@pytest.mark.parametrize("fail", [False, True])
def test_watch_follows_a_job_to_its_end_and_gives_its_outcome(server, fail):
    agents = [agent(server, "train", sys.executable, "-c", WORKER.format(fail=fail), nnodes="2", nproc=1)]
    wait_for(lambda: server.status()["jobs"])
    m = Muster("status", "train", "--watch=0.05", at(server))
    m.out.wait("1 of 2 nodes are here")
    agents.append(agent(server, "train", sys.executable, "-c", WORKER.format(fail=fail), nnodes="2", nproc=1))
    for a in agents:
        a.wait(timeout=mulib.PATIENCE)
    assert m.end() == (1 if fail else 0)
    m.out.wait("failed: rank 1 .*exited with status 7" if fail else "succeeded: every worker")


def test_watch_on_a_terminal_redraws_in_place_and_lives_through_a_restarted_server(tmp_path):
    server = Server(tmp_path)
    terminal = Terminal("status", "--watch=0.05", at(server))
    seen = terminal.seen
    wait_for(lambda: seen.count(b"\033[H") > 2)
    port = server.port
    server.stop()
    wait_for(lambda: b"no rdzv-server answers at" in seen and b"what it said last" in seen)
    again = Server(tmp_path, port=port, name="again")
    mark = len(seen)
    wait_for(lambda: b"no job yet" in seen[mark:] and b"what it said last" not in seen[seen.rfind(b"\033[H"):])
    terminal.p.terminate()
    terminal.end()
    again.stop()


def test_what_is_not_there_is_one_sentence(server, tmp_path):
    r = muster("status", "nobody", at(server))
    assert r.returncode == 1 and r.stdout == "" and 'there is no job "nobody"' in r.stderr and r.stderr.count("\n") == 1
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
        r = muster("status", f"--rdzv=127.0.0.1:{port}")  # Bound and not listening: refused.
        assert r.returncode == 1 and "no rdzv-server answers" in r.stderr and "--rdzv" in r.stderr
        s.listen()
        r = muster("jobs", f"--rdzv=127.0.0.1:{port}", "--timeout=0.3")
        assert r.returncode == 1 and "did not answer within 0.3 s" in r.stderr and r.stderr.count("\n") == 1
    r = muster("status", "--rdzv=no.such.name.invalid")
    assert r.returncode == 1 and "no.such.name.invalid:29500" in r.stderr
    http = subprocess.Popen([sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1", "--directory", str(tmp_path)],
                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    other = http.stdout.readline().split("port ")[1].split()[0]
    r = muster("status", f"--rdzv=127.0.0.1:{other}")
    http.terminate()
    http.wait()
    assert r.returncode == 1 and "404" in r.stderr and r.stderr.count("\n") == 1


def test_a_wrong_line_ends_with_2_and_a_full_disk_with_1(server):
    for words, says in ((["statsu"], "did you mean muster status"), ([], "a command is missing"), (["jobs", "--jsn"], "did you mean --json")):
        r = muster(*words)
        assert r.returncode == 2 and says in r.stderr and r.stdout == "" and r.stderr.count("\n") == 1
    with open("/dev/full", "w") as full:
        for words in (["status", at(server)], ["--help"], ["status", "--json", at(server)]):
            r = subprocess.run([program("muster"), *words], stdout=full, stderr=subprocess.PIPE, text=True, timeout=30)
            assert r.returncode == 1 and "No space left" in r.stderr, words


@pytest.mark.parametrize("words, status, says", [
    (["muster", "run", "--", "true"], 2, "muster run: this folder has no name (No such file or directory): --cwd=DIR names another"),
    (["muster", "run", "--hosts=n1", "--", "true"], 2, "muster run: this folder has no name (No such file or directory): --cwd=DIR names another"),
    (["node-agent", "--log-dir=logs", "--no-python", "true"], 1, "--log-dir: this folder has no name (No such file or directory): give an absolute path"),
    (["node-agent", "--service", "--rdzv=127.0.0.1:1", "--token-file=t"], 2,
     "--token-file: this folder has no name (No such file or directory): give an absolute path"),
])
def test_a_folder_that_was_removed_is_named_as_the_trouble(tmp_path, words, status, says):
    gone = ["/bin/sh", "-c", 'mkdir gone && cd gone && rmdir ../gone && exec "$@"', "sh"]
    r = subprocess.run([*gone, program(words[0]), *words[1:]], cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                       timeout=mulib.PATIENCE, env={**os.environ, "MUSTER_RDZV": "127.0.0.1:1"})
    assert r.returncode == status and says in r.stderr, r


def test_a_failed_job_says_where_all_about_it_is(server):
    cmd = [program("node-agent"), "--nproc-per-node=2", f"--rdzv=127.0.0.1:{server.port}", "--rdzv-id=j1", "--no-python",
           sys.executable, "-c", FAILS]
    p = subprocess.run(cmd, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    last = p.stderr.splitlines()[-1]
    assert p.returncode == 1 and last.startswith("node-agent: all about it: muster incidents j1 1 --rdzv=127.0.0.1:"), p.stderr
    assert len(p.stderr.splitlines()) <= 2 * 60 + 41  # What both wrote, torchrun's word on threads, and a screen.
    assert "j1: incident 1" in muster(*last.split("muster ")[1].split()).stdout
    alone = subprocess.run([*cmd[:2], "--standalone", *cmd[4:]], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    assert alone.returncode == 1 and "muster incidents" not in alone.stderr  # Its server ends with it.


def test_a_job_that_waits_in_the_pool_and_one_that_never_began(server):
    r = muster("run", at(server), "-d", "--name=wait", "--", "true")
    name = r.stdout.strip()
    assert r.returncode == 0 and name.startswith("wait-"), r
    r = muster("status", name, at(server))
    assert r.returncode == 0 and r.stdout.startswith(f"{name}  queued\n  waits for 1 node with 1 free slot"), r
    assert muster("logs", name, at(server)).stderr.startswith(f"muster logs: job {name} has printed nothing yet: it is queued: waits for")
    r = muster("status", at(server))
    assert "1 job waits: muster pool" in r.stdout and "no job yet" not in r.stdout, r
    r = muster("stop", name, at(server))
    assert r.returncode == 0 and r.stdout == f"job {name} was stopped before it began\n", r
    r = muster("stop", "--wait", name, at(server))
    assert r.returncode == 0 and r.stdout == f"job {name} is over: it was stopped before it began\n", r
    for command in ("status", "incidents", "workers", "nodes"):
        r = muster(command, name, at(server))
        assert r.returncode == 0 and r.stdout.startswith(f"{name}  stopped\n  was stopped before it began\n"), r
    assert muster("status", "--watch", name, at(server)).returncode == 1
