"""Service mode under a real systemd: a unit that delegates its cgroup, reloads, is watched, is killed and is stopped, with a job on it."""
import json
import os
import subprocess

from conftest import HERE, PYTHON, ROOT
from test_lab_systemd import machines, stage  # noqa: F401  (a fixture)

UNIT = """[Service]
Type=notify
User=muster
ExecStart=/usr/bin/node-agent --service --rdzv=127.0.0.1:29700 --slots=4
ExecReload=/bin/kill -HUP $MAINPID
LogsDirectory=muster
LogsDirectoryMode=0700
Delegate=yes
KillMode=mixed
WatchdogSec=3
Restart=on-failure
RestartSec=200ms
TimeoutStopSec=60
"""

# Runs on the host, as the server to which its node is offered.
DRIVER = r'''
import json, os, socket, subprocess, sys, time
sys.path.insert(0, sys.argv[1])
import servicelib
from mulib import PATIENCE

def sh(*words):
    return subprocess.run(words, capture_output=True, text=True, timeout=60).stdout.strip()

def until(test, what):
    end = time.monotonic() + PATIENCE
    while not test():
        assert time.monotonic() < end, what + "\n" + sh("systemctl", "--no-pager", "--full", "status", "node-service") + sh("journalctl", "--no-pager", "-n", "50")
        time.sleep(0.05)

def show(name):
    return sh("systemctl", "show", "-P", name, "node-service")

class Server:  # The real one, for the job's agents.
    def connect(self):
        return socket.create_connection(("127.0.0.1", 29500))

pool = servicelib.Pool.__new__(servicelib.Pool)
listener = socket.create_server(("127.0.0.1", 29700))
real = socket.create_server
socket.create_server = lambda *_: listener
pool.__init__(Server())
socket.create_server = real
os.chmod("/srv", 0o777)
with open("/srv/worker", "w") as f:
    f.write("#!/bin/sh\necho up $$ $(id -un) $(cat /proc/self/cgroup | grep ^0::)\nwhile [ ! -e /srv/on ]; do sleep 0.1; done\necho end\n")
os.chmod("/srv/worker", 0o755)
assert subprocess.run(["systemctl", "start", "rdzv-server"], timeout=60).returncode == 0
assert subprocess.run(["systemctl", "start", "node-service"], timeout=60).returncode == 0
pid = show("MainPID")
node = pool.node(0)
assert node.offer["user"] == "muster", node.offer
node.assign("lab", ["./worker"], "/srv", nproc=2)
node.tail("lab", 1, follow=1, rank=0)
up = node.wait(lambda m: m["type"] == "output")["text"].split()
worker, group = int(up[1]), up[3]
assert up[2] == "muster" and "/node-service.service/job-lab.1/" in group, up
root = "/sys/fs/cgroup" + group[3:].split("/job-lab.1")[0]
assert os.path.isdir(root + "/job-lab.1"), root
assert "/muster-service" in open(f"/proc/{pid}/cgroup").read(), open(f"/proc/{pid}/cgroup").read()
has_memory = "memory" in open("/sys/fs/cgroup/cgroup.controllers").read().split()
if has_memory:
    assert int(open(root + "/job-lab.1/memory.current").read()) > 0

for start in (1, 2):  # A new start ends nothing, and the manager sees it through.
    assert subprocess.run(["systemctl", "reload", "node-service"], timeout=60).returncode == 0
    node = pool.node(start)
    assert [h["job"] for h in node.has()] == ["lab"]
    assert show("MainPID") == pid and show("ActiveState") == "active" and os.path.isdir(f"/proc/{worker}")
until(lambda: "1 jobs" in show("StatusText"), "the status")
time.sleep(4)  # Longer than the watchdog's time: it is fed.
assert show("MainPID") == pid and show("NRestarts") == "0"

subprocess.run(["kill", "-9", pid])  # Killed: the job goes with it, and the manager starts another.
node = pool.node(3)
assert node.has() == [] and show("MainPID") != pid
until(lambda: not os.path.isdir(f"/proc/{worker}"), "the worker's end")
assert [m["text"].split()[0] for m in node.log("lab", 5, rank=0)][:1] == ["up"]  # What it wrote is there still.

node.assign("next", ["./worker"], "/srv", nproc=1)
node.placed("next", 1)
assert subprocess.run(["systemctl", "stop", "node-service"], timeout=60).returncode == 0
node.wait(lambda m: m["type"] == "bye")
assert show("Result") == "success" and not os.path.isdir(root), (show("Result"), root)
print(json.dumps({"memory": has_memory}))
'''


def test_a_node_under_systemd_reloads_without_ending_its_job_and_counts_it_apart(hosts, stage):  # noqa: F811
    lab, (m,) = machines(hosts, stage, 1)
    driver = lab.share / "driver.py"
    driver.write_text(DRIVER)
    (lab.share / "node-service.service").write_text(UNIT)
    m.sh(f"cp {lab.share}/node-service.service /etc/systemd/system/ && systemctl daemon-reload")
    p = subprocess.run([HERE / "lab", "exec", "1", "env", "MUSTER_BIN=/usr/bin", "PYTHONDONTWRITEBYTECODE=1", PYTHON, driver, ROOT / "tests" / "blackbox"],
                       env={**os.environ, **lab.env}, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL)
    assert p.returncode == 0, p.stdout + p.stderr + m.sh("journalctl --no-pager -n 80", check=False)
    print(json.loads(p.stdout.splitlines()[-1]))
