"""Gate: every link of a page to a file leads to one. usage: links.py FOLDER..."""
import os
import re
import sys

LINK = re.compile(r"\]\(([^)\s#]+)(?:#[^)]*)?\)")


def pages(folder):
    for at, folders, files in os.walk(folder):
        folders[:] = [f for f in folders if f not in (".git", "build", "dist")]
        for name in files:
            if name.endswith(".md"):
                yield os.path.join(at, name)


def main(folders):
    count = 0
    faults = []
    for page in (p for folder in folders for p in pages(folder)):
        with open(page, encoding="utf-8") as f:
            text = re.sub(r"^    .*$", "", f.read(), flags=re.M)  # Lines of code.
        for target in LINK.findall(text):
            if ":" in target:
                continue
            count += 1
            if not os.path.exists(os.path.join(os.path.dirname(page), target)):
                faults.append("%s: no %s" % (page, target))
    print("\n".join(faults) or "links: %d, all lead somewhere" % count)
    return 1 if faults else 0


sys.exit(main(sys.argv[1:]))
