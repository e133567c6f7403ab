"""libmuster as an outsider meets it: its store client in front of every server there is, its ranks under every launcher, the
installed tree. PyTorch, mpiexec.hydra and a C++ compiler are used where they are; else the case is a skip with its reason."""
import os
import re
import shutil
import signal
import socket
import subprocess
import time

import pytest

import agentlib
import mulib
from mulib import PATIENCE, program

TORCH = os.environ.get("MUSTER_TORCH_PYTHON", "/var/tmp/muster-venv/bin/python")
BUILD = os.path.dirname(mulib.BIN)
SOURCE = os.environ.get("MUSTER_SOURCE", "")
LAUNCHERS = re.compile(r"^(SLURM_|OMPI_|PMI_|PMIX_|MPI_|MPIR_|HYDRA|HYDI_|MUSTER_ROUND$)")
CONNECT = 15 * PATIENCE  # torch's server looks up the name of each client, which may take long


def clean(extra=None):
    """An environment in which no launcher left anything."""
    return {k: v for k, v in agentlib.environment(extra).items() if not LAUNCHERS.match(k) or k in (extra or {})}


def need(what, how):
    found = what if os.path.isabs(what) and os.access(what, os.X_OK) else shutil.which(what)
    if found is None:
        pytest.skip(f"{what} is not there: {how}")
    return found


@pytest.fixture(scope="module")
def torch():
    python = need(TORCH, "a virtual environment with torch 2.x, named by MUSTER_TORCH_PYTHON")
    got = subprocess.run([python, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True, timeout=300)
    if got.returncode != 0 or not got.stdout.startswith("2."):
        pytest.skip(f"{python} has no torch 2.x: {got.stdout}{got.stderr[-200:]}")
    return python


# --- the store's client ---

class Client:
    """sdk_core_store: one line, one answer."""

    def __init__(self, where, prefix="", timeout=PATIENCE, opens=True):
        self.process = subprocess.Popen([program("sdk_core_store"), where[0], str(where[1]), prefix, str(timeout)],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=clean())
        self.first = self.process.stdout.readline().strip()
        assert not opens or self.first == "open", self.first

    def send(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def answer(self):
        return self.process.stdout.readline().rstrip("\n")

    def ask(self, line):
        self.send(line)
        return self.answer()

    def ok(self, line):
        """The words of a good answer."""
        words = self.ask(line).split(" ")
        assert words[0] == "ok", f"{line}: {' '.join(words)}"
        return words[1:]

    def values(self, line):
        return [bytes.fromhex(w) for w in self.ok(line)]

    def close(self):
        self.process.stdin.close()
        code = self.process.wait(PATIENCE)
        self.process.stdout.close()
        assert code == (0 if self.first == "open" else 1)


@pytest.fixture
def client(served):
    """Opens clients of the store that this test is about."""
    opened = []

    def start(*args, **kwargs):
        opened.append(Client(served[1], *args, timeout=kwargs.pop("timeout", CONNECT), **kwargs))
        return opened[-1]

    yield start
    for c in opened:
        c.close()


TORCH_SERVER = """
import sys, torch.distributed as d
s = d.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, use_libuv=sys.argv[1] == "libuv")
print(s.port, flush=True)
sys.stdin.read()
"""


def torch_server(python, kind):
    p = subprocess.Popen([python, "-c", TORCH_SERVER, kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                         stderr=subprocess.DEVNULL, text=True, env=clean({"TORCH_CPP_LOG_LEVEL": "ERROR"}))
    return p, ("127.0.0.1", int(p.stdout.readline()))


def agents_store():
    """Where an agent serves its round's worker store, as a worker of it is told."""
    p = subprocess.Popen([program("node-agent"), "--standalone", "--nproc-per-node=1", "--no-python", "/bin/sh", "-c",
                          'echo "$MASTER_ADDR $MASTER_PORT"; read -r line'], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                         stderr=subprocess.DEVNULL, text=True, env=clean())
    host, port = p.stdout.readline().split()
    return p, (host, int(port))


@pytest.fixture(scope="module", params=["rdzv-server", "node-agent", "torch-libuv", "torch-legacy"])
def served(request, tmp_path_factory):
    """(kind, (host, port)) of each server of the protocol."""
    kind = request.param
    if kind == "rdzv-server":
        s = mulib.Server(tmp_path_factory.mktemp(kind))
        yield kind, ("127.0.0.1", s.port)
        s.check_end()
        return
    if kind == "node-agent":
        p, where = agents_store()
    else:
        p, where = torch_server(request.getfixturevalue("torch"), kind.removeprefix("torch-"))
    yield kind, where
    p.stdin.close()
    try:
        p.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        p.terminate()
        p.wait(PATIENCE)
    p.stdout.close()


def test_every_command(served, client):
    a, b = client("every/"), client("every/")
    a.ok("set k x:00ff61")
    assert b.values("get k") == [b"\x00\xffa"]
    a.ok("append k more")
    assert b.values("get k") == [b"\x00\xffamore"]
    assert (a.ok("add n 5"), b.ok("add n -7"), b.ok("add n 0")) == (["5"], ["-2"], ["-2"])
    assert a.values("cas c x: one") == [b"one"]
    assert b.values("cas c two three") == [b"one"]
    assert b.values("cas c one three") == [b"three"]
    assert a.ok("check k n c") == ["1"] and a.ok("check k none") == ["0"]
    a.ok("mset m1 1 m2 2 m3 x:")
    assert b.values("mget m3 m1 m2") == [b"", b"1", b"2"]
    b.ok("wait 5 k n m1")
    assert b.ok("delete m1") == ["1"] and b.ok("delete m1") == ["0"]
    assert int(a.ok("num")[0]) >= 5
    a.ok("ping")
    got = a.ok("list")
    assert int(got[0]) == 5 and sorted(bytes.fromhex(w) for w in got[1:]) == [b"c", b"k", b"m2", b"m3", b"n"]


def test_queues(served, client):
    if served[0] == "torch-legacy":
        return  # torch's legacy server has none.
    a, b = client("queues/"), client("queues/")
    a.ok("push q one")
    a.ok("push q two")
    assert b.ok("len q") == ["2"]
    assert b.values("pop q 1") == [b"one"] and b.values("pop q 0") == [b"two"]
    assert b.ask("pop q 0").startswith("error -11 store queue_pop 'q': the queue is empty")
    b.send("pop q 1")
    a.ok("push q three")
    assert b.answer() == "ok " + b"three".hex()


def test_a_value_of_megabytes(served, client):
    a, b = client("large/"), client("large/")
    a.ok("bigset big 8388608")
    assert b.ok("bigget big 8388608") == ["1"]


def test_waits_end_in_time_and_in_step(served, client):
    a, b = client("waits/"), client("waits/")
    b.ok("set there 1")
    began = time.monotonic()
    for i in range(5):
        got = a.ask("wait 0.05 there late")
        assert got.startswith("error -110 store wait") and "1 of 2 keys" not in got and "'late' did not come" in got
        b.ok(f"set late {i}")
        assert a.values("get there") == [b"1"] and a.values("get late") == [str(i).encode()]
        b.ok("delete late")
    assert time.monotonic() - began < PATIENCE
    a.ok("timeout 0.05")
    assert re.match(r"error -110 store get: 'late' did not come within \d+ ms", a.ask("get late"))
    a.ok(f"timeout {CONNECT}")
    a.send("get late")
    b.ok("set late now")
    assert a.answer() == "ok " + b"now".hex()


def test_barriers(served, client):
    a, b, c = client("barriers/"), client("barriers/"), client("barriers/")
    assert "barrier 'b': 2 of 3 ranks did not come within 0.1 s: 1, 2" in a.ask("barrier b 0 3 0.1")
    b.send("barrier b 1 3 60")
    a.send("barrier b 0 3 60")
    c.ok("barrier b 2 3 60")
    assert (a.answer(), b.answer()) == ("ok", "ok")


TORCH_CLIENT = """
import sys, torch.distributed as d
s = d.TCPStore(sys.argv[1], int(sys.argv[2]), is_master=False)
print(s.get("both/ours").decode(), flush=True)
s.set("both/theirs", "from torch")
print(d.PrefixStore("both", s).add("count", 1), flush=True)
"""


def test_torchs_client_sees_the_same_keys(served, client, torch):
    a = client("both/")
    a.ok("set ours from-muster")
    a.ok("add count 41")
    host, port = served[1]
    p = subprocess.run([torch, "-c", TORCH_CLIENT, host, str(port)], capture_output=True, text=True, timeout=CONNECT, env=clean())
    assert p.stdout.split() == ["from-muster", "42"], p.stderr
    assert a.values("get theirs") == [b"from torch"]


def test_a_server_that_is_killed_and_comes_back(start_server):
    server = start_server("--host", "127.0.0.1")
    c = Client(("127.0.0.1", server.port))
    c.ok("set k v")
    server.kill()
    c.send("get k")  # Asks until a server answers; this one has forgotten the key.
    again = start_server("--host", "127.0.0.1", port=server.port)
    d = Client(("127.0.0.1", again.port))
    d.ok("set k w")
    assert c.answer() == "ok " + b"w".hex()
    c.close()
    d.close()


def test_a_stopped_server_ends_every_call_in_time(server):

    c = Client(("127.0.0.1", server.port), timeout=0.3)
    server.process.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    try:
        for line in ("set k v", "get k", "add n 1", "check k", "num", "ping", "wait 0.2 k", "barrier b 0 2 0.2"):
            assert c.ask(line).startswith("error -110 "), line
        assert time.monotonic() - began < PATIENCE
    finally:
        server.process.send_signal(signal.SIGCONT)
    c.ok("timeout 20")
    assert c.ok("add fresh 1") == ["1"]
    c.close()


def test_nobody_there_is_a_sentence():
    c = Client(("127.0.0.1", free_port()), timeout=0.2, opens=False)
    assert re.match(r"error -110 no store at 127\.0\.0\.1 port \d+ within 0\.\d s \(Connection refused\): is it served", c.first), c.first
    c.close()


# --- ranks ---

def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def facts(text):
    """The ranks' lines, by rank."""
    rows = [dict(word.split("=", 1) for word in line.split()) for line in text.splitlines() if line.startswith("launcher=")]
    return {int(r["rank"]): r for r in rows}


def run_ranks(environments, *args, limit=PATIENCE * 2):
    """One process for each environment: (exit statuses, output of all)."""
    ranks = [subprocess.Popen([program("sdk_core_rank"), *args], env=clean(e), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True) for e in environments]
    end = time.monotonic() + limit
    texts = []
    try:
        for p in ranks:
            texts.append(p.communicate(timeout=max(0.1, end - time.monotonic()))[0])
    finally:
        for p in ranks:
            if p.poll() is None:
                p.kill()
                p.wait()
    return [p.returncode for p in ranks], "".join(texts)


def torch_ranks(world, port, **extra):
    return [{"RANK": str(r), "WORLD_SIZE": str(world), "LOCAL_RANK": str(r), "LOCAL_WORLD_SIZE": str(world),
             "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), **extra} for r in range(world)]


def check_met(rows, world, **want):
    assert sorted(rows) == list(range(world))
    for r in rows.values():
        assert r["here"] == str(world) and r["world"] == str(world)
        assert {k: r[k] for k in want} == want


def test_alone_there_is_no_store():
    codes, text = run_ranks([{}])
    assert codes == [0] and facts(text)[0]["store"] == ":0" and facts(text)[0]["launcher"] == "none", text


def test_rank_0_serves_where_nobody_does():
    port = free_port()
    codes, text = run_ranks(torch_ranks(4, port))
    assert codes == [0] * 4, text
    check_met(facts(text), 4, launcher="torchrun", store=f"127.0.0.1:{port}", served="0")


def test_two_lives_of_one_process():
    """On one port: a rank that opens its second handle while rank 0 closes its first waits for rank 0's second."""
    for _ in range(5):
        codes, text = run_ranks(torch_ranks(3, free_port()), "twice")
        assert codes == [0] * 3, text
        assert text.count("launcher=") == 6 and text.count("here=3") == 6, text


def test_the_store_outlives_the_last_request():
    """Rank 0 leaves at once, the others have thousands of requests to go."""
    codes, text = run_ranks(torch_ranks(3, free_port()), "busy", "3000")
    assert codes == [0] * 3, text


def test_a_rank_that_dies_does_not_hold_rank_0():
    began = time.monotonic()
    codes, text = run_ranks(torch_ranks(3, free_port()), "crash", "2")
    assert codes == [0] * 3, text
    assert time.monotonic() - began < 15, "rank 0 waited for a goodbye that cannot come"


def test_rank_0_listens_on_loopback_only_where_all_are_on_one_host():
    """Two "hosts" of one rank each: then rank 0 listens everywhere."""
    everywhere = {}
    for one_host in (True, False):
        port = free_port()
        envs = torch_ranks(2, port, **({} if one_host else {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}))
        rank0 = subprocess.Popen([program("sdk_core_rank")], env=clean(envs[0]), stdout=subprocess.PIPE, text=True)
        assert Client(("127.0.0.1", port), timeout=PATIENCE).first == "open"  # It listens.
        with open("/proc/net/tcp", encoding="ascii") as v4, open("/proc/net/tcp6", encoding="ascii") as v6:
            listening = [line.split()[1] for line in [*v4, *v6] if line.split()[3] == "0A" and line.split()[1].endswith(f":{port:04X}")]
        everywhere[one_host] = [a.split(":")[0] for a in listening]
        codes, text = run_ranks(envs[1:])
        assert codes == [0] and rank0.wait(PATIENCE) == 0, text
        rank0.stdout.close()
    assert everywhere[True] == ["0100007F"]
    assert set(everywhere[False][0]) == {"0"}


def test_a_taken_port_is_a_sentence():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        codes, text = run_ranks(torch_ranks(2, s.getsockname()[1])[:1])
    assert codes == [1] and "serve the job's store: " in text and "is taken" in text


def test_keys_of_another_round_are_never_read(server):
    """Two rounds on one store, as under a launcher that keeps it: each counts its own ranks only."""
    for attempt in ("0", "1"):
        codes, text = run_ranks(torch_ranks(2, server.port, TORCHELASTIC_USE_AGENT_STORE="True", TORCHELASTIC_RUN_ID="job",
                                            TORCHELASTIC_RESTART_COUNT=attempt))
        assert codes == [0, 0], text
        check_met(facts(text), 2, round=attempt, run_id="job", served="1")
    codes, text = run_ranks([{**e, "MUSTER_ROUND": "7"} for e in torch_ranks(2, server.port, TORCHELASTIC_USE_AGENT_STORE="True")])
    check_met(facts(text), 2, launcher="agent", round="7")


def test_under_node_agent():
    p = subprocess.run([program("node-agent"), "--standalone", "--nproc-per-node=3", "--no-python", program("sdk_core_rank")],
                       env=clean(), capture_output=True, text=True, timeout=PATIENCE * 3)
    assert p.returncode == 0, p.stderr
    check_met(facts(p.stdout), 3, served="1")


def test_under_torchrun(torch):
    p = subprocess.run([torch, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--no-python",
                        program("sdk_core_rank")], env=clean(), capture_output=True, text=True, timeout=CONNECT)
    assert p.returncode == 0, p.stderr
    check_met(facts(p.stdout), 2, launcher="torchrun", served="1")


def test_under_mpiexec_hydra_with_nothing_else_set():
    mpiexec = need("mpiexec.hydra", "apt-get install hydra or mpich")
    p = subprocess.run([mpiexec, "-n", "4", program("sdk_core_rank")], env=clean(), capture_output=True, text=True,
                       timeout=PATIENCE * 3)
    assert p.returncode == 0, p.stdout + p.stderr
    check_met(facts(p.stdout), 4, launcher="mpi", served="0", node="0/1")
    p = subprocess.run([mpiexec, "-n", "4", program("sdk_core_rank"), "busy", "2000"], env=clean(), capture_output=True, text=True,
                       timeout=PATIENCE * 3)
    assert p.returncode == 0, p.stdout + p.stderr


def test_under_mpiexec_hydra_a_rank_that_dies_ends_the_job():
    mpiexec = need("mpiexec.hydra", "apt-get install hydra or mpich")
    began = time.monotonic()
    p = subprocess.run([mpiexec, "-n", "3", program("sdk_core_rank"), "crash", "1"], env=clean(), capture_output=True, text=True,
                       timeout=PATIENCE * 3)
    assert time.monotonic() - began < 15, p.stdout + p.stderr


def test_under_mpiexec_hydra_an_address_leaves_pmi_alone():
    mpiexec = need("mpiexec.hydra", "apt-get install hydra or mpich")
    port = free_port()
    p = subprocess.run([mpiexec, "-n", "2", program("sdk_core_rank"), "twice"], capture_output=True, text=True, timeout=PATIENCE * 3,
                       env=clean({"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}))
    assert p.returncode == 0, p.stdout + p.stderr
    check_met(facts(p.stdout), 2, launcher="mpi", store=f"localhost:{port}")
    assert p.stdout.count("here=2") == 4


def test_with_open_mpis_variables_and_an_address():
    port = free_port()
    envs = [{"OMPI_COMM_WORLD_RANK": str(r), "OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_LOCAL_RANK": str(r),
             "OMPI_COMM_WORLD_LOCAL_SIZE": "3"} for r in range(3)]
    codes, text = run_ranks([{**e, "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)} for e in envs])
    assert codes == [0] * 3, text
    check_met(facts(text), 3, launcher="mpi", run_id="mpi")
    codes, text = run_ranks(envs[:1])
    assert codes == [1] and "set MASTER_ADDR and MASTER_PORT" in text


def test_with_srun_s_variables():
    """Each run has a job id of its own, so that its port is free."""
    job = str(1000000 + os.getpid())
    codes, text = run_ranks([{"SLURM_PROCID": str(r), "SLURM_NTASKS": "3", "SLURM_LOCALID": str(r), "SLURM_NODEID": "0",
                              "SLURM_NNODES": "1", "SLURM_TASKS_PER_NODE": "3", "SLURM_JOB_NODELIST": "here[07-09]",
                              "SLURM_JOB_ID": job, "SLURM_STEP_ID": "0"} for r in range(3)])
    assert codes == [0] * 3, text
    check_met(facts(text), 3, launcher="slurm", run_id=f"slurm-{job}.0")
    assert facts(text)[0]["store"].startswith("here07:")


def test_a_wrong_variable_is_a_sentence():
    codes, text = run_ranks([{"RANK": "2", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}])
    assert codes == [1] and "RANK is 2, but WORLD_SIZE is 2: 0 to 1 would be right" in text


# --- the library from outside ---

def library():
    return os.path.join(BUILD, "lib", "libmuster.so")


def test_only_muster_symbols_are_exported():
    out = subprocess.run(["nm", "-D", "--defined-only", library()], capture_output=True, text=True, check=True).stdout
    names = [line.split()[2].split("@")[0] for line in out.splitlines()]
    assert "muster_open" in names and "muster_store_set" in names and "muster_sampler_open" in names
    foreign = [n for n in names if not n.startswith("muster_")]
    assert not [n for n in foreign if "asan" not in n and "ubsan" not in n], foreign


@pytest.mark.parametrize("standard", ["c99", "c11", "c++11", "c++17"])
def test_public_headers_compile_as(standard, tmp_path):
    include = os.path.join(SOURCE, "worker-sdk", "include")
    compiler = need("c++", "apt-get install g++") if "++" in standard else need("cc", "apt-get install gcc")
    names = sorted(os.listdir(os.path.join(include, "muster")))
    assert "muster.h" in names
    for name in [*names, None]:  # Each by itself, twice, and all together.
        source = tmp_path / ("h.cpp" if "++" in standard else "h.c")
        lines = [f"#include <muster/{n}>" for n in ([name, name] if name else names)]
        source.write_text("\n".join([*lines, "int unused_here;"]) + "\n")
        p = subprocess.run([compiler, f"-std={standard}", "-pedantic-errors", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-I",
                            include, str(source)], capture_output=True, text=True)
        assert p.returncode == 0, f"{name}: {p.stderr}"


PROGRAM = """
#include <stdio.h>
#include <muster/muster.h>
#include <muster/store.h>
#include <muster/sampler.h>
int main(void)
{
    struct muster_sampler_options o = MUSTER_SAMPLER_OPTIONS_INIT;
    struct muster_error err;
    muster *m = NULL;
    muster_sampler *s = NULL;
    o.item_count = 5;
    if (muster_open(NULL, &m, &err) < 0 || muster_sampler_open(&o, &s, &err) < 0)
        return 1;
    printf("%s %u", muster_version(), (unsigned)muster_get_env(m)->world);
    for (int i = 0; i < 5; i++)
        printf(" %d", (int)muster_sampler_indices(s)[i]);
    muster_sampler_close(s);
    muster_close(m);
    return 0;
}
"""
PROJECT = """
cmake_minimum_required(VERSION 3.16)
project(outside C CXX)
find_package(muster 0.1 REQUIRED)
add_executable(in_c main.c)
target_link_libraries(in_c PRIVATE muster::sdk)
add_executable(in_cxx main.cpp)
target_link_libraries(in_cxx PRIVATE muster::sdk)
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """An installed SDK, moved once: nothing in it may name where it was built or installed."""
    root = tmp_path_factory.mktemp("sdk")
    for component in ("runtime", "sdk"):
        subprocess.run(["cmake", "--install", BUILD, "--component", component, "--prefix", str(root / "first")], check=True,
                       capture_output=True)
    os.rename(root / "first", root / "sdk")
    return root / "sdk"


def expect_program(path, lib):
    p = subprocess.run([str(path)], env=clean({"LD_LIBRARY_PATH": str(lib)}), capture_output=True, text=True, timeout=PATIENCE)
    assert p.returncode == 0 and p.stdout.endswith(" 1 4 0 1 3 2"), p.stdout + p.stderr


def is_sanitized():
    with open(library(), "rb") as f:
        return b"__asan_init" in f.read()


def libdir(prefix):
    return next(p.parent for p in prefix.rglob("libmuster.so"))


@pytest.mark.parametrize("language", ["c", "cpp"])
def test_an_outside_program_by_pkg_config(installed, tmp_path, language):
    if is_sanitized():
        pytest.skip("an outside program without sanitizers cannot load a library that has them")
    need("pkg-config", "apt-get install pkg-config")
    compiler = need("c++" if language == "cpp" else "cc", "apt-get install g++")
    lib = libdir(installed)
    flags = subprocess.run(["pkg-config", "--cflags", "--libs", "muster"], check=True, capture_output=True, text=True,
                           env={**os.environ, "PKG_CONFIG_PATH": str(lib / "pkgconfig")}).stdout.split()
    source = tmp_path / f"main.{language}"
    source.write_text(PROGRAM)
    subprocess.run([compiler, "-std=c++11" if language == "cpp" else "-std=c99", str(source), "-o", str(tmp_path / "main"), *flags],
                   check=True)
    expect_program(tmp_path / "main", lib)


def test_an_outside_project_by_find_package(installed, tmp_path):
    if is_sanitized():
        pytest.skip("an outside program without sanitizers cannot load a library that has them")
    need("c++", "apt-get install g++")
    (tmp_path / "CMakeLists.txt").write_text(PROJECT)
    (tmp_path / "main.c").write_text(PROGRAM)
    (tmp_path / "main.cpp").write_text(PROGRAM)
    for command in (["cmake", "-S", str(tmp_path), "-B", str(tmp_path / "b"), f"-DCMAKE_PREFIX_PATH={installed}"],
                    ["cmake", "--build", str(tmp_path / "b")]):
        p = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE * 6)
        assert p.returncode == 0, p.stdout + p.stderr
    expect_program(tmp_path / "b" / "in_c", libdir(installed))
    expect_program(tmp_path / "b" / "in_cxx", libdir(installed))
