#!/usr/bin/env python3
"""Gate, and the tool that mends what it finds: docs/faults.md shows what tests recorded. usage: render.py ROOT [--write]

Every fault of faults.py has a test test_fault_<name>, a recorded run in tests/data/faults.jsonl, and the row that comes of it.
--write puts the table there. A new recording: MUSTER_FAULTS_OUT=tests/data/faults.jsonl, and the tests that call record().
"""
import json
import os
import re
import statistics
import sys

from faults import ENDED, FAULTS, RAN_ON, WENT_ON

BEGIN = "<!-- rendered by tests/faults/render.py from tests/data/faults.jsonl -->\n"
END = "<!-- end of the rendered part -->\n"
PAGE, DATA = "docs/faults.md", "tests/data/faults.jsonl"


def span(seconds):
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def how_long(lines):
    what, seconds = lines[-1]["what"], statistics.median(x["seconds"] for x in lines)
    return {WENT_ON: f"goes on after {span(seconds)}", RAN_ON: "runs on", ENDED: f"ends after {span(seconds)}"}[what]


def table(lines):
    rows = ["| fault | what you see first | the job |", "|---|---|---|"]
    for name, words in FAULTS.items():
        mine = [x for x in lines if x["fault"] == name]
        if not mine:
            continue
        seen = mine[-1]["seen"].replace("|", "\\|")
        rows.append(f"| {words} | {f'`{seen}`' if seen else 'nothing'} | {how_long(mine)} |")
    return "\n".join(rows)


def tests_of(root):
    found = set()
    for folder in ("tests/lab", "tests/blackbox"):
        for name in os.listdir(os.path.join(root, folder)):
            if name.startswith("test_") and name.endswith(".py"):
                with open(os.path.join(root, folder, name), encoding="utf-8") as f:
                    found.update(re.findall(r"^def test_fault_(\w+)\(", f.read(), re.M))
    return found


def main(root, write):
    with open(os.path.join(root, DATA), encoding="utf-8") as f:
        lines = [json.loads(line) for line in f]
    with open(os.path.join(root, PAGE), encoding="utf-8") as f:
        page = f.read()
    head, _, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not end:
        sys.exit(f"{PAGE} has lost a marker")
    new = head + BEGIN + "\n" + table(lines) + "\n\n" + END + tail
    tests, recorded = tests_of(root), {x["fault"] for x in lines}
    faults = [f"{name}: no test test_fault_{name}" for name in FAULTS if name not in tests]
    faults += [f"test_fault_{name}: {name} is not in tests/faults/faults.py" for name in sorted(tests - set(FAULTS))]
    faults += [f"{name}: no run of it is recorded in {DATA}" for name in FAULTS if name not in recorded]
    faults += [f"{DATA}: {name} is no fault" for name in sorted(recorded - set(FAULTS))]
    if new != page and write:
        with open(os.path.join(root, PAGE), "w", encoding="utf-8") as f:
            f.write(new)
    elif new != page:
        faults.append(f"{PAGE} is not what {DATA} gives: tests/faults/render.py ROOT --write")
    print("\n".join(faults + [f"faults: {len(FAULTS)} rows, {len(lines)} recorded, {len(faults)} faults"]))
    sys.exit(1 if faults else 0)


main(sys.argv[1], "--write" in sys.argv[2:])
