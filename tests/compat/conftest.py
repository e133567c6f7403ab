"""Fixtures of the compatibility tests: the two PyTorch versions, and the two places where a store of ours is served."""
import json
import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "lab"))
from procs import Proc  # noqa: E402

BIN = Path(os.environ.get("MUSTER_BIN_DIR", ROOT / "build" / "dev" / "bin")).resolve()
TORCH_PYTHON = os.environ.get("MUSTER_TORCH_PYTHON", "/var/tmp/muster-venv/bin/python")
OLD_TORCH_PYTHON = os.environ.get("MUSTER_OLD_TORCH_PYTHON", "/usr/bin/python3")
QUIET = {"TORCH_CPP_LOG_LEVEL": "ERROR"}


def pytest_sessionfinish(session, exitstatus):
    """Nothing ran because something is missing: ctest's word for a skip."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    count = lambda kind: len(reporter.stats.get(kind, []))  # noqa: E731
    if count("skipped") and not count("passed") and not count("failed") and not count("error"):
        for text in sorted({report.longrepr[2] for report in reporter.stats["skipped"]}):
            print(f"\nskipped: {text}")
        session.exitstatus = 77


def torch_version(python):
    p = subprocess.run([python, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True, timeout=120)
    return p.stdout.strip() if p.returncode == 0 else None


def need(python, version, how):
    found = torch_version(python) if os.path.exists(python) else None
    if found is None or not found.startswith(version):
        pytest.skip(f"{python} has {'torch ' + found if found else 'no torch'}, wanted is {version}: {how}")
    return python


@pytest.fixture(scope="session")
def torch2():
    return need(TORCH_PYTHON, "2.", "a virtual environment with torch 2.13.0, named by MUSTER_TORCH_PYTHON")


@pytest.fixture(scope="session")
def torch1():
    return need(OLD_TORCH_PYTHON, "1.13", "apt-get install python3-torch, or MUSTER_OLD_TORCH_PYTHON")


def start_server(folder, *options):
    port_file = folder / "port"
    server = Proc("rdzv-server", [BIN / "rdzv-server", "--host", "127.0.0.1", "--port", "0", "--port-file", port_file,
                                  "--state-dir", folder / "state", *options])
    server.wait_line("listening on", 20)
    return server, int(port_file.read_text())


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A port of rdzv-server."""
    proc, port = start_server(tmp_path_factory.mktemp("server"))
    yield "127.0.0.1", port
    proc.end()
    print(proc.story())


@pytest.fixture(scope="module")
def worker_store(tmp_path_factory):
    """Where an agent serves its round's worker store: what a worker of it is told."""
    folder = tmp_path_factory.mktemp("agent")
    told = folder / "told"
    os.mkfifo(told)
    agent = Proc("node-agent", [BIN / "node-agent", "--standalone", "--nproc-per-node=1", "--no-python", "/bin/sh", "-c",
                                f'echo "$MASTER_ADDR $MASTER_PORT" > {told}; exec sleep 1000'])
    with os.fdopen(os.open(told, os.O_RDONLY | os.O_NONBLOCK)) as f:
        assert select.select([f], [], [], 20)[0], f"no worker started:\n{agent.text()}"
        host, port = f.read().split()
    yield host, int(port)
    agent.end()
    print(agent.story())


def run_cases(python, script, where):
    p = subprocess.run([python, HERE / script, where[0], str(where[1])], capture_output=True, text=True, timeout=400,
                       env={**os.environ, **QUIET})
    rows = {r["case"]: r for r in map(json.loads, p.stdout.splitlines())}
    assert rows, f"{script} said nothing: {p.stderr[-2000:]}"
    return rows


def names_of(script):
    return subprocess.run([sys.executable, HERE / script, "--list"], capture_output=True, text=True, check=True).stdout.split()
