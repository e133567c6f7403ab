#!/usr/bin/env python3
"""A DataLoader with worker processes from a fork server. In the first attempt an item takes for ever (a network disk that hangs, say), and
rank 1 is killed meanwhile; in the next each rank tells which of the first attempt's loaders are still there."""
import argparse
import glob
import os
import signal
import threading
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

ATTEMPT = int(os.environ["TORCHELASTIC_RESTART_COUNT"])


class Items(Dataset):
    def __init__(self, folder):
        self.folder = folder

    def __len__(self):
        return 8

    def __getitem__(self, i):
        if ATTEMPT == 0 and i >= 4:
            open(os.path.join(self.folder, f"loader-{os.getpid()}"), "w").close()
            time.sleep(600)
        return torch.tensor(i)


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def die_when_all_hang(folder, count):
    while len(glob.glob(os.path.join(folder, "loader-*"))) < count:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--folder", required=True, help="where the loaders leave their process numbers")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if ATTEMPT > 0:
        pids = sorted(int(p.rpartition("-")[2]) for p in glob.glob(os.path.join(args.folder, "loader-*")))
        print(f"rank {rank}: {len(pids)} loaders of the first attempt, left: {[p for p in pids if alive(p)]}", flush=True)
    elif rank == 1:
        threading.Thread(target=die_when_all_hang, args=(args.folder, world), daemon=True).start()
    items = DataLoader(Items(args.folder), num_workers=1, multiprocessing_context="forkserver", persistent_workers=True)
    total = sum(items, torch.zeros(1))
    dist.all_reduce(total)
    if rank == 0:
        print(f"sum {total.item():.0f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
