#!/usr/bin/env python3
"""How far apart are two honest float32 runs of the same training from float64?   make_tolerance.py FOLDER

FOLDER holds w1.json, w2.json, w4.json of runs with --no-mkldnn. Writes tolerance.json and order.json beside this file.
"""
import json
import sys
from pathlib import Path

from torch.utils.data.distributed import DistributedSampler

HERE = Path(__file__).resolve().parent


def load(path):
    return json.loads(Path(path).read_text())["epochs"]


def apart(a, b):
    return {"train_loss": abs(a["train_loss"] - b["train_loss"]),
            "step_loss_max": max(abs(x - y) for p, q in zip(a["loss_per_rank"], b["loss_per_rank"]) for x, y in zip(p, q)),
            "grad_norm_rel_max": max(abs(x - y) / y for x, y in zip(a["grad_norm"], b["grad_norm"])),
            "weights_l2_rel": abs(a["weights"]["l2"] - b["weights"]["l2"]) / b["weights"]["l2"],
            "test_loss": abs(a["test_loss"] - b["test_loss"]), "test_correct": abs(a["test_correct"] - b["test_correct"])}


def main(native):
    out = {}
    for w in (1, 2, 4):
        runs = {"onednn": load(HERE / f"w{w}.json"), "native": load(f"{native}/w{w}.json")}
        out[w] = [{"epoch": e["epoch"], "steps": e["steps"], **{k: apart(r[i], e) for k, r in runs.items()}}
                  for i, e in enumerate(load(HERE / f"w{w}-f64.json"))]
    (HERE / "tolerance.json").write_text(json.dumps(out).replace('{"epoch"', '\n{"epoch"') + "\n")
    write_order()


def write_order():
    order = {}
    for world in (1, 2, 4):
        for rank in range(world):
            sampler = DistributedSampler(range(1437), world, rank, shuffle=True)
            for epoch in range(3):
                sampler.set_epoch(epoch)
                order[f"{world}/{rank}/{epoch}"] = list(sampler)
    (HERE / "order.json").write_text(json.dumps(order).replace(', "', ',\n"') + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
