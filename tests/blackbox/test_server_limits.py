"""Limits and promises in figures: what is beyond a limit is closed, what idles costs next to nothing."""
import resource
import socket
import threading
import time

import pytest

import mulib
from mulib import GET, SET, Agent, StoreClient, closing_all, packed


def test_connections_beyond_the_limit_are_closed(start_server):
    s = start_server("--max-connections", "5")
    with closing_all() as held:
        for _ in range(5):
            held.append(StoreClient(s))
        for _ in range(3):
            c = s.connect()
            assert c.recv(1) == b""
            c.close()
        s.log.wait(r"listen\.full .*--max-connections")
        held.pop().close()
        end = time.monotonic() + mulib.PATIENCE
        while True:  # The server learns of the close by itself.
            try:
                held.append(StoreClient(s))
                break
            except (AssertionError, ConnectionResetError, BrokenPipeError):
                assert time.monotonic() < end
        assert all(c.num_keys() == 0 for c in held)


def test_running_out_of_descriptors_closes_newcomers_and_recovers(start_server):
    s = start_server()
    resource.prlimit(s.process.pid, resource.RLIMIT_NOFILE, (40, 40))
    held = []
    before = mulib.cpu_ticks(s.process.pid)
    try:
        while len(held) < 100:
            held.append(StoreClient(s))
    except (AssertionError, ConnectionResetError):
        pass
    assert 20 < len(held) < 40
    s.log.wait(r"listen\.descriptors")
    assert held[0].num_keys() == 0
    assert mulib.cpu_ticks(s.process.pid) - before < 100
    for c in held:
        c.close()
    end = time.monotonic() + mulib.PATIENCE
    while True:
        try:
            c = StoreClient(s)
            break
        except (AssertionError, ConnectionResetError):
            assert time.monotonic() < end
    assert c.num_keys() == 0
    c.close()


def test_store_limits_are_options(start_server):
    s = start_server("--max-key-bytes", "16", "--max-value-bytes", "1K", "--max-store-memory", "1M")
    good = StoreClient(s)
    for request in (packed(SET, b"/" * 17, b""), packed(SET, b"/k", b"x" * 1025)):
        c = StoreClient(s)
        c.sock.sendall(request)
        assert c.is_closed()
        c.close()
    full = StoreClient(s)
    try:
        for i in range(3000):
            full.set(b"/k%d" % i, b"x" * 1000)
        full.num_keys()
        raise RuntimeError("3 MB fitted into 1 MiB")
    except (AssertionError, ConnectionResetError, BrokenPipeError):
        pass
    assert 100 < good.num_keys() < 1100
    good.set(b"/k0", b"again")
    assert good.get(b"/k0") == b"again"
    good.close(), full.close()


def test_a_store_client_that_does_not_read_is_closed(start_server):
    s = start_server("--max-unread", "1M")
    good, lazy = StoreClient(s), StoreClient(s)
    good.set(b"/big", b"x" * 1000000)
    good.num_keys()
    lazy.sock.settimeout(mulib.PATIENCE)
    try:
        for _ in range(2000):
            lazy.sock.sendall(packed(GET, b"/big"))
    except (ConnectionResetError, BrokenPipeError):
        pass
    s.log.wait(r"store\.closed .*read")
    assert good.get(b"/big") == b"x" * 1000000
    good.close(), lazy.close()


def test_an_agent_that_does_not_read_is_closed(start_server):
    s = start_server()
    good, lazy = Agent(s, run_id="a", nnodes=(2, 2)), Agent(s, run_id="b", nnodes=(2, 2))
    good.expect("welcome"), lazy.expect("welcome")
    lazy.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    beats = mulib.frame({"type": "beat", "round": 0}) * 1000
    try:
        for _ in range(2000):
            lazy.sock.sendall(beats)
    except (ConnectionResetError, BrokenPipeError, TimeoutError):
        pass
    s.log.wait(r"agent\.closed .*(does not read|timed out)")  # By our limit, or the kernel's patience.
    good.send("beat", round=0)
    good.expect("beat")
    good.close(), lazy.close()


def test_silence_beyond_the_fence_time_loses_a_member(start_server):
    s = start_server("--lease", "0.5", "--beat", "0.1")
    a, b = Agent(s, host="n1", nnodes=(1, 2)), Agent(s, host="n2", nnodes=(1, 2))
    for agent in (a, b):
        assert agent.expect("welcome")["lease_ms"] == 500
        assert agent.expect("start")["fence_ms"] == 500  # The job could go on without it.
        agent.started()
    a.sock.settimeout(0.1)
    end = time.monotonic() + mulib.PATIENCE
    while time.monotonic() < end:  # b says nothing any more.
        try:
            a.send("beat", round=1)
            stop = a.expect("stop")
            break
        except TimeoutError:
            pass
    assert stop["cause"]["kind"] == "node_silent" and stop["cause"]["host"] == "n2"
    a.close(), b.close()


@pytest.mark.skipif("mulib.is_sanitized()", reason="figures are for a build without sanitizers")
def test_idle_server_is_small_and_sleeps(start_server):
    s = start_server()
    StoreClient(s).close()
    assert mulib.memory_kb(s.process.pid) <= 4096
    before = mulib.cpu_ticks(s.process.pid)
    idle = StoreClient(s)
    idle.sock.settimeout(2)
    with pytest.raises(TimeoutError):
        idle.sock.recv(1)
    assert mulib.cpu_ticks(s.process.pid) - before <= 1
    idle.close()


@pytest.mark.skipif("mulib.is_sanitized()", reason="figures are for a build without sanitizers")
def test_idle_store_connections_cost_at_most_1200_bytes(start_server):
    s = start_server()
    n = 3000
    with closing_all() as held:
        for _ in range(100):
            held.append(StoreClient(s))  # So that pools and tables have grown once.
        before = mulib.memory_kb(s.process.pid, "Rss")
        for _ in range(n):
            held.append(StoreClient(s))
        cost = (mulib.memory_kb(s.process.pid, "Rss") - before) * 1024 / n
    assert cost <= 1229, cost


@pytest.mark.skipif("mulib.is_sanitized()", reason="figures are for a build without sanitizers")
def test_status_of_a_thousand_nodes_takes_less_than_10_ms(start_server):
    s = start_server("--lease", "60")
    n = 1000
    with closing_all() as agents:
        for i in range(n):
            agents.append(Agent(s, host=f"n{i}", nproc=8, nnodes=(n, n)))
        for a in agents:
            a.expect("welcome"), a.expect("start")
            a.started()
        s.wait_status(lambda st: all(x["state"] == "running" for x in st["jobs"][0]["nodes"]), "all run")
        pause = threading.Event()
        best = 1e9
        for _ in range(5):
            pause.wait(0.06)  # So that it is written anew.
            before = mulib.cpu_ms(s.process.pid)  # Not the clock's time: others may use this machine too.
            assert len(s.get("/status")[2]) > 1000000
            best = min(best, mulib.cpu_ms(s.process.pid) - before)
    assert best < 10, best
