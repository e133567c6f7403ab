"""Gate: a man page is rendered without a warning and, where it is a program's, names every option that --help does, and no other.
usage: manpage.py PAGE [PROGRAM]"""
import os
import re
import shutil
import subprocess
import sys

OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]+")
HELP_LINE = re.compile(r"^  (-.*?)(?:  |$)", re.M)  # An option stands two columns in; its text, behind two blanks, may name others.


def warnings(page):
    if shutil.which("man") is None:
        print("man is not installed: apt-get install man-db")
        sys.exit(77)
    env = {**os.environ, "LC_ALL": "C.UTF-8", "MANWIDTH": "80", "MANPAGER": "cat"}
    got = subprocess.run(["man", "--warnings", "-E", "UTF-8", "-l", page], capture_output=True, text=True, timeout=60, env=env)
    faults = ["man: " + line for line in got.stderr.splitlines()]
    if got.returncode != 0 or "NAME" not in got.stdout:
        faults.append("man: status %d, %d bytes of text" % (got.returncode, len(got.stdout)))
    return faults


def options(page, program):
    """(how many --help names, faults)"""
    text = open(page, encoding="utf-8").read()
    text = re.sub(r"\\f[BIRP]", "", text).replace("\\-", "-")
    got = subprocess.run([program, "--help"], capture_output=True, text=True, timeout=20)
    helped = {o for line in HELP_LINE.findall(got.stdout) for o in OPTION.findall(line)}
    # Only lines that introduce an option count: prose may mention flags of other programs.
    paged = set()
    lines = text.split("\n")
    for before, line in zip(lines, lines[1:]):
        if before in (".TP", ".TQ"):
            paged |= set(OPTION.findall(line.split('" ')[0]))
    faults = ["the page lacks %s" % o for o in sorted(helped - paged)] + ["--help lacks %s" % o for o in sorted(paged - helped)]
    if got.returncode != 0 or not helped:
        faults.append("%s --help: status %d, %d options" % (program, got.returncode, len(helped)))
    return len(helped), faults


def main(page, program):
    faults = warnings(page)
    count = 0
    if program is not None:
        count, more = options(page, program)
        faults += more
    for fault in faults:
        print(fault)
    print("man page: %d options, %d faults" % (count, len(faults)))
    sys.exit(1 if faults else 0)


main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None)
