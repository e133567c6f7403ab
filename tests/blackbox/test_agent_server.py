"""An agent and the rendezvous: hosting it, losing it, finding a stranger in its place, and what its status shows."""
import contextlib
import ctypes
import errno
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
import urllib.request

import pytest

import agentlib
import mulib

SLOW = 3 if agentlib.SANITIZED else 1


# --- hosted ---

@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "localhost"])
def test_agents_that_start_at_the_same_moment_host_for_each_other(job, host):
    port = agentlib.unused_port()
    w = job.worker('say("up", RANK, WORLD, STORE)')
    agents = [job.start(f"--rdzv={host}:{port}", "--nnodes=4", w) for _ in range(4)]
    for a in agents:
        a.ends(0)
        assert a.err.text() == ""
    lines = [s for a in agents for s in a.out.lines]
    assert sorted(s.split()[1] for s in lines) == list("0123") and len({s.split()[3] for s in lines}) == 1


def test_hosting_goes_well_again_and_again(job):
    w = job.worker("pass")
    for n in range(5 if agentlib.SANITIZED else 25):
        port = agentlib.unused_port()
        agents = [job.start(f"--rdzv=127.0.0.1:{port}", "--nnodes=2", w) for _ in range(2)]
        for a in agents:
            a.ends(0)
            assert a.err.text() == "", n


def test_a_failed_job_ends_on_all_nodes_where_an_agent_hosts(job):
    port = agentlib.unused_port()
    w = job.worker("all_up()\nif RANK == 1: sys.exit(3)\nhang()")
    agents = [job.start(f"--rdzv=127.0.0.1:{port}", "--nnodes=3", "--max-restarts=0", w) for _ in range(3)]
    for a in agents:
        a.ends(1)
    assert len({a.cause() for a in agents}) == 1 and "exited with status 3" in agents[0].cause()


def test_one_node_by_itself_listens_on_loopback_alone(job):
    a = job.start("--nproc-per-node=2", job.worker('say("up")\nawait_file("go")'))
    a.out.wait_count("up", 2)
    assert {address for address, _ in agentlib.listeners(a.agent_pid())} == {"0100007F"}
    (job.folder / "go").touch()
    a.ends(0)


def test_the_worker_store_of_a_node_beside_the_server_can_be_reached_by_others(server, job):
    """The agent reaches the server over loopback; a node on another host would not."""
    a, b = job.nodes(server, 2, job.worker('say("up", RANK, STORE)\nawait_file("go")'))
    lead = a if a.out.wait(r"up (\d) \S+:(\d+)").group(1) == "0" else b
    port = int(lead.out.wait(r"up 0 \S+:(\d+)").group(1))
    assert [address for address, p in agentlib.listeners(lead.agent_pid()) if p == port] in (["0" * 32], ["0" * 8])
    (job.folder / "go").touch()
    a.ends(0), b.ends(0)


def test_a_host_whose_own_name_is_a_loopback_address_serves_the_others_too(job):
    """As in Debian's /etc/hosts, where a machine's name is 127.0.1.1; to other machines it is not."""
    hosts = job.file("hosts", "127.0.0.1 localhost\n127.0.1.1 head-node\n")
    own_hosts = ["unshare", "-m", "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"', hosts]
    if subprocess.run([*own_hosts, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("needs a mount namespace of its own to give this host such a name")
    port = agentlib.unused_port()
    w = job.worker('say("up", RANK, WORLD)')
    head = job.start(f"--rdzv=head-node:{port}", "--nnodes=2", w, pre=own_hosts, env={"LOGLEVEL": "INFO"})
    head.err.wait(r"rdzv\.host")
    other = job.start(f"--rdzv=127.0.0.1:{port}", "--nnodes=2", "--rdzv-conf=is_host=0", w)
    head.ends(0), other.ends(0)


def test_a_server_that_listens_already_is_used(server, job):
    w = job.worker("pass")
    for a in job.nodes(server, 2, w):
        a.ends(0)
    assert server.job("none")["state"] == "succeeded"


def test_who_serves_beside_a_server_at_the_usual_port_is_told_of_it(job, start_server):
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind(("127.0.0.1", 29500))
        except OSError:
            pytest.skip("port 29500 is taken here")
    server = start_server("--host", "127.0.0.1", port=29500)
    port = agentlib.unused_port()
    a = job.start(f"--rdzv=127.0.0.1:{port}", "--nnodes=1", job.worker("pass")).ends(0)
    assert a.err.lines == [f"node-agent: nobody listened at port {port}, so this agent serves the rendezvous there itself; a server (pid "
                           f"{server.process.pid}, \"rdzv-server\") listens at port 29500 of this host: did you mean --rdzv=127.0.0.1:29500?"]
    server.stop()
    assert job.start(f"--rdzv=127.0.0.1:{port}", "--nnodes=1", job.worker("pass")).ends(0).err.text() == ""


def test_an_agent_told_not_to_host_waits_for_who_does(job):
    port = agentlib.unused_port()
    w = job.worker('say("up")')
    a = job.start(f"--rdzv=127.0.0.1:{port}", "--nnodes=2", "--rdzv-conf=is_host=0", w, env={"LOGLEVEL": "DEBUG"})
    a.err.wait(r"link\.failed")
    b = job.start(f"--rdzv=127.0.0.1:{port}", "--nnodes=2", w)
    a.ends(0), b.ends(0)


def test_nobody_serves_and_nobody_may_is_told_with_the_address(job):
    port = agentlib.unused_port()
    a = job.start(f"--rdzv=127.0.0.1:{port}", "--rdzv-conf=is_host=0,read_timeout=1", job.worker("hang()")).ends(1)
    assert re.search(rf"127\.0\.0\.1.*{port}.*refused", a.err.text()), a.err.text()


def test_the_status_of_a_hosted_server_shows_what_runs(job):
    port = agentlib.unused_port()
    w = job.worker('say("up", os.getpid())\nawait_file("go")')
    agents = [job.start(f"--rdzv=127.0.0.1:{port}", "--nnodes=2", "--nproc-per-node=2", "--rdzv-id=shown", w) for _ in range(2)]
    pids = {int(m.group(1)) for a in agents for m in a.out.wait_count(r"up (\d+)", 2)}

    def shown():
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=mulib.PATIENCE) as r:
            return json.load(r)
    end = time.monotonic() + mulib.PATIENCE
    while True:  # STARTED is on its way.
        j = shown()["jobs"][0]
        if all(n["state"] == "running" for n in j["nodes"]) or time.monotonic() > end:
            break
    assert j["id"] == "shown" and j["state"] == "running" and j["world"] == 4, j
    assert {w["pid"] for n in j["nodes"] for w in n["workers"]} == pids
    (job.folder / "go").touch()
    for a in agents:
        a.ends(0)


# --- lost ---

def test_workers_do_not_notice_that_the_server_was_killed_and_came_back(start_server, job):
    first = start_server()
    w = job.worker('say("up", RANK)\non(signal.SIGTERM, "term")\nawait_file("go")')
    agents = job.nodes(first, 2, w)
    for a in agents:
        a.out.wait("up")
    first.wait_status(lambda s: all(n["state"] == "running" for n in s["jobs"][0]["nodes"]), "all run")
    first.kill()
    second = start_server(port=first.port)
    second.wait_status(lambda s: s["jobs"] and s["jobs"][0]["state"] == "running" and
                       all(n["connected"] for n in s["jobs"][0]["nodes"]), "all are back")
    (job.folder / "go").touch()
    for a in agents:
        a.ends(0)
        assert len(a.out.lines) == 1, a.out.text()
    j = second.job("none")
    assert j["state"] == "succeeded" and j["round"] == 1 and j["restarts"] == 0


def test_a_failure_while_the_server_is_away_is_told_when_it_is_back(start_server, job):
    first = start_server()
    w = job.worker('say("up", RESTARTS)\nif RESTARTS == 0:\n    await_file("go", RANK == 0)\n    sys.exit(3) if RANK == 0 else hang()')
    agents = job.nodes(first, 2, "--max-restarts=1", w)
    for a in agents:
        a.out.wait("up 0")
    first.wait_status(lambda s: all(n["state"] == "running" for n in s["jobs"][0]["nodes"]), "all run")
    first.kill()
    (job.folder / "go").touch()
    second = start_server(port=first.port)
    for a in agents:
        a.out.wait("up 1")
        a.ends(0)
    assert second.job("none")["restarts"] == 1


def test_without_a_server_good_workers_end_well_and_bad_ones_name_the_cause(server, job):
    w = job.worker("""
say("up", RANK)
await_file("go")
if RANK == 1: sys.exit(6)
""")
    agents = job.nodes(server, 2, "--server-timeout=1", w)
    ranks = {a.out.wait(r"up (\d)").group(1): a for a in agents}
    server.wait_status(lambda s: all(n["state"] == "running" for n in s["jobs"][0]["nodes"]), "all run")
    server.kill()
    began = time.monotonic()
    (job.folder / "go").touch()
    good, bad = ranks["0"].ends(0), ranks["1"].ends(1)
    took = time.monotonic() - began
    assert 0.9 < took < 5 * SLOW, took
    assert re.search(r"^node-agent: every worker of this node exited with status 0; how the other nodes fared is not known: "
                     r"no rendezvous server for \d+ s", good.err.text(), re.M), good.err.text()
    assert "exited with status 6" in bad.verdict()


def test_a_worker_runs_on_without_a_server_for_longer_than_its_time_out(server, job):
    """The time-out begins when something is needed of the server, not when it goes."""
    w = job.worker('say("up")\nawait_file("go")\nsay("done")')
    a = job.nodes(server, 1, "--server-timeout=0.5", w, env={"LOGLEVEL": "DEBUG"})[0]
    a.out.wait("up")
    server.kill()
    began = time.monotonic()
    at = 0
    while time.monotonic() - began < 1.5:  # Its attempts to reconnect tell the time.
        a.err.wait(r"link\.failed", after=at)
        at = len(a.err.lines)
    (job.folder / "go").touch()
    a.ends(0)
    assert "done" in a.out.lines


def test_an_agent_that_waits_ends_with_a_sentence_when_the_server_is_gone_for_good(server, job):
    w = job.worker("hang()")
    # Whether its welcome has gone out when the status shows it is open: the first wait is as long.
    a = job.nodes(server, 1, "--server-timeout=1", "--rdzv-conf=read_timeout=1", w, nnodes=2)[0]
    server.wait_status(lambda s: len(s["jobs"]) == 1, "it is in")
    server.kill()
    a.ends(1, 10)
    assert re.search(r"no rendezvous server for \d+ s.*refused", a.err.text()), a.err.text()


@pytest.mark.parametrize("when", ["running", "waiting"])
def test_when_the_host_is_told_to_stop_the_job_ends_on_all_nodes_at_once(job, when):
    """The server goes with it, so nobody could start another round."""
    port = agentlib.unused_port()
    w = job.worker('say("up")\nhang()')
    nnodes = "--nnodes=2" if when == "running" else "--nnodes=3"
    host = job.start(f"--rdzv=127.0.0.1:{port}", nnodes, w, env={"LOGLEVEL": "INFO"})
    host.err.wait(r"rdzv\.host")
    other = job.start(f"--rdzv=127.0.0.1:{port}", nnodes, w)
    if when == "running":
        host.out.wait("up"), other.out.wait("up")
    else:
        end = time.monotonic() + mulib.PATIENCE
        while True:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=mulib.PATIENCE) as r:
                if len(json.load(r)["jobs"][0]["nodes"]) == 2 or time.monotonic() > end:
                    break
    began = time.monotonic()
    host.signal(signal.SIGTERM)
    host.ends(1), other.ends(1)
    assert time.monotonic() - began < SLOW
    assert "told to stop by SIGTERM" in host.verdict() and "told to stop by SIGTERM" in other.verdict()


# --- strangers ---

class Stranger:
    """A program that holds the port and is no rdzv-server."""

    def __init__(self, kind):
        import socket
        self.sock = socket.socket()
        self.sock.bind(("127.0.0.1", 0))
        self.sock.listen()
        self.port = self.sock.getsockname()[1]
        self.kind = kind
        self.called = threading.Event()
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        held = []
        while True:
            try:
                c, _ = self.sock.accept()
            except OSError:
                return
            self.called.set()
            if self.kind == "closes":
                c.close()
            elif self.kind == "banner":
                c.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
            held.append(c)

    def close(self):
        self.sock.close()


def test_a_web_server_in_the_rendezvous_place_is_told_with_the_port(job):
    p = subprocess.Popen(["/usr/bin/python3", "-u", "-m", "http.server", "--bind", "127.0.0.1", "0"], stdout=subprocess.PIPE,
                         stderr=subprocess.DEVNULL, cwd=job.folder)
    try:
        port = int(re.search(rb"port (\d+)", p.stdout.readline()).group(1))
        check_stranger(job, port)
    finally:
        p.kill()
        p.wait()
        p.stdout.close()


@pytest.mark.parametrize("kind", ["silent", "closes", "banner"])
def test_a_stranger_in_the_rendezvous_place_is_told_with_the_port(job, kind):
    s = Stranger(kind)
    check_stranger(job, s.port)
    s.close()


def check_stranger(job, port):
    a = job.start(f"--rdzv=127.0.0.1:{port}", "--rdzv-conf=read_timeout=2", job.worker("hang()"))
    began = time.monotonic()
    a.ends(1, 20)
    assert time.monotonic() - began < 6 * SLOW
    text = a.err.text()
    assert re.search(rf"no rendezvous server for 2 s; last attempt: 127\.0\.0\.1:{port}: \w", text), text


def test_a_frozen_server_is_given_up(server, job):
    os.kill(server.process.pid, signal.SIGSTOP)
    a = job.nodes(server, 1, "--rdzv-conf=read_timeout=1", job.worker("hang()"))[0]
    a.ends(1, 10)
    assert f"127.0.0.1:{server.port}: connected, but no rdzv-server has answered" in a.err.text(), a.err.text()
    os.kill(server.process.pid, signal.SIGCONT)


def test_sigterm_while_waiting_for_nodes_ends_at_once_and_is_told(server, job):
    a = job.nodes(server, 1, job.worker("hang()"), nnodes=2)[0]
    server.wait_status(lambda s: len(s["jobs"]) == 1, "it is in")
    began = time.monotonic()
    a.signal(signal.SIGTERM)
    a.ends(1)
    assert time.monotonic() - began < SLOW
    assert "told to stop by SIGTERM" in a.err.text(), a.err.text()


def test_sigterm_while_looking_for_a_server_ends_at_once_and_is_told(job):
    s = Stranger("silent")
    a = job.start(f"--rdzv=127.0.0.1:{s.port}", job.worker("hang()"))
    assert s.called.wait(mulib.PATIENCE)
    a.signal(signal.SIGTERM)
    a.ends(1, 3 * SLOW)
    assert "told to stop by SIGTERM" in a.err.text(), a.err.text()
    s.close()


def test_a_name_that_leads_nowhere_is_told(job):
    a = job.start("--rdzv=no.such.host.invalid:29500", "--rdzv-conf=read_timeout=1", job.worker("hang()")).ends(1, 20)
    assert "no.such.host.invalid" in a.err.text() and "resolve" in a.err.text(), a.err.text()


TCP_OPTIONS = {"keepalive": (socket.SOL_SOCKET, socket.SO_KEEPALIVE), "idle": (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE),
               "interval": (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL), "count": (socket.IPPROTO_TCP, socket.TCP_KEEPCNT),
               "user_ms": (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT), "nodelay": (socket.IPPROTO_TCP, socket.TCP_NODELAY)}


def tcp_options(pid, wanted):
    """Of each connected TCP socket of a process for which wanted(own address, peer's) is true."""
    found = []
    with os.fdopen(os.pidfd_open(pid)) as holder:
        for name in os.listdir(f"/proc/{pid}/fd"):
            fd = ctypes.CDLL(None, use_errno=True).syscall(438, holder.fileno(), int(name), 0)  # pidfd_getfd
            if fd < 0:
                if ctypes.get_errno() in (errno.EPERM, errno.ENOSYS):
                    pytest.skip("descriptors of another process cannot be had here")
                continue
            try:
                s = socket.socket(fileno=fd)
            except OSError:
                os.close(fd)
                continue
            with s, contextlib.suppress(OSError):
                if s.type == socket.SOCK_STREAM and s.family in (socket.AF_INET, socket.AF_INET6) and wanted(s.getsockname(), s.getpeername()):
                    found.append({k: s.getsockopt(*v) for k, v in TCP_OPTIONS.items()})
    return found


@pytest.mark.parametrize("lease, idle, user_ms", [("3", 1, 2500), ("12", 4, 10000)])
def test_both_ends_of_an_agents_connection_notice_a_silent_peer_within_the_lease(start_server, job, lease, idle, user_ms):
    server = start_server(f"--lease={lease}")
    a, = job.nodes(server, 1, job.worker("say('up')\nhang()"))
    a.out.wait("up")
    theirs = tcp_options(a.agent_pid(), lambda own, peer: peer[1] == server.port)
    assert theirs == [{"keepalive": 1, "idle": 1, "interval": 1, "count": 3, "user_ms": 2500, "nodelay": 1}]
    ours = tcp_options(server.process.pid, lambda own, peer: own[1] == server.port)
    assert {"keepalive": 1, "idle": idle, "interval": idle, "count": 3, "user_ms": user_ms, "nodelay": 1} in ours, ours
    a.signal(signal.SIGTERM)
    a.ends(1)
