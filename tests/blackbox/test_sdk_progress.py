"""What a worker built on the SDK tells node-agent: its steps, why it fails, and whether it should stop before SIGTERM comes."""
import re
import signal

import pytest

import mulib


@pytest.fixture
def sdk():
    return mulib.program("sdk_ddp_progress")


def agent(job, *words, **kw):
    return job.start("--standalone", "--no-python", *words, **kw)


def test_steps_and_sections_are_in_the_agents_log(job, sdk):
    a = agent(job, "--nproc-per-node=2", sdk, "steps", "5", env={"LOGLEVEL": "DEBUG"})
    a.ends(0)
    told = a.err.text()
    for rank in (0, 1):
        assert re.search(rf"worker.progress job=\S+ round=1 rank={rank} step=5\b", told), told
        assert re.search(rf'worker.section job=\S+ round=1 rank={rank} name="load data"', told), told


def test_a_failure_is_the_cause_with_its_section(job, sdk):
    a = agent(job, "--nproc-per-node=2", sdk, "fail")
    a.ends(1)
    assert re.search(r"rank \d .*: the disk is gone \(in section 'load data' for \d+(\.\d)? m?s, limit 30\.0 s; after step 4\)",
                     a.verdict()), a.verdict()


def test_a_failure_without_an_error_file_comes_over_the_socket(job, sdk):
    a = agent(job, "--log-dir=/dev/null", sdk, "fail")
    a.ends(1)
    assert "the disk is gone (in section 'load data'" in a.verdict()
    assert "the disk is gone" in a.err.text().split("Root Cause")[1], a.err.text()  # In torchrun's block as well.


def test_who_looks_is_asked_to_stop_before_sigterm(job, sdk):
    """The worker blocks SIGTERM, so that it can say which came first."""
    # LeakSanitizer hangs at a process's end when SIGCONT, which the agent sends with SIGTERM, meets its tracer.
    a = agent(job, "--nproc-per-node=3", sdk, "until-stop", env={"ASAN_OPTIONS": "detect_leaks=0"})
    a.out.wait_count(r"^looking", 3)
    a.signal(signal.SIGTERM)
    assert a.wait() == 1
    stopped = [s for s in a.out.lines if s.startswith("stop ")]
    assert len(stopped) == 3, a.out.text()
    assert not any("late" in s for s in a.out.lines), a.out.text()


def test_a_worker_without_the_sdk_ends_by_sigterm_as_before(job):
    a = agent(job, "sh", "-c", "echo up; exec sleep 1000")
    a.out.wait("up")
    a.signal(signal.SIGTERM)
    assert a.wait() == 1


def test_a_stranger_on_the_socket_disturbs_nobody(job, sdk):
    w = job.worker("os.write(3, b'{\"type\":\"progress\",\"step\":1}'); os.write(3, b'garbage')\nsay('sent')\n"
                   "try:\n    os.write(3, b'more')\nexcept OSError as e:\n    pass\n")
    a = agent(job, w, env={"LOGLEVEL": "DEBUG"})
    a.ends(0)
    assert re.search(r"worker.progress .* step=1\b", a.err.text())
    assert re.search(r"worker.talk local_rank=0 pid=\d+ ", a.err.text()), a.err.text()
