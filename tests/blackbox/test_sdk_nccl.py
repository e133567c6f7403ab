"""The NCCL side of libmuster, without a GPU: ids made by real NCCL and handed out between processes, starts that go wrong, and
the order of calls against a stand-in library."""
import contextlib
import os
import re
import socket
import struct
import subprocess
from pathlib import Path

import pytest

import mulib

PROGRAMS = Path(os.environ.get("MUSTER_SDK_PROGRAMS", Path(mulib.BIN).parent / "tests" / "sdk"))
STANDIN = PROGRAMS / "libnccl_standin.so"
NCCL_PLACES = [os.environ.get("MUSTER_NCCL_LIBRARY", ""), "libnccl.so.2"]

pytestmark = pytest.mark.skipif(not (PROGRAMS / "nccl_ids").exists(), reason="built without NCCL: no nccl_ids")


def ctypes_opens(name):
    import ctypes
    with contextlib.suppress(OSError):
        return bool(name) and ctypes.CDLL(name) is not None
    return False


needs_nccl = pytest.mark.skipif(not any(map(ctypes_opens, NCCL_PLACES)), reason="libnccl.so.2 is not installed")


class Rank:
    """One rank's process, with the variables torchrun would give it."""

    def __init__(self, program, port, rank, world, words, round_=0, local_world=None, env=None):
        local = local_world or world
        self.rank = rank
        self.process = subprocess.Popen(
            [PROGRAMS / program, *map(str, words)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank % local),
                 "LOCAL_WORLD_SIZE": str(local), "GROUP_RANK": str(rank // local), "GROUP_WORLD_SIZE": str(world // local),
                 "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_RESTART_COUNT": str(round_),
                 "TORCHELASTIC_MAX_RESTARTS": "9", "TORCHELASTIC_RUN_ID": "sdk-nccl", "TORCHELASTIC_USE_AGENT_STORE": "True",
                 **(env or {})})
        self.out = mulib.Lines(self.process.stdout)

    def end(self):
        self.process.stdin.close()
        try:
            status = self.process.wait(mulib.PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(f"rank {self.rank} does not end:\n{self.out.text()}") from None
        self.out.thread.join(mulib.PATIENCE)
        assert status in (0, 1), f"rank {self.rank} ended with {status}:\n{self.out.text()}"
        assert "Sanitizer" not in self.out.text() and "runtime error" not in self.out.text(), self.out.text()
        return self.out.text() + "\n"


@pytest.fixture
def ranks(server):
    """Starts ranks; all are ended and looked at after the test."""
    started = []

    def start(program, rank, world, *words, **kwargs):
        started.append(Rank(program, server.port, rank, world, words, **kwargs))
        return started[-1]

    yield start
    for r in started:
        if r.process.poll() is None:
            r.process.kill()
            r.process.wait()


def run_all(ranks, world, *words, program="nccl_ids", **kwargs):
    """What each of `world` equal ranks said."""
    return [r.end() for r in [ranks(program, i, world, *words, **kwargs) for i in range(world)]]


def ids_of(text):
    """[(number, [id bytes])] of the starts in a rank's output."""
    return [(int(m.group(1)), [bytes.fromhex(w) for w in m.group(2).split(" id ")[1:]])
            for m in re.finditer(r"^start (\d+)((?: id [0-9a-f]+)+)$", text, re.M)]


# --- Ids ---

@needs_nccl
def test_real_ids_reach_all_ranks_and_somebody_listens_at_each(ranks):
    """Promise: rank 0's NCCL makes the id, all ranks get the same bytes, and its listener lives in that process."""
    group = [ranks("nccl_ids", i, 3, "maker=nccl", "exchange", "stay") for i in range(3)]
    for r in group:
        r.out.wait("^staying")
    got = [ids_of(r.out.text()) for r in group]
    assert got[0] == got[1] == got[2] and [n for n, _ in got[0]] == [1], got
    at = address_in(got[0][0][1][0])
    with socket.create_connection(at, timeout=mulib.PATIENCE):
        assert listener_pid(at[1]) == group[0].process.pid


def address_in(nccl_id):
    """Where ranks meet: NCCL's id is a random number, then a socket address."""
    family, = struct.unpack_from("=H", nccl_id, 8)
    port, = struct.unpack_from(">H", nccl_id, 10)
    assert family in (socket.AF_INET, socket.AF_INET6), f"no address in {nccl_id[:32].hex()}"
    if family == socket.AF_INET:
        return socket.inet_ntop(family, nccl_id[12:16]), port
    return socket.inet_ntop(family, nccl_id[16:32]), port


def listener_pid(port):
    inode = None
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(path).read_text().splitlines()[1:]:
            word = line.split()
            if word[3] == "0A" and int(word[1].rpartition(":")[2], 16) == port:
                inode = word[9]
    for fd in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if os.readlink(fd) == f"socket:[{inode}]":
                return int(fd.parts[2])
    return None


@needs_nccl
def test_several_real_ids_come_from_the_first_rank_of_each_block(ranks):
    """Promise: with several ids each is made where ncclCommInitRankScalable() lets its ranks meet; order is the same on all."""
    group = [ranks("nccl_ids", i, 5, "maker=nccl", "count=2", "exchange", "stay") for i in range(5)]
    for r in group:
        r.out.wait("^staying")
    got = [ids_of(r.out.text())[0][1] for r in group]
    assert all(g == got[0] for g in got) and len(got[0]) == 2
    assert [listener_pid(address_in(i)[1]) for i in got[0]] == [group[0].process.pid, group[3].process.pid]


def test_each_start_has_ids_of_its_own(ranks):
    """Promise: an id is good for one start: a second start in the same round gets a fresh one, never an earlier one."""
    texts = run_all(ranks, 2, "exchange", "exchange", "exchange")
    starts = ids_of(texts[0])
    assert ids_of(texts[1]) == starts
    assert [n for n, _ in starts] == [1, 2, 3]
    assert len({i[0] for _, i in starts}) == 3


def test_a_handle_opened_anew_in_the_same_round_reads_no_earlier_id(ranks):
    """Promise: numbers are kept in the store, so that a process which begins again does not take what lies there."""
    first = ids_of(run_all(ranks, 2, "exchange")[0])
    late = ranks("nccl_ids", 1, 2, "exchange")  # Comes alone: the old id is there, and must not be taken.
    lead = ranks("nccl_ids", 0, 2, "exchange")
    second = ids_of(lead.end())
    assert ids_of(late.end()) == second
    assert second[0][0] == 2 and second[0][1] != first[0][1]


def test_a_new_round_reads_nothing_of_the_old_one(ranks):
    """Promise: ids of a round that is over are refused: they lie under another prefix."""
    old = ids_of(run_all(ranks, 2, "exchange", round_=0)[0])
    late = ranks("nccl_ids", 1, 2, "seconds=1", "exchange", round_=1)
    text = late.end()  # Rank 0 of the new round is not there: nothing of the old round helps it.
    assert re.search(r"refused -110 .*rank 0 on ", text), text
    fresh = ids_of(run_all(ranks, 2, "exchange", round_=2)[1])
    assert fresh[0][0] == 1 and fresh[0][1] != old[0][1]


def test_names_do_not_meet(ranks):
    texts = run_all(ranks, 2, "name=a/b", "exchange", "name=a", "exchange")
    (one, a), (two, b) = ids_of(texts[0])
    assert (one, two) == (1, 1) and a != b and ids_of(texts[1]) == [(1, a), (1, b)]


# --- Starts that go wrong ---

def test_missing_ranks_are_named_with_their_hosts_to_all(ranks):
    """Promise: a start that hangs ends in time, and all who came get one sentence with ranks and hosts."""
    host = socket.gethostname()
    group = [ranks("nccl_ids", i, 4, f"seconds={1 if i == 0 else 60}", "exchange", local_world=2) for i in (0, 1)]
    texts = [r.end() for r in group]
    assert texts[0] == texts[1]
    assert re.search(r"refused -110 ids: after 1\.0 s these of 4 ranks have not come: rank 2 \(node 1, from which nobody came\), "
                     r"rank 3 \(node 1", texts[0]), texts[0]
    group = [ranks("nccl_ids", i, 4, f"seconds={1 if i == 0 else 60}", "name=b", "exchange", local_world=2) for i in (0, 1, 3)]
    texts = [r.end() for r in group]
    assert f"have not come: rank 2 on {host}\n" in texts[0] and len(set(texts)) == 1, texts


def test_a_missing_rank_0_is_named_too(ranks):
    texts = [r.end() for r in [ranks("nccl_ids", i, 3, "seconds=1", "exchange") for i in (1, 2)]]
    assert texts[0] == texts[1]
    assert f"these of 3 ranks have not come: rank 0 on {socket.gethostname()}" in texts[0], texts[0]


def test_who_comes_after_the_others_gave_up_is_told_at_once_and_the_next_start_is_whole(ranks):
    """Promise: no rank runs ahead: after a failed start all ranks are in the same start again."""
    early = ranks("nccl_ids", 1, 2, "seconds=1", "exchange", "seconds=60", "exchange")
    early.out.wait("^refused -110")
    late = ranks("nccl_ids", 0, 2, "seconds=60", "exchange", "exchange")
    late.out.wait("^refused -110 .*rank 0 on")
    assert ids_of(early.end()) == ids_of(late.end()) and [n for n, _ in ids_of(late.out.text())] == [2]


def test_many_missing_ranks_fit_into_the_sentence(ranks):
    text = ranks("nccl_ids", 0, 64, "seconds=1", "exchange", local_world=64).end()
    assert re.search(r"rank 1 on \S+, rank 2 on", text) and text.rstrip().endswith("and more"), text


def test_different_versions_are_refused_on_all_ranks_and_both_are_named(ranks):
    """Promise: ranks with different versions do not start, and the sentence says who has which."""
    group = [ranks("nccl_ids", i, 3, f"same=NCCL {'2.27.3' if i == 2 else '2.28.9'}", "exchange") for i in range(3)]
    texts = [r.end() for r in group]
    host = socket.gethostname()
    assert texts[0] == texts[1] == texts[2]
    assert f"rank 0 on {host} has NCCL 2.28.9, but rank 2 on {host} has NCCL 2.27.3" in texts[0], texts[0]


def test_different_counts_of_ids_are_refused(ranks):
    texts = [r.end() for r in [ranks("nccl_ids", i, 2, f"count={i + 1}", "exchange") for i in range(2)]]
    assert texts[0] == texts[1]
    assert "has 1 of 128 bytes, but rank 1" in texts[0] and "has 2 of 128 bytes" in texts[0], texts[0]


def test_a_maker_that_fails_is_heard_by_all(ranks):
    texts = run_all(ranks, 2, "maker=failing", "exchange")
    assert texts[0] == texts[1] == "refused -5 ids: rank 0 could not make id 0: no network interface is up\n"
    group = [ranks("nccl_ids", i, 2, f"maker={'failing' if i else 'own'}", "name=b", "count=2", "exchange") for i in range(2)]
    assert {r.end() for r in group} == {"refused -5 b: rank 1 could not make id 1: no network interface is up\n"}


def test_a_rank_that_cannot_take_part_ends_the_start_for_all(ranks):
    group = [ranks("nccl_ids", i, 3, "seconds=60", "refuse" if i == 1 else "exchange") for i in range(3)]
    texts = [r.end() for r in group]
    assert texts[0] == texts[2] == "refused -5 ids: rank 1 cannot take part: the test says so\n"


def test_second_marks_name_who_is_still_starting_and_what_failed(ranks):
    """Promise: ranks that came but did not come out are known by rank and host, and a failure is everybody's."""
    one = ranks("nccl_ids", 1, 2, "exchange", "stay", "fail")
    zero = ranks("nccl_ids", 0, 2, "exchange", "check", "leave", "missing")
    text = zero.end()
    assert "check 0 \n" in text
    assert f"missing -110 ids: these of 2 ranks have not finished their start: rank 1 on {socket.gethostname()}" in text
    one.out.wait("^staying")
    one.end()
    again = ranks("nccl_ids", 0, 1, "check")  # A world of one asks nobody.
    assert again.end() == "check 0 \n"


def test_a_failed_start_is_heard_by_the_others(ranks):
    group = [ranks("nccl_ids", i, 2, "exchange", "stay", "fail" if i else "check") for i in range(2)]
    for r in group:
        r.out.wait("^staying")
    group[1].end()
    assert "check -5 rank 1 failed: the test says so" in group[0].end()


# --- Calls, against the stand-in ---

@pytest.fixture
def standin(ranks, tmp_path):
    """Starts ranks of nccl_ops on the stand-in; `calls(rank)` are the names it was called by, in order."""
    def start(rank, world, *words, cuda=STANDIN, nccl=STANDIN, **settings):
        env = {"STANDIN_LOG": str(tmp_path / f"calls{rank}"), "MUSTER_NCCL_LIBRARY": str(nccl), "MUSTER_CUDA_LIBRARY": str(cuda),
               "STANDIN_DEVICES": "8", **{k: str(v) for k, v in settings.items()}}
        return ranks("nccl_ops", rank, world, *words, env=env)

    def calls(rank):
        return (tmp_path / f"calls{rank}").read_text().split("\n")[:-1]

    start.calls = calls
    return start


def shortened(calls):
    """Without what was asked again and again: the order that matters."""
    names = [c for c in calls if c not in ("cuInit", "cuDeviceGetCount", "ncclGetVersion")]
    return [c for i, c in enumerate(names) if i == 0 or c != names[i - 1] or c != "ncclCommGetAsyncError"]


def test_order_of_calls_of_a_whole_life(standin):
    """Promise: non-blocking start, asked until it is ready; each operation, then its event; finalize before destroy."""
    text = standin(0, 1, "open", "all_reduce", "wait", "close").end()
    assert "open 0" in text and "wait 0" in text and "cause" not in text, text
    assert shortened(standin.calls(0)) == [
        "cuDeviceGet 0", "cuDevicePrimaryCtxRetain", "cuStreamCreate priority=-5", "ncclGetUniqueId",
        "ncclCommInitRankConfig size=1 rank=0", "ncclCommGetAsyncError", "ncclAllReduce count=8 type=7", "ncclCommGetAsyncError",
        "cuEventRecord", "ncclCommGetAsyncError", "cuEventQuery", "ncclCommFinalize", "ncclCommGetAsyncError", "ncclCommDestroy",
        "cuStreamDestroy", "cuDevicePrimaryCtxRelease"]


def test_all_operations_do_what_a_world_of_one_sees(standin):
    text = standin(0, 1, "open", "all_reduce", "wait", "broadcast", "wait", "all_gather", "wait", "reduce_scatter", "wait",
                   "barrier").end()
    assert "wrong" not in text and text.count(" 0 \n") == 11, text
    ops = [c for c in standin.calls(0) if re.match("nccl(All|Broad|Reduce)", c)]
    assert ops == ["ncclAllReduce count=8 type=7", "ncclBroadcast count=8 root=0", "ncclAllGather count=8 type=7",
                   "ncclReduceScatter count=8 type=7", "ncclAllReduce count=1 type=2"]


def test_more_operations_than_are_kept_in_flight(standin):
    text = standin(0, 1, "open", "many", "wait", "close").end()
    assert "many 0" in text and "wait 0" in text, text


def test_streams_wait_for_tickets_and_the_communicator_for_streams(standin):
    """Promise: overlap needs no waiting CPU: event on their stream, ours waits for it; our event, theirs waits for it."""
    text = standin(0, 1, "open", "streams", "wait", "close", STANDIN_EVENT_STEPS=3).end()
    assert "wait_stream 0" in text and "stream_wait 0" in text and "wait 0" in text, text
    calls = standin.calls(0)
    from_ = calls.index("cuEventRecord")
    order = [c for c in calls[from_:] if c != "ncclCommGetAsyncError"][:5]
    assert order == ["cuEventRecord", "cuStreamWaitEvent", "ncclAllReduce count=8 type=7", "cuEventRecord", "cuStreamWaitEvent"]


def test_several_ids_start_by_the_scalable_call(standin):
    """Promise: many ranks start with several ids; MUSTER_NCCL_RANKS_PER_ID says how many ranks share one."""
    group = [standin(i, 4, "open", "close", MUSTER_NCCL_RANKS_PER_ID=2) for i in range(4)]
    for r in group:
        assert "open 0" in r.end(), r.out.text()
    assert [standin.calls(i).count("ncclGetUniqueId") for i in range(4)] == [1, 0, 1, 0]
    assert all(f"ncclCommInitRankScalable rank={i} ids=2" in standin.calls(i) for i in range(4))


def test_versions_that_differ_are_refused_before_any_id_is_made(standin):
    group = [standin(i, 2, "open", STANDIN_VERSION=22809 - 106 * i) for i in range(2)]
    for r in group:
        assert re.search(r"open -71 nccl/world: rank 0 on \S+ has NCCL 2\.28\.9, but rank 1 on \S+ has NCCL 2\.27\.3", r.end())
    for i in range(2):
        assert not any(c.startswith(("ncclGetUniqueId", "ncclCommInit")) for c in standin.calls(i)), standin.calls(i)


def test_an_old_library_is_refused_and_the_others_hear_of_it(standin):
    group = [standin(i, 2, "seconds=60", "open", STANDIN_VERSION=21805 if i else 22809) for i in range(2)]
    assert "open -95 nccl/world: rank 1 cannot take part: NCCL 2.18.5" in group[0].end()
    assert re.search(r"open -95 NCCL 2\.18\.5 .* is too old: 2\.19 or later is needed", group[1].end())


def test_fewer_devices_than_workers_is_said(standin):
    text = standin(0, 1, "device=3", "open", STANDIN_DEVICES=2).end()
    assert "open -19 there is no CUDA device 3 for local rank 0: this node shows 2" in text, text


def test_a_start_that_hangs_names_who_is_not_through_and_is_aborted(standin):
    """Promise: NCCL's own start has a deadline; the one that is stuck is named, the other ranks are told."""
    group = [standin(i, 2, "seconds=2", "open", *(["stay"] if i == 0 else []), STANDIN_INIT_STEPS=-1 if i else 2) for i in range(2)]
    text = group[1].end()
    assert re.search(r"open -110 nccl/world: these of 2 ranks have not finished their start: rank 1 on \S+", text), text
    assert "ncclCommAbort" in standin.calls(1) and "ncclCommDestroy" not in standin.calls(1)
    assert "open 0" in group[0].end()


def test_a_start_that_fails_on_one_rank_ends_the_others_at_once(standin):
    group = [standin(i, 2, "seconds=60", "open", **({"STANDIN_FAIL": "ncclCommInitRankConfig=2"} if i else {"STANDIN_INIT_STEPS": -1}))
             for i in range(2)]
    assert "open -5 NCCL: start: unhandled system error: the stand-in's own words" in group[1].end()
    assert "open -5 rank 1 failed: NCCL: start: unhandled system error" in group[0].end()
    assert "ncclCommAbort" in standin.calls(0)


def test_a_call_that_fails_becomes_the_cause_and_the_communicator_is_aborted(standin):
    text = standin(0, 1, "open", "all_reduce", "cause", "barrier", "close", STANDIN_FAIL="ncclAllReduce=3").end()
    assert "all_reduce -5 rank 0: NCCL: all-reduce: internal error: the stand-in's own words" in text, text
    assert "cause 0 -5 2 rank 0: NCCL: all-reduce: internal error" in text
    assert "barrier -5 rank 0: NCCL: all-reduce: internal error" in text  # Later ones end with the same.
    assert standin.calls(0).count("ncclCommAbort") == 1 and "ncclCommFinalize" not in standin.calls(0)


def test_an_asynchronous_error_ends_the_wait(standin):
    text = standin(0, 1, "seconds=60", "open", "all_reduce", "wait", "cause", STANDIN_ASYNC=6, STANDIN_EVENT_STEPS=-1).end()
    assert re.search(r"(all_reduce|wait) -104 rank 0: NCCL: .*remote process exited", text), text
    assert "ncclCommAbort" in standin.calls(0)


def test_an_operation_beyond_its_deadline_names_the_late_rank_and_all_end_with_that(standin):
    """Promise: the deadline names who has not issued the operation; every rank has the same cause."""
    group = [standin(i, 3, "seconds=20", "open", *(["seconds=2"] if i == 0 else []), "all_reduce",
                     *(["all_reduce", "wait", "cause"] if i < 2 else ["stay", "wait", "cause"]), STANDIN_EVENT_STEPS=-1) for i in range(3)]
    group[2].out.wait("^staying")
    texts = [r.end() for r in group[:2]] + [group[2].end()]
    for text in texts:
        assert re.search(r"cause 2 -110 4 nccl/world: operation 2 is not done on rank 0 after 2\.0 s: rank 2 on \S+ has issued only [01]$",
                         text, re.M), text
    for i in range(3):
        assert "ncclCommAbort" in standin.calls(i)


def test_abort_ends_the_others_with_its_reason(standin):
    group = [standin(i, 2, "seconds=60", "open", "all_reduce", *(["abort"] if i else []), "wait", "cause", STANDIN_EVENT_STEPS=-1)
             for i in range(2)]
    for r in group:
        assert "cause 1 -125 5 rank 1 aborted: the test says so" in r.end(), r.out.text()


@pytest.mark.parametrize("hang, words", [("ncclCommAbort", ["abort"]), ("ncclCommDestroy", [])])
def test_freeing_that_hangs_is_left_after_its_deadline(standin, hang, words):
    """Promise: when a peer does not abort, freeing hangs; close() does not."""
    text = standin(0, 1, "open", "all_reduce", "wait", *words, "close", STANDIN_HANG=hang).end()
    ms = int(re.search(r"^close (\d+)", text, re.M).group(1))
    assert 4900 <= ms < 10000, text
    assert "cuStreamDestroy" not in standin.calls(0)  # What hangs may still use it.


# --- A machine without a GPU ---

def test_no_driver_is_a_clear_sentence(standin):
    text = standin(0, 1, "open", cuda="/nowhere/libcuda.so.1").end()
    assert re.search(r'open -19 .*no CUDA driver here \(/nowhere/libcuda\.so\.1: .*\): install NVIDIA\'s driver, or use the backend "tcp"',
                     text), text


def test_no_driver_falls_back_to_tcp_when_no_backend_is_named(standin):
    text = standin(0, 1, "backend=any", "open", cuda="/nowhere/libcuda.so.1").end()
    assert "open 0" in text and "backend tcp" in text, text


@needs_nccl
def test_real_nccl_without_a_gpu_fails_its_start_with_its_own_words(standin):
    """Promise: real NCCL goes as far as it can without a GPU: ids are made and handed out, then its start fails in a sentence."""
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has a GPU")
    group = [standin(i, 2, "seconds=60", "open", nccl="libnccl.so.2") for i in range(2)]
    for r in group:
        text = r.end()
        assert re.search(r"open -5 (rank \d failed: )?NCCL: start: unhandled cuda error", text), text
