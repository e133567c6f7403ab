#!/usr/bin/env python3
"""Says what PyTorch makes of its launcher's environment; then the last rank raises, under torchelastic's @record."""
import os
import time

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
from torch.distributed.elastic.utils import store as store_tools


def facts():
    rank, world = dist.get_rank(), dist.get_world_size()
    store = dist.PrefixStore("facts", dist.distributed_c10d._get_default_store())
    names = store_tools.synchronize(store, f"n{os.environ['GROUP_RANK']}".encode(), rank, world, "names")
    store_tools.barrier(store, world, "all here", barrier_timeout=60)
    return {"launched": dist.is_torchelastic_launched(), "run": os.environ["TORCHELASTIC_RUN_ID"], "backend": dist.get_backend(),
            "world": world, "local": dist.get_node_local_rank(), "nodes": [n.decode() for n in names],
            "attempt": os.environ["TORCHELASTIC_RESTART_COUNT"], "of": os.environ["TORCHELASTIC_MAX_RESTARTS"]}


def deep_inside(rank):
    raise ValueError(f"rank {rank} has no more data: 'Größe' is 0")


@record
def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    os.write(1, f"rank {rank}: {facts()}\n".encode())
    dist.barrier()
    if rank == dist.get_world_size() - 1:
        deep_inside(rank)
    time.sleep(120)


if __name__ == "__main__":
    main()
