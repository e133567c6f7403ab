"""What happens when workers, agents, hosts and networks fail; each wait ends by an event or fails at a deadline."""
import json
import os
import re
import signal
import time

import pytest
from conftest import BIN, HERE
from procs import parent_of, pids_with, still_there

WORKER = HERE / "worker.py"


def agents(lab, events, *words, count=2, nnodes="2", more=()):
    return [lab.agent(i, f"--nnodes={nnodes}", "--nproc-per-node=2", "--rdzv=n1:29500", *words, WORKER, events.path, *more)
            for i in range(1, count + 1)]


def signal_worker(lab, event, signo):
    """From inside its host, as its number is that host's."""
    host = int(event["host"].removeprefix("n"))
    lab.lab("exec", host, "kill", f"-{signo}", event["pid"])


def agent_processes(lab, proc):
    """The agent's own processes, the one that was started first."""
    mine = [p for p in pids_with(f"--rdzv-id={lab.run_id}", "node-agent") if depth(p, proc.p.pid) is not None]
    return sorted(mine, key=lambda p: depth(p, proc.p.pid))


def depth(pid, ancestor):
    for n in range(20):
        if pid == ancestor:
            return n
        if pid <= 1:
            return None
        try:
            pid = parent_of(pid)
        except OSError:
            return None
    return None


def status(lab, host=1, port=29500):
    return json.loads(lab.lab("exec", host, "curl", "-s", "-m", "5", f"http://localhost:{port}/status"))


@pytest.mark.parametrize("which", [0, -1], ids=["outermost", "innermost"])
def test_sigkill_of_an_agent_leaves_nothing_and_is_known_at_once(hosts, events, which):
    lab = hosts(2)
    server = lab.server()
    one, two = agents(lab, events, nnodes="1:2", more=("escapee",))
    events.take(4, 30, "start")
    escaped = [p for p in pids_with(events.path, "python3") if lab.is_on(p, 2) and os.getpgid(p) != p]
    theirs = {p for p in pids_with(events.path) + pids_with(lab.run_id) if lab.is_on(p, 2)}
    victim = agent_processes(lab, two)[which]
    assert len(escaped) == 2 and len(theirs) >= 1 + 2 + 2, "an agent, two workers and what they forked run on n2"
    t0 = time.monotonic_ns()
    os.kill(victim, signal.SIGKILL)
    left = still_there(theirs, t0 + 1_000_000_000)
    assert not left, f"still there a second later: {left}"
    known, _ = server.wait_line(r"the agent on n2 (died|left)", 5, t0)
    assert (known - t0) / 1e6 <= 20, f"the other side knew after {(known - t0) / 1e6:.1f} ms"
    alone = events.take(2, 15)
    assert {e["host"] for e in alone} == {"n1"} and {e["world"] for e in alone} == {2}, "the survivor goes on"
    for e in alone:
        signal_worker(lab, e, "USR2")
    assert one.wait(30) == 0


def test_a_failed_worker_restarts_the_group_until_the_budget_is_spent(hosts, events):
    lab = hosts(2)
    lab.server()
    both = agents(lab, events, "--max-restarts=1")
    first = events.take(4, 30)
    victim = next(e for e in first if e["host"] == "n2")
    signal_worker(lab, victim, "USR1")
    second = events.take(4, 30)
    assert sorted(e["rank"] for e in second) == [0, 1, 2, 3]
    assert {e["restarts"] for e in second} == {1}
    assert {(e["rank"], e["host"]) for e in second} == {(e["rank"], e["host"]) for e in first}, "ranks stay where they were"
    victim = next(e for e in second if e["host"] == "n2")
    signal_worker(lab, victim, "USR1")
    assert [p.wait(30) for p in both] == [1, 1]
    causes = [re.search(rf"rank {victim['rank']} \(local rank \d, pid {victim['pid']}\) on n2 exited with status 7", p.text())
              for p in both]
    assert all(causes), "both name host, rank and exit status"
    assert causes[0].group(0) == causes[1].group(0)


def test_all_workers_that_end_well_end_the_job_well(hosts, events):
    lab = hosts(2)
    lab.server()
    both = agents(lab, events)
    for e in events.take(4, 30):
        signal_worker(lab, e, "USR2")
    assert [p.wait(30) for p in both] == [0, 0]


def test_an_agent_hosts_the_rendezvous_where_nothing_listens(hosts, events):
    lab = hosts(2)
    both = agents(lab, events)  # --rdzv names n1, and no server was started.
    started = events.take(4, 30)
    assert {e["host"] for e in started} == {"n1", "n2"}
    for e in started:
        signal_worker(lab, e, "USR2")
    assert [p.wait(30) for p in both] == [0, 0]


def test_power_loss_of_a_host_leaves_the_others_going_on(hosts, events):
    lab = hosts(2)
    lab.server()
    one, _ = agents(lab, events, "--rdzv-conf=last_call_timeout=2", nnodes="1:2")
    events.take(4, 30)
    t0 = time.monotonic_ns()
    lab.lab("kill", 2)
    alone = events.take(2, 15)
    took = (alone[-1]["ns"] - t0) / 1e9
    assert {e["world"] for e in alone} == {2} and {e["host"] for e in alone} == {"n1"}
    assert took <= 3 + 4, f"lease is 3 s; it took {took:.1f} s"
    for e in alone:
        signal_worker(lab, e, "USR2")
    assert one.wait(30) == 0


def test_a_cut_shorter_than_the_lease_restarts_nothing(hosts, events):
    lab = hosts(2)
    server = lab.server()
    both = agents(lab, events)
    started = events.take(4, 30)
    lab.lab("cut", 2)
    quiet = events.nothing(1.5)
    sockets = [lab.lab("exec", host, "ss", "-tinH", "state", "established", f"( {port} = :29500 )") for host, port in ((1, "sport"), (2, "dport"))]
    lab.lab("heal", 2)
    assert quiet and events.nothing(4), "no worker started anew"
    # What was lost is sent again at even intervals, whoever sent it: with ever longer ones the silence would be two and three times the cut.
    assert "unacked:" in sockets[1] and "backoff:" not in "".join(sockets), sockets
    assert not server.matches(r"move=RUNNING->STOPPING"), server.text()
    for e in started:
        signal_worker(lab, e, "USR2")
    assert [p.wait(30) for p in both] == [0, 0]


def test_the_server_is_killed_and_restarted_while_workers_run(hosts, events):
    lab = hosts(2)
    server = lab.server()
    both = agents(lab, events)
    started = events.take(4, 30)
    os.kill(pids_with(str(BIN / "rdzv-server"), "rdzv-server")[0], signal.SIGKILL)
    server.wait(10)
    assert events.nothing(1), "workers go on without a server"
    lab.server().wait_line(r"ev=\S+ move=RECOVERING->RUNNING|move=GATHERING->RUNNING", 20)
    assert events.nothing(1), "and with the new one"
    for e in started:
        signal_worker(lab, e, "USR2")
    assert [p.wait(30) for p in both] == [0, 0]


def test_ipv6_between_hosts_and_on_the_loopback(hosts, events):
    lab = hosts(2)
    lab.server(1, 29501, "--host", "::1")
    alone = lab.agent(1, "--nnodes=1", "--nproc-per-node=1", "--rdzv=[::1]:29501", WORKER, events.path)
    signal_worker(lab, events.take(1, 30)[0], "USR2")
    assert alone.wait(30) == 0
    lab.server(1, 29502, "--host", "fd88::1")
    both = [lab.agent(i, "--nnodes=2", "--nproc-per-node=1", "--rdzv=[fd88::1]:29502", "--rdzv-id=six", WORKER, events.path)
            for i in (1, 2)]
    for e in events.take(2, 30):
        signal_worker(lab, e, "USR2")
    assert [p.wait(30) for p in both] == [0, 0]
