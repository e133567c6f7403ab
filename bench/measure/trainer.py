"""The reference trainer beside PyTorch DDP on the same cores, one thread a rank: time a sample, and memory.

How much faster two ranks are is also measured in calm moments alone. A virtual CPU may be one of a core's two threads, and as slow as
half a core whenever a stranger uses the other; a rank that is slowed so holds up both. bench/core_rate says how fast the CPUs are
before and after each short run, and only runs between two probes that found every CPU at its full speed count.
"""
import json
import os
import subprocess
import time

from .common import Missing, lines_of, median, running_many

EPOCHS = 20  # Timed, after one to warm up.
TORCH_EPOCHS = 5
LIMITS = {1: 1 / 1.7, 2: 1 / 2.2}  # Of PyTorch's time.
TWO_OF_ONE = 1 / 1.8  # Two ranks take at most this part of one rank's time.
OF_APART = 1.2  # And at most so many times what two trainers take that wait for nobody.
PEAK_MIB = 20
PROBE_MS = 20
CALM = 0.93  # Of the fastest that any probe found.
CALM_EPOCHS = 5  # In a short run, after one to warm up.
CALM_RUNS = 5  # That many of each, or
CALM_LIMIT_S = (60, 300)  # as many as there are after that long, quick or not.


def ours(bench, world, more=None, epochs=EPOCHS):
    """(us a sample, MiB): from the events of all ranks. `more`: of their environment."""
    trainer, agent = bench.ours("trainer"), bench.ours("node-agent")
    if trainer is None or (world > 1 and agent is None):
        raise Missing("trainer is not built (libopenblas-dev)")
    for f in bench.tmp.glob("trainer-events-*"):
        f.unlink()
    words = [trainer, "--device", "cpu", "--data", bench.root.parent / "tests" / "data" / "digits.bin", "--epochs", epochs + 1, "--events",
             bench.tmp / "trainer-events-%r"]
    run_quietly([agent, "--standalone", f"--nproc_per_node={world}", *words] if world > 1 else words, more)
    ranks = [[json.loads(s) for s in f.read_text().splitlines()] for f in sorted(bench.tmp.glob("trainer-events-*"))]
    ends = [[e for e in r if e["event"] == "epoch"] for r in ranks]
    items = sum(e["items"] for r in ranks for e in r if e["event"] == "step" and e["epoch"] > 0)
    seconds = max(sum(e["seconds"] for e in r[1:]) for r in ends)
    return seconds / items * 1e6, max(e["peak_kib"] for r in ends for e in r) / 1024


def apart(bench):
    """us a sample of two trainers at once that know nothing of each other: what the machine gives two ranks at most."""
    trainer = bench.ours("trainer")
    files = [bench.tmp / f"trainer-apart-{i}" for i in (0, 1)]
    cmds = [[trainer, "--device", "cpu", "--data", bench.root.parent / "tests" / "data" / "digits.bin", "--epochs", EPOCHS + 1, "--events", f]
            for f in files]
    with running_many(cmds, cwd=bench.tmp) as procs:
        for p in procs:
            p.wait(600)
    rates = []
    for f in files:
        events = [json.loads(s) for s in f.read_text().splitlines()]
        items = sum(e["items"] for e in events if e["event"] == "step" and e["epoch"] > 0)
        rates.append(items / sum(e["seconds"] for e in events if e["event"] == "epoch" and e["epoch"] > 0))
    return 1e6 / sum(rates)


def run_quietly(cmd, more):
    """Like lines_of(), for a program whose lines are for people."""
    p = subprocess.run([str(c) for c in cmd], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600,
                       env={**os.environ, **(more or {})})
    if p.returncode != 0:
        raise Missing(f"trainer: {p.stderr.strip().splitlines()[-1:] or p.returncode}")


def torchs(bench, world):
    if not os.access(bench.torchrun, os.X_OK):
        bench.note(f"{bench.torchrun} is not there: PyTorch's column stays empty")
        return None, None
    got = lines_of(["env", "OMP_NUM_THREADS=1", bench.torchrun, "--standalone", f"--nproc_per_node={world}",
                    bench.root / "torch_trainer.py", "--data", bench.root.parent / "tests" / "data" / "digits.bin", "--epochs", TORCH_EPOCHS])
    return 1e6 / got[0]["samples_per_s"], got[0]["peak_mib"]


def speed_now(bench):
    """Gflop/s of the slowest CPU."""
    said = subprocess.run([bench.tool("core_rate"), str(PROBE_MS)], capture_output=True, text=True, check=True, timeout=10).stdout
    return min(map(float, said.split()))


def calm(bench):
    """{ranks: us a sample}: of runs between two probes that found the machine undisturbed; {} where there were too few."""
    runs, before, end = [], speed_now(bench), time.monotonic() + CALM_LIMIT_S[not bench.quick]
    while time.monotonic() < end:
        for world in (1, 2):
            took = ours(bench, world, epochs=CALM_EPOCHS)[0]
            after = speed_now(bench)
            runs.append((world, min(before, after), took))
            before = after
        full = CALM * max(rate for _, rate, _ in runs)
        kept = {w: [took for world, rate, took in runs if world == w and rate >= full] for w in (1, 2)}
        if min(map(len, kept.values())) >= CALM_RUNS:
            break
    bench.note(f"trainer: {len(kept[1])} runs of one rank and {len(kept[2])} of two, of {len(runs) // 2} each, were in calm moments")
    return {w: median(some) for w, some in kept.items()} if all(kept.values()) else {}


def measure(bench):
    rounds = 3 if bench.quick else 9
    alone, unix = [], []
    seen = {(who, world): [] for who in ("muster", "torchrun") for world in (1, 2)}
    for _ in range(rounds):  # Interleaved: what else the machine does falls on all.
        for world in (1, 2):
            seen["torchrun", world].append(torchs(bench, world))
            for _ in range(2):
                seen["muster", world].append(ours(bench, world))
                if world > 1:
                    unix.append(ours(bench, world, {"MUSTER_COMM_SHM": "0"})[0])
        alone.append(apart(bench))
    best = {k: min((v[0] for v in some if v[0]), default=None) for k, some in seen.items()}
    for world in (1, 2):
        checks = [("ratio", LIMITS[world], "torchrun")]
        many = "s" * (world > 1)
        bench.add("trainer", f"{world} rank{many}, a sample, best", "us", {who: best[who, world] for who in ("muster", "torchrun")}, checks)
        mid = {who: median([v[0] for v in seen[who, world]]) for who in ("muster", "torchrun")}
        bench.add("trainer", f"{world} rank{many}, a sample, median", "us", mid, checks)
    part = {who: best[who, 2] and best[who, 2] / best[who, 1] for who in ("muster", "torchrun")}
    bench.add("trainer", "2 ranks' time of 1 rank's, best", "x", part, [("max", TWO_OF_ONE)])
    quiet = calm(bench)
    bench.add("trainer", "2 ranks' time of 1 rank's, calm", "x", {"muster": quiet[2] / quiet[1] if quiet else None}, [("max", TWO_OF_ONE)],
              note="between two probes that found both CPUs at full speed")
    bench.add("trainer", "2 ranks, a sample, median", "us", {"muster": median([v[0] for v in seen["muster", 2]]), "muster-unix": median(unix), "apart": median(alone)},
              [("ratio", OF_APART, "apart"), ("ratio", 1.0, "muster-unix")],
              note="apart: two trainers of one rank each, at once; muster-unix: without shared memory")
    peak = {who: max((v[1] for w in (1, 2) for v in seen[who, w] if v[1]), default=None) for who in ("muster", "torchrun")}
    bench.add("trainer", "most memory of a rank", "MiB", peak, [("max", PEAK_MIB)])
