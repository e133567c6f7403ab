"""Storms: 256 workers that exit at once, over and over, under load. Counted: hangs, and exit statuses that got lost."""
import os
import signal
import subprocess
import sys
from contextlib import ExitStack, suppress

from .common import running

WORKERS = 256
LIMIT_S = 30


def muster(bench, agent, rank):
    return [agent, "--standalone", f"--nproc-per-node={WORKERS}", "--no-python", *worker(bench, rank)]


def hydra(bench, program, rank):
    return [program, "-n", str(WORKERS), *worker(bench, None)]


def worker(bench, rank):
    return [bench.tool("stamp"), "-", "exit", *([str(rank), "7"] if rank is not None else [])]


def storm(cmd_of, runs):
    """Every other run has one worker that exits with 7: the launcher must say 1 and name that rank."""
    hangs = lost = 0
    for i in range(runs):
        rank = (i * 37) % WORKERS if i % 2 else None
        cmd = cmd_of(rank)
        p = subprocess.Popen(cmd, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                             text=True, start_new_session=True)
        try:
            said = p.communicate(timeout=LIMIT_S)[1]
        except subprocess.TimeoutExpired:
            hangs += 1
            with suppress(ProcessLookupError):
                os.killpg(p.pid, signal.SIGKILL)
            p.communicate()
            continue
        if rank is None:
            lost += p.returncode != 0
        else:
            lost += p.returncode != 1 or f"rank {rank} " not in said
    return hangs, lost


def measure(bench):
    runs = 20 if bench.quick else 1000
    agent, mpiexec = bench.ours("node-agent"), bench.peer("mpiexec.hydra")
    with ExitStack() as load:
        for _ in range(os.cpu_count() or 1):
            load.enter_context(running([sys.executable, "-c", "while True: pass"]))
        found = {}
        if agent:
            found["muster"] = storm(lambda rank: muster(bench, agent, rank), runs)
        if mpiexec:
            # Hydra names no rank: only runs that end well are counted for it, and a tenth of them.
            found["hydra"] = storm_of_good_ends(lambda: hydra(bench, mpiexec, None), max(10, runs // 10))
    bench.add("storm", f"{runs} runs of {WORKERS} exits under load: hangs", "runs",
              {k: v[0] for k, v in found.items()}, [("max", 0)])
    bench.add("storm", f"{runs} runs of {WORKERS} exits under load: lost exit statuses", "runs",
              {k: v[1] for k, v in found.items()}, [("max", 0)], note="hydra: a tenth of the runs")


def storm_of_good_ends(cmd_of, runs):
    hangs = lost = 0
    for _ in range(runs):
        try:
            lost += subprocess.run(cmd_of(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL, timeout=LIMIT_S).returncode != 0
        except subprocess.TimeoutExpired:
            hangs += 1
    return hangs, lost
