"""A job that is disturbed for as long as one likes: four hosts, a server that keeps its jobs, the reference trainer, and faults at random
from a seed, one after the other. Each fault is followed by a look at whether the job goes on, and what it was charged for."""
import json
import os
import random
import re
import shutil
import signal
import time
from contextlib import suppress

from conftest import BIN, ROOT
from procs import pids_with

HOSTS = 4
NODES = 3  # The fourth waits as a spare, so that the world stays what it is, and every loss with it.
PORT = 29500
KEPT = HOSTS  # The agent of this host is not killed: its memory and descriptors are those of one long life.
BACK_S = 60  # Limit for the job to go on, on a busy machine.
LOGS_MIB = 8


class Story:
    """What was done, what came of it."""

    def __init__(self):
        self.began = time.monotonic()
        self.lines = []

    def add(self, text):
        self.lines.append(f"{time.monotonic() - self.began:7.1f} s  {text}")
        print(self.lines[-1], flush=True)


class Soak:
    def __init__(self, lab, seed, words):
        self.lab, self.chance, self.words = lab, random.Random(seed), words
        self.story = Story()
        self.agents, self.server = {}, None
        self.samples = []  # (seconds, role, pid, PSS, descriptors)
        self.took = {}
        self.charges = []  # (fault, incidents due, incidents that came)

    # --- what runs ---

    def start(self):
        self.start_server()
        for host in range(1, HOSTS + 1):
            self.prepare(host)
            self.start_agent(host)
        self.wait_back(None)

    def start_server(self):
        self.server = self.lab.server(1, PORT, "--state-dir", self.lab.share / "state", "--fence", 30, "--quarantine", "off")  # Faults hit hosts at random here.

    def prepare(self, host):
        """Its log folder: a small disk of its own."""
        self.lab.lab("exec", host, "sh", "-c", f"mkdir -p /logs && mount -t tmpfs -o size={LOGS_MIB}m tmpfs /logs")

    def start_agent(self, host):
        self.agents[host] = self.lab.agent(
            host, f"--nnodes={NODES}", "--nproc-per-node=1", f"--rdzv=10.88.0.1:{PORT}", "--max-restarts=1000000", "--server-timeout=600",
            "--log-dir=/logs", "--tee=3", "--progress-timeout=6", "--shutdown-timeout=5", *self.words)

    def pids(self, host, program):
        """The outermost first."""
        found = [p for p in pids_with(self.lab.run_id if program == "node-agent" else str(BIN / program), program)
                 if self.lab.is_on(p, host)]
        return sorted(found, key=lambda p: int(open(f"/proc/{p}/stat").read().rpartition(")")[2].split()[19]))

    def get(self, path):
        return json.loads(self.lab.lab("exec", 1, "curl", "-s", "-m", "5", f"http://10.88.0.1:{PORT}{path}"))

    def job(self):
        return next(j for j in self.get("/status")["jobs"] if j["id"] == self.lab.run_id)

    def incidents(self):
        body = self.get(f"/jobs/{self.lab.run_id}/incidents")
        return body["left_out"] + len(body["incidents"]), body["incidents"]

    def members(self):
        return {int(n["host"][1:]) for n in self.job()["nodes"] if n["state"] == "running"}

    def progress(self):
        """How much rank 0 has told: it grows with each step."""
        with suppress(OSError):
            return os.stat(self.lab.share / "events-0").st_size
        return 0

    def wait_back(self, before):
        """Until three nodes run and compute, the fourth waits, and all four are heard."""
        end, why = time.monotonic() + BACK_S, "nothing was asked yet"
        while time.monotonic() < end:
            time.sleep(0.05)
            for host, a in self.agents.items():
                assert a.p.poll() is None, f"the agent on n{host} ended:\n{a.story()}"
            try:
                j = self.job()
            except (AssertionError, StopIteration, json.JSONDecodeError) as e:
                why = str(e)
                continue
            states = sorted(n["state"] for n in j["nodes"] if n["connected"])
            why = f"{j['state']}: {j['sentence']}: {states}"
            size = self.progress()
            if j["state"] == "running" and states == ["running"] * NODES + ["waiting"] * (HOSTS - NODES) and size > (before or 0):
                return
        raise AssertionError(f"not back after {BACK_S} s: {why}\n" + "\n".join(self.story.lines))

    # --- what is measured ---

    def sample(self):
        """An agent that waits holds less than one that runs workers: like is compared with like."""
        now = time.monotonic() - self.story.began
        running = self.members()
        groups = [("server", self.pids(1, "rdzv-server"))] + [
            (f"{'running' if h in running else 'waiting'} agent on n{h}", self.pids(h, "node-agent")) for h in range(1, HOSTS + 1)]
        for role, pids in groups:
            with suppress(OSError, IndexError):
                pss = sum(int(re.search(r"^Pss:\s+(\d+)", open(f"/proc/{p}/smaps_rollup").read(), re.M).group(1)) for p in pids)
                fds = sum(len(os.listdir(f"/proc/{p}/fd")) for p in pids)
                self.samples.append((now, role, pids[0], pss, fds))

    # --- faults: each returns how many incidents it must have made, at least and at most ---

    def kill_worker(self):
        host = self.chance.choice(sorted(self.members()))
        self.story.add(f"SIGKILL to the worker on n{host}")
        os.kill(self.pids(host, "trainer")[0], signal.SIGKILL)
        return 1, 1

    def freeze_worker(self):
        """Longer than its steps may take."""
        host = self.chance.choice(sorted(self.members()))
        self.story.add(f"SIGSTOP to the worker on n{host}")
        os.kill(self.pids(host, "trainer")[0], signal.SIGSTOP)
        return 1, 1

    def freeze_shortly(self):
        host, seconds = self.chance.choice(sorted(self.members())), self.chance.uniform(0.2, 2)
        self.story.add(f"SIGSTOP to the worker on n{host} for {seconds:.1f} s")
        pid = self.pids(host, "trainer")[0]
        os.kill(pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(pid, signal.SIGCONT)
        return 0, 0

    def kill_agent(self):
        host, which = self.chance.choice([h for h in range(1, HOSTS + 1) if h != KEPT]), self.chance.choice([0, -1])
        due = int(host in self.members())
        self.story.add(f"SIGKILL to the {'warden' if which == 0 else 'agent'} on n{host}")
        os.kill(self.pids(host, "node-agent")[which], signal.SIGKILL)
        self.agents[host].wait(20)
        self.start_agent(host)
        return due, due

    def power_loss(self):
        host, seconds = self.chance.choice([h for h in range(1, HOSTS + 1) if h != KEPT]), self.chance.uniform(0.2, 6)
        due = int(host in self.members())
        self.story.add(f"power loss of n{host}{', the server too,' * (host == 1)} for {seconds:.1f} s")
        self.lab.lab("kill", host)
        self.agents[host].wait(20)
        time.sleep(seconds)
        self.lab.lab("start", host)
        self.prepare(host)
        if host == 1:  # Everybody heard nothing: they may have stopped their workers to be sure.
            self.start_server()
            self.start_agent(host)
            return due, 3
        self.start_agent(host)
        return due, due

    def cut(self, seconds, due):
        hosts = sorted(self.members() - {1})
        host = self.chance.choice(hosts)
        self.story.add(f"n{host} off the network for {seconds:.1f} s")
        self.lab.lab("cut", host)
        time.sleep(seconds)
        self.lab.lab("heal", host)
        return due, due

    def cut_shortly(self):
        return self.cut(self.chance.uniform(0.1, 1.2), 0)

    def cut_long(self):
        return self.cut(self.chance.uniform(4.5, 7), 1)

    def kill_server(self):
        seconds = self.chance.uniform(0, 2)
        self.story.add(f"SIGKILL to the server, a new one {seconds:.1f} s later")
        os.kill(self.pids(1, "rdzv-server")[0], signal.SIGKILL)
        self.server.wait(20)
        time.sleep(seconds)
        self.start_server()
        return 0, 0

    def fill_logs(self):
        host, seconds = self.chance.choice(sorted(self.members())), self.chance.uniform(0.5, 3)
        self.story.add(f"no room for log files on n{host} for {seconds:.1f} s")
        self.lab.lab("exec", host, "sh", "-c", "cat /dev/zero > /logs/ballast 2>/dev/null; true")
        time.sleep(seconds)
        self.lab.lab("exec", host, "rm", "/logs/ballast")
        return 0, 0

    FAULTS = (kill_worker, freeze_worker, freeze_shortly, kill_agent, power_loss, cut_shortly, cut_long, kill_server, fill_logs)

    def disturb(self, seconds):
        end, bag = time.monotonic() + seconds, []
        while time.monotonic() < end:
            if not bag:  # All of them in turn, in a random order: a short soak has each once.
                bag = self.chance.sample(self.FAULTS, len(self.FAULTS))
            fault = bag.pop()
            time.sleep(self.chance.uniform(0.3, 1.5))
            self.sample()
            size = self.progress()
            count, _ = self.incidents()
            began = time.monotonic()
            low, high = fault(self)
            if low > 0:  # The round must have ended first.
                self.wait_incident(count)
                size = self.progress()
            self.wait_back(size)
            came = self.incidents()[0] - count
            self.took.setdefault(fault.__name__, []).append(time.monotonic() - began)
            self.charges.append((fault.__name__, low, high, came))
            assert low <= came <= high, f"{fault.__name__}: {came} incidents, {low} to {high} were due\n" + self.tell_incidents()

    def wait_incident(self, count):
        end = time.monotonic() + BACK_S
        while time.monotonic() < end:
            with suppress(AssertionError, json.JSONDecodeError):
                if self.incidents()[0] > count:
                    return
            time.sleep(0.05)
        raise AssertionError("no round ended\n" + "\n".join(self.story.lines))

    def tell_incidents(self):
        return "\n".join(f"round {i['round']} -> {i['decision']}: {i['cause'] and i['cause']['sentence']}" for i in self.incidents()[1])

    # --- the end ---

    def stop(self):
        """Ask one rank to stop: all of them save, and the job ends well."""
        os.kill(self.pids(min(self.members()), "trainer")[0], signal.SIGTERM)
        for host, a in self.agents.items():
            assert a.wait(BACK_S) == 0, a.story()


def read_losses(folder, ranks, torn_max=0):
    """{(rank, epoch, step): loss}, {epoch: its numbers, each time}, how many were computed again: those must be equal to the last bit.
    A killed worker may leave half a line."""
    steps, epochs, torn, again = {}, {}, 0, 0
    for rank in range(ranks):
        for line in (folder / f"events-{rank}").read_text(errors="replace").splitlines():
            try:
                e = json.loads(line)
            except json.JSONDecodeError:
                torn += 1
                continue
            if e["event"] == "step":
                key = rank, e["epoch"], e["step"]
                again += key in steps
                assert steps.setdefault(key, e["loss"]) == e["loss"], f"{key}: {steps[key]!r}, and computed again {e['loss']!r}"
            elif e["event"] == "epoch" and rank == 0:
                epochs.setdefault(e["epoch"], []).append((e["train_loss"], e["test_loss"], e["test_correct"]))
    assert torn <= torn_max, f"{torn} torn lines in the events"
    return steps, epochs, again


def flat(samples):
    """Per role: the median of the first and of the last quarter, of PSS (KiB) and descriptors."""
    found = {}
    for role in {s[1] for s in samples}:
        mine = [s for s in samples if s[1] == role]
        if len(mine) < 4:
            continue
        quarter = max(1, len(mine) // 4)
        middle = lambda some, i: sorted(s[i] for s in some)[len(some) // 2]  # noqa: E731
        found[role] = {"pss": (middle(mine[:quarter], 3), middle(mine[-quarter:], 3)),
                       "fds": (middle(mine[:quarter], 4), middle(mine[-quarter:], 4))}
    return found


def copy_reference(lab, words, seconds):
    """The same training undisturbed, on the same hosts, until its limit; its events."""
    folder = lab.share / "undisturbed"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    server = lab.server(1, PORT + 1)
    agents = [lab.start(f"undisturbed on n{h}", h, BIN / "node-agent", "--rdzv-id=undisturbed", f"--nnodes={NODES}", "--nproc-per-node=1",
                        f"--rdzv=10.88.0.1:{PORT + 1}", *words(folder)) for h in range(1, NODES + 1)]
    end = time.monotonic() + seconds
    while time.monotonic() < end and agents[0].p.poll() is None:
        time.sleep(0.1)
    if agents[0].p.poll() is None:
        pids = [p for p in pids_with(str(folder), "trainer") if lab.is_on(p, 1)]
        os.kill(pids[0], signal.SIGTERM)
    for a in agents:
        assert a.wait(60) == 0, a.story()
    server.end()
    return folder


def trainer_words(folder, epochs):
    data = ROOT / "tests" / "data"
    return [BIN / "trainer", "--device", "cpu", "--dtype", "float64", "--data", data / "digits.bin", "--events", folder / "events-%r",
            "--epochs", epochs, "--checkpoint", folder / "ckpt", "--every", 20]
