"""What overlap hides: the trainer on two hosts of the lab whose link carries 400 Mbit/s, with gradients sent during backward, with the
same sent after it, and the computing alone (two trainers at once, one a host, that know nothing of each other).

A batch of 90 at twice the width: 2.4 MB of gradients, which take some 48 ms on the link, and about as long a step of computing. The
items divide into whole batches, so that seconds by steps is the time of a step.
"""
import json
import subprocess
from contextlib import contextmanager
from pathlib import Path

from .common import Missing, end_group, median
from .lab import hosts

RATE = "400mbit"
WORDS = ("--device", "cpu", "--width", 2, "--batch", 90)
EPOCHS = 3  # Timed, after one to warm up.
LIMIT_S = 300


@contextmanager
def two_hosts(bench):
    with hosts(bench, "overlap", 2) as lab:
        for host in (1, 2):
            lab.do("rate", host, RATE)
        yield lab


def step_ms(lab, name, commands):
    """Runs one command a host, each with --events `name`-<rank>; ms a step of the slowest."""
    procs = [lab.start(host, *cmd) for host, cmd in enumerate(commands, 1)]
    try:
        for p in procs:
            said = p.communicate(timeout=LIMIT_S)[1]
            if p.returncode != 0:
                raise Missing(f"{name}: {said.strip().splitlines()[-1:] or p.returncode}")
    except subprocess.TimeoutExpired:
        raise Missing(f"{name}: not done within {LIMIT_S} s") from None
    finally:
        for p in procs:
            end_group(p, 5)
    times = []
    for f in Path(lab.share).glob(f"{name}-*"):
        events = [json.loads(s) for s in f.read_text().splitlines()]
        steps = sum(e["event"] == "step" and e["epoch"] > 0 for e in events)
        times.append(sum(e["seconds"] for e in events if e["event"] == "epoch" and e["epoch"] > 0) / steps * 1e3)
        f.unlink()
    return max(times)


def trainer(bench, lab, name, rank="%r"):
    return [bench.ours("trainer"), "--data", bench.root.parent / "tests" / "data" / "digits.bin", "--epochs", EPOCHS + 1, *WORDS,
            "--events", lab.share / f"{name}-{rank}"]


def together(bench, lab, name, overlap):
    """Both hosts, one rank each, of one job; the server is on the first agent's host, in the agent."""
    agent = [bench.ours("node-agent"), "--nnodes=2", "--nproc-per-node=1", f"--rdzv-id={name}", "--rdzv=n1:29500", "--no-python"]
    words = [*agent, *trainer(bench, lab, name), "--overlap", overlap]
    return step_ms(lab, name, [words, words])


def alone(bench, lab, name):
    return step_ms(lab, name, [trainer(bench, lab, name, host) for host in (1, 2)])


def measure(bench):
    if bench.ours("trainer") is None or bench.ours("node-agent") is None:
        raise Missing("trainer is not built (libopenblas-dev)")
    seen = {"on": [], "off": [], "compute": []}
    with two_hosts(bench) as lab:
        for i in range(3 if bench.quick else 7):
            seen["compute"].append(alone(bench, lab, f"alone{i}"))
            for way in ("on", "off"):
                seen[way].append(together(bench, lab, f"{way}{i}", way))
    for what, take in (("median", median), ("best", min)):
        on, off, compute = (take(seen[k]) for k in ("on", "off", "compute"))
        bench.add("overlap", f"a step on two hosts, {RATE}, {what}", "ms", {"muster": on, "no-overlap": off, "compute": compute},
                  [("ratio", 1.0, "no-overlap")], note=f"with overlap : without : compute only = {on / compute:.2f} : {off / compute:.2f} : 1")
        bench.note(f"overlap, {what}: with : without : compute only = {on / compute:.2f} : {off / compute:.2f} : 1; "
                   f"{max(0.0, (off - on) / (off - compute)) if off > compute else 0:.0%} of what communication adds is hidden")
