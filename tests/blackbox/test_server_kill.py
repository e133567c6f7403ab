"""kill -9 of a server that keeps its jobs, at any instant of a busy job of real agents.

MUSTER_KILLS=1000 for the whole lot; 100 by default, in less than a minute on an idle machine."""
import contextlib
import json
import os
import random
import sqlite3
import time

import agentlib
import mulib

KILLS = int(os.environ.get("MUSTER_KILLS", "100"))
SEED = int(os.environ.get("MUSTER_KILL_SEED", "1"))
NODES = 3

# Says when it begins, looks for workers of other rounds, and fails in most rounds: each end is a decision of the server.
WORKER = """#!/bin/sh
echo "start $MUSTER_ROUND $RANK $TORCHELASTIC_RESTART_COUNT $WORLD_SIZE" >>log
for f in alive.*; do
    [ -e "$f" ] && read -r pid <"$f" || continue
    round=${f#alive.}
    round=${round%%.*}
    [ "$round" = "$MUSTER_ROUND" ] && continue
    kill -0 "$pid" 2>/dev/null || { rm -f "$f"; continue; }
    tr '\\0' '\\n' <"/proc/$pid/environ" 2>/dev/null | grep -qx "MUSTER_ROUND=$round" && echo "BESIDE $MUSTER_ROUND $round $pid" >>log
done
echo $$ >"alive.$MUSTER_ROUND.$RANK"
sleep 0.0$((($MUSTER_ROUND * 7 + $RANK * 3) % 10))
[ -e finish ] && exit 0
[ "$RANK" = $(($MUSTER_ROUND % $WORLD_SIZE)) ] && exit 7
exec sleep 60
"""


def test_nothing_is_lost_at_any_instant(start_server, job, tmp_path):
    chance = random.Random(SEED)
    script = job.folder / "worker.sh"
    script.write_text(WORKER)
    script.chmod(0o755)
    server = start_server(keep=True)
    port = server.port
    agents = [job.start(f"--rdzv=127.0.0.1:{port}", f"--nnodes={NODES}", "--nproc-per-node=1", "--max-restarts=1000000",
                        "--server-timeout=300", "--no-python", str(script)) for _ in range(NODES)]
    server.wait_status(lambda s: s["jobs"] and s["jobs"][0]["round"] > 0, "the first round")
    last = (0, 0)
    began = time.monotonic()
    for n in range(KILLS):
        if chance.random() < 0.5:
            time.sleep(chance.uniform(0, 0.2))  # Most often while the agents come back.
        else:
            with contextlib.suppress(AssertionError):  # It has just decided something, which is being written or told.
                server.log.wait(r"job\.move .*(GATHERING->RUNNING|RUNNING->STOPPING)", timeout=1.5)
            time.sleep(chance.uniform(0, 0.004))
        server.kill()
        server.check_end()
        server = start_server(keep=True, port=port)
        if n % 10 == 0:
            (j,) = server.status()["jobs"]
            # Every round but the live one ended with one failure, which spent one restart.
            spent = j["round"] if j["state"] in ("stopping", "gathering") else j["round"] - 1
            assert j["restarts"] == spent, (j["state"], j["round"], j["restarts"], decisions(server))
            assert (j["round"], j["restarts"]) >= last and j["ended_at"] is None, (last, j)
            last = (j["round"], j["restarts"])
    took = time.monotonic() - began
    (job.folder / "finish").touch()
    for a in agents:
        a.ends(0, timeout=120)
    (j,) = server.status()["jobs"]
    assert j["state"] == "succeeded" and j["restarts"] == j["round"] - 1
    # Nobody was taken for dead, and nobody fenced itself.
    assert {d[1] for d in decisions(server)[:-1]} == {"restart"}
    server.stop()
    db = sqlite3.connect(server.state_dir / "rdzv.db")
    assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert db.execute("SELECT max(number) FROM incidents").fetchone() == (j["round"],)  # One a round.
    db.close()
    check_log((job.folder / "log").read_text().split("\n"), j["round"])
    print(f"{KILLS} kills in {took:.0f} s, {j['round']} rounds")


def decisions(server):
    body = json.loads(server.get("/jobs/none/incidents")[2])
    return [(i["round"], i["decision"], i["reason"], i["cause"] and i["cause"]["sentence"]) for i in body["incidents"]]


def check_log(lines, rounds):
    """No round ran beside another, none was started twice, and each knew how many restarts were spent."""
    started = {}
    for line in filter(None, lines):
        word, number, *rest = line.split()
        assert word == "start", line
        number, rank, restarts, world = int(number), *map(int, rest)
        assert world == NODES and restarts == number - 1, line
        assert rank not in started.setdefault(number, set()), f"rank {rank} of round {number} was started twice"
        started[number].add(rank)
    assert max(started) == rounds
