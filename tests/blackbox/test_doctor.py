"""muster doctor: one machine by itself, workers of one job, and what an agent says that waits too long."""
import json
import os
import pathlib
import socket
import subprocess
import threading
import time

import pytest

import mulib
from agentlib import unused_port
from mulib import program

try:
    import jsonschema
except ImportError:
    jsonschema = None
with open(os.path.join(os.environ.get("MUSTER_SOURCE", "."), "docs", "doctor.schema.json"), encoding="utf-8") as f:
    SCHEMA = json.load(f)
STANDIN = pathlib.Path(os.environ.get("MUSTER_SDK_PROGRAMS", pathlib.Path(mulib.BIN).parent / "tests" / "sdk")) / "libnccl_standin.so"
LONG = 120  # seconds: four that measure each other on a busy machine
MUSTER = os.path.join(mulib.BIN, "muster")


def doctor(*words, env=None, timeout=60):
    clean = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "MUSTER_ROUND", "MUSTER_RDZV")}
    return subprocess.run([program("muster"), "doctor", *words], env={**clean, **(env or {})}, timeout=timeout,
                          capture_output=True, text=True, stdin=subprocess.DEVNULL)


def examined(launch):
    """What --json printed."""
    line = next((s for s in launch.out.lines if s.startswith('{"verdict"')), None)
    assert line, launch.out.text() + launch.err.text()
    return json.loads(line)


def of(got, check):
    return [f for f in got["findings"] if f["check"] == check]


def shape(got):
    for f in got["findings"]:
        assert set(f) == {"level", "check", "node", "peer", "expected", "seen", "remedy"}, f
        assert f["level"] in ("ok", "unknown", "warn", "FAIL") and f["seen"] and f["expected"], f
        assert bool(f["remedy"]) == (f["level"] in ("warn", "FAIL")), f
    if jsonschema is not None:
        jsonschema.Draft202012Validator(SCHEMA).validate(got)
    levels = ["FAIL", "warn", "unknown", "ok"]
    order = [levels.index(f["level"]) for f in got["findings"]]
    assert order == sorted(order), "the worst first"
    assert got["verdict"] == (got["findings"][0]["level"])


def test_one_machine_is_looked_at_with_nothing_running():
    got = doctor("--local", "--json")
    assert got.stderr == "", got.stderr
    page = json.loads(got.stdout)
    shape(page)
    assert got.returncode == (1 if page["verdict"] == "FAIL" else 0)
    assert {"open files", "shared memory", "disk", "own port", "GPUs"} <= {f["check"] for f in page["findings"]}
    assert page["pairs"] == [] and len(page["nodes"]) == 1 and page["nodes"][0]["facts"]["host"] == socket.gethostname()
    table = doctor("--local", "--color=never")
    assert table.stdout.startswith(f"muster doctor, {socket.gethostname()} alone: ") and "\033" not in table.stdout
    assert table.stdout.count("expected: ") == table.stdout.count("remedy: ") == sum(
        s.startswith(("FAIL ", "warn ")) for s in table.stdout.splitlines())
    assert "\033[" in doctor("--local", "--color=always").stdout


def test_low_limits_are_a_failure_and_the_exit_status():
    got = subprocess.run(["sh", "-c", f"ulimit -n 100; exec {program('muster')} doctor --local --json"], capture_output=True,
                         text=True, timeout=60)
    page = json.loads(got.stdout)
    assert got.returncode == 1 and of(page, "open files")[0]["level"] == "FAIL", got.stdout
    assert "LimitNOFILE" in of(page, "open files")[0]["remedy"]


def test_a_log_folder_is_looked_at_too(tmp_path):
    page = json.loads(doctor("--local", "--json", f"--log-dir={tmp_path}").stdout)
    assert str(tmp_path) in of(page, "disk")[0]["seen"]


def test_the_way_to_a_server_is_told(server):
    page = json.loads(doctor("--local", "--json", f"--rdzv=127.0.0.1:{server.port}").stdout)
    assert {f["level"] for c in ("server's name", "server's port", "server's clock") for f in of(page, c)} == {"ok"}
    got = doctor("--local", "--brief", env={"MUSTER_RDZV": f"127.0.0.1:{server.port}"})
    assert got.stdout.count("\n") == 1 and f"127.0.0.1 port {server.port} answers" in got.stdout, got.stdout


def test_a_server_that_is_not_there_and_one_that_is_another_program_are_told():
    port = unused_port()
    got = doctor("--local", "--brief", f"--rdzv=127.0.0.1:{port}")
    assert got.returncode == 1 and got.stdout.count("\n") == 1 and "nobody listens" in got.stdout, got.stdout
    got = doctor("--local", "--brief", "--timeout=10", "--rdzv=no.such.name.invalid:1")
    assert got.stdout.count("\n") == 1 and "no.such.name.invalid" in got.stdout, got.stdout
    with socket.create_server(("127.0.0.1", 0)) as other:
        def answer():
            c, _ = other.accept()
            c.recv(1000)
            c.sendall(b"HTTP/1.0 200 OK\r\n\r\nhello\n")
            c.close()
        t = threading.Thread(target=answer, daemon=True)
        t.start()
        got = doctor("--local", "--brief", f"--rdzv=127.0.0.1:{other.getsockname()[1]}")
        t.join(10)
    assert got.returncode == 1 and "is no rdzv-server" in got.stdout, got.stdout


@pytest.mark.parametrize("words, says", [
    ((), "no job is around it"),
    (("x",), "takes no argument"),
    (("--brief",), "--brief goes with muster doctor --local"),
    (("--local", "--watch"), "--watch does not go with muster doctor"),
])
def test_a_wrong_line_is_one_sentence_and_status_2(words, says):
    got = doctor(*words)
    assert got.returncode == 2 and got.stdout == "" and says in got.stderr and got.stderr.count("\n") == 1, got


def test_a_wrong_environment_is_one_sentence_and_status_2():
    got = doctor(env={"RANK": "5", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"})
    assert got.returncode == 2 and "RANK is 5" in got.stderr and got.stderr.count("\n") == 1, got


@pytest.mark.parametrize("nproc", [1, 2, 3, 4])
def test_workers_of_one_agent_examine_each_other(job, nproc):
    a = job.start("--standalone", f"--nproc-per-node={nproc}", "--no-python", MUSTER, "doctor", "--json")
    a.wait(LONG)
    got = examined(a)
    shape(got)
    pairs = nproc * (nproc - 1)
    assert [f["level"] for f in of(got, "took part")] == ["ok"] * nproc
    for check in ("ports", "clocks", "large messages", "link"):
        assert [f["level"] for f in of(got, check)] == ["ok"] * pairs, of(got, check)
    assert len(got["pairs"]) == pairs
    for p in got["pairs"]:
        assert p["from"] != p["to"] and p["facts"]["link"]["bytes_per_s"] > 0 and p["facts"]["link"]["latency_us"] > 0, p
    assert "nonce" not in str(got) and sum(s.startswith("{") for s in a.out.lines) == 1


def test_two_agents_examine_each_other_and_one_tells(server, job):
    agents = job.nodes(server, 2, "--no-python", MUSTER, "doctor", "--quick", "--color=never")
    codes = {a.wait(LONG) for a in agents}
    text = [a.out.text() for a in agents]
    assert len([t for t in text if t.startswith("muster doctor, 2 nodes: ")]) == 1 and sum(t == "" for t in text) == 1, text
    table = max(text, key=len)
    assert ("FAIL" in table.splitlines()[0]) == (codes == {1}) and "Links" not in table
    assert any(s.startswith("ok       all 2 pairs         ports ") for s in table.splitlines()), table


def test_under_torchruns_environment_alone(tmp_path):
    """Nothing of muster's is around it: ranks meet at a store that rank 0 serves."""
    port = unused_port()
    env = {k: v for k, v in os.environ.items() if not k.startswith(("MUSTER", "TORCHELASTIC"))}
    ranks = [subprocess.Popen([MUSTER, "doctor", "--json", "--quick"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              env={**env, "RANK": str(r), "WORLD_SIZE": "2", "LOCAL_RANK": str(r), "LOCAL_WORLD_SIZE": "2",
                                   "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}) for r in range(2)]
    out = [p.communicate(timeout=LONG) for p in ranks]
    page = json.loads(out[0][0])
    shape(page)
    assert out[1] == ("", ""), out
    assert [f["level"] for f in of(page, "took part")] == ["ok", "ok"]


def test_a_failure_is_the_jobs_cause(job):
    a = job.start("--standalone", "--nproc-per-node=2", "--no-python", "sh", "-c", f"ulimit -n 100; exec {MUSTER} doctor --quick")
    assert a.wait(LONG) == 1
    assert "open files" in a.out.text() and "muster doctor: 2 FAIL" in a.cause(), a.err.text()


def test_one_that_is_killed_is_named_and_nobody_is_left_waiting(job):
    began = time.monotonic()
    slow = job.worker(f"""
def sisters():
    with open("/proc/%d/task/%d/children" % (os.getppid(), os.getppid())) as f:
        return f.read().split()
if RANK == 1:
    while not any(open("/proc/%s/comm" % p).read() == "muster-doctor\\n" for p in sisters()):
        time.sleep(0.01)
    time.sleep(1)  # It has come, and waits.
    os.kill(os.getpid(), signal.SIGKILL)
os.execv({MUSTER!r}, ["muster", "doctor"])
""")
    a = job.start("--standalone", "--nproc-per-node=2", "--no-python", slow)
    assert a.wait(LONG) != 0
    assert "rank 1" in a.cause() and "SIGKILL" in a.cause(), a.err.text()
    assert "never said what it is" in a.out.text(), a.out.text()
    assert time.monotonic() - began < 60


@pytest.mark.skipif(not STANDIN.exists(), reason="built without NCCL: no stand-in for it")
@pytest.mark.parametrize("fail", [None, "ncclAllReduce=3"])
def test_the_child_that_measures_also_measures_nccl(server, tmp_path, fail):
    """On a stand-in for NCCL and CUDA, which moves nothing: what is called, and what is said of a failure."""
    helper = os.path.join(mulib.BIN, "..", "lib", "muster", "muster-doctor")
    env = {**{k: v for k, v in os.environ.items() if not k.startswith(("MUSTER", "TORCHELASTIC"))}, "WORLD_SIZE": "2",
           "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(server.port),
           "TORCHELASTIC_USE_AGENT_STORE": "True", "MUSTER_NCCL_LIBRARY": str(STANDIN), "MUSTER_CUDA_LIBRARY": str(STANDIN),
           **({"STANDIN_FAIL": fail} if fail else {})}
    ranks = [subprocess.Popen([helper, "--measure-link", "pair", "gpus"], stdout=subprocess.PIPE, text=True,
                              env={**env, "RANK": str(r), "GROUP_RANK": str(r), "GROUP_WORLD_SIZE": "2",
                                   "STANDIN_LOG": str(tmp_path / f"calls{r}")}) for r in range(2)]
    said = [[json.loads(s) for s in p.communicate(timeout=LONG)[0].splitlines()] for p in ranks]
    for sockets, gpus in said:
        assert sockets["backend"] == "tcp" and sockets["bytes_per_s"] > 0, said
        if fail:
            assert "ncclAllReduce" in gpus["broken"] or "rank" in gpus["broken"], said
        else:
            assert gpus["backend"] == "nccl" and gpus["bytes_per_s"] > 0, said
    assert "ncclCommInitRankConfig size=2 rank=0" in (tmp_path / "calls0").read_text()


# --- an agent that waits ---

def test_an_agent_that_finds_no_server_says_what_is_in_the_way_once(job):
    port = unused_port()
    a = job.start(f"--rdzv=127.0.0.2:{port}", "--rdzv-conf=join_timeout=8,is_host=0", "--nnodes=2", "--no-python", "true")
    a.wait(LONG)
    said = [s for s in a.err.lines if "muster doctor: " in s]
    assert len(said) == 1 and f"127.0.0.2 port {port}: refused, so nobody listens there" in said[0], a.err.text()


def test_an_agent_whose_peers_do_not_come_says_that_its_own_way_is_clear(server, job):
    a, = job.nodes(server, 1, "--rdzv-conf=join_timeout=8", "--no-python", "true", nnodes=2)
    a.wait(LONG)
    said = [s for s in a.err.lines if "muster doctor: " in s]
    assert len(said) == 1 and f"nothing wrong here: 127.0.0.1 port {server.port} answers" in said[0], a.err.text()


@pytest.mark.parametrize("words", [["--no-doctor"], ["--health-check=true"]])
def test_no_doctor_is_no_line(job, words):
    a = job.start(f"--rdzv=127.0.0.2:{unused_port()}", "--rdzv-conf=join_timeout=4,is_host=0", "--nnodes=2", *words, "--no-python",
                  "true")
    a.wait(LONG)
    assert "muster doctor" not in a.err.text()


def test_a_job_that_starts_meanwhile_is_not_held_up(server, job):
    """The look is given up as soon as the round begins: nothing of it is left, and the job ends as ever."""
    first, = job.nodes(server, 1, "--rdzv-conf=join_timeout=20", "--no-python", "true", nnodes=2)
    first.err.wait("muster doctor: |waiting for", timeout=LONG)
    second, = job.nodes(server, 1, "--rdzv-conf=join_timeout=20", "--no-python", "true", nnodes=2)
    assert first.wait(LONG) == 0 and second.wait(LONG) == 0
