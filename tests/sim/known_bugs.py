"""Every bug that was once fixed in the pure cores, brought back: simulation or a unit test must find each one.

usage: known_bugs.py SOURCE_DIR [--table] [--jobs N] [--seeds N] [-k TEXT] [CFLAGS...]

bugs/*.patch are the table: what the bug was, `found by:` and the patch that brings it back into a copy of the tree. What finds it is
    sim: REGEX            some seed breaks an invariant, and the simulation's line about it matches
    unit.NAME test_NAME   that test fails, and no seed is tried
--table prints it as docs/simulation.md shows it. Objects are compiled once from the tree as it is, and for each bug those that its patch touches. The tree as it is must pass all of it.
"""
import argparse
import concurrent.futures
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

BASE = ["base/%s.c" % n for n in ("check", "err", "mem", "str", "parse", "json", "cause", "ctl", "words", "shown", "date", "backoff")]
PROGRAMS = {  # what is linked from the cores, and the files that are added
    "sim": ["tests/sim/main.c", "tests/sim/world.c"],
    "unit.rendezvous.job": ["tests/unit/job_table.c"],
    "unit.rendezvous.job.stories": ["tests/unit/job_stories.c"],
    "unit.rendezvous.job.budget": ["tests/unit/job_budget.c"],
    "unit.rendezvous.job.quarantine": ["tests/unit/job_quarantine.c"],
    "unit.agent.life": ["tests/unit/life_table.c"],
    "unit.agent.life.stories": ["tests/unit/life_stories.c"],
    **{"unit.rendezvous.store." + n: ["tests/unit/store_%s.c" % n, "tests/unit/store_rig.c"] for n in ("commands", "waits", "codec", "memory")},
}
CORES = ("rendezvous/job", "rendezvous/store", "agent/life")
ROOMS = ("base", *CORES, "tests/sim", "tests/unit")
CFLAGS = ["-std=c11", "-D_GNU_SOURCE", "-O1", "-g1", "-w", "-I."]


class Bug:
    def __init__(self, path):
        self.path = path
        self.name = os.path.basename(path)[:-len(".patch")]
        text = open(path, encoding="utf-8").read()
        found = re.findall(r"^found by: (sim|unit\.[\w.]+):? (.+)$", text.split("\n--- ")[0], re.M)
        if len(found) != 1:
            sys.exit("%s: needs one line 'found by: sim: REGEX' or 'found by: unit.NAME test_NAME'" % path)
        self.program, self.what = found[0]
        if self.program not in PROGRAMS:
            sys.exit("%s: there is no %s here: %s" % (path, self.program, ", ".join(PROGRAMS)))
        self.text = text.split("\nfound by:")[0].replace("\n", " ").strip()
        self.touched = re.findall(r"^\+\+\+ b/(\S+)", text, re.M)


def compile_one(tree, source, out, flags):
    subprocess.run(["cc", *CFLAGS, *flags, "-c", source, "-o", os.path.join(out, source.replace("/", "_") + ".o")], cwd=tree, check=True)


def cores(tree):
    return BASE + sorted("%s/%s" % (room, n) for room in CORES for n in os.listdir(os.path.join(tree, room))
                         if n.endswith(".c"))


def link(tree, program, folders):
    """Objects are taken from the first folder that has them."""
    objects = []
    for source in cores(tree) + PROGRAMS[program]:
        name = source.replace("/", "_") + ".o"
        objects.append(next(p for p in (os.path.join(f, name) for f in folders) if os.path.exists(p)))
    out = os.path.join(folders[0], program)
    subprocess.run(["cc", "-o", out, *objects, "-lcjson", "-lm", *(["-lcmocka"] if program.startswith("unit") else [])], check=True)
    return out


def copy_tree(src, dst):
    for room in ROOMS:
        shutil.copytree(os.path.join(src, room), os.path.join(dst, room))


def run(argv, limit_s):
    try:
        p = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", timeout=limit_s)
    except subprocess.TimeoutExpired:
        return 0, "neither passed nor failed within %d s" % limit_s
    return p.returncode, p.stdout


def look(bug, src, whole, args):
    """Returns (found, one line)."""
    with tempfile.TemporaryDirectory(prefix="bug.") as work:
        tree, objects = os.path.join(work, "tree"), os.path.join(work, "o")
        os.mkdir(objects)
        copy_tree(src, tree)
        p = subprocess.run(["patch", "-s", "-p1", "-d", tree, "-i", bug.path], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if p.returncode != 0:
            return False, "its patch does not apply any more: write it anew\n" + p.stdout
        headers = any(t.endswith(".h") for t in bug.touched)
        for source in cores(tree) + PROGRAMS[bug.program] if headers else bug.touched:
            compile_one(tree, source, objects, args.cflags)
        program = link(tree, bug.program, [objects] if headers else [objects, whole])
        if bug.program == "sim":
            code, out = run([program, "--seed", "1", "--count", str(args.seeds)], args.limit)
            line = next((x for x in out.split("\n") if re.match(r"seed \d+: ", x) or "internal error" in x), out.strip()[-200:])
            if code == 0:
                return False, "not found in %d seeds: %s" % (args.seeds, line)
            return re.search(bug.what, line) is not None, line
        code, out = run([program], args.limit)
        failed = re.findall(r"^\[  FAILED  \] (test_\w+)$", out, re.M)
        if bug.what in failed:
            return True, "%s fails" % bug.what
        return False, "%s passes; failed: %s" % (bug.what, failed or out.strip()[-200:])


def table(bugs):
    rows = ["| %s | %s | %s |" % (b.name[:4], b.text, "`%s`" % b.what.replace("|", "\\|") if b.program == "sim" else "`%s` in %s" % (b.what, b.program))
            for b in bugs]
    return "\n".join(["| patch | the bug | what finds it |", "|---|---|---|", *rows, ""])


def main():
    ap = argparse.ArgumentParser(usage=__doc__)
    ap.add_argument("source")
    ap.add_argument("--jobs", type=int, default=2)
    ap.add_argument("--seeds", type=int, default=20000)
    ap.add_argument("--limit", type=int, default=100, help="seconds for one program")
    ap.add_argument("--table", action="store_true")
    ap.add_argument("-k", default="", help="only bugs whose name holds this")
    args, args.cflags = ap.parse_known_args()
    src = os.path.abspath(args.source)
    folder = os.path.join(src, "tests/sim/bugs")
    bugs = [Bug(os.path.join(folder, n)) for n in sorted(os.listdir(folder)) if n.endswith(".patch") and args.k in n]
    if args.table:
        print(table(bugs), end="")
        return
    if not args.k and table(bugs) not in open(os.path.join(src, "docs/simulation.md"), encoding="utf-8").read():
        sys.exit("the table in docs/simulation.md is not that of tests/sim/bugs: known_bugs.py . --table prints it")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="bugs.") as whole, concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        sources = {*cores(src), *(f for files in PROGRAMS.values() for f in files)}
        list(pool.map(lambda s: compile_one(src, s, whole, args.cflags), sources))
        for program in PROGRAMS:  # A test that fails anyway finds nothing.
            argv = [link(src, program, [whole])] + (["--seed", "1", "--count", "500"] if program == "sim" else [])
            code, out = run(argv, args.limit)
            if code != 0:
                sys.exit("%s fails without any bug:\n%s" % (program, out))
        missed = 0
        for bug, (found, line) in zip(bugs, pool.map(lambda b: look(b, src, whole, args), bugs)):
            print("%-8s %s: %s" % ("found" if found else "MISSED", bug.name, line), flush=True)
            missed += not found
    print("%d known bugs, %d missed, %.0f s" % (len(bugs), missed, time.monotonic() - began))
    sys.exit(1 if missed or not bugs else 0)


main()
