#!/usr/bin/env python3
"""The worker of the field cases: tells what happens to it in a file that all hosts see.

field_worker.py FILE N [option...]    A line is `time what host pid RANK WORLD_SIZE GROUP_RANK RESTART_COUNT MASTER_ADDR:MASTER_PORT`.
It tells `start`; at SIGTERM `term`, and exits with 143; after N seconds, or as soon as FILE.go exists, `end`, and exits with 0.

fail=GROUP_RANK:LOCAL_RANK:RESTART_COUNT:AFTER:STATUS   that one exits with STATUS after AFTER seconds ('*': any)
say=TEXT       before that it writes TEXT on stderr
error=TEXT     and an error file with this message
complain=N:AFTER  all others write N lines and exit with 1, told to stop or by themselves AFTER seconds from their start
usr1           notes SIGUSR1 as `usr1` and goes on
save=SECONDS   at SIGTERM it takes so long, tells `saved` and exits with 0
deaf           SIGTERM is ignored
store          sets id/RANK in the worker store, and exits with 9 if it was there already; touches it again at the end
connect        tells `answers` or `silent`: does MASTER_ADDR:MASTER_PORT take a connection?
"""
import json
import os
import signal
import socket
import sys
import time

E = os.environ
FILE, SECONDS = sys.argv[1], float(sys.argv[2])
RANK = E["RANK"].encode()
OPTIONS = {name: text for name, _, text in (word.partition("=") for word in sys.argv[3:])}
PLACE = (E["GROUP_RANK"], E["LOCAL_RANK"], E["TORCHELASTIC_RESTART_COUNT"])
STORE = E["MASTER_ADDR"], int(E["MASTER_PORT"])


def tell(what):
    words = (f"{time.time():.3f}", what, socket.gethostname(), os.getpid(), E["RANK"], E["WORLD_SIZE"], E["GROUP_RANK"],
             E["TORCHELASTIC_RESTART_COUNT"], "%s:%d" % STORE)
    fd = os.open(FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    os.write(fd, (" ".join(map(str, words)) + "\n").encode())
    os.close(fd)


def complain():
    for i in range(int(OPTIONS["complain"].split(":")[0])):
        os.write(2, f"rank {E['RANK']} complains, line {i}\n".encode())
    os._exit(1)


def on_term(*_):
    tell("term")
    if "complain" in OPTIONS:
        complain()
    if "save" in OPTIONS:
        end = time.monotonic() + float(OPTIONS["save"])
        while time.monotonic() < end:
            time.sleep(0.05)
        tell("saved")
        os._exit(0)
    os._exit(143)


def fail(status):
    if "say" in OPTIONS:
        os.write(2, OPTIONS["say"].encode() + b"\n")
    if "error" in OPTIONS:
        with open(E["TORCHELASTIC_ERROR_FILE"], "w", encoding="ascii") as f:
            json.dump({"message": OPTIONS["error"], "timestamp": str(int(time.time()))}, f)
    os._exit(int(status))


def keys(first):
    """PyTorch's protocol, by hand: a worker of a test needs no torch."""
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "blackbox"))
    from mulib import StoreClient  # pylint: disable=import-outside-toplevel

    class Place:
        @staticmethod
        def connect(_):
            return socket.create_connection(STORE, timeout=20)

    c = StoreClient(Place)
    if first and c.add(b"count/" + RANK, 1) != 1:
        tell("stale")
        os._exit(9)
    c.set(b"id/" + RANK, E["TORCHELASTIC_RESTART_COUNT"].encode())
    assert c.get(b"id/" + RANK) == E["TORCHELASTIC_RESTART_COUNT"].encode()
    c.close()


def connect():
    try:
        socket.create_connection(STORE, timeout=10).close()
        tell("answers")
    except OSError:
        tell("silent")


def main():
    signal.signal(signal.SIGTERM, signal.SIG_IGN if "deaf" in OPTIONS else on_term)
    if "usr1" in OPTIONS:
        signal.signal(signal.SIGUSR1, lambda *_: tell("usr1"))
    tell("start")
    began = time.monotonic()
    after, status = SECONDS, None
    if "fail" in OPTIONS:
        *place, seconds, code = OPTIONS["fail"].split(":")
        if all(want in ("*", here) for want, here in zip(place, PLACE)):
            after, status = float(seconds), code
    if status is None and "complain" in OPTIONS:
        after = float(OPTIONS["complain"].split(":")[1])
    if "store" in OPTIONS:
        keys(True)
    if "connect" in OPTIONS:
        connect()
    while time.monotonic() - began < after and not (status is None and os.path.exists(FILE + ".go")):
        time.sleep(0.02)
    if status is not None:
        fail(status)
    if "complain" in OPTIONS and not os.path.exists(FILE + ".go"):
        complain()
    if "store" in OPTIONS:
        keys(False)
    tell("end")


main()
