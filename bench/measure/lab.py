"""Hosts of the lab (tests/lab/lab) for a measurement; they are gone with it."""
import os
import subprocess
from contextlib import contextmanager, suppress
from pathlib import Path

from .common import Missing


class Lab:
    def __init__(self, bench, name):
        self.bench, self.share = bench, bench.tmp / name
        self.program = bench.root.parent / "tests" / "lab" / "lab"
        self.env = dict(os.environ, LAB_DIR=str(bench.tmp / f"lab-{name}"))

    def do(self, *words):
        p = subprocess.run([str(w) for w in (self.program, *words)], env=self.env, capture_output=True, text=True, timeout=120)
        if p.returncode != 0:
            raise Missing(f"lab {words[0]}: {(p.stdout + p.stderr).strip()}")

    def start(self, host, *cmd, **kw):
        kw = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, **kw}
        return subprocess.Popen([str(w) for w in (self.program, "exec", host, *cmd)], env=self.env, stdin=subprocess.DEVNULL, text=True,
                                start_new_session=True, **kw)

    def pids(self, host, word, program=None):
        """Processes of a host with that word in their command line, the oldest first, as numbers of this machine."""
        found = []
        init = (Path(self.env["LAB_DIR"]) / str(host) / "pid").read_text()
        space = os.stat(f"/proc/{init}/ns/pid").st_ino
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
                named = program is None or os.path.basename(words[0]) == program
                if named and any(word in w for w in words) and os.stat(f"/proc/{pid}/ns/pid").st_ino == space:
                    found.append((int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]), int(pid)))
        return [pid for _, pid in sorted(found)]


@contextmanager
def hosts(bench, name, count):
    lab = Lab(bench, name)
    lab.do("check")
    lab.share.mkdir(exist_ok=True)
    guard = subprocess.Popen([str(lab.program), "guard"], stdin=subprocess.PIPE, env=lab.env, start_new_session=True)
    try:
        lab.do("up", count, "--share", lab.share, "--share", bench.root.parent, "--share", bench.build)
        yield lab
    finally:
        guard.stdin.close()
        guard.wait(60)
