"""The Debian packages as their users have them: built by cpack, without an error of lintian, installed by dpkg on two hosts (whose file
systems are thrown away), run from there, and removed."""
import shutil
import subprocess

import pytest

from conftest import BIN, PYTHON, ROOT
from unitlib import build

SYSTEM = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}  # So that python3 is the distribution's.
PACKAGES = ["libmuster0", "libmuster-dev", "muster", "muster-trainer", "python3-muster"]
LIMIT_S = 120

WORKER = """
import os
import muster
me = muster.env()
store = muster.store(timeout=60)
store.set("from %d" % me.rank, os.uname().nodename)
got = store.get("from %d" % ((me.rank + 1) % me.world)).decode()
store.barrier("all")
print("rank %d of %d on %s got %s by %s" % (me.rank, me.world, os.uname().nodename, got, muster.__file__))
"""

PROGRAM = """
#include <muster/muster.h>
#include <stdio.h>
int main(void)
{
    struct muster_env e;
    if (muster_env_read(&e, NULL) < 0)
        return 1;
    printf("C says rank %u of %u\\n", e.rank, e.world);
    return 0;
}
"""


def build_all():
    """The packages by their names."""
    folder = BIN.parent / "deb"
    found = build(ROOT, folder)
    if not (folder / "bin" / "trainer").exists():
        pytest.skip("the trainer is not built (libopenblas-dev)")
    assert sorted(found) == sorted(PACKAGES)
    return found


def check_by_lintian(files):
    if shutil.which("lintian") is None:
        pytest.skip("lintian is not installed: apt-get install lintian")
    p = subprocess.run(["lintian", "--allow-root", "--fail-on", "error", *files], capture_output=True, text=True, timeout=LIMIT_S,
                       check=False)
    assert p.returncode == 0, p.stdout + p.stderr


class Host:
    def __init__(self, lab, number):
        self.lab, self.number = lab, number

    def run(self, *words, status=0):
        p = self.lab.start(f"{words[0]} on n{self.number}", self.number, *words, env=SYSTEM)
        assert p.wait(LIMIT_S) == status, p.text()
        return p.text()

    def files(self):
        """All that is installed, and what dpkg knows."""
        listed = self.run("find", "/usr", "/etc", "/opt", "/var/lib/dpkg/info", "-xdev", "!", "-name", "*.pyc")
        return set(listed.split("\n")), self.run("dpkg-query", "-W")


def check_programs(host, share):
    """Beside the job: pages, completions, headers, trainer."""
    for program, section in (("node-agent", 8), ("rdzv-server", 8), ("muster", 1), ("trainer", 1)):
        assert host.run(f"/usr/bin/{program}", "--version").startswith(f"{program} ")
        assert "NAME" in host.run("man", "-P", "cat", str(section), program)
    assert "NAME" in host.run("man", "-P", "cat", "3", "muster")
    for file in ("bash-completion/completions/node-agent", "zsh/vendor-completions/_node-agent", "fish/vendor_completions.d/node-agent.fish"):
        host.run("test", "-s", f"/usr/share/{file}")
    (share / "program.c").write_text(PROGRAM)
    host.run("sh", "-c", f"cd {share} && cc -o program program.c $(pkg-config --cflags --libs muster)")
    assert "C says rank 1 of 2" in host.run("node-agent", "--standalone", "--nproc-per-node=2", share / "program")
    assert "epoch 0: loss" in host.run("node-agent", "--standalone", "--nproc-per-node=2", "trainer", "--epochs", "1", "--device", "cpu",
                                       "--data", "/usr/share/muster/trainer/digits.bin")


def check_job(lab, hosts):
    server = lab.start("server on n1", 1, "/usr/bin/rdzv-server", env=SYSTEM)
    server.wait_line("listening on", 20)
    worker = lab.share / "worker.py"
    worker.write_text(WORKER)
    flags = ["--nnodes=2", "--nproc-per-node=1", "--rdzv=n1", f"--rdzv-id={lab.run_id}", worker]
    agents = [lab.start("node-agent on n1", 1, "/usr/bin/node-agent", *flags, env=SYSTEM),
              lab.start("muster.run on n2", 2, PYTHON, "-m", "muster.run", *flags, env=SYSTEM)]
    for a in agents:
        assert a.wait(LIMIT_S) == 0, a.text()
    module = "/usr/lib/python3/dist-packages/muster/__init__.py"
    for i, a in enumerate(agents):
        found = a.matches(rf"rank (\d) of 2 on n{i + 1} got n{2 - i} by {module}")
        assert len(found) == 1, a.text()
    assert f"{lab.run_id}  succeeded" in hosts[1].run("muster", "status", "-r", "n1")
    assert '"jobs"' in hosts[1].run("curl", "-sf", "--max-time", "20", "http://n1:29500/status")
    server.end()


def test_debian_packages_run_a_job_on_two_hosts_and_leave_nothing(hosts):
    packages = build_all()
    check_by_lintian(packages.values())
    lab = hosts(2)
    machines = [Host(lab, 1), Host(lab, 2)]
    before = [m.files() for m in machines]
    there = []
    for name in PACKAGES:
        there.append(lab.share / packages[name].name)
        shutil.copy(packages[name], there[-1])
    for m in machines:
        m.run("dpkg", "--install", *there)
        m.run("test", "-e", "/usr/lib/python3/dist-packages/muster/__pycache__")
    check_job(lab, machines)
    check_programs(machines[0], lab.share)
    for m, (files, known) in zip(machines, before):
        m.run("dpkg", "--purge", *PACKAGES)
        after, known_after = m.files()
        assert sorted(after - files) == [] and sorted(files - after) == []
        assert known_after == known
