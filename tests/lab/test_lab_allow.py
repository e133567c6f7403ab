"""Who may do what, from another host: the whole table of docs/guides/security.md, and jobs of nodes that have the token."""
import subprocess

import pytest
from conftest import BIN, HERE, PYTHON, ROOT
from test_lab_systemd import machines, stage  # noqa: F401 (a fixture)

WORKER = HERE / "worker.py"
TOKEN = "0123456789abcdef" * 4
HANDSHAKE = """#!/bin/sh
''':'
exec /usr/bin/python3 -ESsB "$0" "$@"
'''
import os, socket, struct
s = socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), 10)
s.sendall(struct.pack("<BIBI", 0, 0x3C85F7CE, 13, 4711))
print("store", os.environ["MASTER_PORT"], struct.unpack("<I", s.recv(4))[0], flush=True)
"""


def token_file(lab, name="token", token=TOKEN):
    path = lab.share / name
    path.write_text(token + "\n")
    path.chmod(0o600)
    return path


def muster(lab, host, *words):
    """(status, what it said) on that host."""
    p = subprocess.run([HERE / "lab", "exec", str(host), "env", "HOME=/nonexistent", str(BIN / "muster"), *map(str, words)], env=lab.env,
                       capture_output=True, text=True, timeout=60)
    return p.returncode, p.stdout + p.stderr


def test_from_another_host_the_table_of_who_may_do_what_holds(hosts):
    lab = hosts(2)
    token = token_file(lab)
    for port, (mode, words, option) in enumerate((("bare", [], None), ("token", ["--token-file", token], None),
                                                  ("token", ["--token-file", token, "--read=token"], "--read=token"),
                                                  ("token", ["--token-file", token, "--open-store"], "--open-store")), 29500):
        server = lab.server(1, port, *words)
        script = ("import sys, test_allow as t\n"
                  f"print(t.walk(t.Far('n1', {port}), {mode!r}, {option!r}, hosts=('n1',)), len(t.ROWS))")
        said = lab.lab("exec", 2, "env", f"MUSTER_BIN={BIN}", f"MUSTER_SOURCE={ROOT}", f"PYTHONPATH={ROOT / 'tests' / 'blackbox'}",
                       "PYTHONDONTWRITEBYTECODE=1", PYTHON, "-c", script)
        tried, rows = map(int, said.split())
        assert tried >= rows, said
        changed, text = muster(lab, 2, "store", "set", "k", "v", f"--rdzv=n1:{port}")
        assert changed == 1 and "token" in text, text
        if mode == "token":
            assert muster(lab, 2, "store", "set", "k", "v", f"--rdzv=n1:{port}", "--token-file", token)[0] == 0
        assert TOKEN not in server.text()


def test_nodes_of_two_hosts_with_the_token_run_a_job_that_the_other_host_drains(hosts, events):
    lab = hosts(2)
    token = token_file(lab)
    other = token_file(lab, "other", "f" * 64)
    lab.server(1, 29500, "--token-file", token)
    stranger = lab.agent(2, "--nnodes=2", "--rdzv=n1:29500", WORKER, events.path)
    assert stranger.wait(20) == 1 and "--token-file=FILE" in stranger.text()
    stranger = lab.agent(2, "--nnodes=2", "--rdzv=n1:29500", "--token-file", other, WORKER, events.path)
    assert stranger.wait(20) == 1 and "another token" in stranger.text()
    both = [lab.agent(i, "--nnodes=2", "--nproc-per-node=2", "--rdzv=n1:29500", "--token-file", token, WORKER, events.path) for i in (1, 2)]
    first = events.take(4, 30)
    assert sorted(e["rank"] for e in first) == [0, 1, 2, 3]
    status, text = muster(lab, 2, "drain", "n2", "--rdzv=n1")
    assert status == 1 and "--token-file=FILE" in text, text
    status, text = muster(lab, 2, "drain", "n2", "--rdzv=n1", "--token-file", other)
    assert status == 1 and "has another token than" in text, text
    status, text = muster(lab, 2, "drain", "n2", "--rdzv=n1", "--token-file", token)
    assert status == 0 and "n2 leaves job" in text, text
    assert both[1].wait(60) == 0


@pytest.mark.parametrize("with_token", [True, False], ids=["token", "none"])
def test_workers_elsewhere_find_the_store_that_they_were_promised_though_there_is_a_token(hosts, with_token):
    """torchrun's static rendezvous: the node that serves it serves the workers' store at the same port."""
    lab = hosts(2)
    script = lab.share / "handshake"
    script.write_text(HANDSHAKE)
    script.chmod(0o755)
    words = ["--nnodes=2", "--master-addr=n1", "--master-port=29600", *(["--token-file", token_file(lab)] if with_token else []), script]
    both = [lab.agent(i, f"--node-rank={i - 1}", *words) for i in (1, 2)]
    for p in both:
        assert p.wait(60) == 0, p.text()
        assert "store 29600 4711" in p.text(), p.text()


def test_services_take_the_token_from_a_credential_of_systemd(hosts, stage):  # noqa: F811
    lab, (m,) = machines(hosts, stage, 1)
    m.sh("muster token new /etc/muster/token && [ $(stat -c %a%U /etc/muster/token) = 600root ]")
    probe = "systemd-run --wait --pipe -q -p User={} -p LoadCredential=t:/etc/muster/token sh -c 'cat $CREDENTIALS_DIRECTORY/t' 2>/dev/null | wc -c"
    user = next((u for u in ("muster", "root") if m.sh(probe.format(u), check=False) == "65"), None)
    m.sh("for u in rdzv-server node-agent@; do mkdir -p /etc/systemd/system/$u.service.d && "
         f"printf '[Service]\\nUser={user or 'root'}\\nLoadCredential=muster-token:/etc/muster/token\\n' >/etc/systemd/system/$u.service.d/token.conf; done; "
         "systemctl daemon-reload")
    m.sh("systemctl start rdzv-server", check=user is not None)
    if user is None:
        pytest.skip("systemd cannot show credentials on these hosts")
    m.until("curl -sf --max-time 5 http://localhost:29500/healthz")
    assert m.sh("ps -o user= -p $(systemctl show -P MainPID rdzv-server)") == user
    assert m.sh("curl -s -o /dev/null -w '%{http_code}' -X PUT -d 1 http://localhost:29500/v1/store/k") == "401"
    m.sh("muster store set k v")  # root's is the file itself.
    m.sh("mkdir -p /etc/muster/jobs && printf 'NODE_AGENT_ARGS=\"--nnodes=1 --rdzv=localhost /bin/sleep 600\"\\n' >/etc/muster/jobs/t.conf")
    m.sh("systemctl start node-agent@t")
    m.until("muster nodes t --json | grep -q '\"connected\":.*true'")
    m.sh("systemctl stop node-agent@t")
    said = m.sh("runuser -u nobody -- muster store set k v 2>&1", check=False)
    assert "--token-file=FILE" in said, said
    shown = m.sh("journalctl --no-pager -u rdzv-server -u node-agent@t; systemctl show rdzv-server node-agent@t")
    assert m.sh("cat /etc/muster/token") not in shown
