"""The Debian package on hosts with systemd: a job of two units lives through an upgrade, a killed server, a killed agent and a reboot."""
import shutil

import pytest
from unitlib import NEXT, WORKER, all_step, installed, knows, need_service, next_packages, packages, ranks, until  # noqa: F401


def make_worker(lab):
    worker, folder = lab.share / "worker.sh", lab.share / "ranks"
    worker.write_text(WORKER)
    worker.chmod(0o755)
    folder.mkdir()
    folder.chmod(0o777)
    return folder, worker


def begin_job(lab, machines):
    folder, worker = make_worker(lab)
    machines[0].sh("systemctl enable --now rdzv-server.socket rdzv-server.service")
    for m in machines:
        m.sh("printf 'NODE_AGENT_ARGS=\"--nnodes=2 --nproc-per-node=2 --rdzv=n1 --max-restarts=3 %s %s\"\\n' >/etc/muster/jobs/train.conf"
             % (worker, folder))
        m.sh("systemctl enable --now node-agent@train")
    return folder


def the_job(m):
    (job,) = m.status()["jobs"]
    return job


def gone(folder):
    for path in folder.glob("rank*"):
        path.unlink()


def test_an_upgrade_a_kill_and_a_reboot_end_no_job(hosts, packages, next_packages):  # noqa: F811
    lab, (a, b) = installed(hosts, 2, packages, "muster")
    folder = begin_job(lab, (a, b))
    before = all_step(folder, 4)
    agents = [m.show("node-agent@train", "MainPID") for m in (a, b)]
    server = a.show("rdzv-server", "MainPID")
    old = a.status()["version"]
    assert old != NEXT

    # Upgraded, one host after the other. A setting that was changed is kept.
    a.sh("echo '# Mine.' >>/etc/muster/rdzv-server.conf")
    for m in (a, b):
        m.install(shutil.copy(next_packages["muster"], lab.share))
    assert a.status()["version"] == NEXT and a.show("rdzv-server", "MainPID") != server
    assert a.show("rdzv-server", "NRestarts") == "0" and a.show("rdzv-server.socket", "ActiveState") == "active"
    assert "# Mine." in a.sh("cat /etc/muster/rdzv-server.conf")
    assert b.show("rdzv-server", "ActiveState") == "inactive", "what did not run is not started"
    a.until("curl -sf http://localhost:29500/status | grep -q '\"state\":\"running\"'")
    after = all_step(folder, 4, since=before)
    assert {r: v[0] for r, v in after.items()} == {r: v[0] for r, v in before.items()}
    assert [m.show("node-agent@train", "MainPID") for m in (a, b)] == agents
    job = the_job(a)
    assert (job["round"], job["restarts"], job["state"]) == (1, 0, "running")
    assert a.sh("ls /dev/shm/muster-test-*"), "shared memory of the user's jobs goes with no restart of the server"

    # The server is killed: the job goes on, and the one that follows knows it.
    server = a.show("rdzv-server", "MainPID")
    a.sh(f"kill -9 {server}")
    a.until(f"[ $(systemctl show -P MainPID rdzv-server) != {server} ] && curl -sf --max-time 5 http://localhost:29500/status | grep -q train")
    all_step(folder, 4, since=after)
    assert {r: v[0] for r, v in ranks(folder).items()} == {r: v[0] for r, v in before.items()}
    assert (the_job(a)["round"], the_job(a)["restarts"]) == (1, 0)

    # An agent is killed: its unit starts another, which joins the job again, as the new version.
    gone(folder)
    b.sh(f"kill -9 {agents[1]}")
    until(lambda: all(v[0] != before[r][0] for r, v in ranks(folder).items()) and len(ranks(folder)) == 4, lambda: ranks(folder))
    all_step(folder, 4)
    assert b.show("node-agent@train", "NRestarts") == "1"
    assert (the_job(a)["round"], the_job(a)["restarts"]) == (2, 0)

    # Power loss of the second host, which boots again: its unit is enabled and joins.
    lab.lab("kill", 2)
    a.until("journalctl --no-pager -u node-agent@train | grep -q '1 of 2 nodes are here (n1), waiting'")
    gone(folder)
    lab.lab("start", 2)
    all_step(folder, 4)
    assert (the_job(a)["round"], the_job(a)["restarts"], the_job(a)["state"]) == (3, 0, "running")

    # And of the server's own host: what was decided is on its disk, and the port is the socket unit's.
    lab.lab("kill", 1)
    gone(folder)
    lab.lab("start", 1)
    all_step(folder, 4)
    job = the_job(a)
    assert (job["id"], job["restarts"], job["state"]) == ("train", 0, "running") and job["round"] > 3
    for m in (a, b):
        m.sh("systemctl stop node-agent@train")
        assert m.sh("pgrep -u muster -f worker.sh", check=False) == ""

    # Removed and purged: units are off, nothing is left but the administrator's own file.
    a.sh("dpkg --purge muster")
    assert a.sh("systemctl is-active rdzv-server.socket rdzv-server node-agent@train", check=False).split() == ["inactive"] * 3
    assert a.sh("find /etc/muster /var/lib/muster /var/log/muster 2>/dev/null", check=False).split() == [
        "/etc/muster", "/etc/muster/jobs", "/etc/muster/jobs/train.conf"]


def test_an_upgrade_keeps_the_jobs_of_a_nodes_service(hosts, packages, next_packages):  # noqa: F811
    need_service()
    if not knows("muster", "run"):
        pytest.skip("muster of this build has no `run`")
    lab, (m,) = installed(hosts, 1, packages, "muster")
    folder, worker = make_worker(lab)
    m.sh("echo 'NODE_AGENT_OPTIONS=\"--rdzv=localhost --slots=4\"' >/etc/muster/node-agent.conf")
    m.sh("systemctl enable --now rdzv-server.socket rdzv-server.service node-agent.service")
    m.sh(f"muster run -d --nnodes=1 --nproc-per-node=2 --name=here --cwd=/tmp -- {worker} {folder}")
    before = all_step(folder, 2)
    pid = m.show("node-agent", "MainPID")
    m.install(shutil.copy(next_packages["muster"], lab.share))
    m.until("[ $(systemctl show -P ActiveState node-agent) = active ]")
    assert m.show("node-agent", "MainPID") == pid and m.show("node-agent", "NRestarts") == "0"
    assert m.sh(f"readlink /proc/{pid}/exe") == "/usr/bin/node-agent", "it is the new program"
    all_step(folder, 2, since=before)
    m.until(f"curl -sf http://localhost:29500/v1/status | grep -q '\"version\":\"{NEXT}\"'")
    assert the_job(m)["round"] == 1
    m.sh("systemctl stop node-agent")
    assert m.sh("pgrep -u muster -f worker.sh", check=False) == ""
