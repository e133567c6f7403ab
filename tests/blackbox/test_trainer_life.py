"""The reference trainer loses nothing when a rank dies, ends when asked to, and says what happens."""
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

import agentlib
from trainerlib import DATA, LIMIT_S, TRAINER, events, of_kind, run, words


# --- checkpoints, restarts, stops ---

def newest(folder):
    return sorted(folder.glob("step-*"))[-1]


def state_of(folder):
    return (newest(folder) / "state.bin").read_bytes()


SLOW = ["--width", 2, "--epochs", 4, "--keep", 0]  # Some milliseconds a step.


def test_a_killed_rank_costs_only_the_steps_since_the_checkpoint(job, tmp_path):
    ours = tmp_path / "ours"
    agent = job.start("--standalone", "--nproc_per_node=2", "--max-restarts=1",
                      *words(tmp_path, *SLOW, "--checkpoint", ours, "--every", 9, "--log-steps", 1))
    agent.err.wait(r"^step 35 ", timeout=LIMIT_S)  # An epoch has 23.
    os.kill(of_kind(events(tmp_path, 1), "start")[0]["pid"], signal.SIGKILL)
    agent.ends(0, LIMIT_S)
    found = [m for m in (re.search(r"going on from (\S+): epoch (\d+), step (\d+)", s) for s in agent.err.lines) if m]
    assert len(found) == 1, agent.err.text()
    step = int(found[0].group(3))
    assert step >= 27 and step % 9 == 0

    undisturbed = tmp_path / "undisturbed"
    undisturbed.mkdir()
    shutil.copytree(found[0].group(1), undisturbed / Path(found[0].group(1)).name)
    run(tmp_path / "b", 2, *SLOW, "--checkpoint", undisturbed, "--every", 9)
    run(tmp_path / "c", 2, *SLOW, "--checkpoint", tmp_path / "whole")
    assert newest(ours).name == newest(undisturbed).name == "step-000000000092"
    assert state_of(ours) == state_of(undisturbed)
    assert state_of(ours) == state_of(tmp_path / "whole")
    # The epoch that was cut has the loss of all its items.
    cut = [{e["epoch"]: e["train_loss"] for e in of_kind(events(f, 0), "epoch")} for f in (tmp_path, tmp_path / "c")]
    assert cut[0].keys() == cut[1].keys()
    assert all(abs(cut[0][k] - cut[1][k]) < 1e-12 for k in cut[1])


@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize("signo", [signal.SIGKILL, signal.SIGABRT])
def test_the_rank_that_was_killed_is_the_cause_though_others_may_end_before_it(job, tmp_path, rank, signo):
    """Its sockets are closed before it has ended, and its peers say whom they lost and exit at once."""
    agent = job.start("--standalone", "--nproc_per_node=3", *words(tmp_path, "--epochs", 1000, "--log-steps", 1))
    agent.err.wait(r"^step 9 ", timeout=LIMIT_S)
    pid = of_kind(events(tmp_path, rank), "start")[0]["pid"]
    os.kill(pid, signo)
    agent.ends(1, LIMIT_S)
    assert f"failed: rank {rank} (local rank {rank}, pid {pid})" in agent.verdict() and signo.name in agent.verdict(), agent.err.text()


@pytest.mark.parametrize("world", [1, 4])
def test_a_checkpoint_goes_on_in_another_world(tmp_path, world):
    run(tmp_path / "a", 2, "--epochs", 1, "--checkpoint", tmp_path / "ckpt", "--every", 10, "--keep", 0)
    shutil.rmtree(newest(tmp_path / "ckpt"))  # The end of the epoch: what is left is in the middle, 640 items in all.
    _, err = run(tmp_path / "b", world, "--epochs", 2, "--checkpoint", tmp_path / "ckpt")
    assert any(re.search(r"going on from \S+-000000000020: epoch 0, step 20", s) for s in err), err
    steps = of_kind(events(tmp_path / "b", 0), "step")
    assert (steps[0]["epoch"], steps[0]["step"]) == (0, 20 * 2 // world)
    ends = of_kind(events(tmp_path / "b", 0), "epoch")
    assert [e["epoch"] for e in ends] == [0, 1]
    assert ends[1]["train_loss"] < ends[0]["train_loss"]
    assert newest(tmp_path / "ckpt").name == f"step-{ends[1]['step']:012}"


def test_sigterm_of_one_rank_ends_all_with_a_checkpoint(job, tmp_path):
    agent = job.start("--standalone", "--nproc_per_node=2",
                      *words(tmp_path, *SLOW, "--epochs", 1000, "--checkpoint", tmp_path / "ckpt", "--log-steps", 1))
    agent.err.wait(r"^step 5 ", timeout=LIMIT_S)
    os.kill(of_kind(events(tmp_path, 1), "start")[0]["pid"], signal.SIGTERM)
    agent.ends(0, LIMIT_S)
    step = int(re.search(r"asked to stop: ended after step (\d+)", agent.err.text()).group(1))
    assert newest(tmp_path / "ckpt").name == f"step-{step:012}"


def test_old_checkpoints_go(tmp_path):
    run(tmp_path, 2, "--epochs", 5, "--checkpoint", tmp_path / "ckpt", "--keep", 3)
    assert [p.name for p in sorted((tmp_path / "ckpt").glob("step-*"))] == [f"step-{23 * e:012}" for e in (3, 4, 5)]


# --- what people see ---

def test_a_failure_is_one_sentence_which_the_launcher_repeats(job, tmp_path):
    agent = job.start("--standalone", "--nproc_per_node=2", TRAINER, "--device", "cpu", "--data", tmp_path / "missing.bin")
    agent.ends(1, LIMIT_S)
    assert re.search(r"trainer: rank \d: open '\S+missing.bin' \(--data\): No such file or directory \(trainer\.c:\d+: ", agent.err.text())
    assert "missing.bin' (--data): No such file" in agent.verdict()


def test_usage_errors_have_status_2_and_help_shows_every_option(tmp_path):
    p = subprocess.run([TRAINER, "--batch", "0"], capture_output=True, text=True, timeout=20)
    assert p.returncode == 2 and "--batch is a whole number" in p.stderr
    p = subprocess.run([TRAINER, "--help"], capture_output=True, text=True, timeout=20)
    assert p.returncode == 0
    for name in ("data", "init", "epochs", "batch", "width", "dtype", "lr", "device", "backend", "workers", "checkpoint", "every", "events",
                 "log-steps", "bucket-kib", "overlap"):
        assert re.search(rf"^  --{name} ", p.stdout, re.M), name


def test_a_terminal_gets_a_progress_bar_and_a_file_none(tmp_path):
    _, err = run(tmp_path, 1, "--epochs", 1)
    assert not any("#" in line for line in err)
    ours, theirs = os.openpty()
    p = subprocess.Popen([str(w) for w in words(tmp_path, "--epochs", 1)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=theirs,
                         env=agentlib.environment())
    os.close(theirs)
    text = b""
    try:
        while part := os.read(ours, 4096):
            text += part
    except OSError:  # The other end is closed.
        pass
    os.close(ours)
    assert p.wait(LIMIT_S) == 0
    assert re.search(rb"\repoch 0 \[#* *\] \d+/45 loss \d", text)


def test_a_plot_of_what_is_no_run_gets_a_sentence(tmp_path):
    plot = Path(os.environ.get("MUSTER_SOURCE", DATA.parents[1])) / "trainer-example" / "plot.py"
    binary, other, torn, good = (tmp_path / name for name in ("binary", "other", "torn", "good"))
    binary.write_bytes(bytes(range(256)) * 4)
    other.write_text('[1]\n{"a": 1}\n7\n"event"\n')
    torn.write_text('{"event": "step"}\n')
    good.write_text('{"event":"start","step":0}\n{"event":"step","loss":2.0}\n{"event":"step","lo')
    for words, said in [([tmp_path / "none"], "none: No such file or directory"), ([tmp_path], ": Is a directory"),
                        ([binary], "binary holds no events"), ([other], "other holds no events"),
                        ([torn], "torn: line 1: an event 'step' without a number 'loss'"), ([good, tmp_path / "none"], "No such file")]:
        p = subprocess.run([plot, "--text", *words], capture_output=True, text=True, timeout=60, check=False)
        assert p.returncode == 1 and said in p.stderr and p.stderr.count("\n") == 1 and p.stderr.startswith("plot.py: "), (words, p.stderr)
    p = subprocess.run([plot, "--text", good], capture_output=True, text=True, timeout=60, check=False)
    assert p.returncode == 0 and "loss of each step" in p.stdout, p.stderr


def test_events_become_a_plot(tmp_path):
    run(tmp_path, 1, "--epochs", 2)
    plot = Path(os.environ.get("MUSTER_SOURCE", DATA.parents[1])) / "trainer-example" / "plot.py"
    p = subprocess.run([plot, "--text", tmp_path / "events-0"], capture_output=True, text=True, timeout=60)
    assert p.returncode == 0, p.stderr
    assert "loss of each step" in p.stdout and "samples/s" in p.stdout and p.stdout.count("*") > 50
