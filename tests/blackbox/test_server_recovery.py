"""The server dies with SIGKILL while a round runs: agents come back, the round goes on, and no round begins beside it."""
import os
import time

from mulib import Agent


def start_two(server):
    agents = [Agent(server, host=f"n{i + 1}", nnodes=(2, 2), max_restarts=3) for i in range(2)]
    for a in agents:
        a.expect("welcome")
        a.fence = a.expect("start")["fence_ms"]
        a.started()
    for a in agents:
        a.send("beat", round=1)
        a.expect("beat")
    return agents


def resume(server, old, rank, **kw):
    a = Agent(server, host=old.fields["host"], node=old.node, nnodes=(2, 2), max_restarts=3, round=1, round_node_rank=rank,
              round_nodes=2, round_restarts=0, round_fence_ms=old.fence, round_seen=1, **{"round_state": 0, **kw})
    a.expect("welcome")
    a.round = 1
    if a.fields["round_state"] == 0:
        a.started()  # As an agent does whose workers run.
    return a


def mark_of(server):
    return server.state_dir / f"rdzv-{server.port}.live"


def test_mark_is_there_while_a_round_is_live_and_only_then(server):
    assert not mark_of(server).exists()
    a, b = start_two(server)
    assert mark_of(server).exists()
    assert oct(os.stat(mark_of(server)).st_mode & 0o777) == "0o600"
    assert oct(os.stat(server.state_dir).st_mode & 0o777) == "0o700"
    a.finished(), b.finished()
    a.expect("end"), b.expect("end")
    server.wait_status(lambda s: s["jobs"][0]["state"] == "succeeded", "it ends")
    assert not mark_of(server).exists()
    a.close(), b.close()


def test_round_goes_on_after_the_servers_death(start_server):
    first = start_server()
    a, b = start_two(first)
    first.kill()
    a.close(), b.close()
    second = start_server("--recovery", "30", port=first.port)
    second.log.wait(r"server\.recovers")
    a2 = resume(second, a, 0)
    j = second.job("job")
    assert j["state"] == "recovering" and j["round"] == 1, j
    b2 = resume(second, b, 1)
    j = second.wait_status(lambda s: s["jobs"][0]["state"] == "running", "all are back")["jobs"][0]
    assert j["round"] == 1 and j["world"] == 4 and j["restarts"] == 0
    b2.failed(local_rank=0, kind="worker_exit", exit_code=3)
    for x in (a2, b2):
        assert x.expect("stop")["round"] == 1
        x.stopped()
    for x in (a2, b2):
        assert x.expect("start")["round"] == 2
        x.close()


def test_newcomers_wait_until_a_running_round_was_heard_out(start_server):
    first = start_server()
    a, b = start_two(first)
    first.kill()
    a.close(), b.close()
    second = start_server("--recovery", "30", port=first.port)
    # Two fresh agents would be enough for a round of their own; they must not get one.
    fresh = [Agent(second, host=f"x{i}", nnodes=(2, 2), max_restarts=3) for i in range(2)]
    for f in fresh:
        f.expect("welcome")
    j = second.job("job")
    assert j["state"] == "gathering" and "restarted" in j["sentence"], j
    a2, b2 = resume(second, a, 0), resume(second, b, 1)
    j = second.wait_status(lambda s: s["jobs"][0]["state"] == "running", "the old round goes on")["jobs"][0]
    assert j["round"] == 1 and sorted(n["host"] for n in j["nodes"] if n["node_rank"] is not None) == ["n1", "n2"]
    for x in (*fresh, a2, b2):
        x.close()


def test_recovery_time_over_a_first_round_begins(start_server):
    first = start_server()
    a, b = start_two(first)
    first.kill()
    a.close(), b.close()
    second = start_server("--recovery", "0.5", port=first.port)
    fresh = [Agent(second, host=f"x{i}", nnodes=(2, 2), max_restarts=3) for i in range(2)]
    for f in fresh:
        f.expect("welcome")
        f.expect("start")
        f.close()


def test_orderly_end_in_the_middle_of_a_round_leaves_the_mark(start_server):
    first = start_server()
    a, b = start_two(first)
    assert first.stop() == 0
    assert mark_of(first).exists()
    a.expect_closed(), b.expect_closed()


def test_no_mark_no_waiting(start_server):
    first = start_server()
    a = Agent(first, nnodes=(2, 2))
    a.expect("welcome")
    first.kill()
    a.close()
    second = start_server("--recovery", "30", port=first.port)
    b, c = Agent(second, nnodes=(2, 2)), Agent(second, nnodes=(2, 2))
    b.expect("welcome"), c.expect("welcome")
    b.expect("start"), c.expect("start")
    b.close(), c.close()


def test_marks_that_nobody_renewed_for_a_day_go_and_others_stay(tmp_path, start_server):
    folder = tmp_path / "state"
    folder.mkdir()
    two_days, now = time.time() - 2 * 86400, time.time()
    for name, at in (("rdzv-1.live", two_days), ("rdzv-2.live", now), ("other", two_days)):
        (folder / name).touch()
        os.utime(folder / name, (at, at))
    (folder / "rdzv-3.live").mkdir()
    os.utime(folder / "rdzv-3.live", (two_days, two_days))
    first = start_server()
    assert sorted(p.name for p in folder.iterdir()) == ["other", "rdzv-2.live", "rdzv-3.live"]
    a, b = start_two(first)
    first.kill()
    a.close(), b.close()
    # Its own, however old it is, makes the next life careful, and is renewed as soon as a round runs.
    os.utime(mark_of(first), (two_days, two_days))
    second = start_server("--recovery", "0.2", port=first.port)
    second.log.wait("server.recovers")
    c, d = start_two(second)
    assert mark_of(second).stat().st_mtime > now - 60
    c.close(), d.close()


def test_a_mark_that_cannot_be_made_is_said_once_and_the_job_runs(tmp_path, start_server):
    s = start_server(env={"RUNTIME_DIRECTORY": str(tmp_path / "no" / "such")})
    a, b = start_two(s)
    s.log.wait(r"mark\.failed .*--state-dir")
    a.close(), b.close()
