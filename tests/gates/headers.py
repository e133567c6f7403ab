"""Gate: each header compiles by itself, as C11. usage: headers.py ROOT COMPILER [FLAGS...]"""
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import tree

PURE = ("rendezvous/store/", "rendezvous/job/", "rendezvous/pool/", "agent/life/", "base/")


def compile_one(root, compiler, flags, name):
    system = [] if name.startswith(PURE) else ["-D_GNU_SOURCE"]
    command = [compiler, "-std=c11", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-I", root, "-I", root + "/worker-sdk/include", *system, *flags,
               "-include", name, "-x", "c", "/dev/null"]
    got = subprocess.run(command, cwd=root, capture_output=True, text=True)
    return None if got.returncode == 0 else "%s does not stand alone:\n%s" % (name, got.stderr)


def main(root, compiler, flags):
    names = [n for n in tree.files(root, (".h",)) if not n.startswith(("tests/", "bench/"))]
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda n: compile_one(root, compiler, flags, n), names))
    tree.finish("headers", [r for r in results if r], len(names))


main(sys.argv[1], sys.argv[2], sys.argv[3:])
