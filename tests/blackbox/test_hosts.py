"""muster run --hosts: node-agents by ssh. Here ssh is a stand-in that runs the command in a shell on this machine and hands its input on, as
sshd does; the lab has the real one."""
import json
import os
import re
import signal
import socket
import subprocess
import time

import pytest

from mulib import PATIENCE, program
from musterlib import Muster

SSH = """#!/usr/bin/python3
import os, subprocess, sys, threading
host, command = sys.argv[sys.argv.index("--") + 1:]
with open(os.environ["SSH_LOG"], "a") as f:
    print(os.getpid(), host, sys.argv[1:], file=f)
if host == "closed":
    print("ssh: connect to host closed port 22: Connection refused", file=sys.stderr)
    sys.exit(255)
if "SSH_PERSISTS" in os.environ:
    subprocess.Popen(["/bin/sleep", "30"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
p = subprocess.Popen([os.environ.get("SSH_SHELL", "/bin/sh"), "-c", command], stdin=subprocess.PIPE, start_new_session=True, cwd="/")
def hand_on():
    while got := os.read(0, 65536):
        os.write(p.stdin.fileno(), got)
    p.stdin.close()
threading.Thread(target=hand_on, daemon=True).start()
code = p.wait()
os._exit(code if code >= 0 else 255)
"""
AGENT = program("node-agent")


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as s:
        return s.getsockname()[1]


class Run(Muster):
    def __init__(self, folder, *words, env=None):
        ssh = folder / "fake ssh.py"
        ssh.write_text(SSH)
        ssh.chmod(0o755)
        link = folder / "ssh"
        if not link.exists():
            link.symlink_to(ssh)
        self.log = folder / "ssh.log"
        self.mark = f"{os.getpid()}-{time.monotonic_ns()}"
        super().__init__("run", f"--rdzv=127.0.0.1:{free_port()}", f"--agent={AGENT}", "--env", f"MARK={self.mark}", *words, cwd=folder,
                         env={"MUSTER_SSH": str(link), "SSH_LOG": str(self.log), **(env or {})})

    def marked(self):
        """Processes of this job: agents, workers, and the shells that watch."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/environ", "rb") as f:
                    env = f.read()
                with open(f"/proc/{pid}/cmdline", "rb") as f:
                    words = f.read()
            except OSError:
                continue
            if f"MARK={self.mark}".encode() in env.split(b"\0") and words:
                found.append(words.replace(b"\0", b" ").decode("utf-8", "replace")[:60])
        return found

    def wait_gone(self):
        end = time.monotonic() + PATIENCE * 2
        while left := self.marked():
            assert time.monotonic() < end, left
            time.sleep(0.05)

    def connections(self):
        return {host: int(pid) for pid, host in (line.split()[:2] for line in self.log.read_text().splitlines())}


@pytest.fixture
def run(tmp_path):
    started = []

    def start(*words, **kwargs):
        started.append(Run(tmp_path, *words, **kwargs))
        return started[-1]

    yield start
    for r in started:
        r.close()
        r.wait_gone()


PRINTS = "import os,sys,json; print(json.dumps([os.environ['RANK'], os.environ['GROUP_RANK'], os.environ['X'], os.getcwd(), sys.argv[1:]]))"
SLEEPS = "import time; print('up', flush=True); time.sleep(600)"


@pytest.mark.parametrize("shell", ["/bin/sh", "/bin/bash", "/usr/bin/zsh", "/usr/bin/fish"])
def test_two_hosts_are_one_job_and_every_byte_arrives(run, tmp_path, shell):
    if not os.path.exists(shell):
        pytest.skip(f"{shell} is not here: apt-get install {os.path.basename(shell)}")
    words = ["a b", "", "'", "\"$(echo no)`\\", "\\0101\\n", "*", "line\nline", "-x", "\u00fc", "!", "\udc81\udc88\udcff", "end\n"]
    r = run("--hosts=n1,me@n2", "--nproc-per-node=2", "--env", "X=it's\n$HOME", "--no-python", "--", "/usr/bin/python3", "-c", PRINTS, *words,
            env={"SSH_SHELL": shell})
    assert r.end() == 0, r.err.text()
    got = {}
    for line in r.out.lines:
        prefix, text = line.split(" ", 1)
        got[prefix] = json.loads(text)
    assert sorted(got) == ["[0]", "[1]", "[2]", "[3]"]
    for i in range(4):
        rank, group, x, cwd, args = got[f"[{i}]"]
        assert (rank, x, cwd) == (str(i), "it's\n$HOME", str(tmp_path)) and args == words, args
        assert group == str(i // 2), "hosts are ranked as they are named"
    log = r.log.read_text()
    assert "'me@n2'" in log and "BatchMode=yes" in log and "HOME" not in log and "python3" not in log, log
    r.wait_gone()


def test_the_first_failing_agents_status_and_its_words(run):
    r = run("--hosts", "n1,n2", "--no-python", "--", "/usr/bin/python3", "-c",
            "import os,sys,time; print('bad', file=sys.stderr) if os.environ['RANK'] == '1' else time.sleep(600); sys.exit(7)")
    assert r.end() == 7
    assert "[1] bad" in r.err.lines
    assert any(line.startswith("[n2] ") and "rank 1" in line and "status 7" in line for line in r.err.lines), r.err.text()
    r.wait_gone()


def test_a_hostfile_says_how_many_workers_each_host_has(run, tmp_path):
    (tmp_path / "hosts").write_text("# two\nn1 slots=2\n\nn2:1   # the small one\n")
    r = run("--hostfile", str(tmp_path / "hosts"), "--json", "--no-python", "--", "/bin/echo", "hi")
    assert r.end() == 0, r.err.text()
    lines = [json.loads(line) for line in r.out.lines]
    workers = sorted((x["host"], x["rank"], x["stream"], x["text"]) for x in lines if x["rank"] >= 0)
    assert workers == [("n1", 0, "stdout", "hi"), ("n1", 1, "stdout", "hi"), ("n2", 2, "stdout", "hi")]


@pytest.mark.parametrize("signo, name", [(signal.SIGINT, "INT"), (signal.SIGTERM, "TERM")])
def test_ctrl_c_reaches_the_agents_and_nothing_is_left(run, signo, name):
    r = run("--hosts=n1,n2", "--no-python", "--", "/usr/bin/python3", "-c", SLEEPS)
    r.out.wait(r"\[0\] up")
    r.out.wait(r"\[1\] up")
    r.p.send_signal(signo)
    assert r.end() not in (0, 255), r.err.text()
    r.err.wait(rf"all agents are told to stop \(SIG{name}\); Ctrl-C again kills them")
    r.wait_gone()


def test_a_second_ctrl_c_kills(run):
    r = run("--hosts=n1,n2", "--no-python", "--", "/usr/bin/python3", "-c",
            "import signal,time; signal.signal(15, lambda *a: print('no', flush=True)); signal.signal(2, lambda *a: print('no', flush=True))\n"
            "print('up', flush=True)\nwhile True: time.sleep(600)")
    r.out.wait(r"\[0\] up")
    r.out.wait(r"\[1\] up")
    r.p.send_signal(signal.SIGINT)
    r.out.wait("no")
    r.p.send_signal(signal.SIGINT)
    assert r.end() == 137
    r.wait_gone()


@pytest.mark.parametrize("who", ["muster", "connection"])
def test_no_agent_outlives_its_connection(run, who):
    r = run("--hosts=n1,n2", "--no-python", "--", "/usr/bin/python3", "-c", SLEEPS)
    r.out.wait(r"\[0\] up")
    r.out.wait(r"\[1\] up")
    assert len(r.marked()) >= 4
    if who == "muster":
        r.p.kill()
        r.p.wait(PATIENCE)
    else:
        for pid in r.connections().values():
            os.kill(pid, signal.SIGKILL)
        assert r.end() == 137
    r.wait_gone()


def test_a_host_that_cannot_be_reached_ends_the_job_with_a_reason(run):
    r = run("--hosts=n1,closed", "--no-python", "--", "/usr/bin/python3", "-c", SLEEPS)
    assert r.end() == 255
    r.err.wait(r"^\[closed\] ssh: connect to host closed port 22: Connection refused$")
    r.err.wait(r'the connection to closed failed, or was lost; "ssh -o BatchMode=yes closed true" must work')
    r.err.wait("1 agent is left, fewer than the job needs: told to end")
    r.wait_gone()


def test_a_shared_connection_that_stays_holds_nobody(run):
    r = run("--hosts=n1,n2", "--no-python", "--", "/bin/echo", "hi", env={"SSH_PERSISTS": "1"})
    assert r.p.wait(PATIENCE) == 0, r.err.text()
    assert sorted(r.out.lines) == ["[0] hi", "[1] hi"]


def test_where_node_agent_is_missing_that_is_said(run):
    r = run("--hosts=n1", "--agent=/nowhere/node-agent", "--", "/bin/true")
    assert r.end() == 127
    r.err.wait("node-agent is not found on n1, or its program is not: install muster there, or name it with --agent=PATH")


def test_agents_get_the_name_of_the_tokens_file(run, tmp_path):
    (tmp_path / "a token").write_text("5" * 64 + "\n")
    (tmp_path / "a token").chmod(0o600)
    says = "import os; print(*open(f'/proc/{os.getppid()}/cmdline').read().split(chr(0)), sep='|')"
    r = run("--token-file=a token", "--hosts=n1,n2", "--cwd=/", "--no-python", "--", "/usr/bin/python3", "-c", says)
    assert r.end() == 0, r.err.text()
    assert len(r.out.lines) == 2 and all(f"|--token-file={tmp_path}/a token|" in line for line in r.out.lines), r.out.text()
    r = run("--token-file=nowhere", "--hosts=n1", "--", "/bin/true")
    assert r.end() == 2 and r.err.lines == ['muster run: --token-file: there is no file "nowhere": name a copy of the server\'s token file']


@pytest.mark.parametrize("words, says", [
    (("--hosts=n1,n1",), "named twice"), (("--hosts=,",), "no host is named"), (("--hosts=-oProxyCommand=x",), "that is no host"),
    (("--hosts=n1", "--nnodes=2"), "--nnodes=2: only 1 host is named"), (("--hosts=n1:x",), "host \"n1:x\""),
    (("--hostfile=/nowhere",), "cannot be read: No such file"), (("--hosts=n1", "--hostfile=x"), "only one can say"),
    (("--hosts=n1", "-d"), "--detach does not go with hosts"), (("--hosts=n1", "--env", "NOT_SET_ANYWHERE"), "it is not set here"),
])
def test_what_is_wrong_is_one_sentence(run, words, says):
    r = run(*words, "--", "/bin/true")
    assert r.end() == 2 and len(r.err.lines) == 1 and says in r.err.text(), r.err.text()


def test_ssh_that_is_missing_is_said(run):
    r = run("--hosts=n1", "--", "/bin/true", env={"MUSTER_SSH": "/nowhere/ssh -v"})
    assert r.end() == 1 and re.search("/nowhere/ssh cannot be started: .*MUSTER_SSH names another", r.err.text()), r.err.text()
