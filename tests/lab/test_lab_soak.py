"""A training that is disturbed all the time loses nothing, leaves nothing behind, and always knows why.

MUSTER_SOAK_S=3600 for an hour; two minutes by default. MUSTER_SOAK_SEED repeats the faults of an earlier run; the seed is printed."""
import os
import random
import statistics

import pytest
from conftest import BIN
from procs import pids_with
from soaklib import HOSTS, Soak, copy_reference, flat, read_losses, trainer_words

SECONDS = float(os.environ.get("MUSTER_SOAK_S", "120"))
SEED = int(os.environ.get("MUSTER_SOAK_SEED", "0")) or random.SystemRandom().randrange(1, 1000000)
ENDLESS = 1000000
LEAD_FILES = 12  # Who leads serves the workers' store: it listens, and has a connection of each; who leads changes.
SLACK_KIB = 3072  # A server that has brought back a job holds SQLite's pages, and one that was asked for its status a page of it.


def test_a_training_survives_faults_at_random(hosts):
    if not (BIN / "trainer").exists():
        pytest.skip("the trainer is not built (libopenblas-dev)")
    print(f"\nMUSTER_SOAK_SEED={SEED} MUSTER_SOAK_S={SECONDS:g}", flush=True)
    lab = hosts(HOSTS)
    soak = Soak(lab, SEED, trainer_words(lab.share, ENDLESS))
    soak.start()
    soak.disturb(SECONDS)
    incidents_checked(soak)
    memory_checked(soak)
    soak.stop()
    nothing_left(soak)
    losses_checked(lab, soak)
    for name, times in sorted(soak.took.items()):
        print(f"{name}: {len(times)} times, back after {statistics.median(times):.1f} s in the median, {max(times):.1f} s at most")


def incidents_checked(soak):
    """One cause each, and each round ended once."""
    count, kept = soak.incidents()
    assert [i["number"] for i in kept] == list(range(count - len(kept) + 1, count + 1))
    rounds = [i["round"] for i in kept]
    assert rounds == sorted(set(rounds)), rounds
    for i in kept:
        assert i["cause"] is not None and i["cause"]["kind"] != "none" and i["cause"]["sentence"], i
    assert soak.job()["round"] == count + 1
    print(f"{count} incidents, each with one cause")


def memory_checked(soak):
    """Descriptors and memory of the last quarter are those of the first."""
    for role, was in sorted(flat(soak.samples).items()):
        (pss0, pss1), (fds0, fds1) = was["pss"], was["fds"]
        print(f"{role}: PSS {pss0} -> {pss1} KiB, descriptors {fds0} -> {fds1}")
        if role.startswith("waiting"):
            continue  # One that has run workers before holds more than one that has not.
        series = [(round(t), pid, pss, fds) for t, r, pid, pss, fds in soak.samples if r == role]
        assert pss1 <= pss0 * 1.25 + SLACK_KIB, f"{role} grew from {pss0} to {pss1} KiB: {series}"
        assert fds1 <= fds0 + LEAD_FILES, f"{role} has {fds1} descriptors, and had {fds0}: {series}"


def nothing_left(soak):
    """No process, no file, no cgroup of the job on any host."""
    lab = soak.lab
    left = {h: [p for p in pids_with(lab.run_id) + pids_with(str(BIN / "trainer")) if lab.is_on(p, h)] for h in range(1, HOSTS + 1)}
    assert not any(left.values()), f"processes are left: {left}"
    for host in range(1, HOSTS + 1):
        found = lab.lab("exec", host, "sh", "-c", "find /tmp /dev/shm /run /var/tmp/muster* -xdev \\( -name '*muster*' -o -name '*torchelastic*' \\) 2>/dev/null; "
                        "find /sys/fs/cgroup -mindepth 1 -type d -name '*muster*' 2>/dev/null | grep -v lab; true")
        assert not [f for f in found.split() if not f.startswith(("/var/tmp/muster", str(lab.share)))], f"n{host}: {found}"
        found = lab.lab("exec", host, "sh", "-c", "ss -xlpH 2>/dev/null | grep -c muster; true").strip()
        assert found in ("", "0"), f"n{host}: {found} sockets"


def same_epoch(a, b):
    """(train loss, test loss, right answers). The first is a sum over the epoch, which one that was cut adds up in another order."""
    return abs(a[0] - b[0]) < 1e-12 and a[1:] == b[1:]


def losses_checked(lab, soak):
    """Every step of every rank is there, has one loss however often it was computed, and that of a run that nobody disturbed."""
    steps, epochs, again = read_losses(lab.share, 3, torn_max=len(soak.charges))
    done = max(epochs)
    per_epoch = 1 + max(s for _, e, s in steps if e == 0)
    assert {(e, s) for r, e, s in steps if r == 0 and e <= done} == {(e, s) for e in range(done + 1) for s in range(per_epoch)}
    assert sorted(epochs) == list(range(done + 1))
    assert all(same_epoch(v[0], w) for v in epochs.values() for w in v), "an epoch that was logged again has another loss"
    folder = copy_reference(lab, lambda f: trainer_words(f, done + 1), SECONDS)
    theirs, their_epochs, _ = read_losses(folder, 3)
    common = steps.keys() & theirs.keys()
    assert len({e for _, e, _ in common}) >= min(done, 20)
    assert all(steps[k] == theirs[k] for k in common), "not the losses of an undisturbed run"
    assert all(same_epoch(epochs[e][0], their_epochs[e][0]) for e in their_epochs if e <= done), "not the epochs of an undisturbed run"
    print(f"{done + 1} epochs, {len(steps)} losses, {again} computed again and equal; {len(common)} equal to the last bit to the undisturbed run's")
