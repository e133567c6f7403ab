"""The main job: an ordinary DDP script on two hosts gives, under muster, what it gives under torchrun."""
import os
import re
import signal
from contextlib import suppress

from conftest import BIN, HERE, ROOT, TORCH_PYTHON, need_torch
from procs import Late, pids_with

DATA = ROOT / "tests" / "data" / "digits.bin"
EPOCHS = 3


def script(hosts, *more):
    return [HERE / "train_ddp.py", "--data", DATA, "--epochs", EPOCHS, "--out", hosts.share / "model.pt", *more]


def losses(procs, limit_s):
    try:
        for p in procs:
            assert p.wait(limit_s) == 0, p.text()
    except Late:
        show_stacks(procs)
        raise
    return [m.group(0).split("]:")[-1] for p in procs for m in p.matches(r"epoch \d+ loss .*")]


def show_stacks(procs):
    """Workers that hang say where, in the output that a failing test shows (PYTHONFAULTHANDLER)."""
    for pid in pids_with(str(HERE / "train_ddp.py"), "python"):
        os.kill(pid, signal.SIGABRT)
    for p in procs:
        with suppress(Late):
            p.wait(10)


def torchrun_losses(hosts):
    words = [TORCH_PYTHON, "-m", "torch.distributed.run", "--nnodes=2", "--nproc_per_node=2", "--rdzv-backend=c10d",
             "--rdzv-endpoint=n1:29400", "--rdzv-id=lab", *script(hosts)]
    return losses([hosts.start(f"torchrun on n{i}", i, *words) for i in (1, 2)], 150)


def start_agents(hosts, *more):
    env = {"PYTHON_EXEC": TORCH_PYTHON, "PYTHONFAULTHANDLER": "1"}
    return [hosts.agent(i, "--nnodes=2", "--nproc_per_node=2", "--rdzv=n1:29500", *script(hosts, *more), env=env) for i in (1, 2)]


def test_ddp_on_two_hosts_loses_as_under_torchrun(hosts):
    need_torch()
    lab = hosts(2)
    theirs = torchrun_losses(lab)
    lab.server()
    ours = losses(start_agents(lab), 150)
    assert len(theirs) == EPOCHS, f"torchrun printed {theirs}"
    assert ours == theirs  # Text-equal, each line once.
    assert (lab.share / "model.pt").exists()


def test_ddp_goes_on_while_the_server_is_killed_and_restarted(hosts):
    need_torch()
    lab = hosts(2)
    server = lab.server()
    agents = start_agents(lab, "--sleep-per-step", "0.05")
    lead = first_to_print_an_epoch(agents)
    server.end()
    lab.start("kill", 1, "pkill", "-KILL", "-f", str(BIN / "rdzv-server")).wait(10)
    t0, m = lead.wait_line(r"epoch 1 loss", 60)  # Nobody is there to ask, and the workers go on.
    lab.server()
    lines = losses(agents, 120)
    assert [re.match(r"epoch (\d+)", line).group(1) for line in lines] == [str(e) for e in range(EPOCHS)]


def first_to_print_an_epoch(agents):
    """Rank 0 is on one of them."""
    try:
        agents[0].wait_line("epoch 0 loss", 90)
        return agents[0]
    except Late:
        agents[1].wait_line("epoch 0 loss", 1)
        return agents[1]
