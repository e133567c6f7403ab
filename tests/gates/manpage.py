"""Gate: a man page names every option that --help does, and no other. usage: manpage.py PAGE PROGRAM [--installed]"""
import re
import subprocess
import sys

OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")


def main(page, program):
    text = open(page, encoding="utf-8").read()
    text = re.sub(r"\\f[BIRP]", "", text).replace("\\-", "-")
    got = subprocess.run([program, "--help"], capture_output=True, text=True, timeout=20)
    helped = set(OPTION.findall(got.stdout))
    # Only lines that introduce an option count: prose may mention flags of other programs.
    paged = set()
    lines = text.split("\n")
    for before, line in zip(lines, lines[1:]):
        if before in (".TP", ".TQ"):
            paged |= set(OPTION.findall(line.split('" ')[0]))
    faults = ["the page lacks %s" % o for o in sorted(helped - paged)] + ["--help lacks %s" % o for o in sorted(paged - helped)]
    if got.returncode != 0 or not helped:
        faults.append("%s --help: status %d, %d options" % (program, got.returncode, len(helped)))
    for fault in faults:
        print(fault)
    print("man page: %d options, %d faults" % (len(helped), len(faults)))
    sys.exit(1 if faults else 0)


main(sys.argv[1], sys.argv[2])
