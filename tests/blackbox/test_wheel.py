"""The wheel muster-launch, as its users have it: built by tools/wheel.sh, installed by pip into a virtual environment outside the tree,
without an index and without anything of the build; also where the libraries it needs are not on the machine."""
import ast
import json
import os
import subprocess
import urllib.request
from pathlib import Path

import pytest

import agentlib
import mulib
from mulib import PATIENCE

INSTALL_S = 180  # A virtual environment and its pip: hundreds of files on a busy disk.

SOURCE = Path(os.environ.get("MUSTER_SOURCE", Path(__file__).resolve().parents[2]))
PYTHON = "/usr/bin/python3"

pytestmark = pytest.mark.skipif(agentlib.SANITIZED, reason="the wheel is a build of its own: once is enough")

WORKER = """
import os, sys
import muster
me = muster.env()
store = muster.store(timeout=60)
store.set("from %d" % me.rank, "x" * (me.rank + 1))
value = store.get("from %d" % ((me.rank + 1) % me.world))
store.barrier("all")
os.write(1, ("rank %d of %d got %d bytes under %s from %s\\n" % (me.rank, me.world, len(value), sys.prefix, muster.__file__)).encode())
"""


@pytest.fixture(scope="session")
def wheel(tmp_path_factory):
    """Built upon what is in the build folder."""
    to = tmp_path_factory.mktemp("wheel")
    env = {**os.environ, "MUSTER_BUILDS": os.path.dirname(os.path.abspath(mulib.BIN))}
    p = subprocess.run([SOURCE / "tools" / "wheel.sh", to], capture_output=True, text=True, timeout=500, check=False, env=env)
    if "cannot be had" in p.stderr:
        pytest.skip(p.stderr.strip().split("\n")[-1])
    assert p.returncode == 0, p.stdout + p.stderr
    return Path(p.stdout.strip())


def clean(tmp, **more):
    """What a user has who never heard of the build: no LD_LIBRARY_PATH, no PYTHONPATH, nothing of ours."""
    return {"PATH": "/usr/bin:/bin", "HOME": str(tmp), "LANG": "C.UTF-8", "TMPDIR": str(tmp), **more}


def run(tmp, *words, status=0, **env):
    p = subprocess.run([str(w) for w in words], env=clean(tmp, **env), cwd=tmp, capture_output=True, text=True, timeout=INSTALL_S,
                       check=False)
    assert p.returncode == status, (words, p.returncode, p.stdout, p.stderr)
    return p


def files_of(root):
    return sorted(str(p.relative_to(root)) for p in root.rglob("*") if not p.is_dir())


def pip(venv, tmp, *words):
    return run(tmp, venv / "bin" / "pip", "--disable-pip-version-check", *words)


@pytest.fixture(scope="session")
def before_and_venv(wheel, tmp_path_factory):
    """A virtual environment, and what was in it before the wheel was installed."""
    root = tmp_path_factory.mktemp("user")
    venv = root / "venv"
    run(root, PYTHON, "-m", "venv", venv)
    run(root, venv / "bin" / "pip", "--version")  # It compiles itself at its first start.
    before = files_of(venv)
    pip(venv, root, "install", "--no-index", wheel)
    return before, venv


@pytest.fixture
def venv(before_and_venv):
    return before_and_venv[1]


@pytest.fixture
def worker(tmp_path):
    path = tmp_path / "worker.py"
    path.write_text(WORKER)
    return path


def check_workers(text, venv):
    module = next(venv.glob("lib/python*/site-packages/muster/__init__.py"))
    assert sorted(text.split("\n")[:-1]) == [f"rank {r} of 2 got {2 - r} bytes under {venv} from {module}" for r in (0, 1)], text


def test_it_is_for_any_python_and_a_known_glibc(wheel):
    name, version, python, abi, platform = wheel.name[:-4].split("-")
    assert (name, python, abi) == ("muster_launch", "py3", "none")
    assert platform.startswith("manylinux_2_") and platform.endswith("_" + os.uname().machine)
    p = subprocess.run([os.path.join(mulib.BIN, "node-agent"), "--version"], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert p.stdout.split() == ["node-agent", version]
    for file in (SOURCE / "worker-sdk" / "python" / "muster").glob("*.py"):
        ast.parse(file.read_text(), feature_version=(3, 8))


def test_the_commands_are_the_programs_themselves(venv, tmp_path):
    for program in ("node-agent", "rdzv-server", "muster"):
        assert (venv / "bin" / program).read_bytes()[:4] == b"\x7fELF", "a Python start would cost more than the launch"
        assert run(tmp_path, venv / "bin" / program, "--version").stdout.startswith(program + " ")
    assert not (venv / "bin" / "torchrun").exists(), "that is torch's own"


def test_workers_use_the_store_though_nothing_is_activated(venv, tmp_path, worker):
    p = run(tmp_path, venv / "bin" / "node-agent", "--standalone", "--nproc-per-node=2", worker)
    check_workers(p.stdout, venv)


def test_python_exec_beats_the_environment_it_lives_in(venv, tmp_path):
    script = tmp_path / "which.py"
    script.write_text("import sys\nprint(sys.prefix)\n")
    assert run(tmp_path, venv / "bin" / "node-agent", "--standalone", script).stdout == f"{venv}\n"
    p = run(tmp_path, venv / "bin" / "node-agent", "--standalone", script, PYTHON_EXEC=PYTHON)
    assert p.stdout == "/usr\n"


def test_muster_run_becomes_the_agent_in_its_torchrun_role(venv, tmp_path, worker):
    p = run(tmp_path, venv / "bin" / "python", "-m", "muster.run", "--standalone", "--nproc_per_node", "2", worker)
    check_workers(p.stdout, venv)
    p = run(tmp_path, venv / "bin" / "python", "-m", "muster.run", "--no-such-flag", "x", status=2)
    assert p.stderr.startswith("torchrun: error: unknown flag"), p.stderr
    # The same process: who started it signals and awaits the agent itself.
    held = tmp_path / "held"
    os.mkfifo(held)
    started = subprocess.Popen([venv / "bin" / "python", "-m", "muster.run", "--standalone", "--no-python", "cat", str(held)],
                               env=clean(tmp_path), cwd=tmp_path)
    try:
        with open(held, "w", encoding="utf-8"):  # Opens when the worker does.
            assert os.readlink(f"/proc/{started.pid}/exe") == str(venv / "bin" / "node-agent")
        assert started.wait(PATIENCE) == 0
    finally:
        if started.poll() is None:
            started.kill()
            started.wait()


def test_muster_run_under_the_environments_python_alone(venv, tmp_path):
    script = tmp_path / "which.py"
    script.write_text("import sys\nprint(sys.executable)\n")
    p = run(tmp_path, venv / "bin" / "python", "-m", "muster.run", "--standalone", script)
    assert p.stdout == f"{venv}/bin/python\n"


def test_a_link_named_torchrun_is_one(venv, tmp_path, worker):
    link = tmp_path / "torchrun"
    link.symlink_to(venv / "bin" / "node-agent")
    check_workers(run(tmp_path, link, "--standalone", "--nproc-per-node=2", worker).stdout, venv)
    assert run(tmp_path, link, status=2).stderr.startswith("torchrun: error:")


def check_status(venv, tmp, *before):
    """The installed server answers HTTP, by the installed module and libraries."""
    port_file, token = tmp / "port", tmp / "token"
    token.write_text("5" * 64 + "\n")
    token.chmod(0o600)
    server = subprocess.Popen([*map(str, before), str(venv / "bin" / "rdzv-server"), "--host", "127.0.0.1", "--port", "0", "--port-file",
                               str(port_file), "--state-dir", "", "--token-file", str(token)], env=clean(tmp), cwd=tmp, stderr=subprocess.PIPE)
    try:
        mulib.Lines(server.stderr).wait("listening on")
        with urllib.request.urlopen(f"http://127.0.0.1:{port_file.read_text().strip()}/status", timeout=PATIENCE) as answer:
            assert json.load(answer)["jobs"] == []
        maps = Path(f"/proc/{server.pid}/maps").read_text()
        for library in ("muster-http.so", "muster-crypto.so", "libcrypto.so.3", "libmicrohttpd.so.12", "libgnutls.so.30", "libuv.so.1", "libcjson.so.1"):
            assert f"{venv}/lib/muster/{library}" in maps, maps
    finally:
        server.terminate()
        assert server.wait(PATIENCE) == 0


def test_status_over_http(venv, tmp_path):
    check_status(venv, tmp_path)


def test_where_the_machine_has_none_of_the_libraries(venv, tmp_path, worker):
    """An empty file lies over each library that the wheel brings, in a mount namespace; but for those that Python and its ctypes need."""
    needed = subprocess.run(["ldd", os.path.realpath(PYTHON)], capture_output=True, text=True, timeout=PATIENCE, check=True).stdout
    libraries = {p.name for p in (venv / "lib" / "muster").glob("lib*")} - {"libffi.so.8"}
    libraries = {name for name in libraries if name not in needed}
    assert len(libraries) > 5
    hide = "set -e\nfor f in " + " ".join(libraries) + """
do
    for d in /lib/*-linux-gnu /usr/lib/*-linux-gnu /usr/local/lib /lib64 /usr/lib64; do
        [ ! -e $d/$f ] || mount --bind "$EMPTY" "$(realpath $d/$f)"
    done
done
exec "$@"
"""
    empty = tmp_path / "empty"
    empty.touch()
    inside = ["env", f"EMPTY={empty}", "unshare", "--mount", "--propagation", "private", "sh", "-c", hide, "sh"]
    probe = subprocess.run([*inside, "true"], capture_output=True, text=True, timeout=PATIENCE, check=False)
    if probe.returncode != 0:
        pytest.skip(f"no mount namespace can be had here: {probe.stderr.strip()}")
    built = os.path.join(mulib.BIN, "rdzv-server")
    p = run(tmp_path, *inside, built, "--version", status=127)
    assert "error while loading shared libraries" in p.stderr, "nothing was hidden"
    check_workers(run(tmp_path, *inside, venv / "bin" / "node-agent", "--standalone", "--nproc-per-node=2", worker).stdout, venv)
    check_status(venv, tmp_path, *inside)


@pytest.mark.parametrize("how", ["--target", "--prefix"])
def test_other_places_that_pip_installs_to(wheel, venv, tmp_path, worker, how):
    there = tmp_path / "there"
    pip(venv, tmp_path, "install", "--no-index", "--ignore-installed", how, there, wheel)
    modules = there if how == "--target" else next(there.glob("lib/python*/site-packages"))
    p = run(tmp_path, PYTHON, "-m", "muster.run", "--standalone", "--nproc-per-node=2", worker, PYTHONPATH=str(modules),
            PYTHONDONTWRITEBYTECODE="1")
    assert len(p.stdout.strip().split("\n")) == 2 and str(modules) in p.stdout, p.stdout
    p = run(tmp_path, there / "bin" / "node-agent", "--standalone", "--nproc-per-node=2", worker, PYTHONPATH=str(modules))
    assert len(p.stdout.strip().split("\n")) == 2, p.stdout


def test_licences_of_what_it_brings_are_in_it(venv):
    licences = next(venv.glob("lib/python*/site-packages/muster_launch-*.dist-info/licenses"))
    sources = (licences / "SOURCES.txt").read_text()
    for library in (venv / "lib" / "muster").glob("lib*.so.*"):
        line = next(s for s in sources.split("\n") if s.startswith(library.name + ": "))
        assert (licences / line.split()[-1]).stat().st_size > 0, line
    assert "Apache License" in (licences / "LICENSE").read_text()


def test_uninstall_leaves_no_file(before_and_venv, wheel, tmp_path):
    """pip itself may leave empty folders behind, as share/man."""
    before, venv = before_and_venv
    assert files_of(venv) != before
    pip(venv, tmp_path, "uninstall", "--yes", "muster-launch")
    try:
        assert files_of(venv) == before
    finally:
        pip(venv, tmp_path, "install", "--no-index", wheel)
