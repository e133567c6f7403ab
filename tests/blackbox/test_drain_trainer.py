"""The reference trainer under a drain: all ranks checkpoint after one step, and the run that goes on ends with the same weights, to
the bit, as one that nobody disturbed."""
import re
import signal

from trainerlib import LIMIT_S, TRAINER, events, of_kind, run, words

SLOW = ["--width", 2, "--epochs", 24, "--keep", 0]  # Some 15 s on two quiet cores: the spare comes, and two beats pass.


def newest(folder):
    return sorted(folder.glob("step-*"))[-1]


def test_a_drained_run_ends_with_the_weights_of_an_undisturbed_one(job, server, tmp_path):
    assert TRAINER
    folders = [tmp_path / name for name in ("a", "b", "c")]
    ours = tmp_path / "ours"
    agents = []

    def add(folder):
        folder.mkdir()
        agents.append(job.start(f"--rdzv=127.0.0.1:{server.port}", "--nnodes=2", "--rdzv-id=d", "--nproc-per-node=1",
                                *words(folder, *SLOW, "--checkpoint", ours, "--every", 1000, "--log-steps", 1)))
        return agents[-1]
    stays, leaves = add(folders[0]), add(folders[1])
    server.wait_status(lambda s: any(w["step"] is not None and w["step"] > 2 for j in s["jobs"] for n in j["nodes"] for w in n["workers"]),
                       "some steps")
    spare = add(folders[2])
    server.wait_status(lambda s: len(s["jobs"][0]["nodes"]) == 3, "a spare")
    leaves.signal(signal.SIGUSR1)
    leaves.ends(0, LIMIT_S)
    stays.ends(0, LIMIT_S)
    spare.ends(0, LIMIT_S)
    told = {m.group(1) for a in (stays, leaves) for s in a.err.lines for m in [re.search(r"the workers stop after step (\d+)", s)] if m}
    assert len(told) == 1, (stays.err.text(), leaves.err.text())
    step = int(told.pop())
    # Rank 0 was on either node, and its checkpoint is of that very step.
    text = stays.err.text() + leaves.err.text() + spare.err.text()
    assert f"asked to stop: ended after step {step}" in text, text
    assert re.search(rf"going on from \S+-{step:012}: ", text), text
    run(tmp_path / "undisturbed", 2, *SLOW, "--checkpoint", tmp_path / "whole")
    assert newest(ours).name == newest(tmp_path / "whole").name
    assert (newest(ours) / "state.bin").read_bytes() == (newest(tmp_path / "whole") / "state.bin").read_bytes()
    assert len(of_kind(events(folders[2], 0) if (folders[2] / "events-0").exists() else events(folders[2], 1), "start")) == 1
    assert server.status()["jobs"][0]["restarts"] == 0
