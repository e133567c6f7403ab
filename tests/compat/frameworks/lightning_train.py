#!/usr/bin/env python3
"""A Lightning Trainer on two nodes with two processes each. It finds out by itself that somebody else started its processes."""
import argparse

import digits
import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader


class Digits(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 10))

    def training_step(self, batch, batch_index):
        images, labels = batch
        loss = F.cross_entropy(self.net(images), labels)
        self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def on_train_epoch_end(self):
        if self.trainer.is_global_zero:
            print(f"epoch {self.current_epoch} loss {self.trainer.callback_metrics['loss']:.15f}", flush=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--data", required=True)
    args = ap.parse_args()
    L.seed_everything(0, verbose=False)
    trainer = L.Trainer(accelerator="cpu", strategy="ddp", num_nodes=2, devices=2, max_epochs=3, deterministic=True, logger=False,
                        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(Digits(), DataLoader(digits.dataset(args.data), batch_size=32, shuffle=True))
    if trainer.is_global_zero:
        where = trainer.strategy.cluster_environment
        print(f"{type(where).__name__} {trainer.world_size} {trainer.num_nodes} {trainer.global_step}", flush=True)


if __name__ == "__main__":
    main()
