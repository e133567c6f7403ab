"""Agents by hand against a real server: a job's life, restarts, spares, refusals, ends of connections."""
import re
import time

import pytest

import mulib
from mulib import Agent, frame


def two(server, **kw):
    a = Agent(server, host="n1", **kw)
    b = Agent(server, host="n2", **kw)
    return a, b


def welcome_and_start(*agents):
    starts = []
    for a in agents:
        w = a.expect("welcome")
        assert w["lease_ms"] == 3000 and w["beat_ms"] == 1000 and w["seen_addr"] == "127.0.0.1"
        starts.append(a.expect("start"))
    return starts


def test_two_nodes_fail_restart_finish_and_end(server):
    a, b = two(server, max_restarts=1)
    sa, sb = welcome_and_start(a, b)
    assert (sa["node_rank"], sb["node_rank"], sa["node_count"], sa["world"]) == (0, 1, 2, 4)
    assert (sa["rank_base"], sb["rank_base"], sa["round"], sa["restarts"], sa["max_restarts"]) == (0, 2, 1, 0, 1)
    assert sa["lead_addr"] == sb["lead_addr"] and sa["lead_port"] == sb["lead_port"] == 40000
    a.started([11, 12]), b.started([21, 22])
    b.failed(local_rank=1, kind="worker_exit", exit_code=7, pid=22, message="boom")
    for agent in (a, b):
        stop = agent.expect("stop")
        assert stop["final"] == 0 and stop["cause"]["exit_code"] == 7 and stop["cause"]["message"] == "boom"
        assert stop["cause"]["rank"] == 3 and stop["cause"]["host"] == "n2"
    a.stopped(port=40010)
    b.stopped(port=40020)
    sa, sb = a.expect("start"), b.expect("start")
    assert sa["round"] == sb["round"] == 2 and sa["restarts"] == 1 and sa["lead_port"] == 40010
    a.started(), b.started()
    a.finished(), b.finished()
    for agent in (a, b):
        end = agent.expect("end")
        assert end["success"] == 1 and end["restarts"] == 1
        agent.expect_closed()
    assert server.job("job")["state"] == "succeeded"
    for move in ("round=1 ev=READY move=GATHERING->RUNNING", "round=1 ev=BROKEN move=RUNNING->STOPPING",
                 "ev=OVER move=RUNNING->SUCCEEDED"):
        server.log.wait(move)
    assert len(re.findall(r"move=RUNNING->STOPPING", server.log.text())) == 1


def test_spent_budget_ends_with_the_first_cause(server):
    a, b = two(server, max_restarts=0)
    welcome_and_start(a, b)
    a.started(), b.started()
    a.failed(local_rank=0, kind="worker_signal", signo=9, pid=1000)
    assert a.expect("stop")["final"] == b.expect("stop")["final"] == 1
    b.failed(local_rank=0, kind="worker_exit", exit_code=1)  # A consequence.
    a.stopped(), b.stopped()
    for agent in (a, b):
        end = agent.expect("end")
        assert end["success"] == 0 and end["cause"]["signo"] == 9 and end["cause"]["host"] == "n1"
        agent.expect_closed()
    j = server.job("job")
    assert j["state"] == "failed" and j["last_cause"]["signal_name"] == "SIGKILL" and j["consequences"] == 1


def test_a_dead_agent_is_known_from_its_closed_connection(server):
    a, b = two(server, nnodes=(1, 2))
    for agent in (a, b):
        agent.expect("welcome")
    for agent in (a, b):
        agent.expect("start")
        agent.started()
    b.close()
    stop = a.expect("stop")  # Long before the lease of 3 s; see test_server_limits for how long.
    assert stop["cause"]["kind"] == "node_lost" and stop["cause"]["host"] == "n2"
    a.stopped()
    assert a.expect("start")["node_count"] == 1
    a.close()


def test_a_reset_connection_is_no_death_and_the_agent_may_resume(server):
    a, b = two(server)
    welcome_and_start(a, b)
    a.started(), b.started()
    mulib.reset(b.sock)
    server.wait_status(lambda s: not s["jobs"][0]["nodes"][1]["connected"], "the reset is noticed")
    assert server.job("job")["state"] == "running"
    again = Agent(server, host="n2", node=b.node, round=1, round_state=0, round_node_rank=1, round_nodes=2,
                  round_fence_ms=600000)
    again.expect("welcome")
    again.round = 1
    j = server.job("job")
    assert j["state"] == "running" and j["round"] == 1 and [n["connected"] for n in j["nodes"]] == [True, True]
    a.finished(), again.finished()
    assert a.expect("end")["success"] == again.expect("end")["success"] == 1


def test_who_comes_back_to_its_round_is_greeted_at_once(start_server):
    server = start_server("--lease", "90")  # A newcomer's greeting may wait for a beat, here half a minute.
    a, b = two(server)
    a.expect("start", skip=("welcome",)), b.expect("start", skip=("welcome",))
    mulib.reset(b.sock)
    server.wait_status(lambda s: not s["jobs"][0]["nodes"][1]["connected"], "the reset is noticed")
    again = Agent(server, host="n2", node=b.node, round=1, round_state=0, round_node_rank=1, round_nodes=2)
    again.expect("welcome", skip=("waiting",))
    a.close(), again.close()


def test_a_round_that_breaks_as_it_begins_is_heard_of_in_order(server):
    """The last agent fails in the breath in which it comes: nobody has its start yet, and each must hear of the round as it
    began, then of its end."""
    agents = [Agent(server, host=f"n{i}", nnodes=(20, 20), max_restarts=1) for i in range(19)]
    server.wait_status(lambda s: s["jobs"] and len(s["jobs"][0]["nodes"]) == 19, "all but one are here")
    last = Agent(server, host="n19", nnodes=(20, 20), max_restarts=1, hello=False)
    last.sock.sendall(b"MUSTER/1\n" + frame(last.fields) + frame(
        {"type": "failed", "round": 1, "cause": {"kind": "worker_exit", "round": 1, "local_rank": 0, "exit_code": 7}}))
    for i, agent in enumerate([*agents, last]):
        agent.expect("welcome", skip=("waiting",))
        start = agent.expect("start", skip=("waiting",))
        assert (start["round"], start["restarts"], start["node_rank"], start["rank_base"], start["world"]) == (1, 0, i, 2 * i, 40)
        stop = agent.expect("stop", skip=("waiting",))
        assert (stop["round"], stop["final"], stop["cause"]["host"]) == (1, 0, "n19")
        agent.stopped()
    for i, agent in enumerate([*agents, last]):
        start = agent.expect("start", skip=("waiting",))
        assert (start["round"], start["restarts"], start["node_rank"]) == (2, 1, i)
        agent.close()


def test_a_newer_connection_of_the_same_agent_replaces_the_old_one(server):
    a, b = two(server)
    welcome_and_start(a, b)
    a.started(), b.started()
    again = Agent(server, host="n2", node=b.node, round=1, round_state=0, round_node_rank=1, round_nodes=2)
    again.expect("welcome")
    b.expect_closed()
    j = server.job("job")
    assert j["state"] == "running" and len(j["nodes"]) == 2 and j["nodes"][1]["connected"]
    assert server.status()["server"]["agents"] == 2
    a.close(), again.close()


def test_beats_are_answered(server):
    a = Agent(server, nnodes=(2, 2))
    a.expect("welcome")
    for _ in range(3):
        a.send("beat", round=0)
        assert a.expect("beat", skip=("waiting",))["round"] == 0
    a.close()


def test_spare_takes_a_leavers_place(server):
    a, b = two(server, nnodes=(2, 2))
    welcome_and_start(a, b)
    a.started(), b.started()
    spare = Agent(server, host="n3", nnodes=(2, 2))
    spare.expect("welcome")
    b.send("bye", round=1, cause={"kind": "node_left", "host": "n2"})
    b.expect_closed()
    assert a.expect("stop")["cause"]["kind"] == "node_left"
    a.stopped()
    assert a.expect("start")["node_rank"] == 0 and spare.expect("start")["node_rank"] == 1
    a.close(), spare.close()


def test_many_jobs_at_once_do_not_meet(server):
    pairs = [two(server, run_id=f"job-{i}") for i in range(20)]
    for a, b in pairs:
        assert [s["world"] for s in welcome_and_start(a, b)] == [4, 4]
    assert server.status()["server"]["jobs_live"] == 20
    for a, b in pairs:
        a.close()
        b.expect("stop")  # Closing with it unread would be a reset, which is no proof of death.
        b.close()
    server.wait_status(lambda s: s["server"]["jobs_live"] == 0, "all are abandoned")


def test_an_ended_jobs_id_can_be_used_again(server):
    for _ in range(3):
        a = Agent(server, nnodes=(1, 1))
        welcome_and_start(a)
        a.started(), a.finished()
        a.expect("end"), a.expect_closed()
    assert [j["state"] for j in server.status()["jobs"]] == ["succeeded"] * 3


def test_only_the_last_ended_jobs_are_kept(server):
    for i in range(70):
        a = Agent(server, nnodes=(1, 1), run_id=f"r{i}")
        welcome_and_start(a)
        a.started(), a.finished()
        a.expect("end"), a.expect_closed()
    jobs = server.status()["jobs"]
    assert [j["id"] for j in jobs] == [f"r{i}" for i in range(69, 5, -1)]


def test_differing_specs_are_refused_with_both_values(server):
    a = Agent(server, nnodes=(2, 2))
    a.expect("welcome")
    b = Agent(server, nnodes=(3, 3))
    text = b.expect("refused")["text"]
    assert "2" in text and "3" in text and "nnodes" in text
    b.expect_closed()
    a.send("beat", round=0)
    a.expect("beat")
    a.close()


@pytest.mark.parametrize("field, value, says", [
    ("nproc", 0, "nproc"), ("nproc", "two", "nproc"), ("run_id", "", "run id"), ("run_id", "x" * 200, "run_id"),
    ("nodes_min", 5, "5:2"), ("host", None, "host"), ("store_port", 70000, "store_port"), ("node_rank", 2, "node rank"),
])
def test_bad_hello_gets_a_sentence(server, field, value, says):
    a = Agent(server, hello=False)
    fields = {**a.fields, field: value}
    if value is None:
        del fields[field]
    a.sock.sendall(b"MUSTER/1\n" + frame(fields))
    refused = a.expect("refused")
    assert says in refused["text"], refused
    a.expect_closed()
    assert server.status()["jobs"] == []


@pytest.mark.parametrize("bytes_, after_hello", [
    (b"\0\0\0\0", False), (b"\xff\xff\xff\xff", False), (b"\0\0\0\4null", False), (b"\0\0\0\2{}", False),
    (frame({"type": "beat", "round": 0}), False), (frame({"type": "welcome"}), False),
    (b"\0\0\0\5{bad}", True), (frame({"type": "start"}), True), (frame({"type": "beat", "round": -1}), True),
])
def test_broken_frames_end_their_own_connection_only(server, bytes_, after_hello):
    good = Agent(server, run_id="good", nnodes=(2, 2))
    good.expect("welcome")
    bad = Agent(server, run_id="bad", hello=after_hello)
    if after_hello:
        bad.expect("welcome")
        bad.sock.sendall(bytes_)
    else:
        bad.sock.sendall(b"MUSTER/1\n" + bytes_)
    refused = bad.expect("refused")
    assert refused["text"] and refused.get("retry", 0) == after_hello, refused
    bad.expect_closed()
    server.log.wait(r"agent\.closed")
    good.send("beat", round=0)
    good.expect("beat")
    good.close()


def test_unknown_messages_and_fields_are_skipped(server):
    a = Agent(server, nnodes=(2, 2), from_the_future=[1, {"x": 2}])
    a.expect("welcome")
    a.send("telepathy", round=1)
    a.send("beat", round=0, mood="good")
    a.expect("beat")
    a.close()


def test_hello_that_comes_one_byte_at_a_time(server):
    a = Agent(server, hello=False, nnodes=(1, 1))
    for byte in b"MUSTER/1\n" + frame(a.fields):
        a.sock.sendall(bytes([byte]))
    welcome_and_start(a)
    a.close()


def test_agents_over_ipv6_show_their_address(server):
    import socket
    a = Agent(server, hello=False, nnodes=(2, 2))
    a.sock.close()
    a.sock = socket.create_connection(("::1", server.port), timeout=mulib.PATIENCE)
    a.sock.sendall(b"MUSTER/1\n" + frame(a.fields))
    assert a.expect("welcome")["seen_addr"] == "::1"
    assert server.job("job")["nodes"][0]["address"] == "::1"
    a.close()


def beat(agent, seq, **fields):
    agent.send("beat", round=agent.round, seq=seq, **fields)
    return agent.expect("beat")


def test_a_spare_shortens_the_silence_of_those_who_have_agreed(start_server):
    server = start_server("--lease=1.5")
    a, b = two(server)
    for agent in (a, b):
        agent.expect("welcome")
        assert agent.expect("start")["fence_ms"] == 600000
        agent.started()
    assert "fence_ms" not in beat(a, 1)
    c = Agent(server, host="n3")
    c.expect("welcome")
    assert beat(a, 2)["fence_ms"] == beat(b, 2)["fence_ms"] == 1500
    assert "fence_ms" not in beat(a, 3, fence_ms=1500), "it has agreed; b has not, or its word was lost"
    for seq in range(4, 10):  # b is silent for longer than the lease, and is waited for.
        time.sleep(0.4)
        beat(a, seq, fence_ms=1500), beat(c, seq)
    assert server.job("job")["state"] == "running"
    beat(b, 3, fence_ms=1500)
    began = time.monotonic()
    for seq in range(10, 30):
        a.send("beat", round=1, seq=seq, fence_ms=1500), c.send("beat", round=0, seq=seq)
        if server.job("job")["state"] != "running":
            break
        time.sleep(0.1)
    stop = a.expect("stop")
    assert stop["cause"]["kind"] == "node_silent" and stop["cause"]["host"] == "n2" and time.monotonic() - began > 1.2
    a.stopped()
    assert a.expect("start")["round"] == c.expect("start")["round"] == 2
    for agent in (a, b, c):
        agent.close()
