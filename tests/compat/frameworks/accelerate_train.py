#!/usr/bin/env python3
"""Hugging Face accelerate, as `accelerate launch` starts it: everything comes from the environment."""
import argparse

import digits
import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--data", required=True)
    args = ap.parse_args()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    set_seed(0)
    model = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader = DataLoader(digits.dataset(args.data, 500), batch_size=16, shuffle=True)  # Does not divide by ranks and batches.
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    accelerator.print(f"{accelerator.distributed_type} {accelerator.state.backend} {accelerator.num_processes}", flush=True)
    for epoch in range(3):
        losses, right, seen = [], 0, 0
        for images, labels in loader:
            with accelerator.accumulate(model):
                out = model(images)
                loss = F.cross_entropy(out, labels)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            guesses, labels = accelerator.gather_for_metrics((out.argmax(1), labels))
            losses.append(accelerator.reduce(loss.detach().double(), "mean").item())
            right += (guesses == labels).sum().item()
            seen += len(labels)
        accelerator.print(f"epoch {epoch} loss {sum(losses) / len(losses):.15f} right {right}/{seen}", flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()
