#!/usr/bin/env python3
"""What a PyTorch 2 program may expect of its store, asked with torch's own client.

store_cases.py HOST PORT       run every case; one JSON line each: {"case", "ok", "text"}
store_cases.py --list          their names

A case is a function that gets a maker of clients and a key prefix of its own; it fails by an exception. Each has a deadline, by SIGALRM:
some calls of torch's client wait without one.
"""
import json
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from datetime import timedelta

LIMIT_S = 120
SHORT = timedelta(milliseconds=300)
CASES = {}


def case(f):
    CASES[f.__name__] = f
    return f


def raises(kind, call):
    try:
        got = call()
    except kind:
        return
    raise AssertionError(f"expected {kind.__name__}, got {got!r}")


def later(call):
    """Run it beside; join() gives its result or raises what it raised."""
    box = {}

    def body():
        try:
            box["value"] = call()
        except BaseException as e:  # noqa: BLE001 - handed to the caller
            box["error"] = e

    t = threading.Thread(target=body, daemon=True)
    t.start()

    def join(limit_s=LIMIT_S):
        t.join(limit_s)
        assert not t.is_alive(), "still waiting"
        if "error" in box:
            raise box["error"]
        return box["value"]

    join.running = t.is_alive
    return join


class Peer:
    """A client without torch, for what torch's client never sends."""

    def __init__(self, host, port):
        self.s = socket.create_connection((host, port), 10)
        self.s.settimeout(10)

    def send(self, *parts):
        self.s.sendall(b"".join(parts))
        return self

    def hello(self):
        self.send(b"\x00", struct.pack("<I", 0x3C85F7CE), b"\x0d", struct.pack("<I", 77))
        assert self.read(4) == struct.pack("<I", 77)
        return self

    def read(self, n):
        got = b""
        while len(got) < n:
            some = self.s.recv(n - len(got))
            assert some, f"closed after {got!r}"
            got += some
        return got

    def closed(self):
        try:
            return self.s.recv(1) == b""
        except ConnectionError:
            return True

    def silent(self, seconds):
        self.s.settimeout(seconds)
        try:
            got = self.s.recv(1)
        except TimeoutError:
            return True
        raise AssertionError(f"expected silence, got {got!r}")


def text(s):
    raw = s.encode() if isinstance(s, str) else s
    return struct.pack("<Q", len(raw)) + raw


# --- values ---

@case
def set_and_get(new, key):
    a, b = new(), new()
    a.set(key + "k", "value")
    assert b.get(key + "k") == b"value"
    a.set(key + "k", b"\x00\xff\n")
    a.num_keys()  # SET has no answer: this one comes after it.
    assert b.get(key + "k") == b"\x00\xff\n"


@case
def empty_value(new, key):
    a = new()
    a.set(key + "k", "")
    assert a.get(key + "k") == b"" and a.check([key + "k"])


@case
def large_values(new, key):
    a = new()
    for n in (1439, 1440, 4096, 65537, 1 << 20, 8 << 20):
        a.set(key + "k", b"x" * n)
        assert a.get(key + "k") == b"x" * n


@case
def many_keys(new, key):
    a, before = new(), new().num_keys()
    for i in range(2000):
        a.set(f"{key}{i}", str(i))
    assert a.num_keys() == before + 2000
    assert a.multi_get([f"{key}{i}" for i in range(2000)]) == [str(i).encode() for i in range(2000)]


@case
def get_waits_for_its_key(new, key):
    a, got = new(), later(lambda: new().get(key + "k"))
    a.set(key + "k", "v")
    assert got() == b"v"


@case
def get_of_a_missing_key_times_out(new, key):
    from torch.distributed import DistStoreError
    a = new()
    a.set_timeout(SHORT)
    raises(DistStoreError, lambda: a.get(key + "k"))
    a.set(key + "k", "v")
    assert a.get(key + "k") == b"v"  # The same connection goes on.


@case
def add_counts(new, key):
    a, b = new(), new()
    assert [a.add(key + "n", 1), b.add(key + "n", 41), a.add(key + "n", -2), b.add(key + "n", 0)] == [1, 42, 40, 40]
    assert a.get(key + "n") == b"40"


@case
def add_reads_what_set_wrote(new, key):
    a = new()
    for stored, expected in (("7", 8), (" 12abc", 13), ("-3", -2)):
        a.set(key + "n", stored)
        assert a.add(key + "n", 1) == expected


@case
def add_on_words_ends_that_connection_alone(new, key):
    from torch.distributed import DistNetworkError
    a, b = new(), new()
    a.set(key + "n", "words")
    raises(DistNetworkError, lambda: a.add(key + "n", 1))
    assert b.get(key + "n") == b"words"


@case
def add_from_many(new, key):
    clients = [new() for _ in range(16)]
    joins = [later(lambda c=c: [c.add(key + "n", 1) for _ in range(50)]) for c in clients]
    seen = sorted(v for j in joins for v in j())
    assert seen == list(range(1, 801))


@case
def compare_set_table(new, key):
    a, k = new(), key + "k"
    assert a.compare_set(k, "other", "v") == b"other"  # Missing: an echo, and nothing is made.
    assert not a.check([k])
    assert a.compare_set(k, "", "v") == b"v"
    assert a.compare_set(k, "x", "w") == b"v"
    assert a.compare_set(k, "v", "w") == b"w"
    assert a.get(k) == b"w"


@case
def compare_set_has_one_winner(new, key):
    clients = [new() for _ in range(8)]
    joins = [later(lambda c=c, i=i: c.compare_set(key + "k", "", f"c{i}")) for i, c in enumerate(clients)]
    answers = {j() for j in joins}
    assert answers == {clients[0].get(key + "k")}


@case
def delete_key(new, key):
    a = new()
    a.set(key + "k", "v")
    assert a.delete_key(key + "k") is True
    assert a.delete_key(key + "k") is False and not a.check([key + "k"])


@case
def append(new, key):
    a, got = new(), later(lambda: new().get(key + "k"))
    a.append(key + "k", "one")
    a.append(key + "k", "two")
    assert got() in (b"one", b"onetwo")
    a.num_keys()
    assert a.get(key + "k") == b"onetwo"


@case
def multi_set_and_get(new, key):
    a, b = new(), new()
    a.multi_set([key + "a", key + "b", key + "a"], ["1", "2", "3"])
    a.num_keys()
    assert b.multi_get([key + "b", key + "a", key + "b"]) == [b"2", b"3", b"2"]


@case
def check(new, key):
    a = new()
    a.set(key + "a", "1")
    assert a.check([key + "a"]) and not a.check([key + "a", key + "b"]) and a.check([])


@case
def list_keys(new, key):
    a = new()
    a.set(key + "a", "1")
    a.add(key + "n", 1)
    assert {k for k in a.list_keys() if k.startswith(key)} == {key + "a", key + "n"}


# --- waiting ---

@case
def wait_for_several(new, key):
    a, b = new(), new()
    done = later(lambda: b.wait([key + "a", key + "b"]))
    a.set(key + "a", "1")
    a.add(key + "b", 1)
    done()


@case
def wait_times_out_and_the_connection_goes_on(new, key):
    from torch.distributed import DistStoreError
    a = new()
    a.set(key + "there", "1")
    for _ in range(5):
        raises(DistStoreError, lambda: a.wait([key + "there", key + "never"], SHORT))
        assert a.get(key + "there") == b"1"


@case
def wait_counts_writes(new, key):
    a, b = new(), Peer(*new.where).hello()
    b.send(b"\x06", struct.pack("<Q", 2), text("/" + key + "a"), text("/" + key + "b"))
    b.send(b"\x0d", struct.pack("<I", 5))
    assert b.read(4) == struct.pack("<I", 5)  # Other requests are answered while it waits.
    a.set(key + "a", "1")
    a.delete_key(key + "a")
    b.silent(0.2)
    b.s.settimeout(10)
    a.set(key + "b", "1")
    assert b.read(1) == b"\x00"


@case
def cancel_wait(new, key):
    b = Peer(*new.where).hello()
    b.send(b"\x06", struct.pack("<Q", 1), text("/" + key + "a"), b"\x0c")
    assert b.read(1) == b"\x01"
    b.send(b"\x0c")
    assert b.read(1) == b"\x01"
    new().set(key + "a", "1")
    b.silent(0.2)


@case
def a_waiter_that_dies_is_forgotten(new, key):
    a = new()
    for _ in range(50):
        Peer(*new.where).hello().send(b"\x06", struct.pack("<Q", 1), text("/" + key + "a")).s.close()
    a.set(key + "a", "1")
    assert a.get(key + "a") == b"1"


# --- queues ---

@case
def queue_is_a_fifo(new, key):
    a = new()
    for v in ("1", "2", "3"):
        a.queue_push(key + "q", v)
    assert a.queue_len(key + "q") == 3
    assert [a.queue_pop(key + "q") for _ in range(3)] == [b"1", b"2", b"3"]
    from torch.distributed import QueueEmptyError
    raises(QueueEmptyError, lambda: a.queue_pop(key + "q", False))


@case
def queue_pop_waits(new, key):
    a, got = new(), later(lambda: new().queue_pop(key + "q"))
    a.queue_push(key + "q", "late")
    assert got() == b"late"


@case
def queue_gives_each_item_once(new, key):
    a = new()

    def pop():
        c = new()
        while True:
            try:
                return c.queue_pop(key + "q")
            except RuntimeError as e:  # Blocking pop is WAIT and then POP: a faster client may come between.
                if "queue is empty" not in str(e):
                    raise

    joins = [later(pop) for _ in range(6)]
    waiting = time.monotonic() + LIMIT_S
    for i in range(6):
        a.queue_push(key + "q", str(i))
    assert sorted(j(max(0, waiting - time.monotonic())) for j in joins) == [str(i).encode() for i in range(6)]


# --- meeting ---

@case
def barrier_of_four(new, key):
    joins = [later(lambda: new().barrier(key + "b", 4, timedelta(seconds=100))) for _ in range(3)]
    a = new()
    # Not with add(): a write would let them go. And not with get() alone: an arrival that does not complete wakes nobody who waits.
    while not a.check([key + "b"]) or int(a.get(key + "b")) < 3:
        pass
    assert all(j.running() for j in joins)
    new().barrier(key + "b", 4, timedelta(seconds=100))
    for j in joins:
        j()


@case
def barrier_times_out(new, key):
    from torch.distributed import DistStoreError
    a = new()
    raises(DistStoreError, lambda: a.barrier(key + "b", 2, SHORT))
    a.set(key + "k", "v")
    assert a.get(key + "k") == b"v"


@case
def world_size_is_counted(new, key):
    counted = lambda: struct.unpack("<q", Peer(*new.where).hello().send(b"\x04", text("init/"), struct.pack("<q", 0)).read(8))[0]  # noqa: E731
    before = counted()
    for _ in range(3):
        new(world_size=3)
    assert counted() - before == 3


@case
def prefix_store(new, key):
    from torch.distributed import PrefixStore
    a = new()
    p = PrefixStore(key + "p", PrefixStore("inner", a))
    p.set("k", "v")
    assert p.get("k") == b"v" and a.get(f"inner/{key}p/k") == b"v"
    assert p.add("n", 2) == 2 and p.check(["k", "n"])


@case
def clone(new, key):
    a = new()
    b = a.clone()
    a.set(key + "k", "v")
    assert b.get(key + "k") == b"v"


@case
def process_groups_of_gloo(new, key):
    """init, a collective, a subgroup and the end, of three ranks in processes of their own."""
    import subprocess
    script = ("import sys, torch, torch.distributed as d\n"
              "host, port, rank, prefix = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]\n"
              "s = d.PrefixStore(prefix, d.TCPStore(host, port, 3, False))\n"
              "d.init_process_group('gloo', store=s, rank=rank, world_size=3)\n"
              "t = torch.tensor([rank + 1.0]); d.all_reduce(t); assert t.item() == 6, t\n"
              "g = d.new_group([0, 2])\n"
              "if rank != 1:\n"
              "    t = torch.tensor([1.0]); d.all_reduce(t, group=g); assert t.item() == 2, t\n"
              "d.barrier(); d.destroy_process_group()\n")
    ranks = [subprocess.Popen([sys.executable, "-c", script, new.where[0], str(new.where[1]), str(r), key]) for r in range(3)]
    assert [p.wait(120) for p in ranks] == [0, 0, 0]


# --- peers that misbehave ---

@case
def handshake_split_anywhere(new, key):
    whole = b"\x00" + struct.pack("<I", 0x3C85F7CE) + b"\x0d" + struct.pack("<I", 9)
    for at in range(1, len(whole)):
        p = Peer(*new.where).send(whole[:at])
        p.silent(0.02)
        p.s.settimeout(10)
        assert p.send(whole[at:]).read(4) == struct.pack("<I", 9)


@case
def wrong_beginnings_are_closed(new, key):
    for start in (b"\x00" + struct.pack("<I", 0x12345678) + b"\x0d\x00\x00\x00\x00", b"\xff" * 64):
        assert Peer(*new.where).send(start).closed()
    assert Peer(*new.where).hello().send(b"\x13").closed()
    assert Peer(*new.where).hello().send(b"\x00", struct.pack("<I", 0x3C85F7CE)).closed()


@case
def a_half_sent_request_stops_nobody(new, key):
    half = Peer(*new.where).hello().send(b"\x01", text("/" + key + "k"), struct.pack("<Q", 1000), b"x" * 10)
    a = new()
    a.set(key + "other", "v")
    assert a.get(key + "other") == b"v" and not a.check([key + "k"])
    half.s.close()
    assert not new().check([key + "k"])


@case
def fifty_thousand_requests_in_one_stream(new, key):
    p, k = Peer(*new.where).hello(), text("/" + key + "n")
    p.s.settimeout(30)
    sender = later(lambda: p.send((b"\x04" + k + struct.pack("<q", 1)) * 50000))
    got = p.read(50000 * 8)
    sender()
    assert struct.unpack("<50000q", got) == tuple(range(1, 50001))


# --- running them ---

def maker(host, port):
    from torch.distributed import TCPStore

    def new(**kw):
        kw.setdefault("timeout", timedelta(seconds=100))
        return TCPStore(host, port, is_master=False, wait_for_workers=False, **kw) if "world_size" not in kw else \
            TCPStore(host, port, kw.pop("world_size"), False, wait_for_workers=True, **kw)

    new.where = (host, port)
    return new


def overdue(*_):
    raise TimeoutError(f"not done within {LIMIT_S} s")


def main():
    if sys.argv[1:] == ["--list"]:
        print("\n".join(CASES))
        return
    new = maker(sys.argv[1], int(sys.argv[2]))
    signal.signal(signal.SIGALRM, overdue)
    for name, run in CASES.items():
        signal.alarm(LIMIT_S)
        try:
            run(new, name + "/")
            ok, why = True, ""
        except Exception as e:  # noqa: BLE001 - this is the report
            ok, why = False, "".join(traceback.format_exception(e, limit=-3))
        signal.alarm(0)
        print(json.dumps({"case": name, "ok": ok, "text": why}), flush=True)


if __name__ == "__main__":
    main()
