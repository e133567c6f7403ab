"""torchrun, unchanged, with rdzv-server as its c10d endpoint: two agents, two workers each, and a collective over all four."""
import os

import pytest
from conftest import QUIET, start_server
from procs import Proc

SCRIPT = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
t = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(t)
# One write for the whole line: torchrun lets lines of two workers mix otherwise.
os.write(1, f"rank {dist.get_rank()} of {dist.get_world_size()} sum {t.item():.0f}\\n".encode())
dist.barrier()
dist.destroy_process_group()
"""


def two_agents(python, tmp_path, port, *more):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    words = [python, "-m", "torch.distributed.run", "--nnodes=2", "--nproc_per_node=2", "--rdzv_backend=c10d",
             f"--rdzv_endpoint=127.0.0.1:{port}", "--rdzv_id=compat", "--rdzv_conf=is_host=0", *more, script]
    return [Proc(f"torchrun {i}", words, env={**os.environ, **QUIET}) for i in (1, 2)]


def check(agents):
    try:
        assert [a.wait(150) for a in agents] == [0, 0]
        lines = sorted(m.group(0) for a in agents for m in a.matches(r"rank \d of 4 sum \d+"))
        assert lines == [f"rank {r} of 4 sum 10" for r in range(4)]
    finally:
        for a in agents:
            a.end()
            print(a.story())


@pytest.fixture
def port(tmp_path):
    server, port = start_server(tmp_path)
    yield port
    server.end()
    print(server.story())


def test_torchrun_2_13(torch2, tmp_path, port):
    check(two_agents(torch2, tmp_path, port))


def test_torchrun_1_13(torch1, tmp_path, port):
    # Under Python 3.11 that version does not read its own default of these two ("0"): any other value will do.
    check(two_agents(torch1, tmp_path, port, "--redirects=1", "--tee=1"))
