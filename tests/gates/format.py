"""Gate: C files are formatted as .clang-format says. usage: format.py ROOT CLANG_FORMAT"""
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import tree


def main(root, tool):
    names = tree.files(root, (".c", ".h"))

    def is_off(name):
        return subprocess.run([tool, "--dry-run", "-Werror", name], cwd=root, capture_output=True).returncode != 0

    with ThreadPoolExecutor(2) as pool:
        off = [n for n, bad in zip(names, pool.map(is_off, names)) if bad]
    tree.finish("format", ["%s: not formatted: build the target `format`" % n for n in off], len(names))


main(sys.argv[1], sys.argv[2])
