"""As services: the units of systemd/ on hosts that boot systemd, installed as a package would, and what they survive."""
import json
import os
import re
import subprocess

import pytest
from conftest import BIN
from unitlib import Machine, need_service

WORKER = """#!/bin/sh
echo "$RANK of $WORLD_SIZE restart $TORCHELASTIC_RESTART_COUNT on $(hostname) as $(id -un)" >>$1
exec sleep 600
"""


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
    all_of_them = [Machine(lab, i) for i in range(1, n + 1)]
    for m in all_of_them:
        m.sh(f"cp -a {stage}/* / && systemd-sysusers && systemd-tmpfiles --create && systemctl daemon-reload")
    return lab, all_of_them


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
    m.sh("systemd-analyze security --no-pager --threshold=20 rdzv-server.service")
    m.sh("systemd-analyze security --no-pager --threshold=80 node-agent.service")  # As far as a job can bear it.
    units = " ".join(f"/usr/lib/systemd/system/{u}" for u in ("rdzv-server.service", "rdzv-server.socket", "node-agent.service",
                                                              "node-agent@.service"))
    assert m.sh(f"systemd-analyze verify {units} 2>&1 | grep -i -e muster -e rdzv -e node-agent", check=False) == ""
    assert m.sh("stat -c '%U %a' /var/lib/muster/rdzv-server") == "muster 700"
    assert m.sh("stat -c '%U %a' /var/lib/muster/rdzv-server/rdzv.db") == "muster 600"


def test_a_token_reaches_the_services_where_there_is_one(hosts, stage):
    _, (m,) = machines(hosts, stage, 1)
    m.sh("systemctl start rdzv-server")
    assert m.sh("curl -sf --max-time 20 http://localhost:29500/healthz")
    assert m.sh("find /run/credentials/rdzv-server.service -type f 2>/dev/null", check=False) == ""
    token = "0123456789abcdef" * 4
    m.sh(f"(umask 077; echo {token} >/etc/muster/token) && systemctl restart rdzv-server")
    assert m.sh("curl -sf --max-time 20 http://localhost:29500/healthz")
    pid = m.show("rdzv-server", "MainPID")
    assert m.sh("cat /run/credentials/rdzv-server.service/muster-token") == token
    assert m.sh(f"nsenter -t {pid} -m setpriv --reuid=muster --clear-groups cat /run/credentials/rdzv-server.service/muster-token") == token
    assert m.sh("setpriv --reuid=nobody --clear-groups cat /run/credentials/rdzv-server.service/muster-token 2>&1", check=False) != token
    assert token not in m.sh("systemctl show rdzv-server; cat /proc/%s/cmdline; tr '\\0' '\\n' </proc/%s/environ" % (pid, pid))
    # Its mode is mended at boot, whatever it was copied with.
    m.sh("chmod 644 /etc/muster/token && systemd-tmpfiles --create")
    assert m.sh("stat -c '%U %a' /etc/muster/token") == "root 600"


def test_wrong_options_are_said_once_and_not_tried_again(hosts, stage):
    _, (m,) = machines(hosts, stage, 1)
    m.sh("echo 'RDZV_SERVER_OPTIONS=\"--leese 5\"' >/etc/muster/rdzv-server.conf")
    m.sh("systemctl start rdzv-server", check=False)
    m.until("[ $(systemctl show -P ActiveState rdzv-server) = failed ]")
    assert m.show("rdzv-server", "ExecMainStatus") == "2" and m.show("rdzv-server", "NRestarts") == "0"
    assert "--leese" in m.sh("journalctl --no-pager -u rdzv-server")
    m.sh("echo 'RDZV_SERVER_OPTIONS=\"--lease 5\"' >/etc/muster/rdzv-server.conf && systemctl restart rdzv-server")
    assert m.status()["server"]["lease_ms"] == 5000


def test_this_node_as_a_service_takes_up_its_options_anew(hosts, stage):
    _, (m,) = machines(hosts, stage, 1)
    need_service()
    m.sh("systemctl start rdzv-server && echo 'NODE_AGENT_OPTIONS=\"--rdzv=localhost\"' >/etc/muster/node-agent.conf && systemctl start node-agent")
    pid = m.show("node-agent", "MainPID")
    assert m.sh(f"ps -o user= -p {pid}") == "muster"
    assert m.sh("stat -c '%U %a' /var/log/muster /var/lib/muster/node-agent").split() == ["muster", "700"] * 2
    m.until("curl -sf http://localhost:29500/v1/status | grep -q '\"pool\":{\"nodes\":\\[{'")
    m.sh("systemctl reload node-agent")
    m.until("[ $(systemctl show -P ActiveState node-agent) = active ]")
    assert m.show("node-agent", "MainPID") == pid and m.show("node-agent", "NRestarts") == "0"
    m.sh(f"kill -9 {pid}")
    m.until(f"[ $(systemctl show -P ActiveState node-agent) = active ] && [ $(systemctl show -P MainPID node-agent) != {pid} ]")
    m.sh("systemctl stop node-agent")
    assert m.show("node-agent", "Result") == "success" and m.sh("pgrep -u muster -f node-agent", check=False) == ""


def test_the_journal_is_asked_by_its_fields_as_the_guide_says(hosts, stage):
    _, (m,) = machines(hosts, stage, 1)
    m.sh("systemctl start rdzv-server")
    for name, program in (("one", "true"), ("two", "false")):
        m.sh(f"node-agent --nnodes=1 --rdzv=n1 --rdzv-id={name} --no-python {program}", check=False)
    m.sh("journalctl --sync")
    ones = m.journal("-u rdzv-server MUSTER_JOB=one")
    assert ones and {line["MUSTER_JOB"] for line in ones} == {"one"} and {line["SYSLOG_IDENTIFIER"] for line in ones} == {"rdzv-server"}
    moves = m.journal("-u rdzv-server MUSTER_EVENT=job.move")
    assert {line["MUSTER_JOB"] for line in moves} == {"one", "two"}
    assert any(line.get("MUSTER_MOVE", "").endswith("->RUNNING") and line["MUSTER_ROUND"] == "1" for line in moves)
    cause = m.journal("-u rdzv-server MUSTER_JOB=two -g cause=")[-1]
    assert "exited with status 1" in cause["MUSTER_CAUSE"] and cause["MUSTER_EVENT"] == "job.move" and cause["PRIORITY"] == "4"
    assert {(line["MUSTER_JOB"], line["MUSTER_MOVE"].split(">")[1]) for line in m.journal("-u rdzv-server -p warning")} == {("two", "FAILED")}
    m.sh("systemd-run --quiet node-agent --nnodes=1 --rdzv=n1 --rdzv-id=three --no-python sleep 60")
    m.until("curl -sf http://localhost:29500/status | grep -q three")
    m.sh("node-agent --nnodes=1 --rdzv=n1 --rdzv-id=three --max-restarts=3 --no-python sleep 60", check=False)
    m.until("journalctl --no-pager -q -u rdzv-server -p warning MUSTER_EVENT=agent.refused | grep -q .")


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
