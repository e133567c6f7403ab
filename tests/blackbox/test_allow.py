"""Who may do what: the whole table of docs/guides/security.md, by every caller; the token's file, its proof, and where it must not be seen."""
import hashlib
import hmac
import http.client
import http.server
import json
import os
import pty
import re
import socket
import ssl
import subprocess
import threading
import time

import pytest

import agentlib
import mulib
from mulib import Agent, Closed, StoreClient, program

SOURCE = os.environ.get("MUSTER_SOURCE", os.path.join(os.path.dirname(__file__), "..", ".."))
TOKEN = "0123456789abcdef" * 4
OTHER = "f" * 64


def text_of(*names):
    with open(os.path.join(SOURCE, *names), encoding="utf-8") as f:
        return f.read()


def rows():
    """The printed table: (listener, what, role without a token, role with one, {option: role})."""
    found = []
    part = text_of("docs", "guides", "security.md").split("<!-- printed by muster-describe allow", 1)[1].split("<!-- end of", 1)[0]
    for line in part.splitlines():
        cells = [c.strip() for c in line.strip("|").split("|")]
        if len(cells) != 4 or cells[0] in ("listener", "---"):
            continue
        role, _, rest = cells[3].partition("; with ")
        option = re.match(r"`(--\S+)`: (.*)", rest)
        found.append((cells[0], cells[1], cells[2], role, {option[1]: option[2]} if option else {}))
    return found


ROWS = rows()
OWN = [a for a in subprocess.run(["hostname", "-I"], capture_output=True, text=True, check=False).stdout.split() if ":" not in a]


def token_file(folder, token=TOKEN, mode=0o600, name="token"):
    path = folder / name
    path.write_text(token + "\n")
    path.chmod(mode)
    return path


def muster(*words, env=None, **kwargs):
    e = {k: v for k, v in os.environ.items() if not k.startswith("MUSTER_")}
    return subprocess.run([program("muster"), *map(str, words)], env={**e, "HOME": "/nonexistent", "XDG_CONFIG_HOME": "", **(env or {})},
                          timeout=60, capture_output=True, stdin=kwargs.pop("stdin", subprocess.DEVNULL), **kwargs)


def ask(server, method, path, host="127.0.0.1", token=None, body=None, **fields):
    c = http.client.HTTPConnection(host, server.port, timeout=mulib.PATIENCE)
    try:
        headers = {k.replace("_", "-"): v for k, v in fields.items()}
        if token is not None:
            headers["Authorization"] = "Bearer " + token
        c.request(method, path, body=body, headers=headers)
        r = c.getresponse()
        endless = r.getheader("Content-Type", "").startswith("text/event-stream")
        return r.status, dict(r.getheaders()), b"" if endless else r.read()
    finally:
        c.close()


class Elsewhere:
    """A server as seen by way of another of this machine's addresses: to it a caller there is none on its own machine."""

    def __init__(self, server, host):
        self.server, self.host = server, host
        self.port = server.port

    def connect(self, host=None):
        return self.server.connect(self.host)


def prove(agent, token, nonce="a" * 64):
    """The agent's side of the proof; its greeting and knock first. Returns the challenge."""
    agent.sock.sendall(b"MUSTER/1\n" + mulib.frame({"type": "knock", "nonce": nonce}))
    c = agent.expect("challenge")
    agent.send("proof", proof=proof(token, "agent", c["nonce"], nonce))
    return c


def proof(token, who, server_nonce, agent_nonce):
    return hmac.new(bytes.fromhex(token), f"muster/1 {who}\n{server_nonce}\n{agent_nonce}\n".encode(), hashlib.sha256).hexdigest()


# --- the table ---


def try_control(there, what, token):
    """None: it may; else the server's sentence."""
    kind = re.match(r"`(\w+)`", what)[1]
    a = Agent(there, run_id=os.urandom(8).hex(), nnodes=(1, 1), nproc=1, hello=False)
    try:
        if token is not None:
            prove(a, token)
        else:
            a.sock.sendall(b"MUSTER/1\n")
        a.sock.sendall(mulib.frame({**a.fields, "type": kind, "slots": 1, "user": "nobody"}))
        m = a._message()
        return m["text"] if m["type"] == "refused" else None
    finally:
        a.close()


def try_store(there):
    c = StoreClient(there, handshake=False)
    try:
        c.sock.sendall(mulib.packed(mulib.VALIDATE, ("I", mulib.MAGIC), mulib.PING, ("I", 4711)))
        return None if c.sock.recv(4) else "closed"
    except ConnectionResetError:
        return "closed"
    finally:
        c.close()


def try_http(there, what, token, mode_has_token):
    method, path = re.match(r"`(\S+) (\S+)`", what).groups()
    path = re.sub(r"\{\w+\}", "no-such-thing", path)
    code, headers, body = ask(there, method, path, there.host, token)
    if code not in (401, 403):
        return None
    assert code == (401 if mode_has_token else 403) and ("WWW-Authenticate" in headers) == mode_has_token, (what, code, headers)
    assert not any(k.lower().startswith("access-control-") for k in headers)
    return json.loads(body)["error"]


class Far:
    """A server on another host; for the lab, whose hosts walk the table by these words."""

    def __init__(self, host, port):
        self.host, self.port = host, port

    def connect(self, host=None):
        return socket.create_connection((host or self.host, self.port), timeout=mulib.PATIENCE)


def walk(server, mode, option=None, hosts=("127.0.0.1", *OWN[:1])):
    """Each row, by each caller. Returns how many were tried."""
    tried = 0
    for listener, what, bare, role, optional in ROWS:
        if listener == "control" and f"### {what.split(':')[0]} " not in text_of("docs", "protocol.md"):
            continue  # The table knows a message that comes with service mode.
        role = bare if mode == "bare" else optional.get(option, role)
        for host in hosts:
            for token in (None, TOKEN, OTHER):
                if listener == "control" and token is not None and (mode == "bare" or token == OTHER):
                    continue  # test_proofs_that_are_none
                if listener == "store" and token is not None:
                    continue
                there = Elsewhere(server, host)
                may = role == "anyone" or (role == "this machine" and host == "127.0.0.1") or (role == "the token" and token == TOKEN)
                if listener == "control":
                    why = try_control(there, what, token)
                elif listener == "store":
                    why = try_store(there)
                else:
                    why = try_http(there, what, token, mode != "bare")
                assert (why is None) == may, (mode, option, listener, what, host, token, role, why)
                tried += 1
    return tried


def test_the_table_has_every_path_and_changes_are_not_for_all():
    assert {r[0] for r in ROWS} == {"control", "store", "HTTP"}
    paths = re.findall(r'\{(GET|POST|PUT|DELETE), "([^"]+)", (SRV_\w+)', text_of("rendezvous", "server", "routes.c"))
    assert len(paths) >= 8 and {f"`{m} {p}`" for m, p, _ in paths} == {r[1] for r in ROWS if r[0] == "HTTP"}
    for _, what, bare, role, _ in ROWS:
        if re.match(r"`(POST|PUT|DELETE) ", what):
            assert (bare, role) == ("this machine", "the token"), what


def test_without_a_token_the_table_holds(start_server):
    server = start_server()
    assert walk(server, "bare") >= len(ROWS)
    server.log.wait("joining and the store are open to whoever reaches this port")


@pytest.mark.parametrize("option", [None, "--read=token", "--open-store"])
def test_with_a_token_the_table_holds(start_server, tmp_path, option):
    server = start_server("--token-file", str(token_file(tmp_path)), *([option] if option else []))
    assert walk(server, "token", option) >= len(ROWS)
    server.log.wait("joining and changes need the token")
    first = "GET" if option == "--read=token" else "(POST|PUT|DELETE)"  # Few lines are let through at once.
    server.log.wait(rf"http\.refused peer=127\.0\.0\.1 method={first}")
    assert TOKEN not in server.log.text() and OTHER not in server.log.text()


@pytest.mark.parametrize("token", [None, TOKEN])
def test_pages_of_other_sites_change_nothing(start_server, tmp_path, token):
    server = start_server(*(["--token-file", str(token_file(tmp_path))] if token else []))
    own = f"127.0.0.1:{server.port}"
    for origin in ("http://evil.example", "null", f"https://{own}", f"http://127.0.0.1:{server.port + 1}", f"http://{own}/", "x"):
        for method, path in (("PUT", "/store/a"), ("GET", "/store"), ("POST", "/nodes/x/drain"), ("DELETE", "/v1/store/a")):
            code, headers, body = ask(server, method, path, token=token, Origin=origin)
            assert code == 403 and "another site" in json.loads(body)["error"], (origin, method, code)
            assert not any(k.lower().startswith("access-control-") for k in headers)
    code, headers, _ = ask(server, "GET", "/status", Origin="http://evil.example")
    assert code == 200 and not any(k.lower().startswith("access-control-") for k in headers)  # The browser keeps it from that page.
    code, headers, _ = ask(server, "OPTIONS", "/store/a", Origin="http://evil.example")
    assert code == 405 and not any(k.lower().startswith("access-control-") for k in headers)
    assert ask(server, "PUT", "/store/a", token=token, body=b"1", Origin=f"http://{own}")[0] == 200
    # A name of a page's own that leads here: nothing without a token, and with one the token is what counts.
    code = ask(server, "PUT", "/store/a", token=token, body=b"1", Host="evil.example")[0]
    assert code == (200 if token else 403)
    if token:
        assert ask(server, "PUT", "/store/a", body=b"1", Host="localhost")[0] == 401


def test_a_bearer_is_the_whole_token_and_nothing_else(start_server, tmp_path):
    server = start_server("--token-file", str(token_file(tmp_path)))
    for said in ("Bearer " + TOKEN[:-1], "Bearer " + TOKEN + "0", "Bearer", "Bearer ", "Basic " + TOKEN, TOKEN, "Bearer  " + TOKEN, "Bearer " + "0" * 64,
                 "Bearer " + TOKEN[:-1] + "g"):
        code, headers, body = ask(server, "GET", "/store", Authorization=said)
        assert code == 401 and "not this server's token" in json.loads(body)["error"], (said, code)
        assert headers["WWW-Authenticate"].startswith("Bearer")
    assert ask(server, "GET", "/store", Authorization="bearer " + TOKEN.upper())[0] == 200


# --- proofs ---


def test_who_proves_it_is_let_in_and_the_server_has_proven_it_too(start_server, tmp_path):
    server = start_server("--token-file", str(token_file(tmp_path)))
    a = Agent(server, nnodes=(1, 1), nproc=1, hello=False)
    nonce = os.urandom(32).hex()
    c = prove(a, TOKEN, nonce)
    assert c["proof"] == proof(TOKEN, "server", c["nonce"], nonce)
    a.sock.sendall(mulib.frame(a.fields))
    a.expect("welcome")
    a.close()
    b = Agent(server, hello=False)
    assert prove(b, TOKEN, nonce)["nonce"] != c["nonce"], "a nonce is used once"
    b.close()


def test_proofs_that_are_none(start_server, tmp_path):
    server = start_server("--token-file", str(token_file(tmp_path)))
    nonce = "b" * 64
    cases = {
        "another token": lambda c: proof(OTHER, "agent", c["nonce"], nonce),
        "the server's own, sent back": lambda c: c["proof"],
        "of the server's role": lambda c: proof(TOKEN, "server", c["nonce"], nonce),
        "nonces swapped": lambda c: proof(TOKEN, "agent", nonce, c["nonce"]),
        "of an older nonce": lambda c: proof(TOKEN, "agent", "c" * 64, nonce),
        "none": lambda c: "",
        "too long": lambda c: "0" * 64,
    }
    for name, make in cases.items():
        a = Agent(server, hello=False)
        a.sock.sendall(b"MUSTER/1\n" + mulib.frame({"type": "knock", "nonce": nonce}))
        a.send("proof", proof=make(a.expect("challenge")))
        a.sock.sendall(mulib.frame(a.fields))
        assert "another token" in a.expect("refused")["text"], name
        a.expect_closed()
    for first, says in (([{"type": "proof", "proof": "0" * 64}], "nobody asked for"), ([{"type": "knock", "nonce": "x"}], "64 hexadecimal digits"),
                        ([{"type": "knock", "nonce": "A" * 64}], "64 hexadecimal digits"),
                        ([{"type": "knock", "nonce": nonce}] * 2, "first message"), ([{"type": "beat", "round": 0}], "first message must be hello")):
        a = Agent(server, hello=False)
        a.sock.sendall(b"MUSTER/1\n" + b"".join(mulib.frame(m) for m in first))
        assert says in a.expect("refused", skip=("challenge",))["text"], first
        a.expect_closed()
    a = Agent(server)  # hello and nothing else
    assert "--token-file" in a.expect("refused")["text"]
    a.expect_closed()
    assert server.status()["jobs"] == []


def test_a_knock_needs_no_second_word_to_be_forgotten(start_server, tmp_path):
    """Who asks for a challenge and goes silent is closed as others who say nothing that makes sense."""
    server = start_server("--token-file", str(token_file(tmp_path)), "--first-bytes-timeout", "1")
    many = [Agent(server, hello=False) for _ in range(50)]
    for a in many:
        a.sock.sendall(b"MUSTER/1\n" + mulib.frame({"type": "knock", "nonce": "d" * 64}))
        a.expect("challenge")
    for a in many:
        with pytest.raises((Closed, ConnectionResetError)):
            a._message()
        a.close()


# --- agents ---


def one(job, server, *words, **kwargs):
    return job.start(f"--rdzv=127.0.0.1:{server.port}", "--nnodes=1", "--nproc-per-node=1", "--rdzv-id=t", *words, **kwargs)


def test_agents_and_servers_that_do_not_agree_say_so(start_server, job, tmp_path):
    good, other = token_file(tmp_path), token_file(tmp_path, OTHER, name="other")
    closed, open_ = start_server("--token-file", str(good)), start_server()
    script = job.worker("say('up', RANK)\n")
    a = one(job, closed, "--token-file", good, script)
    a.ends(0)
    assert "up 0" in a.out.text()
    for server, words, says in ((closed, (), "takes only who proves its token: start the agent with --token-file=FILE"),
                                (closed, ("--token-file", other), "has another token than this agent: copy the server's token file"),
                                (open_, ("--token-file", good), "this server has no token, so it cannot show it: start rdzv-server with --token-file")):
        a = one(job, server, *words, script)
        a.ends(1)
        assert says in a.err.text() and "up" not in a.out.text(), a.err.text()
        assert len([line for line in a.err.lines if "token" in line]) == 1, a.err.text()
    closed.log.wait("it may have another one than this server")
    for log in (closed.log.text(), open_.log.text(), a.err.text()):
        assert TOKEN not in log and OTHER not in log


class Impostor(threading.Thread):
    """Takes the greeting and answers with what the test says; keeps what it was told."""

    def __init__(self, *answers):
        super().__init__(daemon=True)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.answers, self.heard = answers, b""
        self.start()

    def run(self):
        while True:
            try:
                c, _ = self.listener.accept()
            except OSError:
                return
            try:
                self.heard += c.recv(65536)
                for a in self.answers:
                    c.sendall(mulib.frame(a))
                while part := c.recv(65536):
                    self.heard += part
            except OSError:
                pass
            c.close()

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()


START = {"type": "start", "round": 1, "node_rank": 0, "node_count": 1, "rank_base": 0, "world": 1, "role_rank_base": 0, "role_world": 1,
         "restarts": 0, "max_restarts": 0, "lead_addr": "127.0.0.1", "lead_port": 1, "fence_ms": 3000}
WELCOME = {"type": "welcome", "version": "x", "seen_addr": "127.0.0.1", "lease_ms": 3000, "beat_ms": 1000}


@pytest.mark.parametrize("answers", [[WELCOME, START], [{"type": "challenge", "nonce": "e" * 64, "proof": "0" * 64}, WELCOME, START],
                                     [{"type": "challenge", "nonce": "short", "proof": "0"}, START]], ids=["none", "wrong", "broken"])
def test_an_agent_obeys_no_server_that_has_not_proven_itself(job, tmp_path, answers):
    impostor = Impostor(*answers)
    a = one(job, impostor, "--token-file", token_file(tmp_path), job.worker("say('up', RANK)\n"))
    a.ends(1)
    impostor.close()
    assert "up" not in a.out.text() and "token" in a.err.text(), a.err.text()
    assert b'"knock"' in impostor.heard and b"hello" not in impostor.heard and b'"proof"' not in impostor.heard
    assert TOKEN.encode() not in impostor.heard


def test_workers_run_on_while_an_impostor_has_the_servers_place(start_server, job, tmp_path):
    path = token_file(tmp_path)
    server = start_server("--token-file", str(path))
    a = one(job, server, "--token-file", path, job.worker("say('up', RANK)\nawait_file('go')\nsay('done', RANK)\n"))
    a.out.wait("up 0")
    port = server.port
    server.kill()
    plain = start_server(port=port)  # Another server, without the token.
    plain.log.wait(r"agent\.closed .*has no token")
    assert plain.status()["jobs"] == []
    plain.stop()
    again = start_server("--token-file", str(path), port=port)
    again.wait_status(lambda s: s["server"]["agents"] == 1, "it is back")
    (tmp_path / "go").touch()
    for folder in (a.folder, tmp_path):
        (folder / "go").touch()
    a.ends(0)
    assert "done 0" in a.out.text()


def test_nobody_who_has_no_token_pays_for_it(start_server, job):
    server = start_server()
    a = one(job, server, job.worker("say('up', RANK)\nhang()\n"))
    a.out.wait("up 0")
    for pid in (server.process.pid, a.pid, a.agent_pid()):
        with open(f"/proc/{pid}/maps", encoding="utf-8") as f:
            maps = f.read()
        assert "muster-crypto" not in maps and "libcrypto" not in maps
    a.signal(15)
    a.ends(1)


def test_a_hosted_rendezvous_has_the_agents_token(job, tmp_path):
    path = token_file(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as s:
        port = s.getsockname()[1]
    class Hosted:
        pass
    hosted = Hosted()
    hosted.port = port
    a = one(job, hosted, "--token-file", path, job.worker("say('up', RANK, STORE)\nhang()\n"))
    a.out.wait("up 0")
    b = job.start(f"--rdzv=127.0.0.1:{port}", "--rdzv-id=u", "--nnodes=1", "--nproc-per-node=1", job.worker("say('up', RANK)\n"))
    b.ends(1)
    assert "--token-file" in b.err.text()
    assert ask(hosted, "POST", "/nodes/x/drain")[0] == 401 and ask(hosted, "POST", "/nodes/x/drain", token=TOKEN)[0] == 404
    a.signal(15)
    a.ends(1)


def test_the_token_is_in_no_argument_variable_or_log(start_server, job, tmp_path):
    path = token_file(tmp_path)
    server = start_server("--token-file", str(path), "--log-level", "debug")
    a = one(job, server, "--token-file", path, job.worker("say('up', os.getpid(), E)\nhang()\n"), env={"LOGLEVEL": "DEBUG"})
    worker = int(a.out.wait(r"^up (\d+)")[1])
    for pid in (server.process.pid, a.pid, a.agent_pid(), worker):
        for name in ("cmdline", "environ"):
            with open(f"/proc/{pid}/{name}", "rb") as f:
                assert TOKEN.encode() not in f.read()
    assert muster("drain", "nobody", f"--rdzv=127.0.0.1:{server.port}", "--token-file", path).returncode == 1
    assert TOKEN not in json.dumps(server.status())
    a.signal(15)
    a.ends(1)
    assert TOKEN not in server.log.text() + a.err.text() + a.out.text()


def test_drain_with_the_token_from_elsewhere(start_server, job, tmp_path):
    if not OWN:
        pytest.skip("this machine has loopback addresses only")
    path = token_file(tmp_path)
    server = start_server("--token-file", str(path))
    a = one(job, server, "--token-file", path, job.worker("say('up', RANK)\nhang()\n"))
    a.out.wait("up 0")
    host = server.status()["jobs"][0]["nodes"][0]["host"]
    r = muster("drain", host, f"--rdzv={OWN[0]}:{server.port}")
    assert r.returncode == 1 and b"wants its token, and there is none in" in r.stderr
    r = muster("drain", host, f"--rdzv={OWN[0]}:{server.port}", env={"MUSTER_TOKEN_FILE": str(path)})
    assert r.returncode == 0 and b"leaves job t" in r.stdout, r.stderr
    a.process.wait(mulib.PATIENCE)


# --- the file ---


def test_muster_token_new(tmp_path):
    made = tmp_path / "made"
    r = muster("token", "new", made)
    assert r.returncode == 0 and str(made).encode() in r.stdout, r.stderr
    assert re.fullmatch(r"[0-9a-f]{64}\n", made.read_text()) and made.stat().st_mode & 0o7777 == 0o600
    assert made.read_text().strip().encode() not in r.stdout + r.stderr
    before = made.read_text()
    r = muster("token", "new", made)
    assert r.returncode == 2 and b"is there already" in r.stderr and made.read_text() == before
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "nowhere")
    assert muster("token", "new", link).returncode == 2 and not (tmp_path / "nowhere").exists()
    home = {"HOME": str(tmp_path / "home")}
    (tmp_path / "home").mkdir()
    r = muster("token", "new", "--json", env=home)
    own = tmp_path / "home" / ".config" / "muster" / "token"
    assert json.loads(r.stdout) == {"file": str(own)} and own.stat().st_mode & 0o7777 == 0o600 and own.parent.stat().st_mode & 0o077 == 0
    assert own.read_text() != before
    r = muster("token", "new", tmp_path / "no" / "folder")
    assert r.returncode == 1 and b"No such file" in r.stderr
    for words in (["token"], ["token", "make"], ["token", "new", "a", "b"], ["store"], ["store", "get"], ["store", "set", "k"], ["store", "keys", "a", "b"]):
        r = muster(*words)
        assert r.returncode == 2 and r.stderr.count(b"\n") == 1, (words, r)


def refusals(tmp_path):
    short = tmp_path / "short"
    short.write_text("abc\n")
    short.chmod(0o600)
    long = token_file(tmp_path, TOKEN + "0", name="long")
    empty = tmp_path / "empty"
    empty.touch(0o600)
    wrong = token_file(tmp_path, "z" * 64, name="wrong")
    two = token_file(tmp_path, TOKEN + "\n" + TOKEN, name="two")
    wide = token_file(tmp_path, mode=0o640, name="wide")
    wider = token_file(tmp_path, mode=0o604, name="wider")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)
    return [(tmp_path / "none", "copy the server's file (muster token new makes a cluster's first one)"), (short, "holds no token"), (long, "holds no token"), (empty, "holds no token"),
            (wrong, "holds no token"), (two, "holds no token"), (wide, "chmod 600"), (wider, "chmod 600"), (tmp_path, "no regular file"),
            (pipe, "no regular file")]


def test_files_that_are_no_secret_are_refused_with_the_remedy(tmp_path, server):
    for path, says in refusals(tmp_path):
        for words in ([program("rdzv-server"), "--port", "0", "--token-file", str(path)],
                      [program("node-agent"), "--rdzv", f"127.0.0.1:{server.port}", "--token-file", str(path), "true"]):
            r = subprocess.run(words, capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL)
            assert r.returncode == 2 and says in r.stderr and r.stderr.count("\n") == 1, (words, r)
        r = muster("status", f"--rdzv=127.0.0.1:{server.port}", "--token-file", path)
        assert r.returncode == 1 and (says in r.stderr.decode() or (path.name == "none" and b"name a copy of the server's" in r.stderr)) and r.stderr.count(b"\n") == 1, (path, r)
        r = muster("status", f"--rdzv=127.0.0.1:{server.port}", env={"MUSTER_TOKEN_FILE": str(path)})
        assert r.returncode == 1 and (says in r.stderr.decode() or (path.name == "none" and b"muster token new" not in r.stderr))
    for option in ("--read=token", "--open-store"):
        r = subprocess.run([program("rdzv-server"), "--port", "0", option], capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL)
        assert r.returncode == 2 and "needs a token" in r.stderr
    r = subprocess.run([program("rdzv-server"), "--read=all"], capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL)
    assert r.returncode == 2 and "anyone or token" in r.stderr


def test_where_each_program_takes_it_from(start_server, job, tmp_path):
    credentials = tmp_path / "credentials"
    credentials.mkdir()
    token_file(credentials, name="muster-token", mode=0o440)  # As systemd shows it to a service with a user.
    server = start_server(env={"CREDENTIALS_DIRECTORY": str(credentials)})
    server.log.wait("changes need the token")
    a = one(job, server, job.worker("say('up', RANK)\n"), env={"CREDENTIALS_DIRECTORY": str(credentials)})
    a.ends(0)
    assert "up 0" in a.out.text()
    there = f"--rdzv=127.0.0.1:{server.port}"
    config = tmp_path / "home" / ".config" / "muster"
    config.mkdir(parents=True)
    home = {"HOME": str(tmp_path / "home")}
    assert muster("store", "keys", there, env=home).returncode == 1
    token_file(config)
    assert muster("store", "keys", there, env=home).returncode == 0
    other = token_file(tmp_path, OTHER, name="other")
    r = muster("store", "keys", there, env={**home, "MUSTER_TOKEN_FILE": str(other)})
    assert r.returncode == 1 and b"has another token than /" in r.stderr
    assert muster("store", "keys", there, "--token-file", config / "token", env={**home, "MUSTER_TOKEN_FILE": str(other)}).returncode == 0
    credentials.joinpath("muster-token").write_text("broken")
    r = subprocess.run([program("rdzv-server"), "--port", "0"], env={**os.environ, "CREDENTIALS_DIRECTORY": str(credentials)}, capture_output=True,
                       text=True, timeout=30, stdin=subprocess.DEVNULL)
    assert r.returncode == 2 and "credential muster-token" in r.stderr


def test_who_only_looks_says_the_token_where_it_is_asked_for(start_server, tmp_path):
    heard = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            heard.append(self.headers.get("Authorization"))
            body = b'{"version":"x","now":"2026-11-30T00:00:00.000Z","jobs":[]}'
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    web = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=web.serve_forever, daemon=True)
    thread.start()
    path = token_file(tmp_path)
    assert muster("status", f"--rdzv=127.0.0.1:{web.server_address[1]}", "--token-file", path).returncode == 0
    web.shutdown()
    web.server_close()
    assert heard == [None], "a server that does not ask hears no token"
    server = start_server("--token-file", str(path), "--read=token")
    there = f"--rdzv=127.0.0.1:{server.port}"
    assert muster("status", there, "--token-file", path).returncode == 0
    r = muster("status", there)
    assert r.returncode == 1 and b"copy the server's token file there, or name a copy with --token-file=FILE" in r.stderr


# --- the store over HTTP ---


def test_the_store_over_http_is_the_store(start_server, tmp_path):
    server = start_server("--token-file", str(token_file(tmp_path)), "--max-key-bytes", "64", "--max-value-bytes", "64K", "--max-store-memory", "256K")
    store = StoreClient(server)
    value = bytes(range(256)) * 8
    before = server.status()["server"]["store"]["ops"]
    put = lambda key, v: ask(server, "PUT", "/v1/store/" + key, token=TOKEN, body=v)  # noqa: E731
    code, headers, body = put("a%2Fb%20%C3%A4", value)
    assert code == 200 and json.loads(body) == {"key": "a/b ä", "set": True, "bytes": len(value)}
    assert store.get("a/b ä".encode()) == value
    store.set(b"from-tcp\n\x1b[31m\xff", b"\x00\x01")
    code, headers, body = ask(server, "GET", "/store/a%2Fb%20%C3%A4", token=TOKEN)
    assert code == 200 and body == value and headers["Content-Type"] == "application/octet-stream" and headers["X-Content-Type-Options"] == "nosniff"
    assert put("empty", b"")[0] == 200 and ask(server, "GET", "/store/empty", token=TOKEN)[2] == b""
    code, _, body = ask(server, "GET", "/store", token=TOKEN)
    listed = json.loads(body)
    assert listed["count"] == 3 and listed["left_out"] == 0
    assert [(k["bytes"], k["queued"]) for k in listed["keys"]] == [(2048, 0), (0, 0), (2, 0)]
    assert b"\x1b" not in body and listed["keys"][2]["key"].startswith("from-tcp\n")
    code, _, body = ask(server, "GET", "/v1/store?prefix=a%2F", token=TOKEN)
    assert [k["key"] for k in json.loads(body)["keys"]] == ["a/b ä"]
    for key, named in (("n%00ul", "n%00ul"), ("%", "%"), ("%4", "%4"), ("%zz", "%zz"), ("a%2", "a%2"), ("%2525", "%25"), ("x%0Ay", "x\ny"), ("+", "+")):
        assert json.loads(put(key, b"1")[2])["key"] == named and store.get(named.encode()) == b"1", key
    # Who waits is woken; a queue has no value.
    store.send(mulib.WAIT, ("Q", 1), b"due")
    assert put("due", b"1")[0] == 200 and store.take("B") == 0
    store.send(mulib.QUEUE_PUSH, b"q", b"x")
    store.send(mulib.QUEUE_LEN, b"q")
    assert store.take("q") == 1
    assert ask(server, "GET", "/store/q", token=TOKEN)[0] == 404
    # Limits are the store's.
    for key, v, code_due, says in (("k" * 65, b"", 413, "--max-key-bytes"), ("big", bytes(65537), 413, "--max-value-bytes")):
        code, _, body = put(key, v)
        assert code == code_due and says in json.loads(body)["error"], (code, body)
    for i in range(8):
        code, _, body = put(f"fill{i}", bytes(65536))
    assert code == 507 and "--max-store-memory" in json.loads(body)["error"]
    assert b'path="/store/{key}",code="507"' in ask(server, "GET", "/metrics")[2]
    assert put("huge", bytes((1 << 20) + 1))[0] == 413
    # Deletes are counted.
    assert ask(server, "DELETE", "/store/due", token=TOKEN)[0] == 200
    code, _, body = ask(server, "DELETE", "/store/due", token=TOKEN)
    assert code == 404 and "muster store keys" in json.loads(body)["error"]
    after = server.wait_status(lambda s: s["server"]["store"]["ops"]["delete_key"] > before["delete_key"], "deletes are counted")["server"]["store"]["ops"]
    assert after["delete_key"] == before["delete_key"] + 2 and after["set"] >= before["set"] + 4
    assert ask(server, "POST", "/store/a", token=TOKEN)[0] == 405 and ask(server, "GET", "/store/", token=TOKEN)[0] == 404
    store.close()


def test_muster_store(start_server, tmp_path):
    path = token_file(tmp_path)
    server = start_server("--token-file", str(path))
    words = (f"--rdzv=127.0.0.1:{server.port}", "--token-file", path)
    assert muster("store", "keys", *words).stdout == b"no keys\n"
    assert muster("store", "set", "lr", "0.01", *words).stdout == b""
    value = b"\x00\xff\x1b[31mred\n"
    blob = tmp_path / "blob"
    blob.write_bytes(value)
    with open(blob, "rb") as f:
        assert muster("store", "set", "a/b c", "-", *words, stdin=f).returncode == 0
    assert muster("store", "get", "a/b c", *words).stdout == value
    got = json.loads(muster("store", "get", "lr", "--json", *words).stdout)
    assert got == {"key": "lr", "bytes": 4, "text": "0.01", "base64": "MC4wMQ=="}
    assert json.loads(muster("store", "get", "a/b c", "-j", *words).stdout)["text"] is None
    assert [line.split() for line in muster("store", "keys", *words).stdout.decode().splitlines()] == [["KEY", "BYTES"], ["a/b", "c", "11"], ["lr", "4"]]
    assert json.loads(muster("store", "keys", "l", "--json", *words).stdout)["keys"] == [{"key": "lr", "bytes": 4, "queued": 0}]
    master, slave = pty.openpty()
    r = subprocess.run([program("muster"), "store", "get", "a/b c", *map(str, words)], stdout=slave, stderr=subprocess.PIPE, timeout=30)
    os.close(slave)
    assert r.returncode == 0 and os.read(master, 4096) == b"\\x00\\xff\\x1b[31mred\r\n"
    os.close(master)
    assert json.loads(muster("store", "del", "lr", "--json", *words).stdout) == {"key": "lr", "deleted": True}
    r = muster("store", "get", "lr", *words)
    assert r.returncode == 1 and b"muster store keys" in r.stderr
    r = muster("store", "get", "lr", words[0])
    assert r.returncode == 1 and b"wants its token" in r.stderr
    blob.write_bytes(bytes((1 << 20) + 1))
    with open(blob, "rb") as f:
        r = muster("store", "set", "big", "-", *words, stdin=f)
    assert r.returncode == 1 and b"1 MiB" in r.stderr
    r = muster("store", "keys", "--rdzv=127.0.0.1:1")
    assert r.returncode == 1 and b"--rdzv=HOST" in r.stderr


# --- what others say, and TLS ---


def test_a_server_moves_no_terminal(server, job):
    """Every text of a real answer, with what a terminal would obey put into it."""
    a = one(job, server, "--max-restarts=1", job.worker("print('words', flush=True)\nraise SystemExit(3 if RESTARTS == 0 else 0)\n"))
    a.ends(0)
    evil = "\x1b]0;t\x07\x1b[2J\u009b31m\r\x7f"

    def spoilt(v, key=""):
        if isinstance(v, dict):
            return {k: spoilt(x, k) for k, x in v.items()}
        if isinstance(v, list):
            return [spoilt(x) for x in v]
        keep = key in ("state", "now", "kind", "decision") or key == "id"
        return v + evil if isinstance(v, str) and not keep else v

    answers = {p: server.get(p)[2] for p in ("/status", "/jobs/t/incidents")}

    class Handler(http.server.BaseHTTPRequestHandler):
        def answer(self):
            body = json.dumps(spoilt(json.loads(answers.get(self.path, b'{"error":"x","host":"h","job":"j","sentence":"s","key":"k"}')))).encode()
            self.send_response(200 if self.path in answers else 202 if "drain" in self.path and "good" in self.path else 409)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_PUT = do_DELETE = answer

        def log_message(self, *_):
            pass

    web = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=web.serve_forever, daemon=True).start()
    there = f"--rdzv=127.0.0.1:{web.server_address[1]}"
    seen = 0
    for words in (["status"], ["status", "t"], ["jobs"], ["nodes", "t"], ["workers", "t"], ["incidents"], ["incidents", "t"], ["incidents", "t", "1"],
                  ["drain", "good"], ["drain", "bad"], ["store", "get", "x"], ["store", "keys"], ["store", "del", "x"]):
        r = muster(*words, there)
        assert r.returncode in (0, 1) and r.stdout + r.stderr, (words, r)
        out = (r.stdout + r.stderr).decode()
        bad = [c for c in out if (ord(c) < 32 and c not in "\n\t") or 127 <= ord(c) < 160]
        assert not bad, (words, bad, out)
        seen += len(out)
    assert seen > 500
    web.shutdown()
    web.server_close()


def test_tls_is_answered_with_an_alert(server):
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with server.connect() as c, pytest.raises(ssl.SSLError, match="(?i)protocol.version"):
        context.wrap_socket(c)
    server.log.wait(r"conn\.closed .*TLS is not served here: use http://")
