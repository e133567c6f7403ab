"""What tests of node-agent share: launched agents, small worker programs, who is left of a job.

Workers speak to the test by lines on stdout: a line is written whole, and the stream ends when the last process that holds
it is gone. So "nothing is left" is the end of a stream, and needs no polling."""
import contextlib
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import time

import mulib
from mulib import PATIENCE, Lines, StoreClient, program

# What a caller's environment may hold that changes what an agent does.
OWN = re.compile(r"^(PET_|TORCH|RANK$|WORLD_SIZE$|LOCAL_|GROUP_|ROLE_|MASTER_|OMP_NUM|CUDA_VISIBLE|PYTHON|NCCL_|LOGLEVEL$|"
                 r"SLURM_|OMPI_|PMIX?_|MPI_LOCAL|MPIR_|HYDI_|KUBERNETES_|JOB_COMPLETION|MUSTER_NNODES$|MUSTER_JOB_INDEX$|MUSTER_CHAOS$)")
SANITIZED = mulib.is_sanitized()
GONE_WITHIN = 1.0  # seconds from an owner's death to the last of its processes

# What worker programs of the tests begin with.
# A shell script whose shell becomes Python at once: as a Python script the agent would start it with all of site.
HEADER = """#!/bin/sh
''':'
exec /usr/bin/python3 -ESsB "$0" "$@"
'''
import os, select, signal, sys, time
E = os.environ
RANK, LOCAL, WORLD = int(E["RANK"]), int(E["LOCAL_RANK"]), int(E["WORLD_SIZE"])
RESTARTS, NODE = int(E["TORCHELASTIC_RESTART_COUNT"]), int(E["GROUP_RANK"])
STORE = E["MASTER_ADDR"] + ":" + E["MASTER_PORT"]
def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())
def hang():  # signal.pause() may miss one that comes just before it.
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    while True:
        select.select([read_end], [], [])
        os.read(read_end, 64)
def deaf(*signals):
    for s in signals:
        signal.signal(s, signal.SIG_IGN)
def await_file(name, wanted=True):
    while wanted and not os.path.exists(name):
        time.sleep(0.002)
def all_up():  # Every worker of this attempt has come as far as this.
    open("up.%d.%d" % (RESTARTS, RANK), "w").close()
    while sum(n.startswith("up.%d." % RESTARTS) for n in os.listdir(".")) < WORLD:
        time.sleep(0.002)
def on(s, text, then=None):
    def handler(*_):
        say(text)
        if then is not None:
            os._exit(then)
    signal.signal(s, handler)
def daemon(text):  # double fork, own session, deaf; lives on unless somebody looks for it
    if os.fork() == 0:
        os.setsid()
        deaf(signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        if os.fork() == 0:
            say(text, os.getpid())
            hang()
        os._exit(0)
    os.wait()
"""


def environment(extra=None):
    e = {k: v for k, v in os.environ.items() if not OWN.match(k)}
    e["PYTHONDONTWRITEBYTECODE"] = "1"
    e.update(extra or {})
    return {k: v for k, v in e.items() if v is not None}


class Output(Lines):
    def wait_count(self, pattern, count, timeout=None):
        """Until so many lines match; returns their matches."""
        end = time.monotonic() + (PATIENCE if timeout is None else timeout)
        with self.changed:
            while True:
                found = [m for m in (re.search(pattern, s) for s in self.lines) if m]
                if len(found) >= count:
                    return found
                left = end - time.monotonic()
                if self.ended or left <= 0:
                    raise AssertionError(f"{len(found)} of {count} lines matched {pattern!r}:\n" + "\n".join(self.lines[-40:]))
                self.changed.wait(left)


class Launch:
    """One node-agent. `pid` is the process that everybody knows, the warden."""

    def __init__(self, folder, name, words, env=None, pre=(), exe=None, stdin=subprocess.DEVNULL):
        self.name = name
        self.folder = folder
        tmp = folder / "tmp"
        tmp.mkdir(exist_ok=True)
        tmp.chmod(0o1777)
        self.argv = [*pre, exe or program("node-agent"), *map(str, words)]
        self.process = subprocess.Popen(self.argv, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=folder,
                                        env=environment({"TMPDIR": str(tmp), **(env or {})}))
        self.pid = self.process.pid
        self.out = Output(self.process.stdout)
        self.err = Output(self.process.stderr)

    def agent_pid(self):
        """The second process, which does the work."""
        with open(f"/proc/{self.pid}/task/{self.pid}/children", encoding="ascii") as f:
            pids = f.read().split()
        assert len(pids) == 1, pids
        return int(pids[0])

    def signal(self, signo):
        self.process.send_signal(signo)

    def wait(self, timeout=None):
        """Its exit status, when all that it wrote was read: no process of it holds its output any more."""
        try:
            code = self.process.wait(PATIENCE if timeout is None else timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} goes on:\n{self.out.text()}\n{self.err.text()}") from None
        self.gone(PATIENCE)
        return code

    def gone(self, timeout=GONE_WITHIN):
        end = time.monotonic() + timeout
        for lines in (self.out, self.err):
            lines.thread.join(max(0, end - time.monotonic()))
            assert lines.ended, f"{self.name}: somebody still holds its output after {timeout} s:\n{self.out.text()}"

    def ends(self, code, timeout=None):
        got = self.wait(timeout)
        assert got == code, f"{self.name}: exit status {got}, {code} was due:\n{self.out.text()}\n{self.err.text()}"
        return self

    def verdict(self):
        """The one sentence of a failed job."""
        found = [s for s in self.err.lines if re.match(r"node-agent: job \S+ (failed|refuses this node): ", s)]
        assert len(found) == 1, self.err.text()
        return found[0]

    def cause(self):
        return re.match(r"node-agent: job \S+ failed: (.*?) \(round \d+", self.verdict()).group(1)

    def is_quiet(self):
        """Nothing on stderr but torchrun's own remark about threads, and why a round ended."""
        return all("OMP_NUM_THREADS" in s or re.search(r": round \d+ ended: ", s) for s in self.err.lines)

    def check_end(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait(PATIENCE)
        text = self.err.text()
        assert "Sanitizer" not in text and "runtime error" not in text and "assert" not in text, text
        assert "life.rejected" not in text, text


class Job:
    """Starts agents in a folder of its own."""

    def __init__(self, folder):
        self.watched = []
        self.folder = folder
        self.agents = []
        self.count = 0
        folder.chmod(0o755)

    def worker(self, body, name=None):
        """An executable file: HEADER and `body`."""
        self.count += 1
        path = self.folder / (name or f"worker{self.count}")
        path.write_text(HEADER + body)
        path.chmod(0o755)
        return str(path)

    def file(self, name, text, mode=0o644):
        path = self.folder / name
        path.write_text(text)
        path.chmod(mode)
        return str(path)

    def start(self, *words, **kw):
        a = Launch(self.folder, f"agent{len(self.agents)}", words, **kw)
        self.agents.append(a)
        return a

    def nodes(self, server, count, *words, nnodes=None, **kw):
        port = server if isinstance(server, int) else server.port
        return [self.start(f"--rdzv=127.0.0.1:{port}", f"--nnodes={nnodes or count}", *words, **kw) for _ in range(count)]

    def watch(self, pids):
        self.watched.append(Watched(pids))
        return self.watched[-1]

    def check_end(self):
        for w in self.watched:
            w.close()
        for a in self.agents:
            a.check_end()


def unused_port(host="127.0.0.1"):
    s = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    s.bind((host, 0))
    port = s.getsockname()[1]
    s.close()
    return port


class Endpoint:
    """Enough of a server for mulib's StoreClient."""

    def __init__(self, text):
        self.host, port = text.rsplit(":", 1)
        self.port = int(port)

    def connect(self, host=None):
        return socket.create_connection((self.host, self.port), timeout=PATIENCE)


def worker_store(address):
    return StoreClient(Endpoint(address))


def alive(pid):
    """False for a zombie too."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as f:
            return f.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def listeners(pid):
    """Addresses (in /proc's spelling) and ports at which a process listens."""
    inodes = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            inodes.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
    found = []
    for table in ("tcp", "tcp6"):
        with open(f"/proc/{pid}/net/{table}", encoding="ascii") as f:
            for line in f.read().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                    address, port = fields[1].split(":")
                    found.append((address, int(port, 16)))
    return found


class Watched:
    """Processes held by descriptors: their numbers may be another's by the time one looks."""

    def __init__(self, pids):
        self.pids = list(pids)
        self.fds = [os.pidfd_open(p) for p in self.pids]

    def gone(self, timeout=GONE_WITHIN):
        """All end within that time."""
        poll = select.poll()
        left = set(self.fds)
        for fd in left:
            poll.register(fd, select.POLLIN)
        end = time.monotonic() + timeout
        while left:
            ready = poll.poll(max(0, end - time.monotonic()) * 1000)
            assert ready, f"not ended after {timeout} s: {[p for p, fd in zip(self.pids, self.fds) if fd in left]}"
            for fd, _ in ready:
                poll.unregister(fd)
                left.discard(fd)

    def close(self):
        for fd in self.fds:
            os.close(fd)
        self.fds = []


def as_nobody():
    """A command prefix that takes away what makes a cgroup possible; None where it cannot be had."""
    if os.getuid() != 0 or shutil.which("setpriv") is None:
        return None
    prefix = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    tried = subprocess.run([*prefix, program("node-agent"), "--version"], capture_output=True, check=False)
    return prefix if tried.returncode == 0 else None
