"""What tests of service mode share: a server that takes a node's offer and does what the test says, with a real rdzv-server behind it for
the jobs' own agents; and the service itself."""
import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import threading
import time

import agentlib
from mulib import PATIENCE, Closed, Lines, frame, program

WORKER = agentlib.HEADER
USUAL = {"output": {"rank": -1, "channel": 1, "text": "", "end": 0}, "placed": {"status": 0, "text": ""}, "has": {"state": 0, "status": 0}}


class Node:
    """One connection of a service."""

    def __init__(self, sock, offer, buffer):
        self.sock = sock
        self.offer = offer
        self.buffer = buffer
        self.messages = []
        self.ended = False
        self.changed = threading.Condition()
        self.beats = True
        self.thread = threading.Thread(target=self._read, daemon=True)

    def begin(self):
        self.send("welcome", version="test", seen_addr="127.0.0.1", lease_ms=3000, beat_ms=200)
        self.thread.start()

    def send(self, kind, **fields):
        self.sock.sendall(frame({"type": kind, **fields}))

    def _take(self):
        while len(self.buffer) < 4 or len(self.buffer) < 4 + struct.unpack(">I", self.buffer[:4])[0]:
            part = self.sock.recv(262144)
            if not part:
                raise Closed()
            self.buffer += part
        n = struct.unpack(">I", self.buffer[:4])[0]
        m = json.loads(self.buffer[4:4 + n])
        self.buffer = self.buffer[4 + n:]
        return m

    def _read(self):
        with contextlib.suppress(Closed, OSError):
            while True:
                m = self._take()
                if m["type"] == "beat" and self.beats:
                    self.send("beat", round=0, seq=m.get("seq", 0))
                m = {**USUAL.get(m["type"], {}), **m}
                with self.changed:
                    self.messages.append(m)
                    self.changed.notify_all()
        with self.changed:
            self.ended = True
            self.changed.notify_all()

    def wait(self, test, what="a message", timeout=None):
        """The first message for which test(message) holds; it is taken out."""
        end = time.monotonic() + (timeout or PATIENCE)
        with self.changed:
            while True:
                for i, m in enumerate(self.messages):
                    if test(m):
                        del self.messages[i]
                        return m
                left = end - time.monotonic()
                assert left > 0 and not self.ended, f"no {what} in {self.messages[-20:]}"
                self.changed.wait(left)

    def wait_end(self):
        self.thread.join(PATIENCE)
        assert self.ended

    def placed(self, job, state, timeout=None):
        return self.wait(lambda m: m["type"] == "placed" and m["job"] == job and m["state"] == state, f"placed {state} of {job}", timeout)

    def has(self):
        """What it says is there."""
        jobs = []
        while True:
            m = self.wait(lambda m: m["type"] == "has", "has")
            if m["job"] == "":
                return jobs
            jobs.append(m)

    def assign(self, job, argv, cwd, attempt=1, nproc=1, nnodes="1", gpus=(), submitted_ms=0, **spec):
        text = json.dumps({"argv": [str(a) for a in argv], "cwd": str(cwd), "nnodes": nnodes, **spec})
        self.send("assign", job=job, attempt=attempt, spec=text, node_rank=0, node_count=1, nproc=nproc, gpus=list(gpus), submitted_ms=submitted_ms)

    def tail(self, job, stream, follow=0, rank=-2, since_ms=-1, lines=-1, credit=1 << 20, submitted_ms=0):
        self.send("tail", stream=stream, job=job, follow=follow, rank=rank, since_ms=since_ms, lines=lines, credit=credit, submitted_ms=submitted_ms)

    def output(self, stream, refill=True, timeout=None):
        """All records up to the stream's end."""
        found = []
        while True:
            m = self.wait(lambda m: m["type"] == "output" and m["stream"] == stream, f"output {stream}", timeout)
            if m.get("end"):
                return found
            found.append(m)
            if refill:
                self.send("more", stream=stream, credit=len(m.get("text", "").encode()))

    def log(self, job, stream, **options):
        self.tail(job, stream, **options)
        return self.output(stream)

    def texts(self, job, stream, **options):
        return [m.get("text", "") for m in self.log(job, stream, **options)]


class Pool:
    """Listens; nodes on offer are the test's, everybody else is passed on to the real server."""

    def __init__(self, server):
        self.server = server
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.nodes = []
        self.refuse = None  # a sentence
        self.changed = threading.Condition()
        self.thread = threading.Thread(target=self._accept, daemon=True)
        self.thread.start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self.listener.accept()
                threading.Thread(target=self._meet, args=(sock,), daemon=True).start()

    def _meet(self, sock):
        data = b""
        with contextlib.suppress(OSError):
            while len(data) < 13 or len(data) < 13 + struct.unpack(">I", data[9:13])[0]:
                part = sock.recv(65536)
                if not part:
                    sock.close()
                    return
                data += part
                if not b"MUSTER/1\n".startswith(data[:9]):
                    break
            n = struct.unpack(">I", data[9:13])[0]
            first = json.loads(data[13:13 + n])
            if first["type"] != "offer":
                self._pass_on(sock, data)
                return
            if self.refuse:
                sock.sendall(frame({"type": "refused", "text": self.refuse}))
                return
            node = Node(sock, first, data[13 + n:])
            node.begin()
            with self.changed:
                self.nodes.append(node)
                self.changed.notify_all()

    def _pass_on(self, sock, data):
        behind = self.server.connect()
        behind.settimeout(None)
        behind.sendall(data)

        def pump(a, b):
            with contextlib.suppress(OSError):
                while part := a.recv(65536):
                    b.sendall(part)
            for s in (a, b):
                with contextlib.suppress(OSError):
                    s.shutdown(socket.SHUT_RDWR)
        threading.Thread(target=pump, args=(behind, sock), daemon=True).start()
        pump(sock, behind)

    def node(self, number=0):
        """The number-th connection of a service since the start."""
        end = time.monotonic() + PATIENCE
        with self.changed:
            while len(self.nodes) <= number:
                left = end - time.monotonic()
                assert left > 0, "no node came"
                self.changed.wait(left)
            return self.nodes[number]

    def close(self):
        self.listener.close()
        for n in self.nodes:
            n.sock.close()


class Service:
    def __init__(self, folder, port, *options, env=None, pre=(), exe=None, log_dir=None):
        self.folder = folder
        self.log_dir = log_dir or folder / "kept"
        self.argv = [*pre, exe or program("node-agent"), "--service", f"--rdzv=127.0.0.1:{port}", f"--log-dir={self.log_dir}",
                     *map(str, options)]
        self.process = subprocess.Popen(self.argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=folder,
                                        env=agentlib.environment(env))
        self.pid = self.process.pid
        self.err = Lines(self.process.stderr)

    def signal(self, signo):
        self.process.send_signal(signo)

    def stop(self, timeout=None):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(timeout or PATIENCE)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the service did not end:\n{self.err.text()}") from None
        self.err.thread.join(PATIENCE)
        return code

    def check_end(self):
        killed = self.process.returncode == -signal.SIGKILL
        code = self.stop(PATIENCE * 2)
        text = self.err.text()
        assert "Sanitizer" not in text and "runtime error" not in text, text
        assert killed or code == 0, f"exit status {code}:\n{text}"

    def fds(self):
        return len(os.listdir(f"/proc/{self.pid}/fd"))


def script(folder, name, text):
    path = folder / name
    path.write_text(WORKER + text)
    path.chmod(0o755)
    return path


def is_there(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as f:
            return " Z " not in f.read()
    except (FileNotFoundError, ProcessLookupError):
        return False


def gone(pids):
    """Until none of these processes is there."""
    end = time.monotonic() + PATIENCE
    while any(is_there(p) for p in pids):
        assert time.monotonic() < end, f"some of {pids} still run"
        time.sleep(0.01)
