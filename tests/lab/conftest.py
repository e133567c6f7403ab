"""Fixtures of the lab tests: hosts, the programs under test, and a story when one fails."""
import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
from procs import Events, Proc  # noqa: E402

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
BIN = Path(os.environ.get("MUSTER_BIN_DIR", ROOT / "build" / "dev" / "bin")).resolve()
TORCH_PYTHON = Path(os.environ.get("MUSTER_TORCH_PYTHON", "/var/tmp/muster-venv/bin/python"))
PYTHON = "/usr/bin/python3"


def pytest_sessionfinish(session, exitstatus):
    """Nothing ran because something is missing: ctest's word for a skip."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    count = lambda kind: len(reporter.stats.get(kind, []))  # noqa: E731
    if count("skipped") and not count("passed") and not count("failed") and not count("error"):
        for report in reporter.stats["skipped"]:
            print(f"\nskipped: {report.longrepr[2]}")
        session.exitstatus = 77


def need_torch():
    if not TORCH_PYTHON.exists():
        pytest.skip(f"{TORCH_PYTHON} is not there: a virtual environment with torch 2.13 (MUSTER_TORCH_PYTHON)")
    return TORCH_PYTHON


@pytest.hookimpl(tryfirst=True, hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    setattr(item, "rep_" + call.when, outcome.get_result())


class Hosts:
    """A lab of N hosts; and what is started on them."""

    def __init__(self, n, share, *more):
        self.share = share
        self.env = dict(os.environ, LAB_DIR=str(share / "lab"))
        self.run_id = "lab-" + uuid.uuid4().hex[:12]
        self.procs = []
        # Its input closes when this process is gone, however that comes: then the lab goes too.
        self.guard = subprocess.Popen([HERE / "lab", "guard"], stdin=subprocess.PIPE, env=self.env, start_new_session=True)
        self.lab("up", n, "--share", share, "--share", ROOT, "--share", BIN.parent, *more)

    def lab(self, *words, limit_s=90):
        p = subprocess.run([HERE / "lab", *map(str, words)], env=self.env, timeout=limit_s, text=True, capture_output=True)
        assert p.returncode == 0, f"lab {words}: {p.stdout}{p.stderr}"
        return p.stdout

    def start(self, name, host, *cmd, env=None):
        words = [HERE / "lab", "exec", host, "env", *[f"{k}={v}" for k, v in (env or {}).items()], *cmd]
        proc = Proc(name, words, env=self.env, cwd=self.share)
        self.procs.append(proc)
        return proc

    def server(self, host=1, port=29500, *more):
        proc = self.start(f"server on n{host}", host, BIN / "rdzv-server", "--port", port, *more)
        proc.wait_line("listening on", 20)
        return proc

    def agent(self, host, *words, env=None):
        """node-agent with this lab's run id."""
        env = {"PYTHON_EXEC": PYTHON, **(env or {})}
        return self.start(f"agent on n{host}", host, BIN / "node-agent", f"--rdzv-id={self.run_id}", *words, env=env)

    def is_on(self, pid, host):
        """Is that process of this machine one of the host's? By its PID namespace."""
        try:
            init = (self.share / "lab" / str(host) / "pid").read_text()
            return os.stat(f"/proc/{pid}/ns/pid").st_ino == os.stat(f"/proc/{init}/ns/pid").st_ino
        except OSError:
            return False

    def down(self):
        for p in self.procs:
            p.end()
        self.guard.stdin.close()
        self.guard.wait(60)


@pytest.fixture(scope="session")
def lab_ready():
    p = subprocess.run([HERE / "lab", "check"], capture_output=True, text=True, timeout=30)
    if p.returncode == 77:
        pytest.skip(p.stdout.strip())
    assert p.returncode == 0, p.stderr
    for program in ("rdzv-server", "node-agent"):
        assert (BIN / program).exists(), f"{BIN / program} is not built"


@pytest.fixture
def hosts(request, lab_ready, tmp_path):
    """hosts(N) boots a lab of N; it is gone after the test."""
    labs = []

    def make(n, *more):
        labs.append(Hosts(n, tmp_path, *more))
        return labs[-1]

    yield make
    failed = getattr(request.node, "rep_call", None) is not None and request.node.rep_call.failed
    for some in labs:
        some.down()
        if failed:
            print("\n".join(p.story() for p in some.procs))


@pytest.fixture
def events(tmp_path):
    e = Events(tmp_path / "events")
    yield e
    e.close()
