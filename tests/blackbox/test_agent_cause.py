"""One cause for all, and the right one: who fails because of another rank is not the cause, on whichever node it ends first."""
import re
from pathlib import Path

import pytest

import mulib

KILLS = 30
COMM_RANK = Path(mulib.BIN).parent / "tests" / "sdk" / "comm_rank"

# Ranks hold a socket to each other, as ranks of any library do; when one is gone, the others end at once with a status of their
# own and no word to anybody. Which one: another one in each round.
FALL = """
import socket
VICTIM = RESTARTS % WORLD
path = lambda a, b: "s.%d.%d.%d" % (RESTARTS, a, b)
listeners = {}
for other in range(RANK):  # The lower ranks connect to us.
    listeners[other] = socket.socket(socket.AF_UNIX)
    listeners[other].bind(path(other, RANK) + ".new")
    listeners[other].listen(1)
    os.rename(path(other, RANK) + ".new", path(other, RANK))
links = []
for other in range(RANK + 1, WORLD):
    await_file(path(RANK, other))
    links.append(socket.socket(socket.AF_UNIX))
    links[-1].connect(path(RANK, other))
links += [s.accept()[0] for s in listeners.values()]
all_up()
if RANK == VICTIM:
    HOW
select.select(links, [], [])
os._exit(1)
"""


def last_causes(agent, rounds):
    """Of each round, the last that the agent said of it."""
    said = {}
    for line in agent.err.lines:
        m = re.match(r"node-agent: round (\d+) ended: (.*?); ", line)
        if m:
            said[int(m.group(1))] = m.group(2)
    said[rounds] = agent.cause()
    assert sorted(said) == list(range(1, rounds + 1)), agent.err.text()
    return said


def check_all(agents, how):
    for a in agents:
        a.ends(1, timeout=240)
    for r in range(1, KILLS + 1):
        for a in agents:
            cause = last_causes(a, KILLS)[r]
            assert re.match(rf"rank {(r - 1) % 4} \(.*{how}", cause), f"round {r}, {a.name}: {cause}"


def test_a_killed_rank_is_the_cause_though_its_peers_on_another_node_end_first(server, job):
    w = job.worker(FALL.replace("HOW", "os.kill(os.getpid(), signal.SIGKILL)"))
    check_all(job.nodes(server, 2, "--nproc-per-node=2", f"--max-restarts={KILLS - 1}", w), "was ended by SIGKILL")


@pytest.mark.skipif(not COMM_RANK.exists(), reason="built without the SDK: no comm_rank")
@pytest.mark.parametrize("how,said", [("kill", "was ended by SIGKILL"), ("exit", "exited with status 7")])
def test_the_rank_that_the_others_name_is_the_cause(server, job, how, said):
    check_all(job.nodes(server, 2, "--nproc-per-node=2", f"--max-restarts={KILLS - 1}", COMM_RANK, "fall", how), said)


def test_a_later_kill_is_no_cause_where_a_rank_has_failed_before(server, job):
    w = job.worker("""
deaf(signal.SIGTERM)
all_up()
if RANK == 0:
    sys.exit(5)
time.sleep(0.3)
os.kill(os.getpid(), signal.SIGKILL)
""")
    agents = job.nodes(server, 2, w)
    for a in agents:
        a.ends(1)
        assert "exited with status 5" in a.cause()


def test_a_core_that_was_dumped_is_told(server, job):
    w = job.worker("""
import resource
resource.setrlimit(resource.RLIMIT_CORE, (resource.getrlimit(resource.RLIMIT_CORE)[1],) * 2)
if os.fork() == 0:
    os.abort()
say("dumps" if os.WCOREDUMP(os.wait()[1]) else "does not")
os.abort()
""")
    a, = job.nodes(server, 1, w)
    a.ends(1)
    if "does not" in a.out.lines:
        pytest.skip("this machine dumps no core")
    assert "dumps" in a.out.lines
    assert re.match(r"rank 0 .* was ended by SIGABRT \(core dumped\)$", a.cause()), a.cause()


def test_what_stood_on_stdout_is_no_reason(server, job):
    """A worker that says hello and dies has not died of hello; what it said on stderr is its reason."""
    for name, text, behind in (("out", 'say("hello")\n', ""), ("err", 'say("hello")\nos.write(2, b"no such thing\\n")\n', ": no such thing")):
        w = job.worker(text + "os.kill(os.getpid(), signal.SIGSEGV)\n", name=f"{name}.py")
        a, = job.nodes(server, 1, "--label", f"--rdzv-id={name}", w)
        a.ends(1)
        assert re.match(rf"rank 0 .* was ended by SIGSEGV( \(core dumped\))?{behind}$", a.cause()), a.cause()
        assert ("    | hello" if name == "out" else "    | no such thing") in a.err.lines
