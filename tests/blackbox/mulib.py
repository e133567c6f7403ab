"""What black-box tests share: a server process, raw store clients, agents that speak the control protocol, HTTP.

Nothing here sleeps: every wait is for a line, a message or an end, and has a deadline that fails with what was there."""
import contextlib
import datetime
import http.client
import json
import os
import re
import signal
import socket
import struct
import subprocess
import threading
import time

BIN = os.environ.get("MUSTER_BIN", "")
PATIENCE = float(os.environ.get("MUSTER_TEST_PATIENCE", "20"))  # seconds; sanitizers and busy machines are slow


def program(name):
    path = os.path.join(BIN, name)
    assert BIN and os.access(path, os.X_OK), f"{name} is not in MUSTER_BIN={BIN!r}: build it first"
    return path


class Lines:
    """Collects a stream's lines and lets tests wait for one."""

    def __init__(self, stream):
        self.lines = []
        self.ended = False
        self.changed = threading.Condition()
        self.thread = threading.Thread(target=self._read, args=(stream,), daemon=True)
        self.thread.start()

    def _read(self, stream):
        for raw in iter(stream.readline, b""):
            with self.changed:
                self.lines.append(raw.decode("utf-8", "replace").rstrip("\n"))
                self.changed.notify_all()
        with self.changed:
            self.ended = True
            self.changed.notify_all()
        stream.close()

    def wait(self, pattern, timeout=None, after=0):
        """The first match of `pattern` in the lines from number `after` on."""
        end = time.monotonic() + (PATIENCE if timeout is None else timeout)
        at = after
        with self.changed:
            while True:
                while at < len(self.lines):
                    m = re.search(pattern, self.lines[at])
                    if m:
                        return m
                    at += 1
                left = end - time.monotonic()
                if self.ended or left <= 0:
                    raise AssertionError(f"no line matched {pattern!r} in:\n" + "\n".join(self.lines[-40:]))
                self.changed.wait(left)

    def text(self):
        with self.changed:
            return "\n".join(self.lines)


class Server:
    """One rdzv-server. Its end is checked: status 0 after SIGTERM, and no word from a sanitizer."""

    def __init__(self, tmp_path, *options, port=0, name="server", env=None, exe=None, keep=False):
        """keep: jobs are kept in state_dir; else it holds the mark of a running round, as by default."""
        self.port_file = tmp_path / f"{name}.port"
        self.state_dir = tmp_path / "state"
        argv = [exe or program("rdzv-server"), "--port", str(port), "--port-file", str(self.port_file),
                *(["--state-dir", str(self.state_dir)] if keep else []), *options]
        self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                        env={**os.environ, "RUNTIME_DIRECTORY": str(self.state_dir), **(env or {})})
        self.log = Lines(self.process.stderr)
        self.log.wait(r"listening on")
        self.port = int(self.port_file.read_text())

    def connect(self, host="127.0.0.1"):
        s = socket.create_connection((host, self.port), timeout=PATIENCE)
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return s

    def get(self, path, method="GET", body=None):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            c.request(method, path, body=body)
            r = c.getresponse()
            return r.status, dict(r.getheaders()), r.read()
        finally:
            c.close()

    def status(self):
        """An answer that was written after this call: a large one may be shown again for some milliseconds."""
        asked = int(time.time() * 1000)
        while True:
            code, headers, body = self.get("/status")
            assert code == 200 and headers["Content-Type"].startswith("application/json"), (code, headers)
            s = json.loads(body)
            if unix_ms(s["now"]) >= asked:
                return s

    def job(self, run_id):
        """The latest job of that id, or None."""
        return next((j for j in self.status()["jobs"] if j["id"] == run_id), None)

    def wait_status(self, test, what):
        """Asks until `test(status)` holds: for counts that no event of ours announces."""
        end = time.monotonic() + PATIENCE
        pause = threading.Event()
        while True:
            s = self.status()
            if test(s):
                return s
            assert time.monotonic() < end, f"{what}: {json.dumps(s, indent=1)}"
            pause.wait(0.005)

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(PATIENCE)

    def stop(self, signo=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(signo)
        code = self.process.wait(PATIENCE)
        self.log.thread.join(PATIENCE)
        return code

    def check_end(self):
        killed = self.process.returncode == -signal.SIGKILL
        code = self.stop()
        text = self.log.text()
        assert "Sanitizer" not in text and "runtime error" not in text, text
        assert killed or code == 0, f"exit status {code}:\n{text}"


def unix_ms(text):
    return int(datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() * 1000 + 0.5)


# --- the store, by hand: docs/protocol.md "The store" ---

VALIDATE, SET, COMPARE_SET, GET, ADD, CHECK, WAIT, NUM_KEYS, DELETE_KEY, APPEND, MULTI_GET, MULTI_SET, CANCEL_WAIT, \
    PING, QUEUE_PUSH, QUEUE_POP, QUEUE_LEN, LIST_KEYS, BARRIER = range(19)
MAGIC = 0x3C85F7CE


def packed(*parts):
    """Integers are commands (1 byte), bytes are strings with their length, tuples are (struct format, value)."""
    out = b""
    for p in parts:
        if isinstance(p, int):
            out += bytes([p])
        elif isinstance(p, tuple):
            out += struct.pack("<" + p[0], p[1])
        else:
            out += struct.pack("<Q", len(p)) + p
    return out


class StoreClient:
    def __init__(self, server, handshake=True, host="127.0.0.1"):
        self.sock = server.connect(host)
        if handshake:
            self.sock.sendall(packed(VALIDATE, ("I", MAGIC), PING, ("I", 4711)))
            assert self.take("I") == 4711

    def raw(self, n):
        got = b""
        while len(got) < n:
            part = self.sock.recv(n - len(got))
            assert part, f"closed after {got!r}, {n} bytes were due"
            got += part
        return got

    def take(self, fmt):
        return struct.unpack("<" + fmt, self.raw(struct.calcsize("<" + fmt)))[0]

    def take_bytes(self):
        return self.raw(self.take("Q"))

    def send(self, *parts):
        self.sock.sendall(packed(*parts))

    def set(self, key, value):
        self.send(SET, key, value)

    def get(self, key):
        self.send(GET, key)
        return self.take_bytes()

    def add(self, key, n):
        self.send(ADD, key, ("q", n))
        return self.take("q")

    def num_keys(self):
        self.send(NUM_KEYS)
        return self.take("q")

    def is_closed(self):
        return ends(self.sock)

    def close(self):
        self.sock.close()


# --- an agent, by hand: docs/protocol.md ---

class Closed(Exception):
    pass


class Agent:
    """Speaks the control protocol; does what the test says, and nothing by itself."""

    def __init__(self, server, run_id="job", node=None, host="n1", nproc=2, nnodes=(2, 2), hello=True, **fields):
        self.sock = server.connect()
        self.buffer = b""
        self.fields = {"type": "hello", "version": "test", "run_id": run_id, "node": node or os.urandom(8).hex(),
                       "host": host, "nodes_min": nnodes[0], "nodes_max": nnodes[1], "nproc": nproc,
                       "store_port": 40000, "pid": 4242, "cpus": 8, "gpus": 1, "role": "default", **fields}
        self.node = self.fields["node"]
        self.round = 0
        if hello:
            self.sock.sendall(b"MUSTER/1\n" + frame(self.fields))

    def send(self, kind, **fields):
        self.sock.sendall(frame({"type": kind, **fields}))

    def _message(self):
        while True:
            if len(self.buffer) >= 4:
                n = struct.unpack(">I", self.buffer[:4])[0]
                if len(self.buffer) >= 4 + n:
                    m = json.loads(self.buffer[4:4 + n])
                    self.buffer = self.buffer[4 + n:]
                    return m
            part = self.sock.recv(65536)
            if not part:
                raise Closed()
            self.buffer += part

    def expect(self, kind, skip=("waiting", "beat")):
        while True:
            m = self._message()
            if m["type"] == kind:
                self.round = m.get("round", self.round) if kind == "start" else self.round
                return m
            assert m["type"] in skip, f"{kind} was due, this came: {m}"

    def expect_closed(self, skip=("waiting", "beat")):
        try:
            while True:
                m = self._message()
                assert m["type"] in skip, f"the connection's end was due, this came: {m}"
        except (Closed, ConnectionResetError):
            self.sock.close()

    def started(self, pids=None):
        n = self.fields["nproc"]
        self.send("started", round=self.round, pids=pids or list(range(1000, 1000 + n)))

    def failed(self, local_rank=0, kind="worker_exit", tail="", trace="", **fields):
        self.send("failed", round=self.round, tail=tail, trace=trace, cause={"kind": kind, "round": self.round, "local_rank": local_rank,
                                                     "host": self.fields["host"], **fields})

    def stopped(self, port=40001, exits=None, **fields):
        self.send("stopped", round=self.round, store_port=port, exits=exits or [-15] * self.fields["nproc"], **fields)

    def finished(self):
        self.send("finished", round=self.round)

    def close(self):
        self.sock.close()


OLD = ("welcome", "waiting", "beat", "granted")  # May come before what is expected.


class Group:
    """Agents by hand, which do what the test says."""

    def __init__(self, server, things, nodes=2, nproc=2, run_id="train", hosts=None, spares=0, **fields):
        self.agents = [Agent(server, run_id=run_id, host=(hosts or {}).get(i, f"n{i}"), nproc=nproc, nnodes=(nodes, nodes), **fields)
                       for i in range(nodes)]
        things.extend(self.agents)
        self.start()
        things.extend(Agent(server, run_id=run_id, host=f"spare{i}", nproc=nproc, nnodes=(nodes, nodes), **fields) for i in range(spares))

    def start(self):
        for a in self.agents:
            a.expect("start", skip=OLD)
        for a in self.agents:
            a.started()

    def fail(self, node=0, **cause):
        self.agents[node].failed(**cause)
        for a in self.agents:
            a.expect("stop", skip=OLD)

    def stopped(self):
        for a in self.agents:
            a.stopped()

    def steps(self, of):
        for k, a in enumerate(self.agents):
            a.send("beat", round=a.round, steps=[of(k, i) for i in range(a.fields["nproc"])])


def frame(message):
    body = json.dumps(message).encode()
    return struct.pack(">I", len(body)) + body


def ends(sock):
    """Waits for the peer's end, or its reset where it left bytes unread. False when anything else arrives."""
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


def reset(sock):
    """Close with a reset instead of an end."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


@contextlib.contextmanager
def closing_all():
    """A list of things with close(), closed at the end."""
    things = []
    try:
        yield things
    finally:
        for t in things:
            t.close()


def memory_kb(pid, field="Pss"):
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as f:
        for line in f:
            if line.startswith(field + ":"):
                return int(line.split()[1])
    raise AssertionError(field)


def cpu_ticks(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


def cpu_ms(pid):
    """As cpu_ticks(), finer."""
    with open(f"/proc/{pid}/schedstat", encoding="ascii") as f:
        return int(f.read().split()[0]) / 1e6


def is_sanitized():
    """Memory and time promises are for builds without sanitizers."""
    with open(program("rdzv-server"), "rb") as f:
        return b"__asan_init" in f.read()
