#!/usr/bin/env python3
"""PyTorch DDP on the trainer's model and data: makes the files beside this one. CPU, gloo, one thread a rank.

    torchrun --nproc_per_node W make_reference.py [--dtype float64] [--no-mkldnn] [--out FILE]

Everything, with TORCHRUN and a folder of one's own for what is not kept:  make_reference.sh

    init.bin                  first weights: PyTorch's own, torch.manual_seed(0). Written when it is missing
    gradients-step1-w1.bin    averaged gradients of the first step of one rank, float32
    w1.json w2.json w4.json   float32: every step's loss of every rank, the gradients' norm, test result, sums over the weights
    w1-f64.json ...           the same in float64, 17 digits
    tolerance.json            how far two float32 runs (oneDNN's convolution, and torch's own) are from float64, an epoch
    order.json                DistributedSampler's first items of the first epochs

The files here were made with torch 2.13.0. Weight files are described in trainer-example/state.h, digits.bin in ../make_digits.py.
"""
import argparse
import json
import os
import struct
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

HERE = Path(__file__).resolve().parent
TRAIN = 1437


def read_digits(path):
    raw = path.read_bytes()
    assert raw[:8] == b"MUSTDS01"
    n, h, w, _, levels = struct.unpack("<5I", raw[8:28])
    pixels = np.frombuffer(raw, np.uint8, n * h * w, 28).reshape(n, 1, h, w)
    labels = np.frombuffer(raw, np.uint8, n, 28 + n * h * w)
    return torch.from_numpy(pixels.astype(np.float32) / levels), torch.from_numpy(labels.astype(np.int64))


def write_tensors(path, named):
    with open(path, "wb") as f:
        f.write(b"MUSTWT01" + struct.pack("<I", len(named)))
        for name, t in named:
            a = t.detach().cpu().numpy().astype("<f4")
            f.write(struct.pack("<I", len(name)) + name.encode() + struct.pack("<I", a.ndim))
            f.write(struct.pack(f"<{a.ndim}I", *a.shape) + a.tobytes())


def read_tensors(path):
    raw, out, at = path.read_bytes(), {}, 12
    assert raw[:8] == b"MUSTWT01"
    for _ in range(struct.unpack_from("<I", raw, 8)[0]):
        n = struct.unpack_from("<I", raw, at)[0]
        name = raw[at + 4:at + 4 + n].decode()
        at += 4 + n
        rank = struct.unpack_from("<I", raw, at)[0]
        shape = struct.unpack_from(f"<{rank}I", raw, at + 4)
        at += 4 + 4 * rank
        count = int(np.prod(shape))
        out[name] = torch.from_numpy(np.frombuffer(raw, "<f4", count, at).reshape(shape).copy())
        at += 4 * count
    return out


class Net(nn.Module):
    def __init__(self, w=1):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32 * w, 3, padding=1)
        self.conv2 = nn.Conv2d(32 * w, 64 * w, 3, padding=1)
        self.fc1 = nn.Linear(64 * w * 16, 128 * w)
        self.fc2 = nn.Linear(128 * w, 10)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


def gather(v):
    out = [None] * dist.get_world_size()
    dist.all_gather_object(out, v)
    return out


def weight_sums(model):
    v = torch.cat([p.detach().double().reshape(-1) for p in model.parameters()])
    return {"l2": float(v.norm()), "sum": float(v.sum()), "absmax": float(v.abs().max())}


def rounded(o, digits):
    if isinstance(o, float):
        return float(digits % o)
    if isinstance(o, list):
        return [rounded(v, digits) for v in o]
    return {k: rounded(v, digits) for k, v in o.items()} if isinstance(o, dict) else o


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--dtype", default="float32")
    ap.add_argument("--no-mkldnn", action="store_true", help="torch's own convolution: other orders of sums")
    ap.add_argument("--epochs", type=int, default=10)
    ap.add_argument("--out")
    a = ap.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.backends.mkldnn.enabled = not a.no_mkldnn
    dtype = getattr(torch, a.dtype)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = Net()
    if rank == 0 and not (HERE / "init.bin").exists():
        write_tensors(HERE / "init.bin", list(model.named_parameters()))
    dist.barrier()
    model.load_state_dict(read_tensors(HERE / "init.bin"))
    model = model.to(dtype)
    x, y = read_digits(HERE.parent / "digits.bin")
    x = x.to(dtype)
    train, test_x, test_y = TensorDataset(x[:TRAIN], y[:TRAIN]), x[TRAIN:], y[TRAIN:]
    ddp = DDP(model)
    sampler = DistributedSampler(train, shuffle=True)
    loader = DataLoader(train, batch_size=32, sampler=sampler)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-3)
    criterion = nn.CrossEntropyLoss()
    epochs = []
    for epoch in range(a.epochs):
        sampler.set_epoch(epoch)
        losses, sizes, norms = [], [], []
        for step, (bx, by) in enumerate(loader):
            optimizer.zero_grad()
            loss = criterion(ddp(bx), by)
            loss.backward()
            norms.append(sum(float((p.grad.double() ** 2).sum()) for p in model.parameters()) ** 0.5)
            first = epoch == 0 and step == 0 and world == 1 and a.dtype == "float32" and not a.no_mkldnn
            if first and not (HERE / "gradients-step1-w1.bin").exists():
                write_tensors(HERE / "gradients-step1-w1.bin", [(n, p.grad) for n, p in model.named_parameters()])
            optimizer.step()
            losses.append(loss.item())
            sizes.append(len(by))
        per_rank = gather(losses)
        s = torch.tensor([sum(v * n for v, n in zip(losses, sizes)), sum(sizes)], dtype=torch.float64)
        dist.all_reduce(s)
        with torch.no_grad():
            out = model(test_x)
        e = {"epoch": epoch, "steps": len(losses), "batch_sizes": sizes, "train_loss": float(s[0] / s[1]),
             "loss_per_rank": per_rank, "grad_norm": norms, "test_loss": float(criterion(out, test_y)),
             "test_correct": int((out.argmax(1) == test_y).sum()), "test_n": len(test_y), "weights": weight_sums(model)}
        assert len({json.dumps(v) for v in gather(e["weights"])}) == 1  # The same bits on all ranks.
        epochs.append(e)
    if rank == 0 and a.out:
        head = {"made_with": f"torch {torch.__version__} CPU, gloo, 1 thread a rank", "world": world, "dtype": a.dtype,
                "mkldnn": not a.no_mkldnn, "batch": 32, "width": 1, "params": sum(p.numel() for p in model.parameters()),
                "sampler": {"seed": 0, "shuffle": True, "drop_last": False, "dataset_len": TRAIN}}
        digits = "%.9g" if a.dtype == "float32" else "%.17g"
        lines = ",\n".join(json.dumps(rounded(e, digits)) for e in epochs)
        Path(a.out).write_text(json.dumps(head)[:-1] + ', "epochs": [\n' + lines + "\n]}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
