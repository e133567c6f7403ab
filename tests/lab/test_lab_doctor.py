"""muster doctor on real hosts of which one thing is broken on purpose: it is named, with who has it and what helps."""
import json
import signal
import time

import pytest
from conftest import BIN
from fieldlib import NET, PORT, field, field_hosts  # noqa: F401 (fixtures)
from procs import pids_with

STORE = 29600
EASY = "2"  # seconds a look may take


class Examined:
    def __init__(self, field, hosts, *words, before=None, limit_s=120):
        self.field = field
        self.agents = []
        for i in hosts:
            line = f"{(before or {}).get(i, '')} exec {BIN / 'muster'} doctor --json --timeout {EASY} {' '.join(words)}"
            self.agents.append(field.agent(i, f"--rdzv={NET}{hosts[0]}:{PORT}", f"--nnodes={len(hosts)}", "--nproc-per-node=1",
                                           f"--store-port={STORE}", "sh", "-c", line))
        self.status = {a.wait(limit_s) for a in self.agents}
        text = "\n".join(a.text() for a in self.agents)
        line = next((s for s in text.splitlines() if s.startswith('{"verdict"')), None)
        assert line, text
        self.all = json.loads(line)
        self.findings = self.all["findings"]

    def of(self, check, node=None, peer=None):
        return [f for f in self.findings if f["check"] == check and node in (None, f["node"]) and peer in (None, f["peer"])]

    def bad(self):
        """What FAILs, as (check, node, peer)."""
        return sorted((f["check"], f["node"], f["peer"] or "") for f in self.findings if f["level"] == "FAIL")

    def only(self, *bad):
        assert self.bad() == sorted(bad), [f for f in self.findings if f["level"] in ("FAIL", "warn")]
        assert self.status == ({1} if bad else {0}), self.status


def test_three_good_hosts_are_well(field):
    got = Examined(field, [1, 2, 3])
    got.only()
    assert len(got.of("names")) == len(got.of("ports")) == len(got.of("link")) == 6
    assert {f["level"] for f in got.of("names") + got.of("ports") + got.of("clocks") + got.of("large messages")} == {"ok"}
    assert all(p["facts"]["link"]["bytes_per_s"] > 1e6 for p in got.all["pairs"]), got.all["pairs"]


@pytest.mark.parametrize("answer", ["drop", "reject with tcp reset"])
def test_a_firewall_on_one_host_is_named_with_its_kind_and_the_rule_that_opens_it(field, answer):
    field.firewall(2, PORT, STORE, answer=answer)
    got = Examined(field, [1, 2])
    assert ("ports", "n1", "n2") in got.bad() and ("ports", "n2", "n1") not in got.bad(), got.bad()
    one = got.of("ports", "n1", "n2")[0]
    assert ("drops" if answer == "drop" else "refuses") in one["seen"], one
    assert one["remedy"].startswith(f"on n2, let this node in: nft insert rule inet filter input ip saddr {NET}1 accept"), one
    assert got.status == {1}


def test_a_wrong_line_in_a_hosts_file_is_named_with_the_line_that_is_right(field):
    field.hosts_file(1, f"{NET}1 n1", "127.0.1.1 n2", f"{NET}3 n3")
    field.hosts_file(3, f"{NET}3 n3", f"{NET}1 n1", f"{NET}1 n2")
    got = Examined(field, [1, 2, 3], "--quick")
    got.only(("names", "n1", "n2"), ("names", "n3", "n2"))
    assert f"write '{NET}2 n2' into /etc/hosts in the place of 127.0.1.1" in got.of("names", "n1", "n2")[0]["remedy"]
    assert "which is another node" in got.of("names", "n3", "n2")[0]["seen"]


def test_an_own_name_on_the_loopback_and_a_name_that_nobody_knows_are_said(field):
    field.hosts_file(1, "127.0.1.1 n1")
    got = Examined(field, [1, 2], "--quick")
    got.only()
    assert got.of("own name", "n1")[0]["level"] == "warn" and "127.0.1.1" in got.of("own name", "n1")[0]["seen"]
    assert got.of("names", "n1", "n2")[0]["seen"].startswith("n2 cannot be looked up here: it is not in /etc/hosts")
    assert got.of("names", "n1", "n2")[0]["remedy"] == f"on this node, add '{NET}2 n2' to /etc/hosts or the name server"


def test_low_limits_and_a_small_shared_memory_are_named(field):
    field.sh(2, "mount -t tmpfs -o size=8m tmpfs /dev/shm")
    try:
        got = Examined(field, [1, 2], "--quick", before={1: "ulimit -n 200;"})
    finally:
        field.sh(2, "umount /dev/shm")
    got.only(("open files", "n1", ""), ("shared memory", "n2", ""))
    assert got.of("open files", "n1")[0]["seen"].startswith("200"), got.of("open files")
    assert "8.0 MiB" in got.of("shared memory", "n2")[0]["seen"]


def test_a_host_that_lets_only_small_packets_through_is_named(field):
    """Whoever drops what is larger, and says nothing: an MTU that differs on the way."""
    field.touched.add(2)
    field.sh(2, "nft -f - <<'END'\ntable inet field {\nchain in {\ntype filter hook input priority 0;\n"
                f"iifname eth0 tcp dport != {{ {PORT}, {STORE} }} tcp sport != {{ {PORT}, {STORE} }} meta length > 1000 drop\n}}\n}}\nEND")
    got = Examined(field, [1, 2], "--quick")
    assert ("large messages", "n1", "n2") in got.bad(), got.bad()
    assert "MTU" in got.of("large messages", "n1", "n2")[0]["remedy"]


def test_a_host_that_hangs_in_the_middle_is_named_and_holds_nobody_up_for_long(field):
    began = time.monotonic()
    mark = field.folder / "stopped"
    hang = f"( until [ -e {mark} ]; do sleep 0.01; done; kill -STOP $$$$ ) & "
    agents = []
    for i in (1, 2, 3):
        line = f"{hang if i == 3 else ''} exec {BIN / 'muster'} doctor --json --timeout {EASY}"
        agents.append(field.agent(i, f"--rdzv={NET}1:{PORT}", "--nnodes=3", "--nproc-per-node=1", f"--store-port={STORE}",
                                  "sh", "-c", line))
        if i == 2:  # It stops as soon as it has come, or a moment later: either is the middle.
            mark.touch()
    assert agents[0].wait(150) == 1
    text = "\n".join(a.text() for a in agents)
    got = json.loads(next(s for s in text.splitlines() if s.startswith('{"verdict"')))
    bad = [f for f in got["findings"] if f["level"] == "FAIL" and f["check"] == "took part"]
    assert [f["node"] in ("n3", "rank 2", "rank 1") for f in bad] == [True], bad
    assert time.monotonic() - began < 140


def test_a_job_that_is_stopped_in_the_middle_says_what_it_saw_and_who_was_missing(field):
    agents = [field.agent(i, f"--rdzv={NET}1:{PORT}", "--nnodes=2", "--nproc-per-node=1", f"--store-port={STORE}",
                          *(["sh", "-c", f"exec {BIN / 'muster'} doctor"] if i == 1 else ["sleep", "600"])) for i in (1, 2)]
    deadline = time.monotonic() + 30
    while not pids_with("doctor", "muster"):  # Until it is there.
        assert time.monotonic() < deadline, field.story()
        time.sleep(0.02)
    time.sleep(0.5)
    field.signal_agent(1, signal.SIGTERM)
    agents[0].wait(60)
    text = agents[0].text()
    assert "never said what it is" in text and "the job was stopped" in text, text


def test_an_agent_that_waits_long_says_what_is_in_the_way(field):
    field.firewall(2, 1, answer="drop")
    began = time.monotonic()
    a = field.agent(1, f"--rdzv={NET}2:{PORT}", "--nnodes=2", "--rdzv-conf=join_timeout=30", "true")
    _, m = a.wait_line(r"muster doctor: (.*)", 60)
    assert "no answer at all, so packets are dropped on the way" in m.group(1) and f"open TCP port {PORT}" in m.group(1), a.text()
    assert time.monotonic() - began < 40
    a.wait(60)
    assert len(a.matches("muster doctor: ")) == 1, a.text()


def test_a_slow_cable_is_named_in_both_directions(field):
    field.lab.lab("rate", 3, "8mbit")
    got = Examined(field, [1, 2, 3])  # The last test of these hosts: the cable stays as it is.
    slow = [("link", "n1", "n3"), ("link", "n2", "n3"), ("link", "n3", "n1"), ("link", "n3", "n2")]
    got.only(*slow)
    assert "is usual here" in got.of("link", "n1", "n3")[0]["seen"]
