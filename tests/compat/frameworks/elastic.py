#!/usr/bin/env python3
"""DDP that survives its own failures, in the way of PyTorch's elastic examples: each node keeps a checkpoint of its own, written after each
epoch; who starts (again) looks for the newest one among all ranks and gets it from who has it. --fail-at lets one rank kill itself, once."""
import argparse
import os
import signal

import digits
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.elastic.multiprocessing.errors import record
from torch.distributed.elastic.utils.data import ElasticDistributedSampler
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader


class State:
    """What a checkpoint holds."""

    def __init__(self, net, optimizer):
        self.net, self.optimizer = net, optimizer
        self.epoch = -1

    def capture(self):
        return {"epoch": self.epoch, "net": self.net.state_dict(), "optimizer": self.optimizer.state_dict()}

    def apply(self, snapshot):
        self.epoch = snapshot["epoch"]
        self.net.load_state_dict(snapshot["net"])
        self.optimizer.load_state_dict(snapshot["optimizer"])

    def save(self, path):
        torch.save(self.capture(), path + ".part")
        os.replace(path + ".part", path)

    def load_newest(self, path):
        """The newest among all ranks, sent by the lowest rank that has it."""
        if os.path.exists(path):
            self.apply(torch.load(path))
        epochs = [None] * dist.get_world_size()
        dist.all_gather_object(epochs, self.epoch)
        source = epochs.index(max(epochs))
        snapshot = [self.capture() if dist.get_rank() == source else None]
        dist.broadcast_object_list(snapshot, src=source)
        self.apply(snapshot[0])


def train_epoch(model, optimizer, loader, fail):
    total = torch.zeros(2, dtype=torch.float64)
    for step, (images, labels) in enumerate(loader):
        if fail and step == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        total += torch.tensor([loss.item() * len(labels), len(labels)], dtype=torch.float64)
    dist.all_reduce(total)
    return (total[0] / total[1]).item()


@record
def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--data", required=True)
    ap.add_argument("--checkpoints", required=True, help="a folder; each node has a file there")
    ap.add_argument("--fail-at", type=int, metavar="EPOCH", help="the last rank dies in this epoch of the first attempt")
    args = ap.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    rank, attempt = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])

    train_set = digits.dataset(args.data)
    sampler = ElasticDistributedSampler(train_set)
    loader = DataLoader(train_set, batch_size=32, sampler=sampler)
    net = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 10))
    model = DistributedDataParallel(net)
    state = State(net, torch.optim.AdamW(model.parameters(), lr=3e-3))
    path = os.path.join(args.checkpoints, f"node-{os.environ['GROUP_RANK']}.pt")
    state.load_newest(path)
    print(f"rank {rank} of {dist.get_world_size()} attempt {attempt} goes on after epoch {state.epoch}", flush=True)

    while state.epoch < 3:
        sampler.set_epoch(state.epoch + 1)
        fail = attempt == 0 and state.epoch + 1 == args.fail_at and rank == dist.get_world_size() - 1
        loss = train_epoch(model, state.optimizer, loader, fail)
        state.epoch += 1
        if rank == 0:
            print(f"epoch {state.epoch} loss {loss:.15f}", flush=True)
        if rank == 0:  # Of the first node alone: the others get it by broadcast.
            state.save(path)
    del model  # Before the group: with DDP holding it, PyTorch 2.13 can hang at its end.
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
