"""Whoever is no caller of ours disturbs nobody and leaves nothing behind."""
import random
import contextlib
import socket

import mulib
from mulib import MAGIC, PING, SET, VALIDATE, Agent, StoreClient, closing_all, frame, packed


class Regulars:
    """A store client that waits and a running round: what strangers must not disturb."""

    def __init__(self, server):
        self.store = StoreClient(server)
        self.store.send(mulib.WAIT, ("Q", 1), b"/end")
        self.agents = [Agent(server, run_id="regular", host=f"n{i}", nnodes=(2, 2)) for i in range(2)]
        for a in self.agents:
            a.expect("welcome"), a.expect("start")
            a.started()

    def are_undisturbed(self, server):
        j = server.job("regular")
        assert j["state"] == "running" and j["round"] == 1 and j["restarts"] == 0
        for a in self.agents:
            a.send("beat", round=1)
            a.expect("beat")
        c = StoreClient(server)
        c.set(b"/end", b"")
        assert self.store.take("B") == 0
        c.close()

    def close(self):
        self.store.close()
        for a in self.agents:
            a.close()


def only_regulars(s):
    return s["server"]["connections"] == 3


def test_a_thousand_random_byte_strings(server):
    regulars = Regulars(server)
    rng = random.Random(4711)
    for i in range(1000):
        s = server.connect()
        s.sendall(rng.randbytes(rng.randint(1, 300)))
        if i % 3 == 0:
            mulib.reset(s)
        else:
            s.close()
    server.wait_status(only_regulars, "strangers are gone")
    regulars.are_undisturbed(server)
    regulars.close()


def test_random_bytes_behind_a_right_beginning(server):
    regulars = Regulars(server)
    rng = random.Random(815)
    hello = frame({"type": "hello"})
    beginnings = [b"MUSTER/1\n", b"MUSTER/1\n" + hello, b"MUSTER/1\n\0\0", b"GET /status HTTP/1.1\r\n", b"POST ",
                  packed(VALIDATE, ("I", MAGIC)), packed(VALIDATE, ("I", MAGIC), PING, ("I", 1), SET), b"\x16\x03\x01", b"M",
                  b"\x00", b"\x05"]
    for i in range(600):
        s = server.connect()
        s.sendall(beginnings[i % len(beginnings)] + rng.randbytes(rng.randint(0, 60)))
        s.close()
    server.wait_status(only_regulars, "strangers are gone")
    regulars.are_undisturbed(server)
    regulars.close()


def test_half_frames_time_out_and_disturb_nobody(start_server):
    s = start_server("--first-bytes-timeout", "0.5")
    regulars = Regulars(s)
    halves = [b"M", b"MUSTER/1", b"MUSTER/1\n", b"MUSTER/1\n\0\0", b"MUSTER/1\n" + frame({"type": "hello"})[:9], b"GE",
              b"\x00", b"\x00\xce\xf7", b"\x16"]
    with closing_all() as socks:
        for half in halves:
            c = s.connect()
            socks.append(c)
            c.sendall(half)
        for half, c in zip(halves, socks):
            assert mulib.ends(c), half
    regulars.are_undisturbed(s)
    regulars.close()


def test_two_thousand_silent_connections(start_server):
    s = start_server("--first-bytes-timeout", "2")
    regulars = Regulars(s)
    ticks = mulib.cpu_ticks(s.process.pid)
    with closing_all() as socks:
        for _ in range(2000):
            socks.append(s.connect())
        regulars.are_undisturbed(s)
        for c in socks:
            assert mulib.ends(c)
    s.wait_status(only_regulars, "the silent ones are gone")
    if not mulib.is_sanitized():
        assert mulib.cpu_ticks(s.process.pid) - ticks < 100  # 1 s: nobody spun for them.
    regulars.close()


def test_bytes_that_are_only_looked_at_do_not_make_it_spin(start_server):
    """A lone 'M' may become an agent: it stays in the socket, which must not keep the loop awake."""
    s = start_server("--first-bytes-timeout", "1")
    c = s.connect()
    c.sendall(b"MUST")
    s.wait_status(lambda st: st["server"]["connections"] >= 1, "it is there")
    before = mulib.cpu_ticks(s.process.pid)
    assert mulib.ends(c)  # A second later.
    assert mulib.cpu_ticks(s.process.pid) - before < 20  # A spinning loop would have taken 100.
    c.close()


def test_strangers_are_told_apart_in_the_log(server):
    for first, says in ((b"\x16\x03\x01\x02\x00", "TLS is not served"), (b"SSH-2.0-x\r\n", "neither a store client"),
                        (b"MUSTER/9\n", "neither a store client")):
        c = server.connect()
        c.sendall(first)
        if first.startswith(b"\x16"):
            assert c.recv(7) == b"\x15\x03\x01\x00\x02\x02\x46"  # An alert: protocol_version.
        assert mulib.ends(c)
        server.log.wait(rf"conn\.closed .*{says}")
        c.close()


def test_log_lines_of_strangers_are_limited(server):
    for _ in range(300):
        c = server.connect()
        c.sendall(b"\xff\xff")
        assert mulib.ends(c)
        c.close()
    assert server.log.text().count("conn.closed") < 60


def test_half_closed_clients_are_gone(server):
    c = StoreClient(server)
    c.sock.shutdown(socket.SHUT_WR)
    assert c.is_closed()
    a = Agent(server, nnodes=(2, 2))
    a.expect("welcome")
    a.sock.shutdown(socket.SHUT_WR)
    a.expect_closed()
    c.close()


def test_slow_questions_lock_nobody_out(server):
    """More connections than there is room for, each of which sends a byte now and then: who asks in one piece is answered."""
    slow = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(300)]
    try:
        for s in slow:
            s.sendall(b"GET /status HTTP/1.1\r\nHost: x\r\nX-Slow: ")
        for _ in range(5):
            code, _, _ = server.get("/healthz")
            assert code == 200
            for s in slow:
                with contextlib.suppress(OSError):
                    s.sendall(b"x")
    finally:
        for s in slow:
            s.close()
