"""What every part needs: processes that end with the measurement, numbers from /proc, rows of results."""
import json
import os
import select
import shutil
import signal
import socket
import statistics
import subprocess
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path


class Missing(Exception):
    """Something that a measurement needs is not here; the text says what."""


class Row:
    """One line of the report: values by name (None: not measured), and the limits they were held against."""

    def __init__(self, part, what, unit, values, checks=(), note=""):
        self.part, self.what, self.unit, self.values, self.note = part, what, unit, dict(values), note
        self.checks = [self._check(*c) for c in checks]

    def _check(self, kind, limit, peer=None):
        """kind 'max': ours is at most limit. 'ratio': ours is at most limit times the peer's."""
        ours, theirs = self.values.get("muster"), self.values.get(peer) if peer else None
        text = f"<= {limit:g} {self.unit}" if kind == "max" else f"<= {limit:g} x {peer}"
        if ours is None or (kind == "ratio" and not theirs):
            return {"limit": text, "ratio": None, "ok": None}
        ratio = ours / theirs if kind == "ratio" else None
        return {"limit": text, "ratio": ratio, "ok": ours <= limit if kind == "max" else ratio <= limit}

    def as_json(self):
        return {"part": self.part, "what": self.what, "unit": self.unit, "values": self.values, "checks": self.checks,
                "note": self.note}


class Bench:
    """Where things are, and how thorough to be."""

    def __init__(self, build, torch, quick, ft=""):
        self.build, self.quick = Path(build).resolve(), quick
        self.root = Path(__file__).resolve().parent.parent
        self.python = str(Path(torch) / "bin" / "python")
        self.torchrun = str(Path(torch) / "bin" / "torchrun")
        self.ft_launcher = str(Path(ft) / "bin" / "ft_launcher")
        self.tmp = Path(tempfile.mkdtemp(prefix="muster-bench-"))
        self.rows, self.notes = [], []

    def tool(self, name):
        path = self.build / "bench" / name
        if not path.exists():
            raise Missing(f"{path} is not built: cmake --build {self.build} (with MUSTER_BENCH=ON)")
        return str(path)

    def ours(self, name):
        path = self.build / "bin" / name
        return str(path) if path.exists() else None

    def peer(self, name):
        """A peer's program, or None with a note, once."""
        path = {"torchrun": self.torchrun, "ft_launcher": self.ft_launcher}.get(name) or shutil.which(name)
        if path and os.access(path, os.X_OK):
            return path
        self.note(f"{name} is not installed: its column stays empty")
        return None

    def note(self, text):
        if text not in self.notes:
            self.notes.append(text)

    def add(self, *args, **kw):
        self.rows.append(Row(*args, **kw))

    def close(self):
        """Peers leave workers behind when they are ended (torchrun does): those that name our folder are ended here."""
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with suppress(OSError):
                if str(self.tmp).encode() in Path(f"/proc/{pid}/cmdline").read_bytes() and int(pid) != os.getpid():
                    os.kill(int(pid), signal.SIGKILL)
        shutil.rmtree(self.tmp, ignore_errors=True)


# --- processes ---

def end_group(p, limit_s=10):
    """SIGTERM, then SIGKILL, to a process started as leader of its group."""
    if p.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(p.pid, signal.SIGTERM)
        try:
            p.wait(limit_s)
        except subprocess.TimeoutExpired:
            pass
    with suppress(ProcessLookupError):
        os.killpg(p.pid, signal.SIGKILL)
    p.wait()


@contextmanager
def running(cmd, **kw):
    kw.setdefault("stdin", subprocess.DEVNULL)
    kw.setdefault("stdout", subprocess.DEVNULL)
    kw.setdefault("stderr", subprocess.DEVNULL)
    p = subprocess.Popen([str(c) for c in cmd], start_new_session=True, **kw)
    try:
        yield p
    finally:
        end_group(p)


@contextmanager
def running_many(cmds, **kw):
    """Start all at once; end all at once."""
    procs = [subprocess.Popen([str(c) for c in cmd], start_new_session=True, stdin=subprocess.DEVNULL,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **kw) for cmd in cmds]
    try:
        yield procs
    finally:
        for p in procs:
            with suppress(ProcessLookupError):
                os.kill(p.pid, signal.SIGTERM)
        for p in procs:
            end_group(p)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_for(what, limit_s, look):
    """Ask `look` until it gives something true; the pause grows to 20 ms."""
    end, pause = time.monotonic() + limit_s, 0.001
    while time.monotonic() < end:
        got = look()
        if got:
            return got
        time.sleep(pause)
        pause = min(pause * 1.5, 0.02)
    raise Missing(f"waited {limit_s} s for {what}")


def answers(port):
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


@contextmanager
def rdzv_server(bench, *more, wrap=()):
    """Our server on a free port: (port, pid)."""
    program = bench.ours("rdzv-server")
    if program is None:
        raise Missing("rdzv-server is not built")
    port = free_port()
    with running([*wrap, program, "--host", "127.0.0.1", "--port", port, *more], cwd=bench.tmp) as p:
        wait_for("rdzv-server to listen", 10, lambda: answers(port) or p.poll() is not None)
        if p.poll() is not None:
            raise Missing(f"rdzv-server ended with {p.returncode}")
        yield port, p.pid


def status(port):
    import urllib.request
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=5) as r:
        return json.load(r)


# --- workers that stamp ---

class Fifo:
    """Where stamp writes its lines; read as events, with a deadline."""

    def __init__(self, bench, name):
        self.path = str(bench.tmp / name)
        with suppress(FileNotFoundError):
            os.unlink(self.path)
        os.mkfifo(self.path)
        self.fd = os.open(self.path, os.O_RDWR | os.O_NONBLOCK)
        self.rest = b""

    def close(self):
        os.close(self.fd)
        os.unlink(self.path)

    def drain(self):
        with suppress(BlockingIOError):
            while os.read(self.fd, 65536):
                pass
        self.rest = b""

    def take(self, count, limit_s, what="stamps"):
        """The next `count` stamps as (time ns, rank, restarts, pid)."""
        got, end = [], time.monotonic() + limit_s
        while len(got) < count:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.fd], [], [], left)[0]:
                raise Missing(f"{len(got)} of {count} {what} came within {limit_s} s")
            self.rest += os.read(self.fd, 65536)
            *lines, self.rest = self.rest.split(b"\n")
            for line in lines:
                t, rank, restarts, pid = line.decode().split()
                got.append((int(t), rank, int(restarts), int(pid)))
        return got


# --- /proc ---

def tree(pid):
    """pid and all below it."""
    found, todo = [], [pid]
    while todo:
        p = todo.pop()
        found.append(p)
        with suppress(OSError):
            for task in os.listdir(f"/proc/{p}/task"):
                todo += map(int, Path(f"/proc/{p}/task/{task}/children").read_text().split())
    return found


def program_of(pid):
    try:
        return os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return ""


def pss_bytes(pid):
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def cpu_ns(pid):
    total = 0
    with suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError):
                total += int(Path(f"/proc/{pid}/task/{task}/schedstat").read_text().split()[0])
    return total


# --- numbers ---

def ms(ns):
    return None if ns is None else ns / 1e6


def median(values):
    values = [v for v in values if v is not None]
    return statistics.median(values) if values else None


def lines_of(cmd, limit_s=600):
    """The JSON lines a tool prints."""
    p = subprocess.run([str(c) for c in cmd], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                       timeout=limit_s, text=True)
    if p.returncode != 0:
        raise Missing(f"{os.path.basename(str(cmd[0]))}: {p.stderr.strip() or p.returncode}")
    return [json.loads(line) for line in p.stdout.splitlines()]
