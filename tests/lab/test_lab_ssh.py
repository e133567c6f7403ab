"""muster run --hosts over a real sshd, from a third host: one job of two hosts, and nothing that outlives the connection."""
import os
import shutil
import signal
import subprocess
import time

import pytest
from conftest import BIN, HERE

SSHD = """
Port 22
HostKey {share}/host_key
AuthorizedKeysFile {share}/key.pub
PidFile none
UsePAM no
StrictModes no
PermitRootLogin yes
PasswordAuthentication no
PrintMotd no
"""
SSH = """
User root
IdentityFile {share}/key
IdentitiesOnly yes
StrictHostKeyChecking no
UserKnownHostsFile /dev/null
LogLevel ERROR
"""
SLEEPS = "import time; print('up', flush=True); time.sleep(600)"


class Ssh:
    """Hosts n1 and n2 with an sshd; muster runs on n3."""

    def __init__(self, lab):
        self.lab = lab
        share = lab.share
        for name in ("host_key", "key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", share / name], check=True, timeout=30)
        (share / "sshd_config").write_text(SSHD.format(share=share))
        (share / "ssh_config").write_text(SSH.format(share=share))
        (share / "train").mkdir()
        for i in (1, 2):
            self.on(i, "mkdir -p /run/sshd")
            lab.start(f"sshd on n{i}", i, "/usr/sbin/sshd", "-D", "-e", "-f", share / "sshd_config").wait_line("listening on 0.0.0.0", 20)

    def on(self, host, script):
        p = subprocess.run([HERE / "lab", "exec", str(host), "sh", "-c", script], env=self.lab.env, capture_output=True, text=True, timeout=60)
        assert p.returncode == 0, f"n{host}: {script}: {p.stdout}{p.stderr}"
        return p.stdout

    def run(self, *words):
        self.mark = f"LABMARK={time.monotonic_ns()}"
        ssh = f"ssh -F {self.lab.share}/ssh_config"
        return self.lab.start("muster on n3", 3, "sh", "-c", 'cd "$0" && exec "$@"', self.lab.share / "train", BIN / "muster", "run",
                              "--hosts=n1,n2", f"--agent={BIN}/node-agent", "--env", self.mark, "--no-python", *words, env={"MUSTER_SSH": ssh})

    def left(self, host):
        """Processes of this run there: agents, workers, and who watches them."""
        return self.on(host, f"for p in /proc/[0-9]*; do if tr '\\0' '\\n' 2>/dev/null <$p/environ | grep -qx {self.mark}; then "
                             "tr '\\0' ' ' <$p/cmdline; echo; fi; done").splitlines()

    def wait_gone(self, limit_s=30):
        end = time.monotonic() + limit_s
        while left := [x for i in (1, 2) for x in self.left(i)]:
            assert time.monotonic() < end, left


@pytest.fixture
def ssh(hosts):
    for program, package in (("/usr/sbin/sshd", "openssh-server"), ("ssh", "openssh-client")):
        if not shutil.which(program):
            pytest.skip(f"{program} is not here: apt-get install {package}")
    return Ssh(hosts(3))


def test_two_hosts_by_ssh_are_one_job_and_its_status_comes_back(ssh):
    shows = 'printf "%s\\n" "$RANK of $WORLD_SIZE on $(hostname) in $(pwd): $1"'
    p = ssh.run("--nproc-per-node=2", "--", "/bin/sh", "-c", shows, "x", "it's $HOME \\n")
    assert p.wait(60) == 0, p.text()
    for i in range(4):
        p.wait_line(rf"^\[{i}\] {i} of 4 on n{i // 2 + 1} in {ssh.lab.share}/train: it's \$HOME \\n$", 1)
    p = ssh.run("--", "/bin/sh", "-c", '[ "$RANK" = 0 ] && sleep 600; exit 7')
    assert p.wait(60) == 7, p.text()
    ssh.wait_gone()


def test_nothing_outlives_a_lost_connection_or_muster(ssh):
    p = ssh.run("--", "/usr/bin/python3", "-c", SLEEPS)
    for i in range(2):
        p.wait_line(rf"^\[{i}\] up$", 60)
    assert len(ssh.left(1)) >= 2
    os.killpg(p.p.pid, signal.SIGINT)
    assert p.wait(60) not in (0, 255), p.text()
    ssh.wait_gone()
    # ssh dies: the agents' input ends.
    p = ssh.run("--", "/usr/bin/python3", "-c", SLEEPS)
    for i in range(2):
        p.wait_line(rf"^\[{i}\] up$", 60)
    ssh.on(3, f"for p in /proc/[0-9]*; do if tr '\\0' ' ' 2>/dev/null <$p/cmdline | grep -q '^ssh .*BatchMode'; then kill -9 ${{p#/proc/}}; fi; done")
    assert p.wait(60) == 137, p.text()
    ssh.wait_gone()
    p = ssh.run("--", "/usr/bin/python3", "-c", SLEEPS)
    for i in range(2):
        p.wait_line(rf"^\[{i}\] up$", 60)
    ssh.on(3, "for p in /proc/[0-9]*; do if tr '\\0' ' ' 2>/dev/null <$p/cmdline | grep -q '^[^ ]*/muster run'; then kill -9 ${p#/proc/}; fi; done")
    p.wait(60)
    ssh.wait_gone()
