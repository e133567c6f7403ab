"""Ids made by real NCCL and handed out over two hosts, under node-agent and by hand. No GPU is needed: NCCL makes ids, listens at
them, and would be met there."""
import os
import re
import socket
import struct
from pathlib import Path

import pytest

from conftest import BIN

PROGRAM = Path(os.environ.get("MUSTER_SDK_PROGRAMS", BIN.parent / "tests" / "sdk")) / "nccl_ids"


@pytest.fixture
def two_hosts(hosts):
    import ctypes
    if not PROGRAM.exists():
        pytest.skip(f"{PROGRAM} is not built")
    try:
        ctypes.CDLL("libnccl.so.2")
    except OSError:
        pytest.skip("libnccl.so.2 is not installed")
    lab = hosts(2)
    lab.server()
    return lab


def ids_of(text):
    return [[bytes.fromhex(w) for w in m.group(1).split(" id ")[1:]] for m in re.finditer(r"start 1((?: id [0-9a-f]+)+)", text)]


def address_in(nccl_id):
    """A random number, then a socket address."""
    family, = struct.unpack_from("=H", nccl_id, 8)
    port, = struct.unpack_from(">H", nccl_id, 10)
    raw = nccl_id[12:16] if family == socket.AF_INET else nccl_id[16:32]
    return socket.inet_ntop(family, raw), port


def rank(lab, host, rank_, words, stay=False):
    """One rank by hand, as torchrun would start it."""
    env = {"RANK": rank_, "WORLD_SIZE": 4, "LOCAL_RANK": rank_ % 2, "LOCAL_WORLD_SIZE": 2, "GROUP_RANK": rank_ // 2,
           "GROUP_WORLD_SIZE": 2, "MASTER_ADDR": "n1", "MASTER_PORT": 29500, "TORCHELASTIC_RESTART_COUNT": 0,
           "TORCHELASTIC_MAX_RESTARTS": 0, "TORCHELASTIC_RUN_ID": lab.run_id, "TORCHELASTIC_USE_AGENT_STORE": "True"}
    command = [PROGRAM, *words]
    if stay:  # Its standard input stays open until the lab goes.
        command = ["bash", "-c", 'exec "$0" "$@" stay < <(exec tail -f /dev/null)', *command]
    return lab.start(f"rank {rank_}", host, *command, env=env)


def test_ids_of_real_nccl_reach_all_ranks_of_two_agents(two_hosts):
    """Promise: under node-agent, two hosts and two workers each, all ranks have the same two ids, one made on each host."""
    agents = [two_hosts.agent(i, "--nnodes=2", "--nproc_per_node=2", "--rdzv=n1:29500", "--no-python", PROGRAM, "maker=nccl",
                              "count=2", "exchange") for i in (1, 2)]
    for a in agents:
        assert a.wait(60) == 0, a.text()
    got = [ids for a in agents for ids in ids_of(a.text())]
    assert len(got) == 4 and all(g == got[0] for g in got), [a.text() for a in agents]
    hosts_of_ids = {address_in(i)[0] for i in got[0]}
    assert len(hosts_of_ids) == 2, hosts_of_ids  # Each from a host of its own.


def test_the_other_host_reaches_the_listener_of_an_id(two_hosts):
    """Promise: what is handed out is where NCCL listens, as long as the maker lives."""
    lab = two_hosts
    ranks = [rank(lab, 1 + i // 2, i, ["maker=nccl", "count=2", "exchange"], stay=True) for i in range(4)]
    for r in ranks:
        r.wait_line("^staying", 60)
    ids = ids_of(ranks[0].text())[0]
    assert ids_of(ranks[3].text())[0] == ids
    for host, nccl_id in ((2, ids[0]), (1, ids[1])):  # Made on n1 and n2: reached from the other.
        at, port = address_in(nccl_id)
        dial = lab.start("dial", host, "bash", "-c", f"exec 3<>/dev/tcp/{at}/{port} && echo reached")
        assert dial.wait(20) == 0 and "reached" in dial.text(), dial.text()


def test_a_missing_rank_is_named_with_the_host_it_should_be_on(two_hosts):
    """Promise: a start that hangs ends in time on all hosts, with one sentence that names rank and host."""
    ranks = [rank(two_hosts, 1 + i // 2, i, ["maker=nccl", f"seconds={2 if i == 0 else 60}", "exchange"]) for i in range(3)]
    for r in ranks:
        assert r.wait(60) == 0
        assert re.search(r"refused -110 ids: after 2\.0 s these of 4 ranks have not come: rank 3 on n2$", r.text(), re.M), r.text()


def test_versions_that_differ_between_hosts_are_named_with_them(two_hosts):
    ranks = [rank(two_hosts, 1 + i // 2, i, [f"same=NCCL 2.{28 - i // 2}.3", "exchange"]) for i in range(4)]
    for r in ranks:
        assert r.wait(60) == 0
        assert "rank 0 on n1 has NCCL 2.28.3, but rank 2 on n2 has NCCL 2.27.3" in r.text(), r.text()
        assert "1 more ranks differ" in r.text(), r.text()
