"""Field cases F07 and F08: who meets, who does not, and which rank each gets. Each test's name begins with the number of its case."""
import re
import signal
import time

from fieldlib import NET, ONCE_MORE, PORT, field, field_hosts, said  # noqa: F401 (fixtures)
from procs import Late  # noqa: F401

A = NET + "1"
E = f"--rdzv={A}:{PORT}"
SHORT = "--rdzv-conf=join_timeout=8"  # The cases say 20 s; gaps and limits are the same.


def seconds(proc, ns):
    return (ns - proc.began_ns) / 1e9


def ends_in_time(field, proc, limit_s=8):
    status = proc.wait(limit_s + 8)
    took = seconds(proc, time.monotonic_ns())
    assert status > 0 and limit_s - 3 <= took <= limit_s + 3, (status, took, field.story())


def check_gaps(proc, pattern):
    """Lines that match come within 5 s, then ever less often, and no minute is silent."""
    times = [seconds(proc, ns) for ns, text in proc.lines if re.search(pattern, text) and "failed:" not in text]
    assert times and times[0] <= 5, proc.text()
    gaps = [b - a for a, b in zip(times, times[1:])]
    assert all(b > a - 0.5 for a, b in zip(gaps, gaps[1:])), gaps


@ONCE_MORE
def test_f07a_who_waits_alone_says_for_whom_and_how_long(field, standing):
    if standing:
        field.server()
    a = field.agent(1, E, "--nnodes=2", SHORT, *field.work(1))
    t, m = a.wait_line(r"1 of 2 nodes are here \(n1\), waiting for (\d+) s, giving up in (\d+) s", 8)
    assert seconds(a, t) <= 5
    sentence = field.status()["jobs"][0]["sentence"]
    assert re.match(r"1 of 2 nodes are here \(n1\), waiting for \d+ s, giving up in \d+ s", sentence), sentence
    ends_in_time(field, a)
    check_gaps(a, r"1 of 2 nodes are here")
    assert said(a, r"job \S+ failed: .*1 of 2 nodes are here \(n1\), waiting for [78] s"), a.text()
    assert field.written() == []


@ONCE_MORE
def test_f07b_who_disagrees_is_refused_at_once_and_both_learn_why(field, standing):
    if standing:
        field.server()
    a = field.agent(1, E, "--nnodes=2", SHORT, *field.work(1))
    time.sleep(1)
    b = field.agent(2, E, "--nnodes=3", SHORT, *field.work(1))
    assert b.wait(6) > 0
    assert seconds(b, time.monotonic_ns()) <= 3
    assert said(b, r"--nnodes is 3 on n2 and 2 on n1, which came first"), b.text()
    a.wait_line(r"1 of 2 nodes are here \(n1\).*refused: --nnodes is 3 on n2", 10)


@ONCE_MORE
def test_f07c_two_ids_are_two_jobs_and_each_says_that_the_other_waits(field, standing):
    if standing:
        field.server()
    a = field.agent(1, E, "--nnodes=2", SHORT, *field.work(1), run_id="x-" + field.run_id)
    time.sleep(0.5)
    b = field.agent(2, E, "--nnodes=2", SHORT, *field.work(1), run_id="y-" + field.run_id)
    for p, other in ((a, "y"), (b, "x")):
        t, _ = p.wait_line(rf"1 of 2 nodes are here.*another job waits here too, .{other}-{field.run_id}.*--rdzv-id", 8)
        assert seconds(p, t) <= 5.5
    jobs = {j["id"]: j for j in field.status()["jobs"]}
    assert len(jobs) == 2
    for j in jobs.values():
        assert j["state"] == "gathering" and "--rdzv-id" in j["sentence"], j


def test_f07de_nobody_who_listens_and_packets_that_are_dropped_are_told_apart_and_end_at_the_limit(field):
    field.firewall(1, PORT)
    d = field.agent(2, E, "--nnodes=2", SHORT, *field.work(1))
    e = field.agent(3, f"--rdzv={A}:{PORT + 1}", "--nnodes=2", SHORT, *field.work(1))
    for p, port, why in ((d, PORT, "refused"), (e, PORT + 1, "no answer")):
        t, _ = p.wait_line(rf"{re.escape(A)}:{port}.*{why}", 8)
        assert seconds(p, t) <= 5
    for p, port, why in ((d, PORT, "refused"), (e, PORT + 1, "no answer")):
        ends_in_time(field, p)
        check_gaps(p, "no rendezvous server")
        assert re.search(rf"{re.escape(A)}:{port}.*{why}", p.text().splitlines()[-1]), p.text()


def test_f07_a_server_that_freezes_and_one_that_is_lost_are_spoken_of(field):
    field.server()
    agents = [field.agent(i, E, "--nnodes=2", *field.work(60)) for i in (1, 2)]
    field.wait_written(2, 10)
    t0 = time.monotonic_ns()
    field.kill_servers(signal.SIGSTOP)
    for a in agents:
        t, _ = a.wait_line(r"no rendezvous server for \d+ s, the workers run on.*does not answer", 10, t0)
    field.kill_servers(signal.SIGKILL)
    t0 = time.monotonic_ns()
    for a in agents:
        a.wait_line(rf"no rendezvous server for \d+ s, the workers run on, trying on: {re.escape(A)}:{PORT}: connection refused", 15, t0)


def test_f07_who_has_finished_says_for_whom_it_waits(field):
    field.server()
    a = field.agent(1, E, "--nnodes=2", *field.work(0.1))
    b = field.agent(2, E, "--nnodes=2", *field.work(6))
    a.wait_line(r"every worker of this node has ended well, waiting for n2 for \d+ s", 10)
    field.end_well([a, b], 25)


def three(field, order, *words, ranks=None, counts=(1, 3, 2), seconds_=2):
    agents = {}
    for host in order:
        more = [f"--node-rank={ranks[host - 1]}"] if ranks else []
        agents[host] = field.agent(host, E, "--nnodes=3", f"--nproc-per-node={counts[host - 1]}", *more, *words, *field.work(seconds_))
        time.sleep(0.15)  # So that they come in this order.
    return agents


def layout(lines, counts=(1, 3, 2)):
    """Checks ranks 0..5 once each, contiguous per node; returns host -> GROUP_RANK."""
    assert sorted(x.rank for x in lines) == list(range(6)) and {x.world for x in lines} == {6}
    groups = {}
    for host, count in zip(("n1", "n2", "n3"), counts):
        mine = sorted(x.rank for x in lines if x.host == host)
        assert mine == list(range(mine[0], mine[0] + count)), (host, mine)
        assert {x.local_world for x in lines if x.host == host} == {count}
        groups[host], = {x.group_rank for x in lines if x.host == host}
    bases = [min(x.rank for x in lines if x.group_rank == r) for r in range(3)]
    assert bases == sorted(bases)
    return groups


@ONCE_MORE
def test_f08a_the_order_of_ranks_does_not_depend_on_who_came_first(field, standing):
    if standing:
        field.server()
    seen = []
    for n, order in enumerate(((3, 2, 1), (1, 2, 3), (2, 3, 1), (3, 1, 2), (2, 1, 3))):
        field.run_id = f"{field.base_id}-{n}"
        agents = three(field, order, seconds_=0.2)
        field.end_well(agents.values(), 15)
        seen.append(layout(field.written("start")[6 * n:]))
    assert seen == [{"n1": 0, "n2": 1, "n3": 2}] * 5


@ONCE_MORE
def test_f08bcd_node_ranks_are_as_asked_and_stay_so(field, standing):
    if standing:
        field.server()
    agents = three(field, (1, 2, 3), "--max-restarts=3", ranks=(2, 0, 1), seconds_=60)
    wanted = {"n1": 2, "n2": 0, "n3": 1}
    first = field.wait_written(6, 15)
    assert layout(first) == wanted and {x.master_addr for x in first} == {NET + "2"}
    # (c) A worker is killed: all start again where they were.
    victim = next(x for x in first if x.host == "n1")
    field.sh(1, f"kill -KILL {victim.pid}")
    second = field.wait_written(6, 15, after=6)
    assert layout(second) == wanted and {x.restarts for x in second} == {1}
    assert {x.master_addr for x in second} == {NET + "2"}
    # (d) C's agent is killed and comes back.
    field.signal_agent(3, signal.SIGKILL)
    agents[3].wait(10)
    again = three(field, (3,), "--max-restarts=3", ranks=(2, 0, 1), seconds_=60)
    third = field.wait_written(6, 15, after=12)
    assert layout(third) == wanted and {x.master_addr for x in third} == {NET + "2"}
    assert {x.restarts for x in third} == {1}, "coming and going costs nothing"
    for host in (3, 2, 1):  # The one that may serve the others last.
        field.signal_agent(host, signal.SIGTERM)
    for a in (agents[1], agents[2], again[3]):
        a.wait(20)


def test_f08b_a_node_rank_that_cannot_be_is_refused(field):
    field.server()
    c10d = ["--rdzv-backend=c10d", f"--rdzv-endpoint={A}:{PORT}", "--nnodes=2", "--rdzv-conf=join_timeout=4"]
    a = field.agent(1, *c10d, "--node-rank=1", *field.work(0.2))
    time.sleep(0.5)
    b = field.agent(2, *c10d, "--node-rank=1", *field.work(0.2))
    assert b.wait(12) > 0
    assert said(b, r"node rank 1 is taken by n1 .*give each node its own"), b.text()
    a.wait(12)
    c = field.agent(1, *c10d, "--node-rank=2", *field.work(0.2))
    assert c.wait(5) > 0 and re.search(r"--node-rank: 2 is not below the number of nodes, 2", c.text()), c.text()
    # And what can be is honoured with torchrun's words too.
    field.run_id += "-ok"
    both = [field.agent(i, *c10d, f"--node-rank={2 - i}", *field.work(0.2)) for i in (1, 2)]
    field.end_well(both, 15)
    assert {x.host: x.group_rank for x in field.written("start")} == {"n1": 1, "n2": 0}
