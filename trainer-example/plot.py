#!/usr/bin/env python3
"""Plot loss and speed of a training from the lines of --events.

    plot.py EVENTS... [-o FILE.png]

One curve a file (a rank, or a run). Without matplotlib the same is drawn with characters.
"""
import argparse
import json
import sys


def read(path):
    """(losses by step, epochs): after a restart the later line of a step counts."""
    steps, epochs, first = {}, {}, 0
    with open(path, encoding="utf-8") as f:
        for line in f:
            try:
                e = json.loads(line)
            except ValueError:
                continue  # The last line of a rank that was killed.
            if e["event"] == "start":
                first = e["step"]
            elif e["event"] == "step":
                first += 1
                steps[first] = e["loss"]
            elif e["event"] == "epoch":
                epochs[e["epoch"]] = e
    return sorted(steps.items()), [epochs[k] for k in sorted(epochs)]


def as_text(title, values, width=72, height=12):
    if not values:
        return f"{title}: nothing"
    bins = [values[i * len(values) // width:max((i + 1) * len(values) // width, i * len(values) // width + 1)]
            for i in range(min(width, len(values)))]
    means = [sum(b) / len(b) for b in bins]
    low, high = min(means), max(means)
    rows = [[" "] * len(means) for _ in range(height)]
    for x, v in enumerate(means):
        rows[height - 1 - round((v - low) / ((high - low) or 1) * (height - 1))][x] = "*"
    marks = {0: f"{high:10.4g}", height - 1: f"{low:10.4g}"}
    return "\n".join([title] + [f"{marks.get(i, ''):>10} |{''.join(r)}" for i, r in enumerate(rows)])


def draw_text(runs):
    for name, (steps, epochs) in runs.items():
        print(as_text(f"{name}: loss of each step", [v for _, v in steps]))
        if epochs:
            print(as_text(f"{name}: samples/s of each epoch", [e["samples_per_s"] for e in epochs], height=6))


def draw(plt, runs, out):
    fig, (left, right) = plt.subplots(1, 2, figsize=(11, 4))
    for name, (steps, epochs) in runs.items():
        left.plot(*zip(*steps), label=name, linewidth=0.8) if steps else None
        if epochs:
            left.plot([e["step"] for e in epochs], [e["test_loss"] for e in epochs], "o", markersize=3)
            right.plot([e["epoch"] for e in epochs], [e["samples_per_s"] for e in epochs], label=name)
    left.set(xlabel="step", ylabel="loss (dots: test)", yscale="log")
    right.set(xlabel="epoch", ylabel="samples/s", ylim=(0, None))
    left.legend()
    fig.tight_layout()
    fig.savefig(out)
    print(out)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("events", nargs="+")
    ap.add_argument("-o", "--out", default="training.png", help="picture to write (%(default)s)")
    ap.add_argument("--text", action="store_true", help="characters, even where matplotlib is there")
    a = ap.parse_args()
    runs = {name: read(name) for name in a.events}
    try:
        if a.text:
            raise ImportError
        import matplotlib
        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        draw_text(runs)
        return 0
    draw(plt, runs, a.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
