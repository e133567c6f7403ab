"""Field cases F01 to F04: names, addresses and firewalls of real hosts. Each test's name begins with the number of its case."""
import re
import time

import pytest
from fieldlib import NET, ONCE_MORE, PORT, field, field_hosts, said  # noqa: F401 (fixtures)

A = NET + "1"


def both(field, endpoint, *words, seconds=1, first=1):
    return [field.agent(i, f"--rdzv={endpoint}", "--nnodes=2", *words, *field.work(seconds, "connect")) for i in (first, 3 - first)]


def check_meeting(field, agents, numeric=True):
    """Both ended well, were told the same master, and reached it."""
    field.end_well(agents, 15)
    started = field.written("start")
    assert sorted(s.rank for s in started) == [0, 1] and {s.world for s in started} == {2}, field.story()
    assert len({s.master for s in started}) == 1, "one master for both"
    address = started[0].master_addr
    assert not address.startswith("127."), address
    assert not numeric or re.fullmatch(r"[0-9.]+|[0-9a-f:]+", address), address
    assert [c.words for c in field.written("connect")] == [["ok"], ["ok"]], field.story()


@pytest.mark.parametrize("first", [1, 2], ids=["A-first", "B-first"])
def test_f01_an_own_name_that_is_a_loopback_address_does_not_matter(field, first):
    for i in (1, 2):
        field.hosts_file(i, f"127.0.1.1 n{i}")
    check_meeting(field, both(field, f"{A}:{PORT}", first=first))


@ONCE_MORE
def test_f02a_each_host_knows_only_its_own_name(field, standing):
    for i in (1, 2):
        field.hosts_file(i, f"{NET}{i} n{i}")
    if standing:
        field.server()
    check_meeting(field, both(field, f"{A}:{PORT}"))


@ONCE_MORE
def test_f02b_the_endpoint_has_another_name_than_the_host(field, standing):
    field.hostname(1, "a")
    field.hosts_file(1, f"{A} a", f"{A} a.pods.example")
    field.hosts_file(2, f"{A} a.pods.example")
    if standing:
        field.server()
    check_meeting(field, both(field, f"a.pods.example:{PORT}"))


@ONCE_MORE
def test_f02_several_interfaces_and_a_server_reached_over_loopback(field, standing):
    """The lead shares its host with the server, and its first address is one that others cannot reach."""
    field.sh(1, f"ip addr del {A}/16 dev eth0; ip addr add 172.17.0.1/16 dev eth0; ip addr add {A}/16 dev eth0")
    try:
        field.hosts_file(1, "127.0.1.1 head")
        field.hosts_file(2, f"{A} head")
        if standing:
            field.server()
        check_meeting(field, both(field, f"head:{PORT}"))
    finally:
        field.sh(1, "ip addr del 172.17.0.1/16 dev eth0")


@ONCE_MORE
def test_f02_an_ipv6_endpoint_gives_an_ipv6_master(field, standing):
    if standing:
        field.server()
    agents = both(field, f"[fd88::1]:{PORT}")
    check_meeting(field, agents)
    assert {s.master_addr for s in field.written("start")} <= {"fd88::1", "fd88::2"}


def test_f02_a_link_local_endpoint_is_refused(field):
    a = field.agent(1, "--rdzv=[fe80::1%eth0]:29500", "--nnodes=2", *field.work(1))
    assert a.wait(5) != 0
    assert re.search(r"fe80::1%eth0.*link-local", a.text()), a.text()


def late_name(field, standing, *words):
    for i in (1, 2):
        field.hosts_file(i, *([f"{A} head"] if i == 1 else []))
    if standing:
        field.server()
    return both(field, f"head:{PORT}", *words)


@ONCE_MORE
def test_f03a_a_name_that_comes_late_is_waited_for(field, standing):
    a, b = late_name(field, standing)
    t, m = b.wait_line(r"head.*cannot be resolved", 8)
    assert (t - b.began_ns) / 1e9 <= 5, "said within 5 s"
    assert re.search(r"trying|retr", m.string), m.string
    assert "IPv6" not in b.text()
    while (time.monotonic_ns() - b.began_ns) / 1e9 < 6:
        time.sleep(0.1)
    assert field.written("start") == []
    field.add_name(2, f"{A} head")
    came = time.monotonic()
    field.wait_written(2, 10)
    assert time.monotonic() - came <= 5, "joined within 5 s of the name"
    field.end_well([a, b], 15 + 10)


def test_f03a_a_name_server_that_does_not_answer_delays_nobody(field):
    """The line comes to the hosts file while a question to a dead name server is under way."""
    field.sh(2, f"echo 'nameserver {NET}77' > /etc/resolv.conf")
    a, b = late_name(field, True)
    t, m = b.wait_line(r"head.*(cannot be resolved|name server)", 8)
    assert (t - b.began_ns) / 1e9 <= 5, "said within 5 s"
    field.add_name(2, f"{A} head")
    came = time.monotonic()
    field.wait_written(2, 10)
    assert time.monotonic() - came <= 5, field.story()
    field.end_well([a, b], 30)


@ONCE_MORE
def test_f03b_a_name_that_never_comes_ends_the_wait_at_its_limit(field, standing):
    a, b = late_name(field, standing, "--rdzv-conf=join_timeout=8")
    assert b.wait(15) != 0
    took = (time.monotonic_ns() - b.began_ns) / 1e9
    assert 5 <= took <= 11, took
    last = [line for line in b.text().splitlines() if "node-agent: " in line][-1]
    assert "head" in last and "cannot be resolved" in last and re.search(r"\((Temporary|Name|temporary|unknown|name)", last), b.text()
    assert a.wait(15) != 0


@ONCE_MORE
def test_f03c_an_ipv4_name_brings_no_word_of_ipv6(field, standing):
    for i in (1, 2):
        field.hosts_file(i, f"{A} head")
    if standing:
        field.server()
    agents = both(field, f"head:{PORT}")
    check_meeting(field, agents)
    for a in agents:
        assert not re.search(r"ipv6|\[::|inet6", a.text(), re.I), a.text()


@ONCE_MORE
def test_f04a_a_firewall_before_the_worker_store_is_found_before_any_worker_starts(field, standing):
    field.firewall(1, PORT)
    if standing:
        field.server()
    agents = both(field, f"{A}:{PORT}", seconds=3)
    joined = max(a.began_ns for a in agents) / 1e9
    statuses = [a.wait(max(0.1, joined + 20 - time.monotonic())) for a in agents]
    assert all(s > 0 for s in statuses), statuses
    assert field.written("start") == [], "no worker was started into a world that cannot work"
    for a in agents:
        told = said(a, rf"n2 cannot reach n1 at {re.escape(A)}:\d+.*--store-port")
        assert told, a.text()


def test_f04a_a_firewall_that_refuses_is_found_as_well(field):
    field.firewall(1, PORT, answer="reject with tcp reset")
    agents = both(field, f"{A}:{PORT}", seconds=3)
    joined = max(a.began_ns for a in agents) / 1e9
    assert all(a.wait(max(0.1, joined + 20 - time.monotonic())) > 0 for a in agents)
    assert field.written("start") == []
    for a in agents:
        assert said(a, rf"n2 cannot reach n1 at {re.escape(A)}:\d+.*refused.*--store-port"), a.text()


@ONCE_MORE
def test_f04b_the_worker_store_takes_the_port_that_was_opened(field, standing):
    field.firewall(1, PORT, 29600)
    if standing:
        field.server()
    agents = both(field, f"{A}:{PORT}", "--store-port=29600")
    check_meeting(field, agents)
    assert {s.master for s in field.written("start")} == {f"{A}:29600"}
