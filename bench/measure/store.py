"""The store: one loader against rdzv-server, torch's two stores and Redis."""
import socket
import subprocess
import threading
from contextlib import contextmanager

from .common import Missing, answers, free_port, lines_of, median, rdzv_server, running, wait_for

SMALL = (("set", "SET"), ("get", "GET"), ("add", "ADD"))


@contextmanager
def torch_store(bench, kind, wrap):
    if bench.peer("torchrun") is None:
        raise Missing("no torch")
    with running([*wrap, bench.python, bench.root / "torch_store.py", kind], stdin=subprocess.PIPE,
                 stdout=subprocess.PIPE) as p:
        line = p.stdout.readline()
        if not line.strip():
            raise Missing(f"torch's {kind} store did not start")
        yield int(line), p.pid


@contextmanager
def redis(bench, wrap):
    program = bench.peer("redis-server")
    if program is None:
        raise Missing("no redis-server")
    port = free_port()
    with running([*wrap, program, "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"],
                 cwd=bench.tmp) as p:
        wait_for("redis-server to listen", 10, lambda: answers(port))
        yield port, p.pid


def server(bench, name, wrap):
    if name == "muster":
        return rdzv_server(bench, wrap=wrap)
    if name == "redis":
        return redis(bench, wrap)
    return torch_store(bench, name.removeprefix("torch-"), wrap)


SERVERS = ("muster", "torch-libuv", "torch-legacy", "redis")


def unresolving(bench, dead):
    """A command that gives its program files of its own for names: an /etc/hosts that answers what torch asks of it, so that no
    measurement waits for a name server; or, when `dead`, a name server that never answers."""
    hosts, resolv = bench.tmp / "hosts", bench.tmp / "resolv.conf"
    hosts.write_text("127.0.0.1 localhost\n::1 localhost\n" + ("" if dead else "::ffff:127.0.0.1 localhost\n"))
    resolv.write_text("nameserver 127.0.0.97\n")
    script = 'mount --bind "$0" /etc/hosts && mount --bind "$1" /etc/resolv.conf && shift && exec "$@"'
    return ["unshare", "--mount", "sh", "-c", script, hosts, resolv]


def load(bench, name, port, pid, ops, *more):
    proto = "resp" if name == "redis" else "torch"
    rows = lines_of([bench.tool("store_load"), "--proto", proto, "--port", port, "--pid", pid, "--ops", ops, *more], 300)
    return {r["op"]: r for r in rows}


def each(bench, what, ops, *more):
    """One fresh server of each kind in turn: {server: {op: row}}."""
    found = {}
    for name in SERVERS:
        try:
            with server(bench, name, unresolving(bench, False)) as (port, pid):
                found[name] = load(bench, name, port, pid, ops, *more)
        except (Missing, subprocess.SubprocessError) as e:
            bench.note(f"store, {what}, {name}: {e}")
    return found


class Collected:
    """Rows of several rounds, asked by operation."""

    def __init__(self):
        self.rows = []

    def values(self, op, value):
        """{server: median over the rounds of value(row)}."""
        ret = {}
        for name in SERVERS:
            some = [value(r[name][op]) for r in self.rows if op in r.get(name, {})]
            if some:
                ret[name] = median(some)
        return ret


def cpu_us(row):
    return row["server_cpu_ns"] / row["count"] / 1000


def wall_us(row):
    return row["wall_ns"] / row["count"] / 1000


def measure_operations(bench):
    got = Collected()
    count = 20000 if bench.quick else 100000
    for _ in range(1 if bench.quick else 5):
        got.rows.append(each(bench, "operations", "set,get,add,stream,bigset,bigget,barrier", "--count", count))
    for op, text in SMALL:
        bench.add("store", f"{text}, server CPU", "us", got.values(op, cpu_us),
                  [("ratio", 1.0, "torch-libuv"), ("ratio", 1.0, "redis")], note="64 connections in step")
    bench.add("store", "stream of SETs, server CPU each", "us", got.values("stream", cpu_us), [("ratio", 1.2, "torch-libuv")])
    for op, text in (("bigset", "SET of 1 MiB"), ("bigget", "GET of 1 MiB")):
        bench.add("store", f"{text}, wall", "us", got.values(op, wall_us), [("ratio", 1.0, "torch-legacy")])
        bench.add("store", f"{text}, server CPU", "us", got.values(op, cpu_us), [("ratio", 1.0, "torch-legacy")])
    bench.add("store", "barrier of 256, wall", "us", got.values("barrier", wall_us), [("ratio", 1.0, "torch-libuv")])


def measure_latency(bench):
    got = Collected()
    for _ in range(1 if bench.quick else 5):
        got.rows.append(each(bench, "one connection", "get", "--lanes", 1, "--count", 5000))
    bench.add("store", "GET on one connection, wall", "us", got.values("get", wall_us), [("ratio", 1.0, "torch-libuv")])


def measure_idle(bench):
    got = Collected()
    got.rows.append(each(bench, "idle connections", "idle", "--lanes", 1, "--idle", 2000))
    kib = got.values("idle", lambda r: r["server_bytes"] / r["count"] / 1024)
    bench.add("store", "memory of an idle connection, of 2,000", "KiB", kib, [("max", 1.2)])


class NameServer(threading.Thread):
    """Knows no name ("no such domain"), until it is told to fall silent."""

    def __init__(self):
        super().__init__(daemon=True)
        self.alive = True
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            self.socket.bind(("127.0.0.97", 53))
        except OSError as e:
            raise Missing(f"accept under a dead name server: bind 127.0.0.97:53: {e}") from e
        self.start()

    def run(self):
        while True:
            query, peer = self.socket.recvfrom(512)
            if self.alive:
                self.socket.sendto(query[:2] + b"\x81\x83" + query[4:], peer)


def measure_accept(bench):
    """The name server falls silent once the store is up, as it does when a network is lost."""
    got, names = Collected(), NameServer()
    for name in SERVERS:
        try:
            names.alive = True
            with server(bench, name, unresolving(bench, True)) as (port, pid):
                names.alive = False
                got.rows.append({name: load(bench, name, port, pid, "accept")})
        except (Missing, subprocess.SubprocessError) as e:
            bench.note(f"store, accept under a dead name server, {name}: {e}")
    bench.add("store", "accept under a dead name server, longest of 3", "ms",
              got.values("accept", lambda r: r["wall_ns"] / 1e6), [("max", 50)])


def measure(bench):
    for some in (measure_operations, measure_latency, measure_idle, measure_accept):
        try:
            some(bench)
        except Missing as e:
            bench.note(f"store: {e}")
