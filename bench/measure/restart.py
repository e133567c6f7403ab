"""Restart: from the SIGKILL of one worker to the first instruction of the last restarted one, less the time a bare loop needs to
start as many."""
import os
import signal
import subprocess
import time
from contextlib import ExitStack

from .common import Fifo, Missing, free_port, median, ms, rdzv_server, running_many

SHAPES = ((1, 8), (2, 4), (8, 1))  # Nodes, workers of each.
LIMITS = {1: 5.0, 2: 20.0, 8: 20.0}


def loop_ns(bench, fifo, workers):
    """From before the first spawn to the last worker's stamp."""
    fifo.drain()
    p = subprocess.run([bench.tool("spawn_loop"), "--begin", str(workers), bench.tool("stamp"), fifo.path, "exit"],
                       stdout=subprocess.PIPE, check=True, text=True)
    return max(s[0] for s in fifo.take(workers, 10)) - int(p.stdout)


def kills(fifo, workers, rounds, limit_s):
    """Kill one worker of a running job, `rounds` times; the times until all have started again."""
    live, found = fifo.take(workers, limit_s, "first starts"), []
    for _ in range(rounds):
        victim = live[-1][3]
        t0 = time.monotonic_ns()
        os.kill(victim, signal.SIGKILL)
        live = fifo.take(workers, limit_s, "restarts")
        found.append(max(s[0] for s in live) - t0)
    return found


def ours(bench, fifo, nodes, per_node, rounds):
    agent = bench.ours("node-agent")
    if agent is None:
        return []
    worker = ["--no-python", bench.tool("stamp"), fifo.path]
    with ExitStack() as stack:
        where = ["--standalone"]
        if nodes > 1:
            port, _ = stack.enter_context(rdzv_server(bench))
            where = [f"--nnodes={nodes}", f"--rdzv=127.0.0.1:{port}"]
        cmd = [agent, *where, f"--nproc-per-node={per_node}", "--max-restarts=1000", *worker]
        stack.enter_context(running_many([cmd] * nodes, cwd=bench.tmp))
        return kills(fifo, nodes * per_node, rounds, 20)


def torchruns(bench, fifo, nodes, per_node, rounds):
    torchrun = bench.peer("torchrun")
    if torchrun is None:
        return []
    where = ["--standalone"]
    if nodes > 1:
        where = [f"--nnodes={nodes}", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--rdzv-id=bench"]
    cmd = [torchrun, *where, f"--nproc-per-node={per_node}", "--max-restarts=1000", "--no-python", bench.tool("stamp"),
           fifo.path]
    with running_many([cmd] * nodes, cwd=bench.tmp):
        return kills(fifo, nodes * per_node, rounds, 120)


def measure(bench):
    rounds, slow_rounds = (5, 1) if bench.quick else (20, 4)
    fifo = Fifo(bench, "restart")
    for nodes, per_node in SHAPES:
        floor = median([loop_ns(bench, fifo, nodes * per_node) for _ in range(10)])
        values, low = {"loop": ms(floor)}, {"loop": ms(floor)}
        for name, run, n in (("muster", ours, rounds), ("torchrun", torchruns, slow_rounds)):
            fifo.drain()
            try:
                times = [ms(t - floor) for t in run(bench, fifo, nodes, per_node, n)]
            except Missing as e:
                bench.note(f"restart on {nodes} nodes, {name}: {e}")
                continue
            values[name], low[name] = median(times), min(times, default=None)
        checks = [("max", LIMITS[nodes]), ("ratio", 1.0, "torchrun")]
        note = f"{per_node} workers a node; less the loop's own time"
        bench.add("restart", f"{nodes} node(s), median", "ms", values, checks, note)
        bench.add("restart", f"{nodes} node(s), minimum", "ms", low, checks, note)
    fifo.close()
