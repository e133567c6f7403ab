#!/usr/bin/env python3
"""Train a small CNN on 8 x 8 digits with DistributedDataParallel on CPUs, as any PyTorch script does: start it with torchrun, or
with anything else that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.

Deterministic: the same number of ranks gives the same losses to the last digit.
"""
import argparse
import os
import struct
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

TRAIN_ITEMS = 1437


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, padding=1)
        self.conv2 = nn.Conv2d(32, 64, 3, padding=1)
        self.fc1 = nn.Linear(64 * 4 * 4, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


def load_digits(path):
    with open(path, "rb") as f:
        raw = bytearray(f.read())
    magic, count, height, width, _, levels = struct.unpack_from("<8s5I", raw)
    assert magic == b"MUSTDS01", f"{path} is no digits file"
    head, pixels = 28, count * height * width
    images = torch.frombuffer(raw, dtype=torch.uint8, count=pixels, offset=head).view(count, 1, height, width)
    labels = torch.frombuffer(raw, dtype=torch.uint8, count=count, offset=head + pixels)
    return images.float() / levels, labels.long()


def train_epoch(model, loader, optimizer, criterion, pause):
    """Mean loss over all ranks' samples."""
    total = torch.zeros(2, dtype=torch.float64)
    for images, labels in loader:
        optimizer.zero_grad()
        loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()
        total += torch.tensor([loss.item() * len(labels), len(labels)], dtype=torch.float64)
        time.sleep(pause)
    dist.all_reduce(total)
    return (total[0] / total[1]).item()


def accuracy(model, images, labels):
    with torch.no_grad():
        return (model(images).argmax(1) == labels).sum().item(), len(labels)


def save(model, optimizer, epoch, path):
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}, path + ".part")
    os.replace(path + ".part", path)


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--data", required=True, help="digits.bin")
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--batch", type=int, default=32, help="of each rank")
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--out", help="checkpoint, written by rank 0 after each epoch")
    ap.add_argument("--resume", action="store_true", help="go on from --out where it is there")
    ap.add_argument("--sleep-per-step", type=float, default=0.0, metavar="SECONDS", help="make a short training long")
    args = ap.parse_args()

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(0)
    dist.init_process_group("gloo", init_method="env://")
    rank = dist.get_rank()

    images, labels = load_digits(args.data)
    train_set = TensorDataset(images[:TRAIN_ITEMS], labels[:TRAIN_ITEMS])
    sampler = DistributedSampler(train_set, shuffle=True, seed=0)
    loader = DataLoader(train_set, batch_size=args.batch, sampler=sampler)
    net = Net()
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    criterion = nn.CrossEntropyLoss()

    first = 0
    if args.resume and args.out and os.path.exists(args.out):
        state = torch.load(args.out)
        net.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["epoch"] + 1

    for epoch in range(first, args.epochs):
        sampler.set_epoch(epoch)
        loss = train_epoch(model, loader, optimizer, criterion, args.sleep_per_step)
        if rank == 0:
            right, of = accuracy(net, images[TRAIN_ITEMS:], labels[TRAIN_ITEMS:])
            print(f"epoch {epoch} loss {loss:.15f} right {right}/{of}", flush=True)
            if args.out:
                save(net, optimizer, epoch, args.out)
    # Or its reducer is the last to hold the group, and PyTorch 2.13 ends that with the interpreter's lock in hand, for which a thread of
    # the group may be waiting: then the rank never ends. docs/guides/pytorch.md.
    del model
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
