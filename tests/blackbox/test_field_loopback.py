"""Field cases F05, F06 and F26, on one machine. Each test's name begins with the number of its case."""
import random
import re
import resource
import signal
import socket
import struct
import subprocess
import threading
import time
import urllib.request

import pytest

import agentlib
import mulib
from mulib import MAGIC, MULTI_GET, PING, SET, VALIDATE, packed

SLOW = 3 if agentlib.SANITIZED else 1
LOOPBACK = {"0100007F", "00000000000000000000000001000000"}  # As /proc spells it.
ONCE_MORE = pytest.mark.parametrize("standing", [True, False], ids=["server", "hosted"])


def place(standing, start_server, *options):
    return start_server(*options).port if standing else agentlib.unused_port()


# --- F05: two jobs on one machine ---

def test_f05a_two_standalone_jobs_at_once_do_not_meet(job):
    w = job.worker('say("up", RANK, WORLD)\nall_up()')
    for n in range(10):
        folders = [job.folder / f"{n}.{k}" for k in range(2)]
        for f in folders:
            f.mkdir()
        both = [agentlib.Launch(f, f"job {f.name}", ("--standalone", "--nproc-per-node=2", w)) for f in folders]
        job.agents += both
        for a in both:
            a.ends(0)
            assert sorted(a.out.lines) == ["up 0 2", "up 1 2"] and "in use" not in a.err.text()


@ONCE_MORE
def test_f05b_the_same_command_again_is_told_that_the_job_runs(start_server, job, standing):
    port = place(standing, start_server)
    words = (f"--rdzv=127.0.0.1:{port}", "--nnodes=1", job.worker('say("up")\nawait_file("go")\nsay("end")'))
    first = job.start(*words)
    first.out.wait("up")
    began = time.monotonic()
    second = job.start(*words).ends(1)
    assert time.monotonic() - began <= 5
    assert re.search(rf"job 'none' runs here since \d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\dZ \(\d+ s\), on \S+, pid {first.agent_pid()}: "
                     r"give this one an id of its own \(--rdzv-id\), or no endpoint \(--standalone\)", second.verdict()), second.verdict()
    assert second.out.text() == ""
    # With an id of its own it runs beside it.
    job.start(*words[:2], "--rdzv-id=other", job.worker("pass")).ends(0)
    (job.folder / "go").touch()
    first.ends(0)
    assert first.out.lines == ["up", "end"]


def test_f05b_a_spare_for_a_named_job_of_one_node_still_waits_and_says_so(server, job):
    w = job.worker('say("up")\nawait_file("go")')
    a = job.nodes(server, 1, "--rdzv-id=named", w)[0]
    a.out.wait("up")
    b = job.nodes(server, 1, "--rdzv-id=named", w)[0]
    b.err.wait(r"this node waits as a spare \(another job needs an id of its own: --rdzv-id\)", 5)
    (job.folder / "go").touch()
    a.ends(0), b.ends(0)


def test_f05c_something_else_at_the_port_is_named(job):
    p = subprocess.Popen(["/usr/bin/python3", "-u", "-m", "http.server", "--bind", "127.0.0.1", "0"], stdout=subprocess.PIPE,
                         stderr=subprocess.DEVNULL, cwd=job.folder)
    try:
        port = int(re.search(rb"port (\d+)", p.stdout.readline()).group(1))
        began = time.monotonic()
        a = job.start(f"--rdzv=127.0.0.1:{port}", "--nnodes=1", job.worker("hang()")).ends(1)
        assert time.monotonic() - began <= 5 * SLOW
        assert re.search(rf"127\.0\.0\.1:{port}: something else than an rdzv-server answers there: it sent .*\(pid {p.pid}, \"python3\"\): "
                         r"choose another port", a.verdict()), a.verdict()
    finally:
        p.kill()
        p.wait()
        p.stdout.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", None])
def test_f05d_a_second_server_at_a_port_names_address_port_and_holder(start_server, host):
    more = ["--host", host] if host else []
    first = start_server(*more)
    began = time.monotonic()
    p = subprocess.run([mulib.program("rdzv-server"), "--port", str(first.port), *more], capture_output=True, text=True, timeout=20,
                       check=False)
    assert p.returncode == 1 and time.monotonic() - began <= 2 * SLOW
    shown = {"127.0.0.1": "127.0.0.1", "::1": "[::1]", None: "*"}[host]
    assert f"{shown}:{first.port} is taken (pid {first.process.pid}, \"rdzv-server\")" in p.stderr, p.stderr


# --- F06: the same id each night ---

def test_f06_a_nightly_job_finds_nothing_of_the_night_before(server, job):
    w = job.worker("""
say("up", RANK, WORLD, RESTARTS, NODE)
await_file("go", E.get("NIGHT") == "stays")
time.sleep(0.3)  # Both are up.
if E.get("NIGHT") == "fails" or (E.get("NIGHT") == "again" and RESTARTS == 0): sys.exit(1)
""")
    keys = []

    def night(what, kill=None, code=0):
        began = time.monotonic()
        a = job.start(f"--rdzv=127.0.0.1:{server.port}", "--nnodes=1", "--nproc-per-node=2", "--max-restarts=1", "--rdzv-id=nightly", w,
                      env={"NIGHT": what})
        first = a.out.wait_count("^up", 2)
        assert time.monotonic() - began <= 3 * SLOW, a.err.text()
        assert sorted(m.string.split()[1:5] for m in first) == [["0", "2", "0", "0"], ["1", "2", "0", "0"]], a.out.text()
        if kill is not None:
            a.signal(kill)
        if kill != signal.SIGKILL:
            a.ends(code)
        keys.append(server.status()["server"]["store"]["keys"])
        return a

    night("good")
    night("again")  # One restart is used.
    failed = night("fails", code=1)
    assert "1 of 1 restarts used" in failed.verdict()
    killed = night("stays", signal.SIGKILL)
    told = night("stays", signal.SIGTERM, 1)  # At once: what is left of the one before is not waited for long.
    assert "1 of 1" not in told.verdict()
    last = night("again")
    assert last.out.wait_count(r"^up \d 2 1 0", 2), "its own budget"
    killed.wait()
    assert keys == [0] * 6


@pytest.mark.parametrize("how", ["reset", "end"])
def test_f06_who_comes_after_the_last_node_has_died_begins_anew(server, how):
    """Not even the budget is inherited, whether the death is known at once or must be found out."""
    spec = {"run_id": "nightly", "nnodes": (1, 1), "max_restarts": 3}
    with socket.socket() as store:
        store.bind(("127.0.0.1", 0))
        port = store.getsockname()[1]  # Nobody listens there: its process is dead.
        a = mulib.Agent(server, store_port=port, life_port=port, **spec)
        a.expect("welcome"), a.expect("start")
        a.started()
        a.failed(exit_code=1)
        a.expect("stop")
        a.stopped(port=port)
        assert a.expect("start")["restarts"] == 1
        a.started()
        mulib.reset(a.sock) if how == "reset" else a.close()
        server.wait_status(lambda s: not any(n["connected"] for n in s["jobs"][0]["nodes"]), "it is gone")
        b = mulib.Agent(server, host="n2", **spec)
        b.expect("welcome")
        assert b.expect("start")["restarts"] == 0
        b.close()


# --- F26: strangers ---

class Watch(threading.Thread):
    """Asks for the status again and again; keeps the longest answer's time."""

    def __init__(self, ports):
        super().__init__(daemon=True)
        self.ports, self.worst, self.failed, self.over = ports, 0.0, [], threading.Event()
        self.start()

    def run(self):
        while not self.over.wait(0.1):
            for port in self.ports:
                began = time.monotonic()
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=mulib.PATIENCE) as r:
                        r.read()
                except OSError as e:
                    self.failed.append(e)
                    return
                self.worst = max(self.worst, time.monotonic() - began)


def connect(port):
    return socket.create_connection(("127.0.0.1", port), timeout=mulib.PATIENCE)


GREETING = packed(VALIDATE, ("I", MAGIC), PING, ("I", 1))
BAD = {
    "random": random.Random(26).randbytes(400),
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
    "SET, key of 2^62": GREETING + packed(SET, ("Q", 1 << 62)) + b"x" * 100,
    "SET, value of 8 GiB": GREETING + packed(SET, b"k", ("Q", 8 << 30)) + b"x" * 100,
    "MULTI_GET of 2^60": GREETING + packed(MULTI_GET, ("Q", 1 << 60)) + b"x" * 100,
    "unknown command": GREETING + bytes([99]) + b"x" * 100,
}


def check_bad(port):
    for what, text in BAD.items():
        s = connect(port)
        s.sendall(text)
        if what.startswith(("SET", "MULTI", "unknown")):
            got = s.recv(4)
            assert got in (b"", struct.pack("<I", 1)), (what, got)
        if what == "TLS":
            assert s.recv(7)[:1] == b"\x15"  # An alert, so that its sender knows.
        assert mulib.ends(s), f"{what} at port {port}: the connection goes on"
        s.close()


def check_flood(port):
    """700 MiB as one value: refused long before it is all there."""
    s = connect(port)
    s.sendall(GREETING + packed(SET, b"k", ("Q", 700 << 20)))
    sent = 0
    block = bytes(1 << 20)
    try:
        while sent < 700 << 20:
            s.sendall(block)
            sent += len(block)
    except OSError:
        pass
    assert sent < 64 << 20, f"{sent >> 20} MiB were taken"
    s.close()


def closes(socks, within_s, what):
    """All are ended by their peer within that time."""
    end = time.monotonic() + within_s
    for s in socks:
        s.settimeout(max(0.1, end - time.monotonic()))
        try:
            assert mulib.ends(s)
        except TimeoutError:
            raise AssertionError(f"{what}: still open after {within_s} s") from None


def test_f26_strangers_at_every_listener_disturb_nobody(start_server, job):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 16384), hard))
    server = start_server("--host", "127.0.0.1", "--first-bytes-timeout=3")
    w = job.worker('say("up", RANK, STORE)\nawait_file("go")')
    pair = job.nodes(server, 2, "--rdzv-id=regular", w)
    alone = job.start("--standalone", "--nproc-per-node=2", w)
    lead = pair[0] if pair[0].out.wait(r"up (\d)").group(1) == "0" else pair[1]
    store = int(lead.out.wait(r"up 0 \S+:(\d+)").group(1))
    alone_store = int(alone.out.wait(r"up 0 \S+:(\d+)").group(1))
    alone.out.wait_count("up", 2)
    listening = agentlib.listeners(alone.agent_pid())
    alone_rdzv, = {port for _, port in listening} - {alone_store}
    assert {address for address, _ in listening} <= LOOPBACK, "--standalone listens on loopback only"
    assert {address for a in pair for address, _ in agentlib.listeners(a.agent_pid())} <= LOOPBACK, "the meeting place is on loopback"
    assert {address for address, _ in agentlib.listeners(server.process.pid)} <= LOOPBACK

    ports = {"rdzv-server": server.port, "worker store": store, "standalone": alone_rdzv, "standalone's store": alone_store}
    pids = {"rdzv-server": server.process.pid, "worker store": lead.agent_pid(), "standalone": alone.agent_pid()}
    before = {k: mulib.memory_kb(p) for k, p in pids.items()}
    watch = Watch([server.port, alone_rdzv])
    silent = {}
    for name, port in ports.items():
        silent[name] = [connect(port) for _ in range(1000 if "standalone's" not in name else 10)]
        half = connect(port)
        half.sendall(b"MUSTER/1\n\0\0" if name in ("rdzv-server", "standalone") else b"\0\x85")
        silent[name].append(half)
    opened = time.monotonic()
    for port in ports.values():
        check_bad(port)
        check_flood(port)
    growth = {k: mulib.memory_kb(p) - before[k] for k, p in pids.items()}
    assert agentlib.SANITIZED or max(growth.values()) < 32 << 10, growth
    closes(silent["rdzv-server"], 3 + 5 * SLOW, "a silent one at rdzv-server")
    for name in list(ports)[1:]:
        closes(silent[name], 30 + 5 * SLOW - (time.monotonic() - opened), f"a silent one at {name}")
    watch.over.set()
    watch.join(mulib.PATIENCE)
    assert not watch.failed, watch.failed
    assert watch.worst <= 1 * SLOW, f"a status took {watch.worst:.2f} s"
    (job.folder / "go").touch()
    for a in (*pair, alone):
        a.ends(0)
    assert server.job("regular")["round"] == 1
    lines = [s for s in server.log.lines if "conn.closed" in s or "client.closed" in s or "agent.closed" in s]
    assert 1 <= len(lines) <= len(BAD) + 30, f"{len(lines)} lines for {len(silent['rdzv-server']) + len(BAD) + 1} connections"
    for socks in silent.values():
        for s in socks:
            s.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
