"""As services: the units of systemd/ on hosts that boot systemd, installed as a package would, and what they survive."""
import json
import os
import re
import subprocess
import time

import pytest
from conftest import BIN, HERE

WORKER = """#!/bin/sh
echo "$RANK of $WORLD_SIZE restart $TORCHELASTIC_RESTART_COUNT on $(hostname) as $(id -un)" >>$1
exec sleep 600
"""


class Machine:
    """One host whose systemd knows the units."""

    def __init__(self, lab, host, stage):
        self.lab, self.host = lab, host
        self.sh(f"cp -a {stage}/* / && systemd-sysusers && systemd-tmpfiles --create && systemctl daemon-reload")

    def sh(self, script, check=True):
        p = subprocess.run([HERE / "lab", "exec", str(self.host), "sh", "-c", script], env=self.lab.env, capture_output=True, text=True,
                           timeout=60, stdin=subprocess.DEVNULL)
        assert not check or p.returncode == 0, f"n{self.host}: {script}: {p.returncode}\n{p.stdout}{p.stderr}"
        return p.stdout.strip()

    def show(self, unit, name):
        return self.sh(f"systemctl show -P {name} {unit}")

    def until(self, script, limit_s=20):
        """Until the script is true: it says what it said last."""
        end = time.monotonic() + limit_s
        while self.sh(f"{{ {script}; }} >/dev/null 2>&1 && echo yes", check=False) != "yes":
            assert time.monotonic() < end, f"n{self.host}: not within {limit_s} s: {script}\n" + self.sh(
                "systemctl --no-pager --full status 'rdzv-server*' 'node-agent@*'; journalctl --no-pager -n 60", check=False)
            time.sleep(0.05)  # One look costs more than this.

    def journal(self, *matches):
        return [json.loads(line) for line in self.sh("journalctl -o json --no-pager " + " ".join(matches)).splitlines()]


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    """What `cmake --install --prefix /usr` gives."""
    root = tmp_path_factory.mktemp("stage")
    subprocess.run(["cmake", "--install", BIN.parent, "--prefix", "/usr"], env={**os.environ, "DESTDIR": str(root)}, check=True,
                   stdout=subprocess.DEVNULL, timeout=120)
    unit = (root / "usr/lib/systemd/system/rdzv-server.service").read_text()
    at = re.search(r"ExecStart=(\S+)/rdzv-server", unit)[1]
    if at != "/usr/bin":  # The build was configured for another prefix: its units name that one.
        for unit in (root / "usr/lib/systemd/system").glob("*.service"):
            unit.write_text(unit.read_text().replace(f"={at}/", "=/usr/bin/"))
    return root


def machines(hosts, stage, n):
    lab = hosts(n, "--systemd", "--share", stage)
    return lab, [Machine(lab, i, stage) for i in range(1, n + 1)]


def test_the_port_starts_the_server_which_comes_back_from_a_kill_and_from_a_hang(hosts, stage):
    _, (m,) = machines(hosts, stage, 1)
    m.sh("mkdir -p /etc/systemd/system/rdzv-server.service.d && printf '[Service]\\nWatchdogSec=2\\n' "
         ">/etc/systemd/system/rdzv-server.service.d/test.conf && systemctl daemon-reload")
    m.sh("systemctl start rdzv-server.socket")
    assert m.show("rdzv-server", "ActiveState") == "inactive"
    assert json.loads(m.sh("curl -sf --max-time 20 http://localhost:29500/status"))["address"] == "[::]:29500"
    assert m.show("rdzv-server", "ActiveState") == "active"
    first = m.show("rdzv-server", "MainPID")
    assert m.sh(f"ps -o user= -p {first}") == "muster"
    m.until("systemctl show -P StatusText rdzv-server | grep -q 'listening on .*:29500, 0 live jobs, 0 agents'")

    m.sh(f"kill -9 {first}")
    m.until(f"curl -sf --max-time 5 http://localhost:29500/healthz && [ $(systemctl show -P MainPID rdzv-server) != {first} ]")
    second = m.show("rdzv-server", "MainPID")
    m.sh(f"kill -STOP {second}")
    m.until(f"curl -sf --max-time 1 http://localhost:29500/healthz && [ $(systemctl show -P MainPID rdzv-server) != {second} ]", 40)
    assert m.show("rdzv-server", "NRestarts") == "2"

    m.sh("systemctl stop rdzv-server.socket rdzv-server")
    assert m.show("rdzv-server", "Result") == "success"
    (end,) = m.journal("MUSTER_EVENT=server.end")
    assert end["PRIORITY"] == "6" and end["MUSTER_SIGNO"] == "15" and end["_SYSTEMD_UNIT"] == "rdzv-server.service"


def test_the_server_is_shut_in(hosts, stage):
    _, (m,) = machines(hosts, stage, 1)
    m.sh("systemctl start rdzv-server")
    assert m.sh("curl -sf --max-time 20 http://localhost:29500/healthz")
    verdict = m.sh("systemd-analyze security --no-pager rdzv-server | tail -1", check=False)
    assert float(re.search(r"exposure level for rdzv-server.service: ([\d.]+)", verdict)[1]) <= 2.0, verdict
    assert m.sh("systemd-analyze verify /usr/lib/systemd/system/rdzv-server.service /usr/lib/systemd/system/rdzv-server.socket "
                "/usr/lib/systemd/system/node-agent@.service 2>&1 | grep -i -e muster -e rdzv -e node-agent", check=False) == ""


def test_a_job_of_two_units_lives_through_a_killed_and_a_stopped_agent(hosts, stage):
    lab, (a, b) = machines(hosts, stage, 2)
    worker = lab.share / "worker.sh"
    seen = lab.share / "seen"
    worker.write_text(WORKER)
    worker.chmod(0o755)
    seen.touch()
    seen.chmod(0o666)
    lab.share.chmod(0o777)
    a.sh("systemctl start rdzv-server")
    for m in (a, b):
        m.sh("printf 'NODE_AGENT_ARGS=\"--nnodes=2 --nproc-per-node=2 --rdzv=n1 --max-restarts=3 %s %s\"\\n' >/etc/muster/jobs/train.conf"
             % (worker, seen))
        m.sh("systemctl start node-agent@train")
    a.until(f"[ $(grep -c 'of 4' {seen}) = 4 ]")
    assert {line.split()[-1] for line in seen.read_text().splitlines()} == {"muster"}
    agent = b.show("node-agent@train", "MainPID")
    b.sh(f"kill -9 {agent}")
    a.until(f"[ $(grep -c 'of 4' {seen}) = 8 ]")
    assert b.show("node-agent@train", "MainPID") != agent and b.show("node-agent@train", "NRestarts") == "1"
    job = json.loads(a.sh("curl -sf --max-time 20 http://localhost:29500/status"))["jobs"][0]
    assert (job["id"], job["round"], job["restarts"], job["state"]) == ("train", 2, 0, "running")
    b.sh("systemctl stop node-agent@train")
    assert b.show("node-agent@train", "ActiveState") == "inactive", b.sh("systemctl status node-agent@train", check=False)
    assert b.sh("pgrep -u muster", check=False) == ""
    a.until("journalctl --no-pager -u node-agent@train | grep -q '1 of 2 nodes are here (n1), waiting'")
    b.sh("systemctl start node-agent@train")
    a.until(f"[ $(grep -c 'of 4' {seen}) = 12 ]")
    for m in (a, b):
        m.sh("systemctl stop node-agent@train")
        assert m.show("node-agent@train", "ActiveState") == "inactive", m.sh("systemctl status node-agent@train", check=False)
        assert m.sh("pgrep -u muster sleep", check=False) == ""
