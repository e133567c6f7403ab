"""Gate: C files are formatted as .clang-format says. usage: format.py ROOT CLANG_FORMAT"""
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import tree

AT_ONCE = 32  # Starting clang-format costs as much as reading ten files.


def main(root, tool):
    names = tree.files(root, (".c", ".h"))

    def off_among(some):
        p = subprocess.run([tool, "--dry-run", "-Werror", *some], cwd=root, capture_output=True, text=True)
        off = {n for n in some if re.search(r"^%s:\d+" % re.escape(n), p.stderr, re.M)}
        return off or set(some) if p.returncode != 0 else set()  # What it says of no file is no pass.

    with ThreadPoolExecutor(2) as pool:
        off = set().union(*pool.map(off_among, [names[i:i + AT_ONCE] for i in range(0, len(names), AT_ONCE)]))
    tree.finish("format", ["%s: not formatted: build the target `format`" % n for n in names if n in off], len(names))


main(sys.argv[1], sys.argv[2])
