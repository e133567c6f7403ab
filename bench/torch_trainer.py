#!/usr/bin/env python3
"""The trainer's training in PyTorch DDP, timed: what bench/run puts beside ours. CPU, gloo, one thread a rank.

    torchrun --nproc_per_node N torch_trainer.py --data digits.bin [--epochs E]

One epoch to warm up, then E epochs; rank 0 prints one JSON line. The model is tests/data/trainer/make_reference.py's.
"""
import argparse
import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "data" / "trainer"))
from make_reference import TRAIN, Net, read_digits  # noqa: E402


def peak_mib():
    with open("/proc/self/status", encoding="ascii") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmHWM")) / 1024


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--data", required=True)
    ap.add_argument("--epochs", type=int, default=5)
    a = ap.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    ddp = DDP(Net())
    x, y = read_digits(Path(a.data))
    train = TensorDataset(x[:TRAIN], y[:TRAIN])
    sampler = DistributedSampler(train, shuffle=True)
    loader = DataLoader(train, batch_size=32, sampler=sampler)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-3)
    criterion = nn.CrossEntropyLoss()

    def run(epochs):
        items, begun = 0, time.perf_counter()
        for epoch in range(epochs):
            sampler.set_epoch(epoch)
            for bx, by in loader:
                optimizer.zero_grad()
                criterion(ddp(bx), by).backward()
                optimizer.step()
                items += len(by)
        return items, time.perf_counter() - begun

    run(1)
    dist.barrier()
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, (*run(a.epochs), peak_mib()))
    if dist.get_rank() == 0:
        print(json.dumps({"samples_per_s": sum(e[0] for e in every) / max(e[1] for e in every), "peak_mib": max(e[2] for e in every)}),
              flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
