"""What the field cases share: hosts that are lent to one test after another, with names, firewalls and clocks of the test's own."""
import json
import os
import re
import signal
import subprocess
import time
import uuid
from contextlib import suppress

import pytest
from conftest import BIN, HERE, PYTHON, Hosts
from procs import Late, parent_of, pids_with

WORK = HERE / "work"
NET = "10.88.0."
PORT = 29500
ONCE_MORE = pytest.mark.parametrize("standing", [True, False], ids=["server", "hosted"])


class Line:
    """One line that a worker wrote."""

    def __init__(self, text):
        w = text.split()
        self.time, self.what, self.host, self.pid, self.rank = float(w[0]), w[1], w[2], int(w[3]), int(w[4])
        if self.what == "start":
            self.world, self.group_rank, self.restarts = map(int, w[5:8])
            self.master, self.local_world = w[8], int(w[9])
            self.master_addr, self.master_port = self.master.rsplit(":", 1)
        self.words = w[5:]


class Field:
    """One test's use of the hosts."""

    def __init__(self, lab, folder):
        self.lab, self.folder = lab, folder
        self.lines = folder / "lines"
        self.base_id = self.run_id = "field-" + uuid.uuid4().hex[:12]
        self.first_proc = len(lab.procs)
        self.touched = set()

    # --- what a host is like ---

    def sh(self, host, script, limit_s=30):
        return self.lab.lab("exec", host, "sh", "-c", script, limit_s=limit_s)

    def hosts_file(self, host, *lines):
        """What stands in /etc/hosts beside localhost."""
        self.touched.add(host)
        text = "\n".join(["127.0.0.1 localhost", "::1 localhost", *lines])
        self.sh(host, f"cat > /etc/hosts <<'END'\n{text}\nEND")

    def add_name(self, host, line):
        self.touched.add(host)
        self.sh(host, f"echo '{line}' >> /etc/hosts")

    def hostname(self, host, name):
        self.touched.add(host)
        self.sh(host, f"hostname {name}")

    def firewall(self, host, *ports, answer="drop"):
        """New connections are let in at those ports alone; nothing answers the others."""
        self.touched.add(host)
        self.sh(host, "nft -f - <<'END'\ntable inet field {\nchain in {\ntype filter hook input priority 0;\n"
                f"iifname eth0 tcp flags & (syn | ack) == syn tcp dport != {{ {', '.join(map(str, ports))} }} {answer}\n}}\n}}\nEND")

    def mend(self):
        names = [f"{NET}{i} n{i}" for i in range(1, self.lab.count + 1)]
        for host in sorted(self.touched):
            self.hosts_file(host, *names)
            self.sh(host, f"hostname n{host}; : > /etc/resolv.conf; nft delete table inet field 2>/dev/null; true")

    # --- what runs ---

    def server(self, host=1, *more):
        return self.lab.server(host, PORT, *more)

    def agent(self, host, *words, env=None, run_id=None):
        proc = self.lab.start(f"agent on n{host}", host, BIN / "node-agent", f"--rdzv-id={run_id or self.run_id}", "--no-python",
                              *words, env={"PYTHON_EXEC": PYTHON, **(env or {})})
        proc.host, proc.began_ns = host, time.monotonic_ns()
        return proc

    def work(self, seconds, *more):
        return [WORK, self.lines, seconds, *more]

    def written(self, what=None):
        with suppress(FileNotFoundError):
            return [line for line in map(Line, self.lines.read_text().splitlines()) if what in (None, line.what)]
        return []

    def wait_written(self, count, limit_s, what="start", after=0):
        """The lines of that kind from number `after` on, once there are `count` of them."""
        end = time.monotonic() + limit_s
        while len(got := self.written(what)[after:]) < count:
            if time.monotonic() > end:
                raise Late(f"{len(got)} of {count} '{what}' within {limit_s} s:\n" + self.story())
            time.sleep(0.02)  # A plain file has no news to wait for.
        return got

    def end_well(self, agents, limit_s):
        """All of them end with 0 within that time of the last one's start."""
        end = max(a.began_ns for a in agents) / 1e9 + limit_s
        for a in agents:
            status = a.wait(max(0.1, end - time.monotonic()))
            assert status == 0, self.story()

    def pids(self, host, program="node-agent"):
        """The processes of the job's agent there, the outermost first."""
        mine = [p for p in pids_with(f"--rdzv-id={self.run_id}", program) if self.lab.is_on(p, host)]
        return sorted(mine, key=lambda p: (parent_of(p) in mine, p))

    def signal_agent(self, host, signo, which=0):
        os.kill(self.pids(host)[which], signo)

    def kill_servers(self, signo):
        for p in pids_with(str(BIN / "rdzv-server"), "rdzv-server"):
            if any(self.lab.is_on(p, host) for host in range(1, self.lab.count + 1)):
                os.kill(p, signo)

    def status(self, host=1):
        return json.loads(self.sh(host, f"curl -s -m 5 http://{NET}{host}:{PORT}/status"))

    def story(self):
        return "\n".join([p.story() for p in self.lab.procs[self.first_proc:]] +
                         [self.lines.read_text() if self.lines.exists() else "(no worker wrote a line)"])

    def close(self):
        """Nothing stays: agents have wardens, so that their end is the end of all that they started."""
        self.kill_servers(signal.SIGKILL)
        for p in pids_with(self.base_id, "node-agent"):
            with suppress(ProcessLookupError):
                os.kill(p, signal.SIGKILL)
        for p in self.lab.procs[self.first_proc:]:
            p.end()
        self.mend()


@pytest.fixture(scope="module")
def field_hosts(lab_ready, tmp_path_factory):
    """Three hosts for all tests of a file: they take a second each."""
    lab = Hosts(3, tmp_path_factory.mktemp("hosts"))
    lab.count = 3
    yield lab
    lab.down()


@pytest.fixture
def field(request, field_hosts):
    folder = field_hosts.share / uuid.uuid4().hex[:8]
    folder.mkdir()
    f = Field(field_hosts, folder)
    yield f
    failed = getattr(request.node, "rep_call", None) is not None and request.node.rep_call.failed
    if failed:
        print(f.story())
    f.close()
    for p in f.lab.procs[f.first_proc:]:
        assert not p.matches(r"Sanitizer|runtime error|life\.rejected|job\.rejected"), p.story()


def said(proc, pattern):
    """The agent's own sentences that match."""
    return [m.string for m in proc.matches(pattern) if re.match(r"node-agent: ", m.string)]


def compile_c(folder, name, text):
    source, library = folder / f"{name}.c", folder / f"{name}.so"
    if library.exists():
        return library
    source.write_text(text)
    p = subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], capture_output=True, text=True, timeout=60)
    assert p.returncode == 0, p.stderr
    return library
