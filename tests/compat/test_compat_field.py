"""Field case F13 with PyTorch's own init_process_group as the worker: a group that fails ten times recovers ten times, with one restart
count on all nodes and a fresh store each time. torch is imported 22 times: this takes a minute."""
import os
import re

from conftest import BIN, QUIET, start_server
from procs import Proc

SCRIPT = """
import os, time, torch, torch.distributed as dist
count, node, rank = (int(os.environ[n]) for n in ("TORCHELASTIC_RESTART_COUNT", "GROUP_RANK", "RANK"))
dist.init_process_group("gloo")
t = torch.tensor([float(count)])
dist.all_reduce(t)
store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
stale = store.check(["id/%d" % rank])
store.set("id/%d" % rank, str(count))
os.write(1, b"count %d rank %d of %d sum %d stale %d\\n" % (count, rank, dist.get_world_size(), t.item(), stale))
if count < 10 and node == 1:
    time.sleep(0.05 * count)
    os._exit(5)
dist.barrier()
dist.destroy_process_group()
"""


def test_f13_torch_recovers_ten_of_ten(torch2, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    server, port = start_server(tmp_path)
    agents = [Proc(f"agent {i}", [BIN / "node-agent", f"--rdzv=127.0.0.1:{port}", "--nnodes=2", "--max-restarts=10",
                                  "--shutdown-timeout=5", script], env={**os.environ, **QUIET, "PYTHON_EXEC": torch2}) for i in (0, 1)]
    try:
        assert [a.wait(600) for a in agents] == [0, 0]
        told = sorted(tuple(map(int, m.groups())) for a in agents
                      for m in a.matches(r"^count (\d+) rank (\d) of (\d) sum (\d+) stale (\d)$"))
        assert told == [(count, rank, 2, 2 * count, 0) for count in range(11) for rank in (0, 1)]
        for a in agents:
            assert len([m for m in a.matches(r"round \d+ ended: rank 1 .* exited with status 5.*restart \d+ of 10")]) == 10
            assert not re.search("failed: ", a.text())
    finally:
        for p in (*agents, server):
            p.end()
            print(p.story())
