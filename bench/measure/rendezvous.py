"""Rendezvous: real agents, from the last one's arrival to the last worker's first instruction; simulated agents by the thousand, with
the server's CPU; and how fast the status answers meanwhile."""
import socket
import subprocess
import threading
import time
from contextlib import contextmanager, suppress

from .common import (Fifo, Missing, free_port, lines_of, median, ms, rdzv_server, running, running_many, status, wait_for)

REAL = (2, 8, 32)
REAL_LIMIT_MS = 50
SIMULATED = ((1000, None), (4096, 300), (16000, 1000))  # Agents; limit in ms.
CPU_LIMIT_US = 40
FLOOR_RATIO = 1.5
STATUS_LIMIT_MS = 10
WATCHED_RATIO = 1.1  # A join whose status is asked for, against one that nobody watches.


def agents_here(port):
    """How many agents the server's status shows."""
    with suppress(OSError, ValueError):
        return sum(len(job.get("nodes", [])) for job in status(port)["jobs"])
    return 0


def late_last(bench, agent, n, fifo):
    """n - 1 agents wait; the last is started: from before its exec to the last worker's stamp."""
    with rdzv_server(bench) as (port, _):
        cmd = [agent, f"--nnodes={n}", "--nproc-per-node=1", f"--rdzv=127.0.0.1:{port}", "--no-python", bench.tool("stamp"),
               fifo.path]
        with running_many([cmd] * (n - 1), cwd=bench.tmp):
            wait_for(f"{n - 1} agents to wait", 30, lambda: agents_here(port) == n - 1)
            t0 = time.monotonic_ns()
            with running(cmd, cwd=bench.tmp):
                return max(s[0] for s in fifo.take(n, 30)) - t0


def together(bench, agent, n, fifo):
    """All are started at once: from before the last one's exec to the last worker's stamp."""
    with rdzv_server(bench) as (port, _):
        cmd = [agent, f"--nnodes={n}", "--nproc-per-node=1", f"--rdzv=127.0.0.1:{port}", "--no-python", bench.tool("stamp"),
               fifo.path]
        with running_many([cmd] * (n - 1), cwd=bench.tmp):
            t0 = time.monotonic_ns()
            with running(cmd, cwd=bench.tmp):
                return max(s[0] for s in fifo.take(n, 60)) - t0


def torchruns(bench, n, fifo):
    """All at once: from the moment the last one has its imports behind it to the last worker's stamp."""
    cmd = [bench.python, bench.root / "torchrun_stamped.py", fifo.path, f"--nnodes={n}", "--nproc-per-node=1",
           "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--rdzv-id=bench", "--no-python",
           bench.tool("stamp"), fifo.path]
    with running_many([cmd] * n, cwd=bench.tmp):
        stamps = fifo.take(2 * n, 300)
    arrivals = [s[0] for s in stamps if s[1] == "agent"]
    return max(s[0] for s in stamps if s[1] != "agent") - max(arrivals)


def repeated(bench, what, runs, one):
    found = []
    for _ in range(runs):
        try:
            found.append(ms(one()))
        except (Missing, subprocess.SubprocessError) as e:
            bench.note(f"rendezvous, {what}: {e}")
            break
    return found


def measure_real(bench):
    fifo, agent, torchrun = Fifo(bench, "rendezvous"), bench.ours("node-agent"), bench.peer("torchrun")
    runs = 3 if bench.quick else 10
    for n in REAL:
        late, all_ = [], []
        if agent:
            late = repeated(bench, f"{n} agents", runs, lambda: fifo.drain() or late_last(bench, agent, n, fifo))
            all_ = repeated(bench, f"{n} agents at once", runs, lambda: fifo.drain() or together(bench, agent, n, fifo))
        theirs = []
        if torchrun and not (bench.quick and n > 8):
            theirs = repeated(bench, f"{n} torchruns", 1 if bench.quick or n > 8 else 3,
                              lambda: fifo.drain() or torchruns(bench, n, fifo))
        bench.add("rendezvous", f"{n} agents, the last comes late, median", "ms",
                  {"muster": median(late), "torchrun": median(theirs)}, [("max", REAL_LIMIT_MS), ("ratio", 1.0, "torchrun")],
                  note="its start included; torchrun: all at once, after its imports")
        bench.add("rendezvous", f"{n} agents, all at once, median", "ms",
                  {"muster": median(all_), "torchrun": median(theirs)}, [("ratio", 1.0, "torchrun")])
    fifo.close()


@contextmanager
def floor_server(bench, n):
    """A bare epoll server that answers n hellos: (port, pid)."""
    with running([bench.tool("rdzv_floor"), "--agents", n], cwd=bench.tmp, stdout=subprocess.PIPE, text=True) as p:
        yield int(p.stdout.readline()), p.pid


def measure_floor(bench, n):
    """What the same joins cost a server that does nothing: medians of (ms, us of its CPU an agent)."""
    with floor_server(bench, n) as (port, pid):
        lines = lines_of([bench.tool("rdzv_load"), "--port", port, "--pid", pid, "--agents", n, "--sources", 8, "--join-only", 1,
                          "--repeat", 2 if bench.quick else 5])
    return ms(median([r["wall_ns"] for r in lines])), median([r["server_cpu_ns"] for r in lines]) / n / 1000


def measure_simulated(bench):
    per_agent = {}
    for n, limit_ms in SIMULATED:
        floor_ms, floor_us = measure_floor(bench, n)
        with rdzv_server(bench) as (port, pid):
            load = [bench.tool("rdzv_load"), "--port", port, "--pid", pid, "--agents", n, "--sources", 8, "--restarts", 1,
                    "--repeat", 2 if bench.quick else 5]
            lines = lines_of(load)
        for phase, limit in (("join", limit_ms), ("stop", None), ("restart", None), ("finish", None)):
            some = [r for r in lines if r["phase"] == phase]
            wall, tail = ms(median([r["wall_ns"] for r in some])), ms(median([r["tail_ns"] for r in some]))
            cpu = median([r["server_cpu_ns"] for r in some]) / n / 1000
            join = phase == "join"
            bench.add("rendezvous", f"{n} simulated agents {phase}, median", "ms",
                      {"muster": wall, "bare epoll": floor_ms if join else None},
                      [("max", limit)] * bool(limit) + [("ratio", FLOOR_RATIO, "bare epoll")] * join,
                      note=f"{tail:.1f} ms after the last word of the loader")
            bench.add("rendezvous", f"{n} simulated agents {phase}, server CPU an agent", "us",
                      {"muster": cpu, "bare epoll": floor_us if join else None},
                      [("max", CPU_LIMIT_US), ("ratio", FLOOR_RATIO, "bare epoll")] if join else [])
            per_agent[n, phase] = cpu
    if (1000, "join") in per_agent and (16000, "join") in per_agent:
        bench.add("rendezvous", "server CPU an agent, 16,000 against 1,000", "times",
                  {"muster": per_agent[16000, "join"] / per_agent[1000, "join"]}, [("max", 1.15)])


def measure_status(bench):
    """A fresh server each time: the status of a server that has seen many jobs also tells of those, and is longer."""
    times, most = [], 0
    for _ in range(5 if bench.quick else 30):
        with rdzv_server(bench) as (port, _):
            with running([bench.tool("rdzv_load"), "--port", port, "--agents", 1000, "--sources", 8]):
                got = lines_of([bench.tool("status_probe"), "--port", port, "--for-ms", 100, "--every-ms", 2])[0]
        times += got["latency_ns"]
        most = max(most, got["bytes_max"])
    times.sort()
    note = f"{len(times)} requests, up to {most} bytes"
    for text, at in (("median", 0.5), ("99th percentile", 0.99)):
        bench.add("rendezvous", f"status while 1,000 agents join, {text}", "ms", {"muster": ms(times[int(len(times) * at)])},
                  [("max", STATUS_LIMIT_MS)], note)


@contextmanager
def reader_of_events(port):
    """Somebody who reads /v1/events; behind it, whether anything came."""
    got = []

    def read(sock):
        with suppress(OSError):  # The server ends with bytes on their way.
            while part := sock.recv(1 << 20):
                got.append(len(part))

    with socket.create_connection(("127.0.0.1", port), timeout=30) as sock:
        sock.sendall(b"GET /v1/events HTTP/1.1\r\nHost: x\r\n\r\n")
        assert sock.recv(4096).startswith(b"HTTP/1.1 200 ")
        thread = threading.Thread(target=read, args=(sock,), daemon=True)
        thread.start()
        yield got
        with suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
        thread.join(30)


def one_join(bench, watched):
    """1,000 agents join a fresh server, alone, or with somebody who asks for the status every 20 ms, or reads its events:
    (wall ns, server CPU ns)."""
    with rdzv_server(bench) as (port, pid):
        load = [bench.tool("rdzv_load"), "--port", port, "--pid", pid, "--agents", 1000, "--sources", 8, "--join-only", 1]
        if not watched:
            row = lines_of(load)[0]
        elif watched == "events":
            with reader_of_events(port):
                row = lines_of(load)[0]
        else:
            with running([bench.tool("status_probe"), "--port", port, "--for-ms", 600000, "--every-ms", 20]):
                row = lines_of(load)[0]
        return row["wall_ns"], row["server_cpu_ns"]


def measure_watched(bench):
    """What it costs a round that it is looked at while it comes together: each pair of joins beside each other."""
    some = [[one_join(bench, how) for how in (None, "status", "events")] for _ in range(8 if bench.quick else 30)]
    for who, how in ((1, "status asked for every 20 ms"), (2, "a reader of /events")):
        for text, at in (("wall", 0), ("server CPU", 1)):
            alone, seen = (median([joins[i][at] for joins in some]) / 1e6 for i in (0, who))
            bench.add("rendezvous", f"1,000 agents join, {text}, {how}", "ms", {"muster": seen, "unwatched": alone},
                      [("ratio", WATCHED_RATIO, "unwatched")] if at == 0 else [])


def measure(bench):
    measure_real(bench)
    for some in (measure_simulated, measure_status, measure_watched):
        try:
            some(bench)
        except Missing as e:
            bench.note(f"rendezvous: {e}")
