"""import muster: the environment, the store, progress, sections, stopping and failing from Python, under node-agent; and in a script
that trains with torch.distributed."""
import json
import os
import re
import shutil
import signal
import subprocess
import sys

import pytest

import agentlib
import mulib
from mulib import PATIENCE

SOURCE = os.environ.get("MUSTER_SOURCE", os.path.join(os.path.dirname(__file__), "..", ".."))
TORCH_PYTHON = os.environ.get("MUSTER_TORCH_PYTHON", "/var/tmp/muster-venv/bin/python")

pytestmark = pytest.mark.skipif(agentlib.SANITIZED, reason="a sanitized library cannot be loaded into a Python that is not")


def library():
    path = os.path.join(mulib.BIN, "..", "lib", "libmuster.so.0")
    assert os.path.exists(path), f"{path} is not there: build muster_sdk first"
    return os.path.abspath(path)


def variables(**more):
    return {"PYTHONPATH": os.path.join(SOURCE, "worker-sdk", "python"), "MUSTER_LIBRARY": library(), "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHON_EXEC": sys.executable, **more}


HEADER = "import json, os, sys, time\nimport muster\nme = muster.env()\ndef say(*w):\n    os.write(1, (' '.join(map(str, w)) + '\\n').encode())\n"


@pytest.fixture
def script(job):
    def start(body, *words, nproc=2, env=None, python=None):
        name = job.file(f"script{len(job.agents)}.py", HEADER + body)
        more = {"PYTHON_EXEC": python} if python else {}
        return job.start("--standalone", f"--nproc-per-node={nproc}", *words, name, env=variables(**more, **(env or {})))
    return start


def test_who_am_i(script):
    a = script("say(json.dumps(me._asdict()))", "--max-restarts=2", nproc=3)
    a.ends(0)
    found = sorted((json.loads(s) for s in a.out.lines), key=lambda e: e["rank"])
    assert [e["rank"] for e in found] == [0, 1, 2] and [e["local_rank"] for e in found] == [0, 1, 2]
    for e in found:
        assert (e["launcher"], e["world"], e["node_count"], e["round"], e["restarts_max"]) == ("agent", 3, 1, 1, 2)
    assert len({e["run_id"] for e in found}) == 1 and found[0]["run_id"]


def test_every_call_of_the_store(script):
    a = script("""
s = muster.store(timeout=20)
assert muster.store() is s
s.barrier("start")
assert s.add("n", 2) >= 2
s.barrier("added")
assert s.add("n", 0) == 2 * me.world
if me.rank == 0:
    s.set("k", b"a\\0b")
    s.append("k", "c")
s.wait("k", timeout=20)
s.barrier("set")
assert s.get("k") == b"a\\0bc" and s.check("k", "n") and not s.check("k", "nothing")
assert s.num_keys() >= 2
s.barrier("read")
if me.rank == 0:
    assert s.compare_set("k", "x", "y") == b"a\\0bc"
    assert s.compare_set("k", b"a\\0bc", "") == b"" and s.get("k") == b""
    assert s.delete("k") and not s.delete("k")
try:
    s.wait("never", timeout=0.05)
except muster.Error as e:
    assert e.errno == 110 and "never" in str(e), e
else:
    raise AssertionError("it came")
def never_comes(**limit):
    began = time.monotonic()
    try:
        s.get("never", **limit)
    except muster.Error as e:
        assert e.errno == 110 and "never" in str(e), e
    else:
        raise AssertionError("it came")
    assert time.monotonic() - began < 10, "the store's 20 s, not the limit given"
never_comes(timeout=0.05)
s.set_timeout(0.05)
assert s.get("n", timeout=20)
never_comes()  # What get() was told holds for that call alone.
s.set_timeout(20)
s.set("a list", "x")
assert s.check(["a list", "n"]) and s.check(("a list",)) and not s.check(["a list", "nothing"]) and s.check(k for k in ["a list"])
s.wait(["a list", "n"], timeout=20)
assert s.get("a list", timeout=20) == b"x"
for bad in ("a\\0b",):
    try:
        s.get(bad)
    except ValueError:
        pass
    else:
        raise AssertionError(bad)
s.barrier("end")
say("fine")
""")
    a.ends(0)
    assert a.out.lines == ["fine"] * 2


def test_a_barrier_names_who_is_missing(script):
    a = script("""
s = muster.store(timeout=20)
if me.rank == 1:
    s.wait("over", timeout=20)
else:
    try:
        s.barrier("b", timeout=0.2)
    except muster.Error as e:
        say(e)
    s.set("over", "")
""")
    a.ends(0)
    assert len(a.out.lines) == 1 and "1" in a.out.lines[0] and "barrier" in a.out.lines[0], a.out.text()


def test_the_agent_hears_steps_and_sections(script):
    a = script("""
with muster.section("load data", limit=30):
    pass
for step in range(1, 8):
    muster.progress(step)
""", env={"LOGLEVEL": "DEBUG"})
    a.ends(0)
    for rank in (0, 1):
        assert re.search(rf"worker.progress .* rank={rank} step=7\b", a.err.text()), a.err.text()
        assert re.search(rf'worker.section .* rank={rank} name="load data"', a.err.text()), a.err.text()


def test_a_failure_is_the_cause_and_names_its_section(script):
    a = script("""
muster.progress(3)
try:
    with muster.section("epoch"):
        with muster.section("read \\u00e4", limit=30):
            raise ValueError("bad \\0 byte")
except ValueError as e:
    muster.fail(f"{type(e).__name__}: {e}")
    sys.exit(5)
""", nproc=1)
    a.ends(1)
    assert re.search(r"exited with status 5: ValueError: bad +byte \(in section 'read ä' for [0-9.]+ m?s, limit 30\.0 s\) \(after step 3\)",
                     a.verdict()), a.verdict()


def test_sigterm_asks_to_stop_and_the_group_agrees(script):
    """Rank 1 alone is asked, through its own SIGTERM; with a `reduce` both stop after the same step."""
    a = script("""
import threading
muster.stop_on_sigterm()
s = muster.store(timeout=20)
def any_rank(flag, turn=[0]):
    turn[0] += 1
    s.add("t%d" % turn[0], flag)
    s.barrier("b%d" % turn[0])
    return s.add("t%d" % turn[0], 0)
assert not muster.should_stop() and not muster.should_stop(any_rank)
step = 0
while True:
    step += 1
    if me.rank == 1 and step == 3:
        os.kill(os.getpid(), 15)
    if muster.should_stop(any_rank):
        break
say("stopped after", step)
""")
    a.ends(0)
    assert a.out.lines == ["stopped after 3"] * 2, a.out.text()


def test_the_agents_sigterm_is_known_before_it_comes(script):
    a = script("""
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
muster.should_stop()
say("looking")
while not muster.should_stop():
    time.sleep(0.001)
say("asked")
""")
    a.out.wait_count("^looking", 2)
    a.signal(signal.SIGTERM)
    assert a.wait() == 1
    assert a.out.lines.count("asked") == 2, a.out.text()


def test_log_is_rank_0s_or_everybodys(script):
    a = script('muster.log("once"); muster.log("each", all_ranks=True)')
    a.ends(0)
    own = sorted(s for s in a.err.lines if "OMP" not in s)
    assert own == ["[rank 0] each", "[rank 1] each", "once"], own


def alone(code, **env):
    return subprocess.run([sys.executable, "-c", HEADER + code], capture_output=True, text=True, timeout=PATIENCE, check=False,
                          env={**agentlib.environment(), **variables(), **env})


def test_without_a_launcher_all_but_the_store_is_silent():
    p = alone("""
muster.progress(1)
with muster.section("x", limit=1):
    pass
assert not muster.should_stop()
muster.request_stop()
assert muster.should_stop() and me.world == 1 and me.launcher == "none"
muster.fail("nobody hears")
try:
    muster.store()
except muster.Error as e:
    say(e)
""")
    assert p.returncode == 0 and "no store" in p.stdout, (p.stdout, p.stderr)


def test_alone_under_mpiexec_there_is_no_store_and_the_sentence_is_true():
    if shutil.which("mpiexec.hydra") is None:
        pytest.skip("mpiexec.hydra is not installed")
    code = HEADER + """
try:
    muster.store()
except muster.Error as e:
    say(me.launcher, e.errno == 107, e)
"""
    p = subprocess.run(["mpiexec.hydra", "-n", "1", sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=False,
                       env={**agentlib.environment(), **variables()})
    assert p.returncode == 0 and p.stdout.startswith("mpi True") and "a world of one has no store" in p.stdout, (p.stdout, p.stderr)
    assert "nobody" not in p.stdout


def test_what_is_wrong_gets_a_sentence():
    p = alone("", RANK="0", WORLD_SIZE="many")
    assert p.returncode == 1 and "muster.Error" in p.stderr and "WORLD_SIZE" in p.stderr, p.stderr
    p = alone("", MUSTER_LIBRARY="/no/such.so")
    assert p.returncode == 1 and "ImportError" in p.stderr and "MUSTER_LIBRARY" in p.stderr, p.stderr


def test_arguments_that_cannot_be_are_pythons_own_errors(script):
    a = script("""
import math
s = muster.store()
class Index:
    def __index__(self): return 3
class Path:
    def __fspath__(self): return "x"
def raises(kind, words, call, *a, **k):
    try:
        call(*a, **k)
    except kind as e:
        assert type(e) is kind and words in str(e) and "\\n" not in str(e), repr(e)
        return
    except BaseException as e:
        raise AssertionError("%s(%s) gave %r" % (call, a, e))
    raise AssertionError("%s(%s) gave nothing" % (call, a))
raises(OverflowError, "amount is -9223372036854775808 to 9223372036854775807, not 1180591620717411303424", s.add, "n", 2**70)
raises(OverflowError, "amount is", s.add, "n", -2**63 - 1)
raises(TypeError, "amount is an int, not float", s.add, "n", 1.5)
raises(TypeError, "amount is an int, not str", s.add, "n", "1")
assert s.add("n") == 1 and s.add("n", Index()) == 4 and s.add("m", 2**63 - 1) == 2**63 - 1
raises(TypeError, "a value is str or bytes, not int", s.set, "k", 5)
raises(TypeError, "a value is str or bytes, not list", s.append, "k", [1])
raises(TypeError, "a value is str or bytes, not NoneType", s.compare_set, "k", None, "")
assert not s.check("k")
raises(TypeError, "a key is a str, not bytes", s.get, b"k")
raises(TypeError, "a key is a str, not int", s.wait, 5)
raises(TypeError, "a key is a str, not int", s.wait, "a", 5)
raises(TypeError, "a key is a str, not Path", s.check, Path())
raises(ValueError, "a key holds no NUL", s.set, "a\\0b", "v")
raises(TypeError, "a name is a str, not int", s.barrier, 7)
raises(TypeError, "timeout is a number of seconds or None, not str", s.get, "n", timeout="5")
raises(ValueError, "timeout is 0 or more seconds, not -1", s.get, "n", timeout=-1)
raises(ValueError, "timeout is 0 or more seconds, not nan", s.wait, "n", timeout=math.nan)
raises(ValueError, "timeout is 0 or more", s.set_timeout, -3)
assert s.get("n", timeout=math.inf) == b"4" and s.get("n", timeout=1e300) == b"4"
raises(OverflowError, "step is 0 to", muster.progress, -1)
raises(TypeError, "step is an int, not float", muster.progress, 1.0)
raises(TypeError, "limit is a number", muster.section("x", limit="y").__enter__)
say("fine")
""", nproc=1)
    a.ends(0)
    assert a.out.lines == ["fine"]


def torch_is_there():
    return subprocess.run([TORCH_PYTHON, "-c", "import torch.distributed"], capture_output=True, check=False).returncode == 0 \
        if os.access(TORCH_PYTHON, os.X_OK) else False


TRAIN = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 2))
optimizer = torch.optim.AdamW(model.parameters())
muster.stop_on_sigterm()

def any_rank(flag):
    t = torch.tensor([flag])
    dist.all_reduce(t, op=dist.ReduceOp.MAX)
    return t.item()

store = muster.store()  # Beside torch's own client, on the same server.
store.set("rank%d" % me.rank, "here")
store.wait(*["rank%d" % r for r in range(me.world)], timeout=60)
for step in range(1, 1000):
    with muster.section("step", limit=60):
        loss = model(torch.randn(8, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    muster.progress(step)
    if me.rank == 1 and step == 5:
        muster.request_stop()
    if muster.should_stop(any_rank):
        break
say("rank", me.rank, "step", step)
dist.destroy_process_group()
"""


@pytest.mark.skipif(not torch_is_there(), reason="no Python with torch (MUSTER_TORCH_PYTHON)")
def test_a_script_that_trains_with_torch(script):
    a = script(TRAIN, python=TORCH_PYTHON, env={"LOGLEVEL": "DEBUG", "OMP_NUM_THREADS": "1"})
    a.wait(120)
    assert sorted(s for s in a.out.lines if s.startswith("rank")) == ["rank 0 step 5", "rank 1 step 5"], a.out.text() + a.err.text()
    for rank in (0, 1):
        assert re.search(rf"worker.progress .* rank={rank} step=5\b", a.err.text())
