#!/usr/bin/env python3
"""Plot loss and speed of a training from the lines of --events.

    plot.py EVENTS... [-o FILE.png]

One curve a file (a rank, or a run). Without matplotlib the same is drawn with characters.
"""
import argparse
import json
import sys


NEEDED = {"start": ["step"], "step": ["loss"], "epoch": ["epoch", "step", "test_loss", "samples_per_s"]}


def events(path):
    """The lines that say something to us."""
    with open(path, encoding="utf-8", errors="replace") as f:
        for number, line in enumerate(f, 1):
            try:
                e = json.loads(line)
            except ValueError:
                continue  # The last line of a rank that was killed.
            kind = e.get("event") if isinstance(e, dict) else None
            if not isinstance(kind, str) or kind not in NEEDED:
                continue
            for key in NEEDED[kind]:
                if not isinstance(e.get(key), (int, float)):
                    raise ValueError(f"{path}: line {number}: an event '{kind}' without a number '{key}': is it of trainer --events?")
            yield kind, e


def read(path):
    """(losses by step, epochs): after a restart the later line of a step counts."""
    steps, epochs, first, seen = {}, {}, 0, False
    for kind, e in events(path):
        seen = True
        if kind == "start":
            first = e["step"]
        elif kind == "step":
            first += 1
            steps[first] = e["loss"]
        else:
            epochs[e["epoch"]] = e
    if not seen:
        raise ValueError(f"{path} holds no events: give a file that trainer --events wrote")
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
    try:
        return plot(a)
    except OSError as e:
        print(f"plot.py: {e.filename or a.out}: {e.strerror}", file=sys.stderr)
    except ValueError as e:  # A file that is none of ours, or a picture's name that says no known format.
        print(f"plot.py: {str(e).splitlines()[0]}", file=sys.stderr)
    return 1


def plot(a):
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
