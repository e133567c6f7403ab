"""Field cases F09 to F12, F14, F19, F25: nodes that go and come, failures on another host, nodes that end at different times.

One lab of two hosts for all of them. Each runs with a standing rdzv-server on n1 and with the agent on n1 serving the rendezvous.
Bounds are those of the cases; the usual figure is far below them."""
import json
import os
import re
import signal
import time
from collections import namedtuple

import pytest
from conftest import BIN, HERE, PYTHON, Hosts
from procs import Late, parent_of, pids_with, still_there

WORKER = HERE / "field_worker.py"
Told = namedtuple("Told", "time what host pid rank world group restarts store")
ports = iter(range(29500, 30500))


def bare(words):
    """As Python without its site: a worker starts in a tenth of the time."""
    return ["--no-python", PYTHON, "-ESsB", WORKER, *words]


class Job:
    """One job of one case: its file, its endpoint, its agents."""

    def __init__(self, lab, folder, standing, server_host=1):
        self.lab, self.folder = lab, folder
        self.file = folder / "told"
        self.file.touch()
        self.port = next(ports)
        self.id = f"{lab.run_id}-{self.port}"
        self.at = f"n{server_host}:{self.port}"
        self.server_host = server_host
        self.seen = 0
        self.agents = []
        self.server = lab.server(server_host, self.port) if standing else None

    def agent(self, host, *words, work=("60",), flags=()):
        proc = self.lab.start(f"agent on n{host}", host, BIN / "node-agent", f"--rdzv-id={self.id}", f"--rdzv={self.at}", *words,
                              *flags, *bare([self.file, *work]))
        self.agents.append(proc)
        return proc

    def told(self):
        return [Told(float(t), what, host, int(pid), int(rank), int(world), int(group), int(restarts), store)
                for t, what, host, pid, rank, world, group, restarts, store in (s.split() for s in self.file.read_text().splitlines())]

    def take(self, count, limit_s, what="start"):
        """The next `count` lines of that kind since the last take."""
        end = time.monotonic() + limit_s
        while True:
            lines = self.told()
            got = [(i, t) for i, t in enumerate(lines) if i >= self.seen and t.what == what][:count]
            if len(got) == count:
                self.seen = got[-1][0] + 1
                return [t for _, t in got]
            if time.monotonic() > end:
                raise Late(f"{len(got)} of {count} '{what}' came within {limit_s} s: {lines}")
            time.sleep(0.01)

    def go(self):
        (self.folder / "told.go").touch()

    def pids(self, host):
        """Agent and workers of that host."""
        return [p for p in {*pids_with(f"--rdzv-id={self.id}"), *pids_with(str(self.file))} if self.lab.is_on(p, host)]

    def kill(self, host):
        pids = self.pids(host)
        assert len(pids) >= 3, f"an agent's two processes and a worker were due on n{host}: {pids}"
        found = {p for p in pids_with(f"--rdzv-id={self.id}", "node-agent") if p in pids}
        agents = sorted(found, key=lambda p: parent_of(p) not in found)  # It first, then who watches it: nobody tells of the workers' end.
        for p in agents + [p for p in pids if p not in agents]:
            try:
                os.kill(p, signal.SIGKILL)
            except ProcessLookupError:
                pass
        return time.time()

    def status(self):
        text = self.lab.lab("exec", self.server_host, "curl", "-s", "-m", "5", f"http://n{self.server_host}:{self.port}/status")
        return next(j for j in json.loads(text)["jobs"] if j["id"] == self.id)

    def end(self):
        for p in self.agents + ([self.server] if self.server else []):
            p.end()
        left = still_there([p for h in (1, 2) for p in self.pids(h)], time.monotonic_ns() + 2_000_000_000)
        assert not left, f"left behind: {left}"


@pytest.fixture(scope="module")
def lab(lab_ready, tmp_path_factory):
    some = Hosts(2, tmp_path_factory.mktemp("field"))
    yield some
    some.down()


@pytest.fixture(params=["standing", "hosted"])
def new_job(request, lab):
    """new_job() with that kind of rendezvous; gone after the test."""
    jobs = []

    def make(**kw):
        folder = lab.share / f"{request.node.name.translate(str.maketrans('[]', '__'))}-{len(jobs)}"
        folder.mkdir()
        jobs.append(Job(lab, folder, request.param == "standing", **kw))
        return jobs[-1]

    yield make
    failed = getattr(request.node, "rep_call", None) is not None and request.node.rep_call.failed
    for j in jobs:
        if failed:
            print("\n".join(p.story() for p in j.agents + ([j.server] if j.server else [])), j.told())
        j.end()


def ranks(lines):
    return sorted((t.rank, t.world) for t in lines)


def causes(proc):
    return re.findall(r"job \S+ failed: (.*) \(round", proc.text())


ELASTIC = ("--nnodes=1:2", "--max-restarts=3", "--on-join=restart")


def test_f09_an_elastic_job_loses_a_node_and_goes_on(new_job):
    job = new_job()
    one, two = (job.agent(i, *ELASTIC) for i in (1, 2))
    assert ranks(job.take(2, 20)) == [(0, 2), (1, 2)]

    def alone(since, limit_s, kind):
        left = job.take(1, limit_s + 20)[0]
        assert (left.host, left.rank, left.world, left.restarts) == ("n1", 0, 1, 0)
        assert left.time - since <= limit_s, f"{left.time - since:.2f} s"
        s = job.status()
        assert s["restarts"] == 0 and s["last_cause"]["host"] == "n2" and s["last_cause"]["kind"] == kind and s["last_cause"]["at"], s
        assert one.p.poll() is None

    alone(job.kill(2), 3, "node_lost")
    two = job.agent(2, *ELASTIC)
    assert ranks(job.take(2, 20)) == [(0, 2), (1, 2)]
    since = time.time()
    os.kill(next(p for p in pids_with(f"--rdzv-id={job.id}", "node-agent") if job.lab.is_on(p, 2)), signal.SIGTERM)
    alone(since, 3, "node_left")
    assert two.wait(5) != 0
    assert [t.what for t in job.told() if t.host == "n2"][-1] == "term", "workers were stopped in order"
    job.agent(2, *ELASTIC)
    assert ranks(job.take(2, 20)) == [(0, 2), (1, 2)]
    since = time.time()
    job.lab.lab("kill", 2)
    try:
        alone(since, 15, "node_silent")
    finally:
        job.lab.lab("start", 2)
    job.go()
    assert one.wait(10) == 0, one.text()


def test_f10_a_killed_node_of_a_fixed_size_job_comes_back(new_job):
    job = new_job()
    words = ("--nnodes=2", "--max-restarts=3")
    one = job.agent(1, *words)
    job.agent(2, *words)
    assert ranks(job.take(2, 20)) == [(0, 2), (1, 2)]
    for away_s in (0, 1, 4):
        killed_ns = time.monotonic_ns()
        job.kill(2)
        if away_s > 0:
            one.wait_line(r"1 of 2 nodes are here \(n1\)", away_s, killed_ns)
            time.sleep(max(0, away_s - (time.monotonic_ns() - killed_ns) / 1e9))
        back = time.time()
        two = job.agent(2, *words)
        both = job.take(2, 25)
        assert ranks(both) == [(0, 2), (1, 2)] and {t.restarts for t in both} == {0}
        assert max(t.time for t in both) - back <= 5, f"{max(t.time for t in both) - back:.2f} s"
        nodes = job.status()["nodes"]
        assert sorted(n["node_rank"] for n in nodes) == [0, 1], nodes
    assert job.status()["restarts"] == 0
    job.go()
    assert [one.wait(10), two.wait(10)] == [0, 0]


@pytest.mark.parametrize("first", [1, 2])
def test_f11_a_node_arrives_in_a_running_job(new_job, first):
    """The newcomer's name sorts behind the other's, and before it."""
    job = new_job(server_host=first)
    words = (*ELASTIC, "--rdzv-conf=last_call_timeout=1")
    agents = [job.agent(first, *words, work=("60", "connect"))]
    assert ranks(job.take(1, 20)) == [(0, 1)]
    came = time.time()
    agents.append(job.agent(3 - first, *words, work=("60", "connect")))
    both = job.take(2, 20)
    assert ranks(both) == [(0, 2), (1, 2)] and len({t.store for t in both}) == 1, both
    assert max(t.time for t in both) - came <= 3, f"{max(t.time for t in both) - came:.2f} s"
    job.seen -= 2
    assert {t.store for t in job.take(2, 20, "answers")} == {both[0].store}
    assert {t.rank: t.host for t in both}[0] == f"n{first}", "who was there keeps its rank"
    job.go()
    assert [p.wait(10) for p in agents] == [0, 0]


def test_f11_without_that_wish_a_newcomer_waits_as_a_spare(new_job):
    job = new_job()
    words = ("--nnodes=1:2", "--rdzv-conf=last_call_timeout=1")
    one = job.agent(1, *words)
    job.take(1, 20)
    two = job.agent(2, *words)
    two.wait_line(r"this node waits as a spare", 10)
    assert [t.what for t in job.told()] == ["start"], "nothing was restarted"
    job.go()
    assert [one.wait(10), two.wait(10)] == [0, 0]


def test_f12_a_failure_on_one_host_ends_the_other_and_both_say_why(new_job):
    job = new_job()
    both = [job.agent(i, "--nnodes=2", "--max-restarts=0", work=("90", "fail=1:*:*:1:7", "say=boom")) for i in (1, 2)]
    started = job.take(2, 20)
    two = next(t for t in started if t.group == 1)
    assert [p.wait(20) for p in both] == [1, 1]
    took = time.time() - (two.time + 1)
    assert took <= 5, f"{took:.2f} s"
    assert [t.host for t in job.told() if t.what == "term"] == [next(t for t in started if t.group == 0).host]
    for p in both:
        text = p.text()
        assert len(causes(p)) == 1, text
        assert re.fullmatch(rf"rank 1 \(local rank 0, pid \d+\) on {two.host} exited with status 7: boom", causes(p)[0]), text
        assert re.search(r"its last lines:\n +\| boom$", text, re.M), text
    assert causes(both[0]) == causes(both[1])


def test_f14_the_budget_is_the_jobs_whoever_fails(new_job):
    job = new_job()
    # Node 0 fails in round 0, node 1 in round 1.
    both = [job.agent(i, "--nnodes=2", "--max-restarts=1", work=("60", f"fail={i - 1}:*:{i - 1}:0.3:5")) for i in (1, 2)]
    assert [p.wait(30) for p in both] == [1, 1]
    starts = [t for t in job.told() if t.what == "start"]
    assert sorted((t.rank, t.restarts) for t in starts) == [(0, 0), (0, 1), (1, 0), (1, 1)], starts
    for p in both:
        assert re.search(r"\(round 2, 1 of 1 restarts used, by rank 0 on n1 \(round 1\)\)", p.text()), p.text()


def test_f14_coming_and_going_costs_nothing(new_job):
    job = new_job()
    words = ("--nnodes=1:2", "--max-restarts=0", "--on-join=restart")
    one = job.agent(1, *words)
    job.agent(2, *words)
    assert ranks(job.take(2, 20)) == [(0, 2), (1, 2)]
    for _ in range(4):
        job.kill(2)
        assert ranks(job.take(1, 10)) == [(0, 1)]
        two = job.agent(2, *words)
        assert ranks(job.take(2, 10)) == [(0, 2), (1, 2)]
    assert {t.restarts for t in job.told()} == {0}
    job.go()
    assert [one.wait(10), two.wait(10)] == [0, 0]


@pytest.mark.parametrize("way", ["told", "themselves"])
def test_f19_the_first_failure_comes_first_on_every_host(new_job, way):
    """Others fail after it with many words: because they are stopped, or 0.3 s later by themselves."""
    job = new_job()
    others = "30:60" if way == "told" else "30:1.3"
    both = [job.agent(i, "--nnodes=2", "--nproc-per-node=2", work=(
        "60", "fail=1:1:*:1:3", "say=disk full", "error=OSError: no room for the checkpoint", f"complain={others}")) for i in (1, 2)]
    started = job.take(4, 20)
    first = next(t for t in started if t.rank == 3)
    assert [p.wait(20) for p in both] == [1, 1]
    took = time.time() - (first.time + 1)
    assert took <= 5, f"{took:.2f} s"
    for i, p in enumerate(both, 1):
        own = [s for _, s in p.lines if "complains" not in s and "OMP_NUM_THREADS" not in s and s != "disk full"]
        assert len(own) <= 40, p.text()
        assert re.match(r"node-agent: job \S+ failed: rank 3 \(local rank 1, pid \d+\) on n2 exited with status 3: "
                        r"OSError: no room for the checkpoint \(round 1, 0 of 0 restarts used\)$", own[0]), p.text()
        assert own[1] == "node-agent: its last lines:" and own[2] == "    | disk full", p.text()
        if i == 1:
            assert re.search(r"after that, on n1: rank 0 \(pid \d+\) exited with status 1, rank 1 \(pid \d+\) exited with status 1",
                             "\n".join(own[3:])) or re.search(r"after that, on n1: rank 1 .*, rank 0 ", "\n".join(own[3:])), p.text()


def test_f25_nodes_that_end_at_different_times(new_job):
    """Node 0 is done early: it goes on serving the rendezvous, where it does, and the worker store, and says for whom it waits."""
    job = new_job()
    one = job.agent(1, "--nnodes=2", "--server-timeout=3", work=("0.5", "store"))
    two = job.agent(2, "--nnodes=2", "--server-timeout=3", work=("7", "store"))
    started = job.take(2, 20)
    assert {t.host: t.rank for t in started} == {"n1": 0, "n2": 1}
    _, said = one.wait_line(r"every worker of this node has ended well, waiting for (.*)", 10)
    assert "n2" in said.group(1), one.text()
    assert [p.wait(30) for p in (one, two)] == [0, 0], one.text() + two.text()
    ends = {t.host: t.time for t in job.told() if t.what == "end"}
    assert ends["n2"] - ends["n1"] >= 5 and not [t for t in job.told() if t.what == "term"]
