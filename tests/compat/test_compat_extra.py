"""Conformance suites from outside this tree, where MUSTER_EXTRA names a folder that has them: probe_store.py and replay_captures.py with
its captures. Both end with "N passed, N failed"."""
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import BIN

EXTRA = os.environ.get("MUSTER_EXTRA", "")


def suite(name):
    path = Path(EXTRA) / name
    if not EXTRA or not path.exists():
        pytest.skip(f"no outside suite {name}: MUSTER_EXTRA names no folder that has it")
    return path


def passes(words):
    p = subprocess.run([str(w) for w in words], capture_output=True, text=True, timeout=600)
    last = re.findall(r"(\d+) passed, (\d+) failed", p.stdout)
    assert last and int(last[-1][0]) > 0 and last[-1][1] == "0", p.stdout[-4000:] + p.stderr[-2000:]


def probe(python, where):
    passes([python, suite("probe_store.py"), "--host", where[0], "--port", where[1], "--python-side", "client", "--slack", 15])


def test_probe_of_rdzv_server(torch2, server):
    probe(torch2, server)


def test_probe_of_a_worker_store(torch2, worker_store):
    probe(torch2, worker_store)


@pytest.mark.parametrize("dialect", ["torch213-libuv", "torch113"])
def test_replayed_captures(dialect):
    script = suite("replay_captures.py")
    spawn = f"{BIN / 'rdzv-server'} --host 127.0.0.1 --state-dir '' --port {{port}}"
    passes([sys.executable, script, "--spawn", spawn, script.parent / "captures" / f"{dialect}-*.json"])
