"""Hosts that are cut off: from all others or some, in both directions or one; and one that is merely slow."""
import os
import subprocess
import time

import pytest
from conftest import HERE
from procs import pids_with, still_there

WORKER = HERE / "worker.py"
LEASE_S = 3
AT_MOST_S = LEASE_S + 5  # A worker's start on a busy machine is in it.


def agents(lab, events, which, nnodes, *words):
    return [lab.agent(i, f"--nnodes={nnodes}", "--nproc-per-node=1", "--rdzv=n1:29500", "--rdzv-conf=last_call_timeout=2", *words,
                      WORKER, events.path) for i in which]


def workers_on(lab, events, host):
    return [p for p in pids_with(events.path, "python3") if lab.is_on(p, host)]


def finish(lab, started, *procs):
    for e in started:
        lab.lab("exec", e["host"].removeprefix("n"), "kill", "-USR2", e["pid"])
    assert [p.wait(30) for p in procs] == [0] * len(procs)


def alone_after(lab, events, cut, count):
    """The others go on without n2, whose workers are gone before theirs start."""
    theirs = workers_on(lab, events, 2)
    assert theirs
    began_ns = time.monotonic_ns()
    lab.lab(*cut)
    alone = events.take(count, AT_MOST_S + 20)
    assert not still_there(theirs, time.monotonic_ns()), "it stopped its workers before others took their place"
    assert "n2" not in {e["host"] for e in alone} and {e["world"] for e in alone} == {count}
    assert (alone[-1]["ns"] - began_ns) / 1e9 <= AT_MOST_S, (alone[-1]["ns"] - began_ns) / 1e9
    assert {e["restarts"] for e in alone} == {0}, "it cost no restart"
    return alone


def test_a_host_that_is_cut_off_is_replaced_and_stops_by_itself(hosts, events):
    lab = hosts(3)
    lab.server()
    one, two = agents(lab, events, (1, 2), "2")
    first = events.take(2, 30)
    three, = agents(lab, events, (3,), "2")
    three.wait_line("waits as a spare", 20)
    assert events.nothing(2.5), "a few beats: they tell that the job can go on without a node now"
    rank_of_n2 = next(e["rank"] for e in first if e["host"] == "n2")
    alone = alone_after(lab, events, ("cut", 2), 2)
    assert {e["host"]: e["rank"] for e in alone}["n3"] == rank_of_n2, "the spare has the lost node's rank"
    lab.lab("heal", 2)
    two.wait_line("waits as a spare", 30)
    finish(lab, alone, one, three, two)


@pytest.mark.parametrize("who, to", [(2, 1), (1, 2)], ids=["is_not_heard", "does_not_hear"])
def test_one_direction_is_as_good_as_none(hosts, events, who, to):
    lab = hosts(2)
    lab.server()
    one, two = agents(lab, events, (1, 2), "1:2", "--on-join=restart")
    events.take(2, 30)
    alone_after(lab, events, ("mute", who, to), 1)
    lab.lab("unmute", who, to)
    both = events.take(2, 30)
    assert {e["world"] for e in both} == {2}, "it is taken in again"
    finish(lab, both, one, two)


def test_peers_that_do_not_reach_each_other_are_not_judged(hosts, events):
    lab = hosts(3)
    server = lab.server()
    two, three = agents(lab, events, (2, 3), "2")
    started = events.take(2, 30)
    lab.lab("block", 2, 3)
    assert events.nothing(3 * LEASE_S), "the server hears both"
    lab.lab("unblock", 2, 3)
    assert not server.matches(r"move=RUNNING->STOPPING"), server.text()
    finish(lab, started, two, three)


CROWD = """
import socket, sys, time
s, end = socket.socket(socket.AF_INET, socket.SOCK_DGRAM), time.monotonic() + float(sys.argv[2])
while time.monotonic() < end:
    for _ in range(7):
        s.sendto(bytes(200), (sys.argv[1], 9))
    time.sleep(0.4)
"""


def test_a_slow_host_restarts_nothing(hosts, events):
    """Its cable is nearly full both ways: what gets through has waited for up to 300 ms, and some is lost."""
    lab = hosts(2)
    server = lab.server()
    both = agents(lab, events, (1, 2), "1:2")
    started = events.take(2, 30)
    lab.lab("slow", 2, "40kbit", "300ms")
    seconds = int(os.environ.get("MUSTER_LAB_SLOW_S", "30"))
    crowd = [subprocess.Popen([HERE / "lab", "exec", str(i), "python3", "-c", CROWD, to, str(seconds)], env=lab.env)
             for i, to in ((1, "n2"), (2, "n1"))]
    assert events.nothing(seconds), "late by 300 ms each way is no death"
    assert [p.wait(10) for p in crowd] == [0, 0]
    assert not server.matches(r"move=RUNNING->STOPPING"), server.text()
    finish(lab, started, *both)
