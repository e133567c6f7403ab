"""Checkpoints under the worst: a writer killed at every system call of a commit, a full disk, a writer of a round that is over."""
import os
import re
import shutil
import signal
import subprocess

import pytest

import agentlib
import mulib
from mulib import PATIENCE

# What a commit asks of the file system.
CALLS = ("mkdir", "mkdirat", "open", "openat", "write", "fsync", "rename", "renameat", "renameat2", "unlink", "unlinkat", "flock",
         "getdents64", "close")


@pytest.fixture
def sdk():
    return mulib.program("sdk_ddp_checkpoint")


def alone(round_):
    """The one rank of a job, as an agent would start it; there is no store."""
    return agentlib.environment({"RANK": "0", "WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "j", "MUSTER_ROUND": str(round_)})


def run(sdk, *words, round_=1, pre=(), code=0):
    """Under no launcher but a round number; gives stdout."""
    env = alone(round_)
    p = subprocess.run([*pre, sdk, *map(str, words)], capture_output=True, text=True, env=env, timeout=PATIENCE, check=False)
    if code is not None:
        assert p.returncode == code, (words, p.returncode, p.stdout, p.stderr)
    return p.stdout.strip() if code == 0 else p


def latest(sdk, folder):
    found = run(sdk, "latest", folder)
    assert found != "broken", sorted(os.listdir(folder))
    return found


def has_strace():
    if shutil.which("strace") is None:
        return False
    return subprocess.run(["strace", "-qq", "-e", "trace=none", "true"], capture_output=True, check=False).returncode == 0


def kill_at(call, n):
    return ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when={n}"]


def calls_of(sdk, folder, *words):
    """How often each call is made when nothing goes wrong."""
    log = folder / "calls"
    run(sdk, *words, pre=["strace", "-f", "-qq", "-o", str(log), "-e", "trace=" + ",".join(CALLS)])
    made = re.findall(r"^\d+ +(\w+)\(", log.read_text(), re.M)
    log.unlink()
    return {c: made.count(c) for c in CALLS if c in made}


@pytest.mark.skipif(not has_strace(), reason="strace is not here, or may not trace")
@pytest.mark.skipif(agentlib.SANITIZED, reason="LeakSanitizer cannot work under strace")
@pytest.mark.parametrize("step", [2, 1], ids=["a new step", "the same step again"])
def test_a_writer_killed_at_any_call_leaves_a_whole_checkpoint(sdk, tmp_path, step):
    """After each kill the newest whole one is the old or the new, and the next writer goes on as if nothing had been."""
    model = tmp_path / "model"
    run(sdk, "write", model, 1, "old")
    counts = calls_of(sdk, tmp_path, "write", model, step, "new")
    assert counts["fsync"] >= 7 and sum(v for k, v in counts.items() if k.startswith("rename")) >= 2, counts
    shutil.rmtree(model)
    kills = 0
    for call, count in counts.items():
        for n in range(1, count + 1):
            folder = tmp_path / f"{call}.{n}"
            run(sdk, "write", folder, 1, "old")
            p = run(sdk, "write", folder, step, "new", pre=kill_at(call, n), code=None)
            if p.returncode == 0:  # One of the calls after the last word.
                continue
            assert p.returncode == -signal.SIGKILL, (call, n, p.returncode, p.stderr)
            kills += 1
            found = latest(sdk, folder).split()
            assert (found[0], found[2]) in {("1", "old"), (str(step), "new")}, (call, n, found)
            run(sdk, "prune", folder, 1)
            again = latest(sdk, folder).split()
            assert (again[0], again[2]) == (found[0], found[2]), (call, n)
            whole = os.path.basename(again[1])
            assert {e for e in os.listdir(folder)} <= {whole, "ROUND", ".lock"}, (call, n, os.listdir(folder))
            run(sdk, "write", folder, 3, "later")
            assert latest(sdk, folder).endswith(" later")
            shutil.rmtree(folder)
    assert kills > 30, kills


def on_small_disk(folder, size):
    """A prefix that gives `folder` a disk of its own; None where that cannot be had."""
    pre = ["unshare", "-rm", "sh", "-c", f'mount -t tmpfs -o size={size} none "$0" && exec "$@"', str(folder)]
    return pre if subprocess.run([*pre, "true"], capture_output=True, check=False).returncode == 0 else None


def test_a_full_disk_is_an_error_and_spares_what_is_there(sdk, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    pre = on_small_disk(disk, "64k")
    if pre is None:
        pytest.skip("no mount namespace can be made here")
    # All in one namespace: fill what is left in smaller and smaller steps, so that it breaks off at every place.
    script = """
set -e
"$1" write "$0/c" 1 old >/dev/null
fill=0
while [ $fill -lt 16 ]; do
    dd if=/dev/zero of="$0/filler" bs=4096 count=$fill 2>/dev/null || true
    status=0
    "$1" write "$0/c" 2 new >/dev/null 2>"$0/../err" || status=$?
    said=$(grep -c "No space left" "$0/../err" || true)
    echo "$status $said $("$1" latest "$0/c")"
    rm -rf "$0/filler" "$0/c/step-000000000002"
    "$1" prune "$0/c" 5
    fill=$((fill + 1))
done
echo left: $(ls -A "$0/c")
"""
    p = subprocess.run([*pre, "sh", "-c", script, str(disk), sdk], capture_output=True, text=True, env=alone(1), timeout=2 * PATIENCE,
                       check=False)
    assert p.returncode == 0, p.stderr
    *tries, left = p.stdout.splitlines()
    seen = set()
    for line in tries:
        status, said, step, _, text = line.split()
        assert (said, step, text) == {"0": ("0", "2", "new"), "1": ("1", "1", "old")}[status], p.stdout
        seen.add(status)
    assert seen == {"0", "1"}, p.stdout
    assert left == "left: .lock ROUND step-000000000001", left


class Slow:
    """A writer between begin and commit."""

    def __init__(self, sdk, folder, step, text, round_):
        env = alone(round_)
        self.process = subprocess.Popen([sdk, "slow", str(folder), str(step), text], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True, env=env)
        assert self.process.stdout.readline() == "begun\n", self.process.stderr.read()

    def commit(self):
        out, err = self.process.communicate("go\n", timeout=PATIENCE)
        return self.process.returncode, out, err


def test_a_writer_of_a_round_that_is_over_is_refused(sdk, tmp_path):
    folder = tmp_path / "c"
    old = Slow(sdk, folder, 5, "old", 3)
    os.kill(old.process.pid, signal.SIGSTOP)  # Cut off, as a rank on a host that hangs.
    assert run(sdk, "write", folder, 5, "new", round_=4) == "step 5"
    run(sdk, "prune", folder, 1)  # Does not take what a living process writes.
    assert any(e.startswith(".writing-") for e in os.listdir(folder))
    os.kill(old.process.pid, signal.SIGCONT)
    code, _, err = old.commit()
    assert code == 3 and "round 3 of job j is over: round 4 of job j writes here now" in err, (code, err)
    assert latest(sdk, folder).endswith(" new")
    assert sorted(os.listdir(folder)) == [".lock", "ROUND", "step-000000000005"]


def test_many_writers_of_two_rounds_race_and_the_newer_wins(sdk, tmp_path):
    for turn in range(10):
        folder = tmp_path / str(turn)
        old = Slow(sdk, folder, 7, "old", 1)
        new = Slow(sdk, folder, 7, "new", 2)
        for w in (old, new):
            w.process.stdin.write("go\n")
            w.process.stdin.close()
        codes = [w.process.wait(PATIENCE) for w in (old, new)]
        assert codes == [3, 0], (turn, codes)
        assert latest(sdk, folder).endswith(" new")
