"""What people train with, unmodified, under node-agent as under torchrun: PyTorch's FSDP, checkpoints and elastic tools, accelerate,
Lightning, transformers. Two nodes with two ranks each, on CPUs over gloo; the scripts are in frameworks/ and know no launcher, and the
line that starts them changes in its first word."""
import json
import math
import os
import re
import select
import socket
import subprocess
import time
from pathlib import Path

import pytest
from conftest import BIN, HERE, QUIET, ROOT, TORCH_PYTHON
from procs import Proc

SCRIPTS = HERE / "frameworks"
DATA = ROOT / "tests" / "data" / "digits.bin"
PYTHON = os.environ.get("MUSTER_FRAMEWORKS_PYTHON", "/var/tmp/muster-frameworks-venv/bin/python")
LIMIT_S = 300  # Importing Lightning four times at once takes two cores 20 s, and a busy machine minutes.
FLAGS = ["--nnodes=2", "--nproc-per-node=2", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=frameworks"]


def need_package(name, python=PYTHON, wanted=None, how="tools/venv.sh --frameworks installs it, or MUSTER_FRAMEWORKS_PYTHON names"):
    """The Python that has it, in the version that tools/venv.sh installs. Not imported: that takes seconds, and is done often enough."""
    rows = [line.split("==") for line in (SCRIPTS / "requirements.txt").read_text().splitlines() if not line.startswith("#")]
    wanted = wanted or dict(rows)[name]
    how = f"{name} {wanted} is wanted: {how} a Python that has it"
    if not os.path.exists(python):
        pytest.skip(f"{python} is not there, {how}")
    code = f"from importlib.metadata import version; print(version('{name}'))"
    p = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=120)
    if p.stdout.strip().split("+")[0] != wanted:
        pytest.skip(f"{python} has {name} {p.stdout.strip() or 'not at all'}, {how}")
    return python


@pytest.fixture
def torch2():
    return need_package("torch", TORCH_PYTHON, "2.13.0", "tools/venv.sh installs it, or MUSTER_TORCH_PYTHON names")


def unused_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Launches:
    """Launchers of one script on this machine, each for a node."""

    def __init__(self, name, python, words, count=2):
        # As in a shell in which that Python's environment is active. Nothing comes from a hub.
        env = {**os.environ, **QUIET, "PATH": f"{Path(python).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1",
               "HF_HUB_OFFLINE": "1"}
        port = unused_port()
        words = [str(w).replace("{port}", str(port)) for w in words]
        self.procs = [Proc(f"{name} {i + 1}", words, env=env) for i in range(count)]

    def end(self, status, how_many=None):
        """All exit with it, or so many do, and the others are told to end."""
        how_many = how_many or len(self.procs)
        try:
            ended = [p.p for p in self.first_to_end(how_many)]
            for p in self.procs:
                p.p.terminate()  # Not killed: torchrun leaves its workers behind then.
                p.wait(LIMIT_S)
            assert [p.returncode for p in ended] == [status] * len(ended), "exit status"
        finally:
            for p in self.procs:
                p.end()
                print(p.story())
        return self

    def first_to_end(self, count):
        by_fd = {os.pidfd_open(p.p.pid): p for p in self.procs}
        try:
            ended, end = set(), time.monotonic() + LIMIT_S
            while len(ended) < count:
                ready = select.select(by_fd.keys() - ended, [], [], max(0, end - time.monotonic()))[0]
                assert ready, f"{len(ended)} of {count} ended within {LIMIT_S} s"
                ended.update(ready)
            return [by_fd[fd] for fd in ended]
        finally:
            for fd in by_fd:
                os.close(fd)

    def found(self, pattern):
        """What matches: of the first node in its order, then of the next."""
        return [m.group(0) for p in self.procs for m in p.matches(pattern)]


def under_torchrun(python, script, *args, options=(), status=0, how_many=None):
    words = [python, "-m", "torch.distributed.run", *FLAGS, *options, SCRIPTS / script, *args]
    return Launches("torchrun", python, words).end(status, how_many)


def under_node_agent(python, script, *args, options=(), status=0):
    assert not re.search("muster|node-agent", (SCRIPTS / script).read_text()), f"{script} knows who starts it"
    words = [BIN / "node-agent", *FLAGS, *options, SCRIPTS / script, *args]
    return Launches("node-agent", python, words).end(status)


def same_under_both(python, pattern, lines, script, *args):
    """So many lines match under each, text-equal, and node-agent has nothing to say. {kind} in an argument is the launcher."""
    runs = [run(python, script, *(str(a).replace("{kind}", kind) for a in args))
            for kind, run in (("torchrun", under_torchrun), ("node-agent", under_node_agent))]
    theirs, ours = (run.found(pattern) for run in runs)
    assert len(theirs) == lines, f"under torchrun: {theirs}"
    assert ours == theirs
    assert runs[1].found("node-agent") == []


def test_fsdp_in_both_its_forms_and_a_distributed_checkpoint(torch2, tmp_path):
    same_under_both(torch2, r"^FSDP.* loss .*", 6, "fsdp.py", "--data", DATA, "--out", tmp_path / "{kind}")
    assert (tmp_path / "node-agent" / ".metadata").exists()


def test_accelerate():
    # accelerator.print() speaks once on each node.
    same_under_both(need_package("accelerate"), r"^(DistributedType.MULTI_CPU gloo 4|epoch \d+ loss .*)$", 8, "accelerate_train.py",
                    "--data", DATA)


def test_lightning():
    same_under_both(need_package("lightning"), r"^(epoch \d+ loss .*|TorchElasticEnvironment 4 2 .*)$", 4, "lightning_train.py",
                    "--data", DATA)


def test_transformers(tmp_path):
    same_under_both(need_package("transformers"), r"^(step \d+ loss .*|ParallelMode.DISTRIBUTED 4 .*)$", 7, "transformers_train.py",
                    "--data", DATA, "--out", tmp_path / "{kind}")


def losses(run):
    return [float(text.split()[-1]) for text in run.found(r"^epoch \d+ loss .*")]


def test_elastic_training_goes_on_from_its_checkpoint_after_a_rank_died(torch2, tmp_path):
    folders = [tmp_path / "whole", tmp_path / "broken"]
    for folder in folders:
        folder.mkdir()
    whole = under_torchrun(torch2, "elastic.py", "--data", DATA, "--checkpoints", folders[0])
    broken = under_node_agent(torch2, "elastic.py", "--data", DATA, "--checkpoints", folders[1], "--fail-at", 2,
                              options=["--max-restarts=1"])
    begun = sorted(broken.found(r"^rank .* goes on .*"))
    assert begun == sorted(f"rank {r} of 4 attempt {a} goes on after epoch {e}" for a, e in ((0, -1), (1, 1)) for r in range(4))
    assert len(broken.found(r"rank 3 .* was ended by SIGKILL; the group starts again \(restart 1 of 1\)")) == 2  # Each agent says it.
    theirs, ours = losses(whole), losses(broken)
    assert len(theirs) == len(ours) == 4 and theirs[:2] == ours[:2]
    # DDP lays its buckets out anew after its first step, whoever started it: sums then differ in their last digits.
    assert all(math.isclose(a, b, abs_tol=1e-6) for a, b in zip(theirs[2:], ours[2:])), (theirs, ours)


def report(run):
    """The block of the root cause without what differs from run to run, and the files that it names."""
    blocks = [b for p in run.procs for b in re.findall(r"^Root Cause .*:\n\[0\]:\n(.*?)\n=+$", p.text(), re.M | re.S)]
    assert len(blocks) == 1, blocks
    lines = [line.rstrip() for line in blocks[0].splitlines() if line.strip()]
    file = re.search(r"^  error_file: (.*)", blocks[0], re.M).group(1)
    return [re.sub(r"pid: \d+", "pid", line) for line in lines if not re.match("  (time|host|error_file) *:", line)], file


def test_a_recorded_exception_is_the_cause_as_under_torchrun(torch2, tmp_path):
    # Of torchrun's agents the one whose rank raised ends; the other is not told.
    runs = [under_torchrun(torch2, "raises.py", options=[f"--log-dir={tmp_path}/torchrun"], status=1, how_many=1),
            under_node_agent(torch2, "raises.py", options=[f"--log-dir={tmp_path}/node-agent"], status=1)]
    facts = [sorted(run.found(r"^rank \d: \{.*")) for run in runs]
    assert len(facts[0]) == 4 and facts[1] == facts[0]
    assert "'launched': True" in facts[1][0]
    (theirs, their_file), (ours, our_file) = map(report, runs)
    assert "  rank      : 3 (local_rank: 1)" in ours and ours[-1] == "  ValueError: rank 3 has no more data: 'Größe' is 0"
    assert ours == theirs
    errors = [json.loads(Path(f).read_text())["message"] for f in (their_file, our_file)]
    assert all(e["extraInfo"].pop("timestamp").isdigit() for e in errors)
    assert errors[0] == errors[1]
    # What torchrun's agents do not: the one whose ranks were only stopped names the cause too.
    assert len(runs[1].found(r"failed: rank 3 .* exited with status 1: ValueError: rank 3 has no more data")) == 2


def test_loaders_that_hang_end_with_their_rank(torch2, tmp_path):
    words = [BIN / "node-agent", "--standalone", "--nproc-per-node=2", "--max-restarts=1", SCRIPTS / "loader.py", "--folder", tmp_path]
    run = Launches("node-agent", torch2, words, count=1).end(0)
    assert sorted(run.found(r"^rank \d: .*")) == [f"rank {r}: 2 loaders of the first attempt, left: []" for r in (0, 1)]
    assert run.found("^sum .*") == ["sum 56"]
