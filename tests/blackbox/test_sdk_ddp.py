"""The reducer on a real communicator: ranks started by node-agent, gradients ready in another order on each of them."""
import re

import pytest

import mulib


@pytest.fixture
def ranks(job):
    def start(count, *words, **kw):
        return job.start("--standalone", "--no-python", f"--nproc-per-node={count}", mulib.program("sdk_ddp_ranks"), *words, **kw)
    return start


def said(agent, count):
    found = dict(re.match(r"rank (\d+): (.*)", s).groups() for s in agent.out.lines if s.startswith("rank "))
    assert sorted(map(int, found)) == list(range(count)), agent.out.text()
    return [found[str(r)] for r in range(count)]


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_gradients_are_averaged_and_ranks_stay_equal(ranks, count, dtype):
    """Every averaged value is exact, and all ranks have the same hash of 20 steps' weights."""
    a = ranks(count, "train", dtype).ends(0)
    words = said(a, count)
    assert len(set(words)) == 1, words
    m = re.fullmatch(r"equal [0-9a-f]{16} in (\d+) buckets", words[0])
    assert m and int(m.group(1)) >= 4, words


def test_all_worlds_train_the_same_model(ranks):
    """The gradients' mean differs between worlds here, but one world twice gives the same bits."""
    first, second = (said(ranks(2, "train", "f32").ends(0), 2) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("count", [1, 3])
def test_micro_batches_add_up_before_they_are_averaged(ranks, count):
    assert said(ranks(count, "accumulate").ends(0), count) == ["accumulated"] * count


def test_a_shape_that_differs_is_named_by_all(ranks):
    a = ranks(3, "shape").ends(1)
    want = "ddp: parameter 2 ('c2.w') has 18433 elements on rank 1 and 18432 on rank 0: all ranks must build the same model"
    assert [s for s in a.out.lines if s.startswith("rank ")], a.out.text()
    assert all(s.endswith(want) for s in a.out.lines), a.out.text()


def test_a_bit_that_differs_is_named_by_all(ranks):
    a = ranks(3, "drift").ends(1)
    assert a.out.lines, a.err.text()
    assert all(re.search(r"ddp: parameter 4 \('c2\.b'\) on rank 2 differs from rank 0's", s) for s in a.out.lines), a.out.text()


def test_a_rank_that_dies_fails_the_others_bucket(ranks):
    # LeakSanitizer hangs at a process's end when SIGCONT, which the agent sends with SIGTERM, meets its tracer.
    a = ranks(3, "die", env={"ASAN_OPTIONS": "detect_leaks=0"}).ends(1)
    assert "rank 1 " in a.verdict() and "exited with status 7" in a.verdict(), a.verdict()
    assert sorted(s[:7] for s in a.out.lines) == ["rank 0:", "rank 2:"], a.out.text()
    # A peer that was slow to leave the barrier before it hears of the death there.
    for line in a.out.lines:
        assert re.search(r"^rank \d: (ddp: bucket \d of \d \(parameters \d to \d\): )?.*rank 1 ", line), a.out.text()
