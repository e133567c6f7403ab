"""The model of the fence rule (rendezvous/job/fence.pml), checked exhaustively by spin.

usage: fence.py SOURCE_DIR [--faults N] [--rounds N]

It must hold, and each rule that is taken out of it must break it: a model that cannot fail proves nothing. Each C function that the model
names must exist.
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

OUT = {  # option: what it takes out
    "NO_FENCE": "an agent that is not heard lets its workers run",
    "NO_LATE": "an agent obeys a START however long that was under way",
    "NO_WAIT": "the server does not wait for a member that it cannot reach",
    "NO_STATE": "the server keeps nothing over its death",
}


def check(model, work, defines, limit_s):
    """Returns (errors, states, seconds)."""
    began = time.monotonic()
    subprocess.run(["spin", *("-D" + d for d in defines), "-a", model], cwd=work, check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cc", "-O2", "-w", "-DSAFETY", "-DMEMLIM=2000", "-o", "pan", "pan.c"], cwd=work, check=True)
    p = subprocess.run(["./pan", "-n", "-m1000000"], cwd=work, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=limit_s)
    errors = re.search(r"errors: (\d+)", p.stdout)
    states = re.search(r"(\d+) states, stored", p.stdout)
    whole = "max search depth too small" not in p.stdout and "Search not completed" not in p.stdout
    if errors is None or states is None or (errors.group(1) == "0" and not whole):
        sys.exit("spin did not come to an end with %s:\n%s" % (" ".join(defines), p.stdout[-2000:]))
    return int(errors.group(1)), int(states.group(1)), time.monotonic() - began


def names_that_are_not_there(source, model):
    code = ""
    for room in ("rendezvous/job", "agent/life"):
        for name in os.listdir(os.path.join(source, room)):
            if name.endswith((".c", ".h")):
                code += open(os.path.join(source, room, name), encoding="utf-8").read()
    said = re.findall(r"\b([a-z_]+)\(\)", " ".join(re.findall(r"/\*.*?\*/", open(model, encoding="utf-8").read(), re.S)))
    return sorted({n for n in said if not re.search(r"\b%s\(" % n, code)})


def main():
    ap = argparse.ArgumentParser(usage=__doc__)
    ap.add_argument("source")
    ap.add_argument("--faults", type=int, default=2)
    ap.add_argument("--rounds", type=int, default=2)
    ap.add_argument("--limit", type=int, default=540, help="seconds for one search")
    args = ap.parse_args()
    if shutil.which("spin") is None:
        print("skipped: spin is not installed: apt-get install spin")
        sys.exit(77)
    model = os.path.abspath(os.path.join(args.source, "rendezvous/job/fence.pml"))
    strangers = names_that_are_not_there(args.source, model)
    if strangers:
        sys.exit("fence.pml names functions that are not there: %s" % ", ".join(strangers))
    size = ["FAULTS=%d" % args.faults, "ROUNDS=%d" % args.rounds]
    bad = 0
    with tempfile.TemporaryDirectory(prefix="fence.") as work:
        for option, what in OUT.items():
            errors, states, s = check(model, work, [*size, option], args.limit)
            print("%s %-9s %s (%d states, %.0f s)" % ("breaks" if errors else "HOLDS ", option, what, states, s), flush=True)
            bad += errors == 0
        errors, states, s = check(model, work, size, args.limit)
        print("%s with all rules, %d faults and %d rounds (%d states, %.0f s)" % ("BREAKS" if errors else "holds ", args.faults, args.rounds,
                                                                                 states, s))
        bad += errors != 0
    sys.exit(1 if bad else 0)


main()
