"""What tests of the trainer share: running it under a launcher, and reading the events it wrote."""
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

import agentlib
import mulib

TRAINER = mulib.BIN and os.path.join(mulib.BIN, "trainer")
if not TRAINER or not os.path.exists(TRAINER):
    pytest.skip("the trainer is not built (libopenblas-dev)", allow_module_level=True)
DATA = Path(os.environ.get("MUSTER_SOURCE", Path(__file__).resolve().parents[2])) / "tests" / "data"
REFERENCE = DATA / "trainer"
TORCH_PYTHON = Path(os.environ.get("MUSTER_TORCH_PYTHON", "/var/tmp/muster-venv/bin/python"))
LIMIT_S = 240  # For a whole training on a busy machine, under sanitizers.


def words(folder, *more):
    return [TRAINER, "--data", DATA / "digits.bin", "--events", folder / "events-%r", "--device", "cpu", *more]


def launcher(kind, world):
    if kind == "agent":
        return [mulib.program("node-agent"), "--standalone", f"--nproc_per_node={world}"]
    if kind == "hydra":
        found = shutil.which("mpiexec.hydra")
        return [found, "-n", world] if found else pytest.skip("mpiexec.hydra is not installed (hydra)")
    if not TORCH_PYTHON.exists():
        pytest.skip(f"{TORCH_PYTHON} is not there: a virtual environment with torch 2.13 (MUSTER_TORCH_PYTHON)")
    return [TORCH_PYTHON, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={world}", "--no-python"]


def run(folder, world, *more, kind="agent", status=0):
    """Trains to the end; its lines on stdout and stderr."""
    folder.mkdir(exist_ok=True)
    cmd = [*(launcher(kind, world) if world > 1 or kind != "agent" else []), *words(folder, *more)]
    p = subprocess.run([str(c) for c in cmd], cwd=folder, env=agentlib.environment(), stdin=subprocess.DEVNULL, capture_output=True,
                       text=True, timeout=LIMIT_S)
    assert p.returncode == status, f"exit status {p.returncode}:\n{p.stdout}{p.stderr}"
    return p.stdout.splitlines(), p.stderr.splitlines()


def events(folder, rank):
    return [json.loads(line) for line in (folder / f"events-{rank}").read_text().splitlines() if line.endswith("}")]


def of_kind(found, kind):
    return [e for e in found if e["event"] == kind]


def losses(folder, world):
    """{(rank, epoch, step): loss}; the last word counts."""
    return {(r, e["epoch"], e["step"]): e["loss"] for r in range(world) for e in of_kind(events(folder, r), "step")}


def reference(name):
    return json.loads((REFERENCE / name).read_text())


def largest(a, b):
    return max(abs(x - y) for x, y in zip(a, b, strict=True))


def distances(folder, world, want):
    """For each epoch: how far we are from a reference."""
    got, ends = losses(folder, world), of_kind(events(folder, 0), "epoch")
    assert len(ends) == len(want)
    for end, e in zip(ends, want):
        steps = [(r, e["epoch"], s) for r in range(world) for s in range(e["steps"])]
        yield {"step_loss_max": largest((got[k] for k in steps), (e["loss_per_rank"][r][s] for r, _, s in steps)),
               "train_loss": abs(end["train_loss"] - e["train_loss"]), "test_loss": abs(end["test_loss"] - e["test_loss"]),
               "test_correct": abs(end["test_correct"] - e["test_correct"]),
               "weights_l2_rel": abs(end["weights"]["l2"] / e["weights"]["l2"] - 1)}
