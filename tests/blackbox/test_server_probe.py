"""A connection that was reset: is its agent dead, or only cut off? A port that it holds tells.

Agents that must die are processes of their own here, since only a process's end closes its ports."""
import os
import socket
import subprocess
import sys
import time

import pytest

import mulib
from mulib import Agent

# Takes part in a round, then leaves `unread` answers in its socket, says so, and waits to be killed.
BODY = """
import json, socket, sys, mulib
port, fields = int(sys.argv[1]), json.loads(sys.argv[2])
class Server:
    def connect(self):
        s = socket.create_connection(("127.0.0.1", port), timeout=mulib.PATIENCE)
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return s
store = socket.create_server(("127.0.0.1", 0))
a = mulib.Agent(Server(), life_port=store.getsockname()[1], **fields)
a.expect("welcome"), a.expect("start")
a.started()
a.send("beat", round=1), a.expect("beat")
print("runs", flush=True)
if sys.stdin.readline() == "beat\\n":
    a.send("beat", round=1)
a.sock.recv(1, socket.MSG_PEEK)  # It came, and stays unread.
print("unread", flush=True)
sys.stdin.read()
"""


class Mortal:
    """An agent in a process of its own; see BODY."""

    def __init__(self, server, **fields):
        import json
        env = {**os.environ, "PYTHONPATH": os.path.dirname(mulib.__file__)}
        self.process = subprocess.Popen([sys.executable, "-c", BODY, str(server.port), json.dumps(fields)],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)
        self.lines = mulib.Lines(self.process.stdout)

    def say(self, text):
        self.process.stdin.write(text.encode() + b"\n")
        self.process.stdin.flush()

    def kill(self):
        self.process.kill()
        self.process.wait(mulib.PATIENCE)
        self.process.stdin.close()


@pytest.fixture
def mortal(server):
    made = []

    def make(**fields):
        made.append(Mortal(server, **fields))
        return made[-1]

    yield make
    for m in made:
        m.kill()


def in_a_round_with(mortal, server, nnodes):
    m = mortal(host="n2", nnodes=nnodes, max_restarts=1)
    a = Agent(server, host="n1", nnodes=nnodes, max_restarts=1)
    a.expect("welcome"), a.expect("start")
    a.started()
    m.lines.wait("runs")
    return a, m


def test_killed_with_unread_bytes_is_dead_within_two_seconds(server, mortal):
    a, m = in_a_round_with(mortal, server, (2, 2))
    m.say("beat")
    m.lines.wait("unread")
    m.kill()
    began = time.monotonic()
    stop = a.expect("stop")
    assert time.monotonic() - began < 2
    assert stop["cause"]["kind"] == "node_lost" and stop["cause"]["host"] == "n2"
    a.stopped()
    server.log.wait(r"agent\.dead .*host=\"n2\"")
    c = Agent(server, host="n3", nnodes=(2, 2), max_restarts=1)
    c.expect("welcome")
    assert a.expect("start")["round"] == c.expect("start")["round"] == 2
    a.close(), c.close()


def test_killed_with_stop_unread_does_not_hold_the_next_round(server, mortal):
    a, m = in_a_round_with(mortal, server, (2, 2))
    c = Agent(server, host="n3", nnodes=(2, 2), max_restarts=1)  # A spare.
    c.expect("welcome")
    a.failed(local_rank=0, kind="worker_exit", exit_code=7)
    a.expect("stop")
    m.say("quiet")
    m.lines.wait("unread")
    m.kill()
    began = time.monotonic()
    a.stopped()
    assert a.expect("start")["round"] == c.expect("start")["round"] == 2
    assert time.monotonic() - began < 2
    a.close(), c.close()


def test_cut_off_but_its_port_answers_is_not_dead(server):
    with socket.create_server(("127.0.0.1", 0)) as store:
        store.settimeout(mulib.PATIENCE)
        a = Agent(server, host="n1")
        b = Agent(server, host="n2", life_port=store.getsockname()[1])
        for x in (a, b):
            x.expect("welcome"), x.expect("start")
            x.started()
        mulib.reset(b.sock)
        began = time.monotonic()
        for look in (0.5, 1.5):  # And so on: each gap is twice the one before.
            store.accept()[0].close()
            assert time.monotonic() - began > look - 0.1
        j = server.job("job")
        assert j["state"] == "running" and not j["nodes"][1]["connected"], j
        again = Agent(server, host="n2", node=b.node, round=1, round_node_rank=1, round_nodes=2, round_fence_ms=600000)
        again.expect("welcome")
        again.round = 1
        a.finished(), again.finished()
        assert a.expect("end")["success"] == again.expect("end")["success"] == 1
        assert "agent.dead" not in server.log.text()
        again.close()
    a.close()


@pytest.mark.parametrize("fields", [{"life_port": 0}, {"host_addr": "192.0.2.1"}], ids=["no port", "translated address"])
def test_where_a_refusal_would_prove_nothing_silence_must_tell(start_server, fields):
    server = start_server("--lease", "1.5", "--beat", "0.2")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    a, b = (Agent(server, host=h, nnodes=(1, 2), **{"life_port": port, **f}) for h, f in (("n1", {}), ("n2", fields)))
    for x in (a, b):
        x.expect("welcome"), x.expect("start")
        x.started()
    mulib.reset(b.sock)
    a.sock.settimeout(0.2)
    end = time.monotonic() + mulib.PATIENCE
    stop = None
    while stop is None and time.monotonic() < end:
        a.send("beat", round=1)
        try:
            stop = a.expect("stop")
        except TimeoutError:
            pass
    assert stop["cause"]["kind"] == "node_silent" and stop["cause"]["host"] == "n2"
    assert "agent.dead" not in server.log.text()
    a.close()


def test_many_at_once_and_an_end_in_the_middle_of_it(server):
    """More than are asked at a time are cut off; then the server is stopped while it looks."""
    with socket.create_server(("127.0.0.1", 0), backlog=512) as store:
        store.settimeout(mulib.PATIENCE)
        agents = [Agent(server, host=f"n{i}", nnodes=(200, 200), life_port=store.getsockname()[1]) for i in range(200)]
        for x in agents:
            x.expect("welcome"), x.expect("start")
        for x in agents:
            mulib.reset(x.sock)
        for _ in range(200):
            store.accept()[0].close()
        assert server.job("job")["state"] == "running"
        assert server.stop() == 0
