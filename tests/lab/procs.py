"""Processes under test: their output line by line with the time of each, waits with a deadline, and nothing left at the end."""
import os
import re
import select
import signal
import subprocess
import threading
import time
from contextlib import suppress


class Late(AssertionError):
    """Something did not come before its deadline."""


class Proc:
    """A process whose standard output and error are read as they come. Leader of a session of its own."""

    def __init__(self, name, cmd, **kw):
        self.name, self.cmd = name, [str(c) for c in cmd]
        self.lines = []  # (monotonic ns, text)
        self.news = threading.Condition()
        self.p = subprocess.Popen(self.cmd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  start_new_session=True, **kw)
        self.ended = False
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for raw in self.p.stdout:
            with self.news:
                self.lines.append((time.monotonic_ns(), raw.decode(errors="replace").rstrip("\n")))
                self.news.notify_all()
        with self.news:
            self.ended = True
            self.news.notify_all()

    def wait_line(self, pattern, limit_s, after_ns=0):
        """The first line, not before after_ns, that matches: (time ns, match)."""
        end, seen = time.monotonic() + limit_s, 0
        with self.news:
            while True:
                for t, text in self.lines[seen:]:
                    m = re.search(pattern, text)
                    if m and t >= after_ns:
                        return t, m
                seen = len(self.lines)
                left = end - time.monotonic()
                if left <= 0 or self.ended:
                    raise Late(f"{self.name} said no '{pattern}' within {limit_s} s{' before its end' * self.ended}:\n{self.text()}")
                self.news.wait(left)

    def wait(self, limit_s):
        """Exit status; minus the signal's number when one ended it."""
        try:
            status = self.p.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise Late(f"{self.name} did not end within {limit_s} s:\n{self.text()}") from None
        self.reader.join(5)
        return status

    def text(self):
        return "\n".join(text for _, text in list(self.lines))

    def matches(self, pattern):
        return [m for m in (re.search(pattern, text) for _, text in list(self.lines)) if m]

    def end(self):
        with suppress(ProcessLookupError):
            os.killpg(self.p.pid, signal.SIGKILL)
        self.p.wait()

    def story(self):
        return f"--- {self.name}: {' '.join(self.cmd)}\n{self.text()}\n--- status {self.p.poll()}"


class Events:
    """A FIFO through which workers tell what they do; a line is `what rank restarts pid host world`."""

    def __init__(self, path):
        self.path = str(path)
        os.mkfifo(self.path)
        self.fd = os.open(self.path, os.O_RDWR | os.O_NONBLOCK)
        self.rest, self.queue = b"", []

    def close(self):
        os.close(self.fd)

    def take(self, count, limit_s, what="start"):
        """The next `count` events of that kind; others are skipped. Each is a dict with its time of arrival."""
        got, end = [], time.monotonic() + limit_s
        while True:
            while self.queue and len(got) < count:
                event = self.queue.pop(0)
                if event["what"] == what:
                    got.append(event)
            if len(got) == count:
                return got
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.fd], [], [], left)[0]:
                raise Late(f"{len(got)} of {count} '{what}' came within {limit_s} s: {got}")
            self.rest += os.read(self.fd, 65536)
            *lines, self.rest = self.rest.split(b"\n")
            for line in lines:
                what_, rank, restarts, pid, host, world = line.decode().split()
                self.queue.append({"what": what_, "rank": int(rank), "restarts": int(restarts), "pid": int(pid), "host": host,
                                   "world": int(world), "ns": time.monotonic_ns()})

    def nothing(self, seconds, what="start"):
        """True when no such event comes in that time."""
        try:
            self.take(1, seconds, what)
        except Late:
            return True
        return False


def pids_with(marker, program=None):
    """Processes of this machine, whatever namespace they are in, whose command line has the marker."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            with open(f"/proc/{name}/cmdline", "rb") as f:
                words = f.read().decode(errors="replace").split("\0")
            if any(marker in w for w in words) and (program is None or os.path.basename(words[0]) == program):
                found.append(int(name))
    return found


def parent_of(pid):
    with open(f"/proc/{pid}/stat") as f:
        return int(f.read().rpartition(")")[2].split()[1])


def still_there(pids, deadline_ns):
    """Of these, who has not ended at the deadline. Waits on pidfds, not by looking again and again."""
    left = []
    for pid in pids:
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            ms = max(0, (deadline_ns - time.monotonic_ns()) / 1e6)
            p = select.poll()
            p.register(fd, select.POLLIN)
            if not p.poll(ms):
                left.append(pid)
        finally:
            os.close(fd)
    return left
