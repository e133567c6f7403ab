"""The store through the port, byte by byte. Its own rules have tests of their own; here the shell counts: splits, order,
waiting, many clients, ends."""
import socket
import struct

import pytest

import mulib
from mulib import (ADD, APPEND, BARRIER, CANCEL_WAIT, CHECK, DELETE_KEY, GET, LIST_KEYS, MAGIC, MULTI_GET, MULTI_SET, PING,
                   QUEUE_LEN, QUEUE_POP, QUEUE_PUSH, SET, VALIDATE, WAIT, StoreClient, packed)


def test_set_get_add_and_count(server):
    a, b = StoreClient(server), StoreClient(server)
    a.set(b"/k", b"v\0w")
    assert a.num_keys() == 1
    assert b.get(b"/k") == b"v\0w"
    assert a.add(b"/n", 5) == 5 and b.add(b"/n", -7) == -2
    b.send(CHECK, ("Q", 2), b"/k", b"/none")
    assert b.take("B") == 1
    b.send(DELETE_KEY, b"/k")
    assert b.take("q") == 1
    b.send(APPEND, b"/app", b"one")
    b.send(APPEND, b"/app", b"two")
    assert b.get(b"/app") == b"onetwo"
    a.send(MULTI_SET, ("Q", 2), b"/m1", b"1", b"/m2", b"2")
    a.send(MULTI_GET, ("Q", 2), b"/m2", b"/m1")
    assert (a.take_bytes(), a.take_bytes()) == (b"2", b"1")
    a.send(LIST_KEYS)
    assert sorted(a.take_bytes() for _ in range(a.take("q"))) == [b"/app", b"/m1", b"/m2", b"/n"]
    for c in (a, b):
        c.close()


def test_wait_wakes_another_connection_and_can_be_cancelled(server):
    a, b = StoreClient(server), StoreClient(server)
    a.send(WAIT, ("Q", 1), b"/later")
    a.send(PING, ("I", 1))
    assert a.take("I") == 1  # A pending wait does not block its connection.
    b.set(b"/later", b"x")
    assert a.take("B") == 0
    a.send(WAIT, ("Q", 1), b"/never")
    a.send(CANCEL_WAIT)
    assert a.take("B") == 1
    a.close(), b.close()


def test_barrier_and_queue(server):
    clients = [StoreClient(server) for _ in range(3)]
    for c in clients:
        c.send(BARRIER, b"/bar", ("q", 3))
    assert [c.take("B") for c in clients] == [0, 0, 0]
    clients[0].send(QUEUE_PUSH, b"/q", b"item")
    clients[0].send(QUEUE_LEN, b"/q")
    assert clients[0].take("q") == 1
    clients[1].send(QUEUE_POP, b"/q")
    assert clients[1].take("q") == 1 and clients[1].take_bytes() == b"item"
    for c in clients:
        c.close()


def test_requests_that_come_one_byte_at_a_time(server):
    c = StoreClient(server, handshake=False)
    for byte in packed(VALIDATE, ("I", MAGIC), PING, ("I", 99), SET, b"/slow", b"value", GET, b"/slow"):
        c.sock.sendall(bytes([byte]))
    assert c.take("I") == 99 and c.take_bytes() == b"value"
    c.close()


def test_50000_requests_in_one_write_are_answered_in_order(server):
    c = StoreClient(server)
    n = 50000
    c.sock.sendall(packed(ADD, b"/n", ("q", 1)) * n)
    assert struct.unpack(f"<{n}q", c.raw(8 * n)) == tuple(range(1, n + 1))
    c.close()


def test_large_value_comes_back_whole(server):
    a, b = StoreClient(server), StoreClient(server)
    value = bytes(range(256)) * 32768  # 8 MiB: the largest by default
    a.set(b"/big", value)
    assert a.num_keys() == 1
    assert b.get(b"/big") == value
    a.close(), b.close()


def test_bad_request_ends_its_own_connection_only(server):
    good = StoreClient(server)
    good.send(WAIT, ("Q", 1), b"/go")
    for bad in (packed(200), packed(VALIDATE, ("I", MAGIC)), packed(SET, ("Q", 1 << 62)), packed(CHECK, ("Q", 1 << 40))):
        c = StoreClient(server)
        c.set(b"/before", b"kept")
        c.sock.sendall(bad)
        assert c.is_closed()
        c.close()
    server.log.wait(r"store\.closed")
    other = StoreClient(server)
    assert other.get(b"/before") == b"kept"
    other.set(b"/go", b"")
    assert good.take("B") == 0
    good.close(), other.close()


def test_a_client_that_ends_is_forgotten_with_its_waits(server):
    c = StoreClient(server)
    c.send(WAIT, ("Q", 1), b"/w")
    server.wait_status(lambda s: s["server"]["store"]["waiting"] == 1, "one waits")
    mulib.reset(c.sock)
    s = server.wait_status(lambda s: s["server"]["store"]["clients"] == 0, "it is gone")
    assert s["server"]["store"]["waiting"] == 0


def test_a_legacy_client_is_told_by_its_first_bytes(server):
    c = StoreClient(server, handshake=False)
    c.sock.sendall(packed(0, b"/old", b"value", 2, b"/old"))  # 1.13: SET is 0, GET is 2.
    assert c.take_bytes() == b"value"
    new = StoreClient(server)
    assert new.get(b"/old") == b"value"  # One key space.
    c.close(), new.close()


def test_silent_twin_of_a_legacy_client_is_kept_while_that_lives(start_server):
    """PyTorch 1.13 opens two connections, one of which never speaks; its process aborts when that is closed."""
    s = start_server("--first-bytes-timeout", "0.3", "--log-level", "info")
    stray = s.connect()
    assert stray.recv(1) == b""  # Nobody of this host is a legacy client yet: closed in time.
    old = StoreClient(s, handshake=False)
    old.sock.sendall(packed(0, b"/k", b"v", 2, b"/k"))
    assert old.take_bytes() == b"v"
    twin, excess = s.connect(), s.connect()
    # Twin and excess have the same deadline and are looked at in the order they came.
    assert excess.recv(1) == b""
    old.sock.sendall(packed(2, b"/k"))
    assert old.take_bytes() == b"v"
    twin.setblocking(False)
    try:
        assert twin.recv(1) == "open", "the twin was closed"
    except BlockingIOError:
        pass
    # It may still speak, and is served then.
    twin.settimeout(mulib.PATIENCE)
    twin.sendall(packed(2, b"/k"))
    assert twin.recv(64) == struct.pack("<Q", 1) + b"v"
    twin.close(), old.close()


def test_silent_twin_goes_with_its_client(start_server):
    s = start_server("--first-bytes-timeout", "0.3")
    old = StoreClient(s, handshake=False)
    old.sock.sendall(packed(0, b"/k", b"v", 2, b"/k"))
    old.take_bytes()
    twin, excess = s.connect(), s.connect()
    assert excess.recv(1) == b""  # So the twin is parked now.
    old.close()
    assert twin.recv(1) == b""
    twin.close(), excess.close()


def test_requests_before_the_clients_end_are_answered(server):
    """Data and end arrive together or one by one: either way the answers come first, then our end."""
    for pings in (1, 3, 20000):
        c = StoreClient(server)
        c.sock.sendall(packed(PING, ("I", 7)) * pings)
        c.sock.shutdown(socket.SHUT_WR)
        assert c.raw(4 * pings) == (7).to_bytes(4, "little") * pings
        assert c.is_closed()
        c.close()


@pytest.mark.parametrize("extra", [-1, 0, 1])
@pytest.mark.parametrize("reads", [1, 16, 17])
def test_requests_that_fill_whole_reads_are_all_answered(server, reads, extra):
    """The server reads 64 KiB at a time and takes turns after 1 MiB: nothing may stay behind at such a border."""
    c = StoreClient(server)
    size = reads * 65536 + extra
    tail = packed(PING, ("I", 9))
    request = packed(SET, b"/k", b"")
    request += packed(SET, b"/k", b"x" * (size - len(request) * 2 - len(tail))) + tail
    assert len(request) == size
    for _ in range(3):
        c.sock.sendall(request)
        assert c.take("I") == 9
    many = packed(PING, ("I", 5)) * (size // 5)
    c.sock.sendall(many)
    assert c.raw(size // 5 * 4) == (5).to_bytes(4, "little") * (size // 5)
    c.close()
