"""What the gates share: the project's own files, and C text without comments and strings."""
import os
import re
import subprocess
import sys

SKIP_FOLDERS = {".git", "build", "__pycache__", ".cache"}


def files(root, suffixes=None):
    """Paths, relative to root, of the project's files: what git tracks or would take; without git, all but build output."""
    got = subprocess.run(["git", "-C", root, "ls-files", "-co", "--exclude-standard", "-z"], capture_output=True)
    if got.returncode == 0 and got.stdout:
        names = [n for n in got.stdout.decode().split("\0") if n]
    else:
        names = []
        for folder, inner, leaves in os.walk(root):
            inner[:] = [d for d in inner if d not in SKIP_FOLDERS]
            names += [os.path.relpath(os.path.join(folder, leaf), root) for leaf in leaves]
    names = [n for n in names if os.path.isfile(os.path.join(root, n))]
    return sorted(n for n in names if suffixes is None or n.endswith(tuple(suffixes)))


def read(root, name):
    with open(os.path.join(root, name), encoding="utf-8", errors="surrogateescape") as f:
        return f.read()


TOKEN = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)


def bare(text):
    """C text with comments and literals blanked, line numbers kept."""
    return TOKEN.sub(lambda m: re.sub(r"[^\n]", " ", m.group()) if m.group()[0] == "/" else '""', text)


def finish(gate, faults, looked_at):
    """Print the faults and end. A gate that looked at nothing has not passed."""
    for fault in faults:
        print(fault)
    print("%s: %d looked at, %d faults" % (gate, looked_at, len(faults)))
    sys.exit(1 if faults or not looked_at else 0)
