"""Hosts that boot systemd and have the Debian package; packages of this version, and of one that is newer."""
import json
import re
import shutil
import subprocess
import time

import pytest
from conftest import BIN, HERE, ROOT

NEXT = "0.9.9"

# A job whose steps go on where they are: one file a rank, with who does them.
WORKER = """#!/bin/sh
me=$1/rank$RANK
touch /dev/shm/muster-test-$RANK
step=0
while :; do
    step=$((step + 1))
    echo "$$ $step $TORCHELASTIC_RESTART_COUNT $WORLD_SIZE $(hostname)" >"$me.new"
    mv "$me.new" "$me"
    sleep 0.1
done
"""


def build(source, folder):
    """The packages by their names."""
    for words in (["cmake", "--preset", "deb", "-B", folder, "-DMUSTER_WERROR=ON"], ["cmake", "--build", folder],
                  ["cmake", "--build", folder, "--target", "package"]):
        p = subprocess.run([str(w) for w in words], cwd=source, capture_output=True, text=True, timeout=900, check=False)
        assert p.returncode == 0, p.stdout[-4000:] + p.stderr[-4000:]
    newest = {}
    for p in sorted((folder / "packages").glob("*.deb"), key=lambda p: p.stat().st_mtime):
        newest[p.name.split("_")[0]] = p
    return newest


def build_next():
    """The same sources as a newer version. Copied with their times, so that what was built of them once is not built again."""
    source = BIN.parent / "next-source"
    made = source / "CMakeLists.txt"
    before = made.read_text() if made.exists() else ""
    stamp = made.stat().st_mtime_ns if made.exists() else None
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns("build", ".git", "dist", "__pycache__"), symlinks=True)
    text, n = re.subn(r"(project\(muster VERSION )[\d.]+", r"\g<1>" + NEXT, made.read_text())
    assert n == 1
    made.write_text(text)
    if text == before:
        import os
        os.utime(made, ns=(stamp, stamp))
    return build(source, BIN.parent / "deb-next")


class Machine:
    """One host; what is said to it goes through a shell there."""

    def __init__(self, lab, host):
        self.lab, self.host = lab, host

    def sh(self, script, check=True, limit_s=90):
        p = subprocess.run([HERE / "lab", "exec", str(self.host), "env", "-i", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                            "HOME=/tmp", "LANG=C.UTF-8", "sh", "-c", script], env=self.lab.env, capture_output=True, text=True,
                           timeout=limit_s, stdin=subprocess.DEVNULL)
        assert not check or p.returncode == 0, f"n{self.host}: {script}: {p.returncode}\n{p.stdout}{p.stderr}\n{self.story()}"
        return p.stdout.strip()

    def story(self):
        p = subprocess.run([HERE / "lab", "exec", str(self.host), "sh", "-c",
                            "systemctl --no-pager --full status 'rdzv-server*' 'node-agent*'; journalctl --no-pager -n 80"],
                           env=self.lab.env, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
        return p.stdout + p.stderr

    def show(self, unit, name):
        return self.sh(f"systemctl show -P {name} {unit}")

    def until(self, script, limit_s=40):
        """Until the script is true."""
        end = time.monotonic() + limit_s
        while self.sh(f"{{ {script}; }} >/dev/null 2>&1 && echo yes", check=False) != "yes":
            assert time.monotonic() < end, f"n{self.host}: not within {limit_s} s: {script}\n{self.story()}"
            time.sleep(0.05)  # One look costs more than this.

    def journal(self, *matches):
        return [json.loads(line) for line in self.sh("journalctl -o json --no-pager " + " ".join(matches)).splitlines()]

    def status(self):
        return json.loads(self.sh("curl -sf --max-time 20 http://localhost:29500/status"))

    def install(self, *packages):
        return self.sh("DEBIAN_FRONTEND=noninteractive dpkg --install " + " ".join(map(str, packages)), limit_s=600)


@pytest.fixture(scope="session")
def packages(lab_ready):
    if shutil.which("dpkg-deb") is None:
        pytest.skip("dpkg-deb is not there: the packages are Debian's")
    return build(ROOT, BIN.parent / "deb")


@pytest.fixture(scope="session")
def next_packages(packages):
    return build_next()


def installed(hosts, n, packages, *names):
    """A lab of n hosts with these packages; they keep their disks. Returns it, its machines, and a folder that all see and may write."""
    lab = hosts(n, "--systemd", "--keep")
    lab.share.chmod(0o777)
    there = [shutil.copy(packages[name], lab.share) for name in names]
    machines = [Machine(lab, i) for i in range(1, n + 1)]
    for m in machines:
        m.install(*there)
    return lab, machines


def ranks(folder):
    """What each rank said last: {rank: (pid, step, restarts, world, host)}"""
    seen = {}
    for path in folder.glob("rank*"):
        if path.suffix != ".new":
            words = path.read_text().split()
            if len(words) == 5:
                seen[int(path.name[4:])] = (int(words[0]), int(words[1]), int(words[2]), int(words[3]), words[4])
    return seen


def until(true, what, limit_s=60):
    end = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < end, f"not within {limit_s} s: {what() if callable(what) else what}"
        time.sleep(0.05)


def knows(program, *words):
    """Does this build have such a word? Its --help says so."""
    p = subprocess.run([BIN / program, "--help"], capture_output=True, text=True, timeout=30, check=False)
    return all(re.search(r"(?<![\w-])" + re.escape(w) + r"(?![\w-])", p.stdout) for w in words)


def need_service():
    if not knows("node-agent", "--service"):
        pytest.skip("node-agent of this build has no --service")


def all_step(folder, world, limit_s=60, since=None):
    """Every rank of that many does steps beyond those of `since`, in the same process if it was there. Returns what they say."""
    since = since or {}

    def go_on():
        now = ranks(folder)
        return len(now) == world and all(r not in since or (now[r][1] > since[r][1] and now[r][0] == since[r][0]) for r in now)

    until(go_on, lambda: f"{world} ranks go on: {ranks(folder)}, after {since}", limit_s)
    return ranks(folder)
