#!/usr/bin/env python3
"""PyTorch's FSDP on CPUs over gloo, in both its forms, and its distributed checkpoints (DCP). Started by torchrun, or by whatever sets
the same variables."""
import argparse

import digits
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.utils.data import DataLoader, DistributedSampler


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 48), nn.ReLU(), nn.Linear(48, 10))


def fsdp1():
    """Without an accelerator it must be told that the CPU is meant."""
    return FullyShardedDataParallel(net(), device_id=torch.device("cpu"))


def fsdp2():
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = net()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def train_epoch(model, optimizer, loader):
    """Mean loss over all ranks' samples."""
    total = torch.zeros(2, dtype=torch.float64)
    for images, labels in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        total += torch.tensor([loss.item() * len(labels), len(labels)], dtype=torch.float64)
    dist.all_reduce(total)
    return (total[0] / total[1]).item()


def run(name, model, loader, epochs, first=0, optimizer=None):
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=3e-3)
    for epoch in range(first, epochs):
        loader.sampler.set_epoch(epoch)
        loss = train_epoch(model, optimizer, loader)
        if dist.get_rank() == 0:
            print(f"{name} epoch {epoch} loss {loss:.15f}", flush=True)
    return optimizer


def save(model, optimizer, path):
    weights, steps = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": steps}, checkpoint_id=path)


def load(model, optimizer, path):
    weights, steps = get_state_dict(model, optimizer)
    dcp.load({"model": weights, "optimizer": steps}, checkpoint_id=path)
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=steps)


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--data", required=True)
    ap.add_argument("--out", required=True, help="where the checkpoint goes")
    args = ap.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    train_set = digits.dataset(args.data)
    loader = DataLoader(train_set, batch_size=32, sampler=DistributedSampler(train_set, seed=0))

    run("FSDP1", fsdp1(), loader, 2)
    model = fsdp2()
    optimizer = run("FSDP2", model, loader, 2)
    save(model, optimizer, args.out)
    run("FSDP2", model, loader, 3, first=2, optimizer=optimizer)
    again = fsdp2()
    optimizer = torch.optim.AdamW(again.parameters(), lr=3e-3)
    load(again, optimizer, args.out)
    run("FSDP2 loaded", again, loader, 3, first=2, optimizer=optimizer)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
