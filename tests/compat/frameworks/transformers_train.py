#!/usr/bin/env python3
"""A Hugging Face Trainer with a small BERT, made from a configuration: each pixel is a token. Nothing comes from the hub."""
import argparse

import digits
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments, set_seed

LEVELS = 16


class Pixels(Dataset):
    def __init__(self, path):
        images, self.labels = digits.load(path, 256)
        self.tokens = (images * LEVELS).round().long()

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return {"input_ids": self.tokens[i], "labels": self.labels[i]}


class Say(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **more):
        if state.is_world_process_zero and "loss" in logs:
            print(f"step {state.global_step} loss {float(logs['loss']):.15f} grad_norm {float(logs['grad_norm']):.15f}", flush=True)


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--data", required=True)
    ap.add_argument("--out", required=True)
    args = ap.parse_args()
    set_seed(0)
    model = BertForSequenceClassification(BertConfig(
        vocab_size=LEVELS + 1, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=64, num_labels=10))
    how = TrainingArguments(output_dir=args.out, use_cpu=True, per_device_train_batch_size=16, num_train_epochs=3, learning_rate=3e-3,
                            logging_steps=2, save_strategy="no", report_to=[], disable_tqdm=True, seed=0)
    trainer = Trainer(model=model, args=how, train_dataset=Pixels(args.data), callbacks=[Say()])
    done = trainer.train()
    if trainer.is_world_process_zero():
        print(f"{how.parallel_mode} {how.world_size} processes, {done.global_step} steps", flush=True)


if __name__ == "__main__":
    main()
