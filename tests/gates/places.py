"""Gate: the tree names no place of the machine it was written on. usage: places.py ROOT"""
import re
import sys

import tree

# Put together from pieces, so that this file does not find itself.
PLACES = re.compile("(?<![\\w.$}])/(%s)/" % "|".join(["wo" + "rk", "ho" + "me/\\w+", "ro" + "ot"]) + "|\\.\\./sha" + "red/")
ALLOWED = {}  # file: reason


def main(root):
    faults = []
    names = tree.files(root)
    for name in names:
        if name in ALLOWED:
            continue
        for number, line in enumerate(tree.read(root, name).split("\n"), 1):
            m = PLACES.search(line)
            if m:
                faults.append("%s:%d: names %s" % (name, number, m.group()))
    tree.finish("places", faults, len(names))


main(sys.argv[1])
