"""The reference trainer on two hosts gives PyTorch's numbers; and its checkpoints carry it over a host's power loss."""
import json

import pytest

from conftest import BIN, ROOT

DATA = ROOT / "tests" / "data"
LIMIT_S = 240


def words(lab, *more):
    if not (BIN / "trainer").exists():
        pytest.skip("the trainer is not built (libopenblas-dev)")
    return [BIN / "trainer", "--device", "cpu", "--data", DATA / "digits.bin", "--events", lab.share / "events-%r", *more]


def events(lab, rank, kind):
    lines = (lab.share / f"events-{rank}").read_text().splitlines()
    return [e for e in map(json.loads, filter(lambda s: s.endswith("}"), lines)) if e["event"] == kind]


def start(lab, *more, agent=("--nnodes=2",)):
    lab.server()
    return [lab.agent(i, *agent, "--nproc_per_node=2", "--rdzv=n1:29500", *words(lab, *more)) for i in (1, 2)]


def test_trainer_on_two_hosts_loses_as_pytorch(hosts):
    lab = hosts(2)
    agents = start(lab, "--dtype", "float64", "--init", DATA / "trainer" / "init.bin")
    for a in agents:
        assert a.wait(LIMIT_S) == 0, a.text()
    want = json.loads((DATA / "trainer" / "w4-f64.json").read_text())["epochs"]
    for rank in range(4):
        got = {(e["epoch"], e["step"]): e["loss"] for e in events(lab, rank, "step")}
        due = {(e["epoch"], s): v for e in want for s, v in enumerate(e["loss_per_rank"][rank])}
        assert got.keys() == due.keys()
        assert max(abs(got[k] - due[k]) for k in due) < 1e-9
    lines = [m.group(1) for a in agents for m in a.matches(r"epoch (\d+): loss ")]
    assert lines == [str(e) for e in range(10)]  # Once each, by one of the two.


def test_trainer_goes_on_after_a_host_lost_its_power(hosts):
    lab = hosts(2)
    agents = start(lab, "--width", 2, "--epochs", 6, "--checkpoint", lab.share / "ckpt", "--every", 5, "--log-steps", 1,
                   agent=("--nnodes=1:2", "--max-restarts=3"))
    lead = next(a for a in agents if lead_says(a, r"step 8 loss"))
    gone = 2 - agents.index(lead)
    lab.lab("kill", gone)
    assert lead.wait(LIMIT_S) == 0, lead.text()
    found = [m for m in lead.matches(r"going on from \S+: epoch (\d+), step (\d+)")]
    assert len(found) == 1 and int(found[0].group(2)) >= 5
    assert lead.matches(r"2 ranks, float32"), lead.text()
    done = [int(m.group(1)) for m in lead.matches(r"epoch (\d+): loss ")]
    assert done == list(range(6))


def lead_says(agent, pattern):
    """Rank 0 is on one of them; the other's limit is short, as the first has said it by then."""
    try:
        agent.wait_line(pattern, 60 if agent.name.endswith("n1") else 5)
        return True
    except AssertionError:
        return False
