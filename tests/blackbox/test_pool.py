"""Service mode, the server's side: nodes on offer, the queue, what is asked over HTTP. Nodes are played by hand."""
import json
import os
import re
import signal
import sqlite3
import subprocess

import pytest

import mulib
from mulib import Agent
from poollib import Beating, Logs, Node, ask, job, submit, wait_job, wait_state


CALM = ("--lease", "60")  # Nodes here say no beats.


@pytest.fixture
def server(start_server):
    return start_server(*CALM)


def pool(server):
    return server.status()["pool"]


def test_an_empty_pool_is_shown_as_one(server):
    assert pool(server) == {"nodes": [], "queue": [], "drained": [], "ended": []}


def test_a_job_runs_and_ends_well(server):
    name = submit(server, name="train", nproc_per_node=2, env={"K": "v"}, cwd="/srv", submitter="me@here",
                  agent_args=["--max-restarts=3"])
    assert name.startswith("train-") and len(name) == len("train-") + 6
    waits = pool(server)["queue"][0]
    assert waits["id"] == name and waits["state"] == "queued" and "no node is on offer" in waits["waits_for"]
    n = Node(server, gpus=4)
    a = n.run()
    spec = json.loads(a["spec"])
    assert spec["argv"] == ["./train", "--x"] and spec["env"] == {"K": "v"} and spec["cwd"] == "/srv"
    assert spec["agent_args"] == ["--max-restarts=3"] and spec["nnodes"] == "1" and spec["nproc_per_node"] == 2
    assert (a["job"], a["attempt"], a["node_rank"], a["node_count"], a["nproc"], a["gpus"]) == (name, 1, 0, 1, 2, [0, 1])
    wait_state(server, name, "running")
    shown = pool(server)["nodes"][0]
    assert shown["state"] == "busy" and shown["gpus_free"] == [2, 3] and shown["slots_free"] == 6
    assert shown["jobs"] == [name] and shown["host"] == "n1"
    agent = Agent(server, run_id=name, nnodes=(1, 1))
    agent.expect("welcome")
    agent.expect("start")
    agent.started()
    agent.finished()
    agent.expect("end")
    n.placed(a, 2)
    j = wait_state(server, name, "done")
    assert j["exit_status"] == 0 and j["cause"] is None and j["placed"] == [{"node": n.node, "host": "n1", "gpus": [0, 1]}]
    assert j["argv"] == ["./train", "--x"] and j["submitter"] == "me@here" and "env" not in j
    assert j["submitted_at"] <= j["started_at"] <= j["ended_at"]
    assert pool(server)["nodes"][0]["state"] == "idle"
    assert server.job(name)["state"] == "succeeded"


@pytest.mark.parametrize("kind,fields,status", [("worker_exit", {"exit_code": 7}, 7), ("worker_signal", {"signo": 9}, 137)])
def test_a_failure_is_told_as_the_rendezvous_has_it(server, kind, fields, status):
    n = Node(server)
    name = submit(server)
    a = n.run()
    agent = Agent(server, run_id=name, nnodes=(1, 1))
    agent.expect("start", skip=("welcome", "waiting"))
    agent.started()
    agent.failed(kind=kind, **fields)
    agent.expect("stop", skip=("beat",))
    agent.stopped()
    agent.expect("end")
    n.placed(a, 2, status)
    j = wait_state(server, name, "failed")
    assert j["exit_status"] == status and "rank 0" in j["cause"]


def test_jobs_start_in_the_order_of_their_submission(server):
    n = Node(server, slots=2)
    first, second, third = (submit(server, name=x, nproc_per_node=2) for x in "abc")
    a = n.run()
    assert a["job"] == first
    assert "waits for 1 node with 2 free slots" in job(server, second)["sentence"]
    assert f"waits for {second}" in job(server, third)["sentence"]
    assert [q["id"] for q in pool(server)["queue"]] == [second, third]
    n.placed(a, 2)
    a = n.run()
    assert a["job"] == second
    n.placed(a, 2, 3)
    assert n.run()["job"] == third
    j = wait_state(server, second, "failed")
    assert j["exit_status"] == 3 and "the agent on n1 ended with status 3" in j["cause"]


def test_status_fits_its_schema(server):
    jsonschema = pytest.importorskip("jsonschema", reason="python3-jsonschema is missing")
    with open(os.path.join(os.environ["MUSTER_SOURCE"], "docs", "status.schema.json"), encoding="utf-8") as f:
        schema = jsonschema.Draft202012Validator(json.load(f))
    n = Node(server, gpus=2)
    submit(server, nproc_per_node=2)
    submit(server, nproc_per_node=2)
    n.expect("assign")
    s = server.status()
    assert [q["state"] for q in s["pool"]["queue"]] == ["starting", "queued"] and s["pool"]["nodes"][0]["jobs"]
    schema.validate(s)


def test_jobs_share_nodes_without_sharing_gpus(server):
    n1, n2 = Node(server, "n1", gpus=4), Node(server, "n2", gpus=4)
    submit(server, nnodes="1:2", nproc_per_node=2)
    assert n1.run()["gpus"] == [0, 1] and n2.run()["gpus"] == [0, 1]
    submit(server, nnodes=2, nproc_per_node=2)
    a, b = n1.run(), n2.run()
    assert a["gpus"] == b["gpus"] == [2, 3] and (a["node_rank"], b["node_rank"]) == (0, 1)
    submit(server, gpus_per_node=0)
    assert n1.run()["gpus"] == []


def test_stop_and_resume(server):
    n = Node(server)
    name = submit(server)
    a = n.run()
    wait_state(server, name, "running")
    code, answer = ask(server, "POST", f"/v1/jobs/{name}/stop", {"signal": "SIGINT", "grace_s": 2.5})
    assert code == 202 and answer["state"] == "stopping" and "waits for n1" in answer["sentence"], answer
    u = n.expect("unassign")
    assert (u["job"], u["attempt"], u["signo"], u["grace_ms"]) == (name, 1, 2, 2500)
    assert ask(server, "POST", f"/v1/jobs/{name}/resume")[0] == 409
    n.placed(a, 2, 130)
    assert wait_state(server, name, "stopped")["exit_status"] == 130
    code, answer = ask(server, "POST", f"/v1/jobs/{name}/stop")
    assert code == 409 and "is over" in answer["error"]
    code, answer = ask(server, "POST", f"/v1/jobs/{name}/resume")
    assert code == 202 and answer["state"] == "starting"
    a = n.run()
    assert (a["job"], a["attempt"]) == (name, 2)
    assert wait_state(server, name, "running")["exit_status"] is None


def test_a_job_that_waits_is_stopped_at_once(server):
    name = submit(server)
    code, answer = ask(server, "POST", f"/v1/jobs/{name}/stop")
    assert code == 202 and answer["state"] == "stopped"
    assert job(server, name)["cause"] == "it was stopped before it began"


def test_who_refuses_is_passed_over_until_the_job_fails(server):
    n1, n2 = Node(server, "n1"), Node(server, "n2")
    name = submit(server)
    for n in (n1, n2):
        n.placed(n.expect("assign"), 3, text="no folder /srv/train here")
    j = wait_state(server, name, "failed")
    assert j["cause"] == "n2 refused it: no folder /srv/train here" and j["exit_status"] == 1


def test_what_ended_without_a_round_is_shown(server):
    schema = pytest.importorskip("jsonschema", reason="python3-jsonschema is missing")
    stopped = submit(server, name="stopped")
    assert ask(server, "POST", f"/v1/jobs/{stopped}/stop")[0] == 202
    n = Node(server)
    refused = submit(server, name="refused")
    n.placed(n.expect("assign"), 3, text="no folder /srv/train here")
    wait_state(server, refused, "failed")
    ran = submit(server, name="ran")
    a = n.run()
    agent = Agent(server, run_id=ran, nnodes=(1, 1))
    agent.expect("start", skip=("welcome", "waiting"))
    agent.started()
    agent.finished()
    agent.expect("end")
    n.placed(a, 2)
    wait_state(server, ran, "done")
    s = server.status()
    with open(os.path.join(os.environ["MUSTER_SOURCE"], "docs", "status.schema.json"), encoding="utf-8") as f:
        schema.Draft202012Validator(json.load(f)).validate(s)
    ended = {e["id"]: e for e in s["pool"]["ended"]}
    assert sorted(ended) == sorted([stopped, refused]) and [j["id"] for j in s["jobs"]] == [ran]
    assert (ended[stopped]["state"], ended[stopped]["exit_status"], ended[stopped]["sentence"]) == ("stopped", -1, "it was stopped before it began")
    assert (ended[refused]["state"], ended[refused]["exit_status"]) == ("failed", 1) and "no folder" in ended[refused]["sentence"]
    for i in range(40):
        ask(server, "POST", f"/v1/jobs/{submit(server, id=f'w{i}', nnodes=9)}/stop")
    assert len(pool(server)["ended"]) == 32
    told = subprocess.run([mulib.program("muster"), "jobs", f"--rdzv=127.0.0.1:{server.port}"], capture_output=True, text=True, timeout=mulib.PATIENCE)
    assert told.returncode == 0 and "w39" in told.stdout and "it was stopped before it began" in told.stdout and ran in told.stdout, told
    told = subprocess.run([mulib.program("muster"), "jobs", "--json", f"--rdzv=127.0.0.1:{server.port}"], capture_output=True, text=True, timeout=mulib.PATIENCE)
    assert len(json.loads(told.stdout)) == 33


def test_the_only_node_is_not_asked_again(server):
    n = Node(server)
    name = submit(server)
    n.placed(n.expect("assign"), 3, text="no folder /srv/train here")
    j = wait_state(server, name, "failed")
    assert j["attempt"] == 1 and j["sentence"] == "n1 refused it: no folder /srv/train here"


def test_a_stopped_job_is_shown_as_stopped(server):
    n = Node(server)
    name = submit(server)
    a = n.run()
    agent = Agent(server, run_id=name, nnodes=(1, 1))
    agent.expect("start", skip=("welcome", "waiting"))
    agent.started()
    wait_state(server, name, "running")
    assert ask(server, "POST", f"/v1/jobs/{name}/stop")[0] == 202
    n.expect("unassign")
    agent.send("bye", round=1, cause={"kind": "node_left", "host": "n1"})
    agent.close()
    n.placed(a, 2, 143)
    wait_state(server, name, "stopped")
    server.wait_status(lambda s: s["jobs"][0]["ended_at"], "the rendezvous ends")
    shown = server.job(name)
    assert (shown["state"], shown["sentence"]) == ("stopped", "stopped: it was asked to stop")
    _, _, text = server.get("/metrics")
    assert b'muster_jobs{state="stopped"} 1' in text and b'muster_jobs{state="failed"} 0' in text
    ended = dict(re.findall(rb'muster_jobs_ended_total\{state="(\w+)"\} (\d+)', text))
    assert ended == {b"succeeded": b"0", b"failed": b"0", b"stopped": b"1"}
    assert ask(server, "POST", f"/v1/jobs/{name}/resume")[0] == 202
    assert server.job(name)["state"] == "failed"  # Of the start before, which the pool has forgotten.


def test_a_dead_node_is_replaced(start_server):
    server = start_server("--lease", "0.5", "--beat", "0.1")
    n1, n2 = Node(server, "n1"), Node(server, "n2")
    with Beating(n1, n2):
        name = submit(server, nnodes=2, nproc_per_node=8)
        n1.run()
        n2.run()
        wait_state(server, name, "running")
        n2.close()
        wait_job(server, name, lambda j: "waits for n2 to come back" in j["sentence"], "n2 is missed")
        n3 = Node(server, "n3")
        a = n3.run()
    assert (a["node_rank"], a["node_count"], a["attempt"]) == (1, 2, 1)
    assert [p["host"] for p in job(server, name)["placed"]] == ["n1", "n3"]
    states = {x["host"]: x["state"] for x in pool(server)["nodes"]}
    assert states["n2"] == "away"


def test_a_node_that_comes_back_keeps_its_job(server):
    n = Node(server)
    name = submit(server)
    a = n.run()
    wait_state(server, name, "running")
    n.close()
    n = Node(server, node=n.node, has=[{"job": name, "attempt": 1, "state": 0},
                                       {"job": "old", "attempt": 1, "state": 1}])
    n.beat()  # Nothing but the answer comes.
    n.placed(a, 2)
    assert wait_state(server, name, "done")


def test_a_silent_node_is_dropped(start_server):
    server = start_server("--lease", "0.5", "--beat", "0.1")
    n = Node(server)
    n.expect_closed()
    assert pool(server)["nodes"][0]["state"] == "away"


def test_drain_and_undrain(server):
    n = Node(server)
    first = submit(server)
    n.run()
    agent = Agent(server, run_id=first, nnodes=(1, 1), host="n1")
    agent.expect("start", skip=("welcome", "waiting"))
    agent.started()
    code, answer = ask(server, "POST", "/v1/nodes/n1/drain?timeout=7")
    assert code == 202 and "takes no new jobs" in answer["sentence"] and answer["timeout_ms"] == 7000
    assert agent.expect("halt")["leave"] == 1
    assert pool(server)["nodes"][0]["state"] == "draining"
    second = submit(server)
    assert "1 is drained" in job(server, second)["sentence"]
    assert ask(server, "POST", "/v1/nodes/n1/drain")[0] == 409
    code, answer = ask(server, "POST", f"/v1/nodes/{n.node}/undrain")
    assert code == 202, answer
    assert n.expect("assign")["job"] == second
    assert ask(server, "POST", "/v1/nodes/n1/undrain")[0] == 409
    assert ask(server, "POST", "/v1/nodes/n9/undrain")[0] == 404
    idle = Node(server, "n2")
    assert ask(server, "POST", "/v1/nodes/n2/drain")[1]["sentence"] == "n2 is drained: it takes no new jobs, and none is on it"
    assert ask(server, "POST", "/v1/nodes/n2/undrain")[1]["sentence"] == "n2 takes jobs again"
    idle.close()


@pytest.mark.parametrize("body,part", [
    (None, "has no body"), ("[1]", "not one JSON object"), ('{"argv":["a"]} x', "not one JSON object"), ("{}", "'argv' is missing"), ('{"argv":["--help"]}', "'argv' begins with a '-'"),
    pytest.param('{"argv":["a","' + "x" * 131072 + '"]}', "'argv' is not a text of at most 131071 bytes", id="long argument"),
    pytest.param('{"argv":["a"],"env":{"ABC":"' + "x" * 131068 + '"}}', "'env' is not a text of at most 131067 bytes", id="long variable"),
    ('{"argv":[]}', "'argv' is missing"), ('{"argv":"a"}', "'argv' is not a list"), ('{"argv":[1]}', "'argv' is not a text"),
    ('{"argv":["a"],"argw":1}', 'no field "argw"'), ('{"argv":["a"],"argv":["b"]}', '"argv" is there twice'),
    ('{"argv":["a\\u0000"]}', "NUL"), ('{"argv":["\\\\\\u0000"]}', "NUL"), ('{"argv":["a"],"nnodes":"2:1"}', "'nnodes'"), ('{"argv":["a"],"nnodes":0}', "'nnodes'"),
    ('{"argv":["a"],"nproc_per_node":0}', "'nproc_per_node'"), ('{"argv":["a"],"gpus_per_node":1.5}', "'gpus_per_node'"),
    ('{"argv":["a"],"cwd":"srv"}', "'cwd' is not an absolute path"), ('{"argv":["a"],"env":{"A-B":"1"}}', "not a variable's name"),
    ('{"argv":["a"],"env":{"A":1}}', "'env' is not a text"), ('{"argv":["a"],"name":"a b"}', "'name'"),
    ('{"argv":["a"],"id":"../x"}', "'id'"), ('{"argv":["a"],"agent_args":["--rdzv=x"]}', "--rdzv=x"),
    ('{"argv":["a"],"agent_args":["--health-check=x"]}', "not for a submitter"), ('{"argv":["a"],"agent_args":["--log-dir=/x"]}', "not for a submitter"),
    ('{"argv":["a"],"agent_args":["--max-restarts","3"]}', "write --max-restarts=VALUE"), ('{"argv":["a"],"agent_args":["x"]}', "not a flag"),
    ('{"argv":["a"],"agent_args":["--module=1"]}', "takes no value"),
])
def test_a_submission_that_is_wrong_gets_one_sentence(server, body, part):
    code, _, text = server.get("/v1/jobs", "POST", body)
    assert code == 400 and part in json.loads(text)["error"], text


def test_an_escape_that_is_itself_escaped_is_text(server):
    code, _, text = server.get("/v1/jobs", "POST", json.dumps({"argv": ["grep", "[^\\u0000]", "\\\\u0000"], "id": "grep"}))
    assert code == 201, text
    assert ask(server, "GET", "/v1/jobs/grep")[1]["argv"] == ["grep", "[^\\u0000]", "\\\\u0000"]


@pytest.mark.parametrize("method,path,allow", [("GET", "/v1/jobs/x/stop", "POST"), ("GET", "/v1/jobs/x/resume", "POST"),
                                               ("POST", "/v1/jobs/x/logs", "GET, HEAD"), ("POST", "/v1/jobs/x", "GET, HEAD")])
def test_a_path_tells_its_own_methods(server, method, path, allow):
    code, headers, text = server.get(path, method)
    assert code == 405 and headers["Allow"] == allow, (code, headers, text)


def test_a_submission_has_a_limit(server):
    code, _, text = server.get("/v1/jobs", "POST", json.dumps({"argv": ["x" * 130000, "y" * 130000, "z" * 20000]}))
    assert code == 400 and "at most 262144 are allowed" in json.loads(text)["error"], text
    n = Node(server)
    name = submit(server, argv=["x", "\"\\\n" * 40000])
    spec = json.loads(n.run()["spec"])
    assert spec["argv"][1] == "\"\\\n" * 40000 and job(server, name)["argv"] == spec["argv"]


def test_an_id_is_given_once(server):
    assert submit(server, id="mine") == "mine"
    code, answer = ask(server, "POST", "/v1/jobs", {"argv": ["x"], "id": "mine"})
    assert code == 409 and "known already" in answer["error"]
    agent = Agent(server, run_id="byhand")
    agent.expect("welcome")
    assert ask(server, "POST", "/v1/jobs", {"argv": ["x"], "id": "byhand"})[0] == 409
    for method, path in (("GET", "/v1/jobs/none"), ("POST", "/v1/jobs/none/stop"), ("POST", "/v1/jobs/none/resume"), ("GET", "/v1/jobs/none/logs")):
        assert ask(server, method, path)[0] == 404
    agent.close()


def test_a_node_that_breaks_the_protocol_is_told(server):
    n = Node(server)
    n.send("started", round=1, pids=[])
    assert "no node on offer sends" in n.expect("refused")["text"]
    n.expect_closed()


# --- over a restart of the server ---

def test_the_queue_survives_a_kill(start_server):
    server = start_server(*CALM, keep=True)
    n = Node(server, slots=2, gpus=2)
    runs = submit(server, name="runs")
    waits = [submit(server, name=f"w{i}", nproc_per_node=2, gpus_per_node=2, env={"N": str(i)}) for i in range(3)]
    a = n.run()
    wait_state(server, runs, "running")
    stopped = submit(server, name="stopped")
    ask(server, "POST", f"/v1/jobs/{stopped}/stop")
    server.wait_status(lambda s: s["server"]["state"] == "kept", "kept")
    n.beat()
    kept_by_now(server)
    server.kill()
    server = start_server(*CALM, keep=True)
    assert job(server, runs)["state"] == "running" and job(server, stopped)["state"] == "stopped"
    assert [q["id"] for q in pool(server)["queue"]] == waits
    n = Node(server, slots=2, gpus=2, node=n.node, has=[{"job": runs, "attempt": 1, "state": 0},
                                                        {"job": "stranger", "attempt": 1, "state": 0}])
    assert n.expect("unassign")["job"] == "stranger"
    n.placed({"job": "stranger", "attempt": 1}, 2)
    n.placed(a, 2)
    b = n.run()
    assert b["job"] == waits[0] and json.loads(b["spec"])["env"] == {"N": "0"} and b["gpus"] == [0, 1]
    assert ask(server, "POST", f"/v1/jobs/{stopped}/resume")[0] == 202


def test_a_drain_survives_a_kill_in_the_same_moment(start_server):
    """The 202 comes once it is on the disk; a host that is not there comes back drained, and its name is enough to take that back."""
    for _ in range(3):
        server = start_server(*CALM, keep=True)
        n1, n2 = Node(server, "n1"), Node(server, "n2")
        submit(server, id="runs", nproc_per_node=8)
        busy = n1.run() and n1
        assert ask(server, "POST", "/v1/nodes/n1/drain")[0] == 202
        assert ask(server, "POST", "/v1/nodes/n2/drain")[0] == 202
        server.kill()
        server = start_server(*CALM, keep=True)
        assert sorted(pool(server)["drained"]) == ["n1", "n2"]
        n1 = Node(server, "n1", node=busy.node, has=[{"job": "runs", "attempt": 1, "state": 0}])
        n3 = Node(server, "n2")  # Another service of that host.
        assert {x["host"]: x["state"] for x in pool(server)["nodes"]} == {n1.host: "draining", "n2": "draining"}
        waits = submit(server)
        assert "2 are drained" in job(server, waits)["sentence"]
        code, answer = ask(server, "POST", "/v1/nodes/n2/undrain")
        assert code == 202 and answer["sentence"] == "n2 takes jobs again", answer
        assert n3.expect("assign")["job"] == waits
        server.kill()
        server = start_server(*CALM, keep=True)
        assert pool(server)["drained"] == ["n1"]
        code, answer = ask(server, "POST", "/v1/nodes/n1/undrain")
        assert code == 202 and answer["host"] == "n1", answer
        assert ask(server, "POST", "/v1/nodes/n9/undrain")[0] == 404
        server.kill()
        server = start_server(*CALM, keep=True)
        assert pool(server)["drained"] == []
        for name in ("runs", waits):
            ask(server, "POST", f"/v1/jobs/{name}/stop")
        server.kill()
        (server.state_dir / "rdzv.db").unlink()


def test_a_node_that_drained_itself_is_told_to_take_jobs_again(server):
    n = Node(server)
    n.send("drain", reason="SIGUSR1", timeout_ms=1000)
    server.wait_status(lambda s: s["pool"]["nodes"][0]["state"] == "draining", "it leaves")
    waits = submit(server)
    code, answer = ask(server, "POST", "/v1/nodes/n1/undrain")
    assert code == 202 and answer["sentence"] == "n1 takes jobs again", answer
    n.expect("undrain", skip=())  # Before it is given anything.
    assert n.expect("assign", skip=())["job"] == waits
    n.send("drain", reason="SIGUSR1", timeout_ms=1000)
    server.wait_status(lambda s: s["pool"]["nodes"][0]["state"] == "draining", "it leaves")
    n.close()
    server.wait_status(lambda s: s["pool"]["nodes"][0]["state"] == "away", "away")
    code, answer = ask(server, "POST", "/v1/nodes/n1/undrain")
    assert code == 409 and "when it is back, or restart it there" in answer["error"], answer


def test_what_a_service_says_of_itself_ends_with_it(start_server):
    server = start_server(*CALM)
    n = Node(server)
    n.send("drain", timeout_ms=1000)
    server.wait_status(lambda s: s["pool"]["nodes"][0]["state"] == "draining", "it leaves")
    assert pool(server)["drained"] == []
    n.close()
    server.wait_status(lambda s: s["pool"]["nodes"][0]["state"] == "away", "away")
    successor = Node(server)
    assert [x["state"] for x in pool(server)["nodes"] if x["state"] != "away"] == ["idle"] and successor


def kept_by_now(server):
    """A later write that is waited for is behind all earlier ones: an agent hears its START when it is safe."""
    agent = Agent(server, run_id="mark", nnodes=(1, 1))
    agent.expect("start", skip=("welcome", "waiting"))
    agent.close()


def test_what_was_answered_survives_a_kill_in_the_same_moment(start_server):
    """201 and 202 come, and nodes are told, once the rows are on the disk."""
    for i in range(6):
        server = start_server(*CALM, keep=True)
        told = submit(server, name=f"told{i}")
        server.kill()
        server = start_server(*CALM, keep=True)
        assert job(server, told)["state"] == "queued"
        assert ask(server, "POST", f"/v1/jobs/{told}/stop")[0] == 202
        server.kill()
        server = start_server(*CALM, keep=True)
        assert job(server, told)["state"] == "stopped"
        n = Node(server, slots=1)
        placed = submit(server, name=f"placed{i}")
        assert n.expect("assign")["job"] == placed
        server.kill()
        server = start_server(*CALM, keep=True)
        j = job(server, placed)
        assert j["attempt"] == 1 and j["state"] == "starting"
        assert ask(server, "POST", f"/v1/jobs/{placed}/stop")[0] == 202
        server.kill()


def test_an_assignment_is_told_again_by_a_successor(start_server):
    server = start_server(*CALM, keep=True)
    n = Node(server)
    name = submit(server)
    n.expect("assign")
    kept_by_now(server)
    server.kill()
    server = start_server(*CALM, keep=True)
    n = Node(server, node=n.node)
    a = n.run()
    assert (a["job"], a["attempt"]) == (name, 1)
    assert wait_state(server, name, "running")


def test_without_a_state_dir_running_jobs_are_found_on_their_nodes(start_server):
    server = start_server(*CALM)
    n = Node(server, gpus=2, has=[{"job": "old", "attempt": 2, "state": 0}])
    j = wait_state(server, "old", "running")
    assert "does not know what it runs" in j["sentence"]
    shown = pool(server)["nodes"][0]
    assert (shown["state"], shown["slots_free"], shown["gpus_free"]) == ("busy", 0, [])
    n.placed({"job": "old", "attempt": 2}, 2, 5)
    assert wait_state(server, "old", "failed")["exit_status"] == 5
    shown = pool(server)["nodes"][0]
    assert (shown["state"], shown["slots_free"], shown["gpus_free"]) == ("idle", 8, [0, 1])
    code, answer = ask(server, "POST", "/v1/jobs/old/resume")
    assert code == 409 and "submit it anew" in answer["error"]


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_file_of_the_schemas_before_is_brought_up(start_server, version):
    server = start_server(*CALM, keep=True)
    kept_by_now(server)
    old = submit(server)
    assert server.stop() == 0
    with sqlite3.connect(server.state_dir / "rdzv.db") as db:
        for column in ("no_requeue", "requeues", "lost"):
            db.execute(f"ALTER TABLE pool DROP COLUMN {column}")
        if version < 3:
            db.execute("DROP TABLE drains")
        if version < 2:
            db.execute("DROP TABLE pool")
        db.execute(f"PRAGMA user_version={version}")
    db.close()
    server = start_server(*CALM, keep=True)
    assert server.job("mark")
    assert version < 2 or job(server, old)["requeue"] is True
    name = submit(server)
    assert server.stop() == 0
    assert job(start_server(*CALM, keep=True), name)["state"] == "queued"


# --- output ---

def out(node, tail, text, rank=0, unix_ms=1795503999123, **fields):
    node.send("output", stream=tail["stream"], job=tail["job"], unix_ms=unix_ms, rank=rank, text=text, **fields)


def test_output_of_all_nodes_is_merged(server):
    n1, n2 = Node(server, "n1"), Node(server, "n2")
    name = submit(server, nnodes=2)
    a, b = n1.run(), n2.run()
    logs = Logs(server, name, "?follow=1&rank=3&since=60&lines=10")
    t1, t2 = n1.expect("tail"), n2.expect("tail")
    assert (t1["job"], t1["follow"], t1["rank"], t1["lines"], t1["credit"]) == (name, 1, 3, 10, 65536)
    assert t1["since_ms"] > 1.7e12 and t1["stream"] != t2["stream"]
    out(n1, t1, "one \"quoted\" ü")
    assert logs.line() == {"at": "2026-11-24T07:06:39.123Z", "unix_ms": 1795503999123, "host": "n1", "rank": 0,
                           "stream": "stdout", "text": "one \"quoted\" ü"}
    out(n2, t2, "two", rank=-1, channel=2)
    line = logs.line()
    assert [line[k] for k in ("host", "rank", "stream", "text")] == ["n2", -1, "stderr", "two"]
    n1.placed(a, 2)
    n2.placed(b, 2)
    out(n1, t1, "last", end=1)
    assert logs.line()["text"] == "last"
    wait_state(server, name, "done")
    n2.send("output", stream=t2["stream"], end=1)
    assert logs.line() == {"end": True, "state": "done", "exit_status": 0}
    assert logs.line() is None


def test_what_is_there_is_sent_and_no_more(server):
    n = Node(server)
    name = submit(server)
    n.run()
    wait_state(server, name, "running")
    logs = Logs(server, name)
    t = n.expect("tail")
    assert t.get("follow", 0) == 0
    out(n, t, "x")
    n.send("output", stream=t["stream"], end=1)
    assert logs.line()["text"] == "x"
    assert logs.line() == {"end": True, "state": "running", "exit_status": None}


def test_what_is_there_comes_in_the_order_of_its_times(server):
    n1, n2 = Node(server, "n1"), Node(server, "n2")
    name = submit(server, nnodes=2)
    n1.run()
    n2.run()
    wait_state(server, name, "running")
    logs = Logs(server, name)
    t1, t2 = n1.expect("tail"), n2.expect("tail")
    for at in (10, 30, 30, 50):
        out(n1, t1, f"n1 at {at}", unix_ms=at)
    for at in (20, 30, 40):
        out(n2, t2, f"n2 at {at}", unix_ms=at)
    got = [logs.line()["text"] for _ in range(6)]
    assert got == ["n1 at 10", "n2 at 20", "n2 at 30", "n1 at 30", "n1 at 30", "n2 at 40"] or \
        got == ["n1 at 10", "n2 at 20", "n1 at 30", "n1 at 30", "n2 at 30", "n2 at 40"], got
    n2.send("output", stream=t2["stream"], end=1)
    assert logs.line()["text"] == "n1 at 50"
    n1.send("output", stream=t1["stream"], end=1)
    assert logs.line()["end"] is True


def two_with_a_past(server, query):
    n1, n2 = Node(server, "n1"), Node(server, "n2")
    name = submit(server, nnodes=2)
    a, b = n1.run(), n2.run()
    wait_state(server, name, "running")
    logs = Logs(server, name, query)
    t1, t2 = n1.expect("tail"), n2.expect("tail")
    return n1, n2, t1, t2, logs, (a, b)


def test_who_follows_gets_what_was_there_in_the_order_of_its_times(server):
    n1, n2, t1, t2, logs, assigned = two_with_a_past(server, "?follow=1")
    for at in (10, 30, 50):
        out(n1, t1, f"n1 at {at}", unix_ms=at)
    n1.send("caught", stream=t1["stream"])
    out(n1, t1, "n1 at 60", unix_ms=60)  # Written meanwhile.
    for at in (20, 40, 55, 70):
        out(n2, t2, f"n2 at {at}", unix_ms=at)
    got = [logs.line()["text"] for _ in range(8)]
    assert got == ["n1 at 10", "n2 at 20", "n1 at 30", "n2 at 40", "n1 at 50", "n2 at 55", "n1 at 60", "n2 at 70"], got
    n2.send("caught", stream=t2["stream"])
    begin = mulib.time.monotonic()
    for i in range(20):  # From here on as it comes.
        out(n2, t2, f"late {i}", unix_ms=200 - i)
        assert logs.line()["text"] == f"late {i}"
    assert mulib.time.monotonic() - begin < 1.5 * mulib.PATIENCE / 20
    for n, t, a in ((n1, t1, assigned[0]), (n2, t2, assigned[1])):
        n.placed(a, 2)
        out(n, t, "bye", end=1)
        assert logs.line()["text"] == "bye"
    assert logs.line()["end"] is True


def test_a_node_that_sends_nothing_of_its_past_is_waited_for_a_short_time(server):
    n1, n2, t1, t2, logs, _ = two_with_a_past(server, "?follow=1")
    begin = mulib.time.monotonic()
    out(n1, t1, "n1 at 10", unix_ms=10)
    n1.send("caught", stream=t1["stream"])
    assert logs.line()["text"] == "n1 at 10"
    assert 1.5 < mulib.time.monotonic() - begin < 10
    out(n2, t2, "n2 at 5", unix_ms=5)
    assert logs.line()["text"] == "n2 at 5"


def test_a_past_that_is_long_costs_a_node_no_more_than_its_credit(server):
    n1, n2, t1, t2, logs, _ = two_with_a_past(server, "?follow=1")
    for i in range(t1["credit"] // 8000):
        out(n1, t1, "x" * 8000, unix_ms=10 + i)
    n1.sock.settimeout(0.5)
    with pytest.raises(TimeoutError):
        n1.expect("more", skip=("beat",))  # n2 has said nothing yet.
    n1.sock.settimeout(mulib.PATIENCE)
    n2.send("caught", stream=t2["stream"])
    assert n1.expect("more", skip=("beat",))["credit"] >= 8000
    for _ in range(t1["credit"] // 8000):
        assert logs.line()["text"] == "x" * 8000


def test_the_order_costs_a_node_no_more_than_its_credit(server):
    n1, n2 = Node(server, "n1"), Node(server, "n2")
    name = submit(server, nnodes=2)
    n1.run()
    n2.run()
    wait_state(server, name, "running")
    logs = Logs(server, name)
    t1, t2 = n1.expect("tail"), n2.expect("tail")
    for i in range(t1["credit"] // 8000):
        out(n1, t1, "x" * 8000, unix_ms=10 + i)
    n1.sock.settimeout(1)
    with pytest.raises(TimeoutError):
        n1.expect("more", skip=("beat",))  # n2 has said nothing yet.
    n1.sock.settimeout(mulib.PATIENCE)
    n2.send("output", stream=t2["stream"], end=1)
    assert n1.expect("more", skip=("beat",))["credit"] >= 8000
    n1.send("output", stream=t1["stream"], end=1)
    for _ in range(t1["credit"] // 8000):
        assert logs.line()["text"] == "x" * 8000
    assert logs.line()["end"] is True


def test_who_follows_waits_for_a_node_that_is_cut_off(server):
    n = Node(server)
    name = submit(server)
    a = n.run()
    wait_state(server, name, "running")
    logs = Logs(server, name, "?follow=1&lines=5")
    t = n.expect("tail")
    for text, at in (("one", 10), ("two", 20), ("three", 20)):
        out(n, t, text, unix_ms=at)
    assert [logs.line()["text"] for _ in range(3)] == ["one", "two", "three"]
    n.close()
    server.wait_status(lambda s: s["pool"]["nodes"][0]["state"] == "away", "away")
    n = Node(server, node=n.node, has=[{"job": name, "attempt": 1, "state": 0}])
    t = n.expect("tail")
    assert (t["since_ms"], t.get("lines", -1), t["follow"]) == (20, -1, 1)
    for text in ("two", "three", "four"):  # Two of them were sent.
        out(n, t, text, unix_ms=20)
    out(n, t, "five", unix_ms=30)
    assert [logs.line()["text"] for _ in range(2)] == ["four", "five"]
    n.placed(a, 2)
    n.close()  # The job ends without its last words.
    server.wait_status(lambda s: s["pool"]["nodes"][0]["state"] == "away", "away")
    n = Node(server, node=n.node)
    t = n.expect("tail")
    out(n, t, "five", unix_ms=30)
    out(n, t, "six", unix_ms=31, end=1)
    wait_state(server, name, "done")
    assert logs.line()["text"] == "six"
    assert logs.line() == {"end": True, "state": "done", "exit_status": 0}


def test_who_follows_after_a_restart_waits_for_the_nodes(start_server):
    server = start_server(*CALM, keep=True)
    n = Node(server)
    name = submit(server)
    a = n.run()
    wait_state(server, name, "running")
    kept_by_now(server)
    n.close()
    server.kill()
    server = start_server(*CALM, keep=True)
    logs, there = Logs(server, name, "?follow=1"), Logs(server, name)
    n = Node(server, node=n.node, has=[{"job": name, "attempt": 1, "state": 1}])
    tails = [n.expect("tail"), n.expect("tail")]
    assert sorted(t.get("follow", 0) for t in tails) == [0, 1] and all(t.get("since_ms", -1) == -1 for t in tails)
    wait_state(server, name, "done")
    for t in tails:
        out(n, t, "all of it", end=1)
    for reader in (logs, there):
        assert reader.line()["text"] == "all of it"
        assert reader.line() == {"end": True, "state": "done", "exit_status": 0}
    assert a["attempt"] == 1


def test_a_node_that_stays_away_is_not_waited_for_long(start_server):
    server = start_server("--lease", "2", "--beat", "0.2")
    n = Node(server)
    with Beating(n):
        name = submit(server)
        a = n.run()
        wait_state(server, name, "running")
    n.close()
    server.wait_status(lambda s: s["pool"]["nodes"][0]["state"] == "away", "away")
    there, begin = Logs(server, name), mulib.time.monotonic()
    assert there.line()["end"] is True
    assert mulib.time.monotonic() - begin < 8
    n = Node(server, node=n.node, has=[{"job": name, "attempt": 1, "state": 0}])
    n.placed(a, 2)
    wait_state(server, name, "done")
    n.close()
    server.wait_status(lambda s: s["pool"]["nodes"][0]["state"] == "away", "away")
    logs, begin = Logs(server, name, "?follow=1"), mulib.time.monotonic()
    assert logs.line() == {"end": True, "state": "done", "exit_status": 0}
    assert mulib.time.monotonic() - begin < 15


def test_a_reader_that_goes_is_told_to_the_node(server):
    n = Node(server)
    name = submit(server)
    n.run()
    logs = Logs(server, name, "?follow=1")
    t = n.expect("tail")
    logs.close()
    for _ in range(50):  # The end is found when something is written.
        out(n, t, "x" * 1000)
    assert n.expect("untail", skip=("more", "beat"))["stream"] == t["stream"]


def test_credit_keeps_a_fast_writer_and_a_slow_reader_apart(server):
    n = Node(server)
    name = submit(server)
    n.run()
    before = mulib.memory_kb(server.process.pid)
    logs = Logs(server, name, "?follow=1")
    t = n.expect("tail")
    sent, credit, line = 0, t["credit"], "y" * 8000
    n.sock.settimeout(1)
    try:
        while True:  # As fast as it may; the reader reads nothing.
            while credit >= len(line):
                out(n, t, line)
                credit -= len(line)
                sent += 1
            credit += n.expect("more", skip=("beat",))["credit"]
    except TimeoutError:
        pass
    assert sent * len(line) < 16 << 20, sent  # What sockets, stream and credit hold.
    if not mulib.is_sanitized():
        assert mulib.memory_kb(server.process.pid) - before < 16 << 10
    n.sock.settimeout(mulib.PATIENCE)
    for _ in range(sent):
        assert logs.line()["text"] == line
    with Beating(n):
        assert n.expect("more", skip=("beat",))["credit"] > 0
    assert server.status()["pool"]["nodes"][0]["state"] == "busy"


def test_who_follows_hears_the_next_start_too(server):
    n1, n2 = Node(server, "n1"), Node(server, "n2")
    name = submit(server, nnodes="1:2")
    n2.run()
    logs = Logs(server, name, "?follow=1")
    a = n1.expect("assign")
    n1.placed(a, 1)
    t = n1.expect("tail")
    n1.placed(a, 3, text="no")
    out(n1, t, "from n1", end=1)
    a = n1.run()
    assert logs.line()["text"] == "from n1"
    t = n1.expect("tail")
    out(n1, t, "again")
    assert logs.line()["text"] == "again"


def test_readers_have_a_limit(server):
    n = Node(server)
    name = submit(server)
    n.run()
    wait_state(server, name, "running")
    readers = [Logs(server, name, "?follow=1") for _ in range(97)]
    assert [r.status for r in readers] == [200] * 96 + [503]
    said = json.loads(readers[-1].response.read())["error"]
    assert re.match("96 read the output of jobs already, .*end a muster logs", said), said
    for command in ("logs", "attach"):  # At once, and in its words.
        r = subprocess.run([mulib.program("muster"), command, f"--rdzv=127.0.0.1:{server.port}", name], capture_output=True, text=True,
                           timeout=mulib.PATIENCE, stdin=subprocess.DEVNULL, check=False)
        assert (r.returncode, r.stdout) == (1, "") and said in r.stderr, r
    readers[0].close()
    for r in readers:
        r.close()
    code, answer = ask(server, "GET", f"/v1/jobs/{name}/logs?follow=2")
    assert code == 400 and "follow" in answer["error"]


# --- many ---

def test_fifty_jobs_on_two_hundred_nodes(start_server):
    server = start_server("--lease", "60")
    nodes = {}
    for i in range(200):
        n = Node(server, f"n{i}", slots=4)
        nodes[n.node] = n
    names = [submit(server, name=f"j{i}", nnodes=1 + i % 8, nproc_per_node=1 + i % 4) for i in range(50)]
    done = set()
    for name in names:
        j = wait_job(server, name, lambda x: x["placed"], "placed")
        for seat in j["placed"]:
            n = nodes[seat["node"]]
            a = n.run()
            done.add((a["job"], n.node))
            n.placed(a, 2)
    for name in names:
        wait_state(server, name, "done")
    p = pool(server)
    assert len(p["nodes"]) == 200 and all(x["state"] == "idle" and x["slots_free"] == 4 for x in p["nodes"])
    assert p["queue"] == [] and len(done) == sum(1 + i % 8 for i in range(50))
    assert server.stop(signal.SIGTERM) == 0
