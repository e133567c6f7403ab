"""The communicator: one all-reduce of floats after the other, beside Gloo over TCP and MPICH.

Each round starts every system anew, one after the other, so that a busy moment of the machine hits all; a figure is the median over
the rounds of the best batch of a round. Gloo's column is the fastest of its three algorithms at that size, so that nobody's weak spot
is measured; an algorithm that needs more than LIMIT_S for the sizes of a round (its new ring can) has no figure for those it did not
get to. `muster-unix` is ours without shared memory, `muster-inet` with TCP alone, as between hosts.
"""
import json
import os
import signal
import subprocess

from .common import Missing, end_group, median, rdzv_server

SIZES = (4, 64, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864)
WARM = 4  # Bytes: measured first, and again; the first time counts for nobody: processes are still finding their CPUs.
GLOO = ("gloo-halving", "gloo-chunked", "gloo-ring")
LIMIT_S = 25


def run_ranks(commands):
    """Runs (argv, env) of all ranks; the JSON lines that rank 0 said in time."""
    procs = [subprocess.Popen([str(a) for a in argv], env={**os.environ, **env}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, start_new_session=True) for argv, env in commands]
    failed = None
    try:
        out, err = procs[0].communicate(timeout=LIMIT_S)
        failed = f"{err.strip() or procs[0].returncode}" if procs[0].returncode != 0 else None
    except subprocess.TimeoutExpired:
        os.killpg(procs[0].pid, signal.SIGKILL)
        out, _ = procs[0].communicate()
    finally:
        for p in procs:
            end_group(p, 1)
            p.stdout.close()
            p.stderr.close()
    if failed or not out:
        raise Missing(f"{os.path.basename(str(commands[0][0][0]))}: {failed or f'nothing within {LIMIT_S} s'}")
    return [json.loads(line) for line in out.splitlines() if line.endswith("}")]


def muster(bench, port, ranks, batches, number, more):
    env = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
           "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": f"comm-{number}", "TORCHELASTIC_RESTART_COUNT": "0",
           "TORCHELASTIC_MAX_RESTARTS": "0", **more}
    argv = [bench.tool("comm_load"), batches, WARM, *SIZES]
    return run_ranks([(argv, {**env, "RANK": str(r), "LOCAL_RANK": str(r)}) for r in range(ranks)])


def gloo(bench, name, ranks, batches, number):
    folder = bench.tmp / f"{name}-{number}"
    folder.mkdir()
    argv = [folder, batches, name.removeprefix("gloo-"), WARM, *SIZES]
    return run_ranks([([bench.tool("gloo_yardstick"), r, ranks, *argv], {}) for r in range(ranks)])


def mpich(bench, ranks, batches):
    mpiexec = bench.peer("mpiexec.hydra")
    if mpiexec is None:
        raise Missing("no mpiexec.hydra")
    return run_ranks([([mpiexec, "-n", ranks, bench.tool("mpi_yardstick"), batches, WARM, *SIZES], {})])


class Figures:
    """{system: {bytes: [best of each round]}}"""

    def __init__(self):
        self.best = {}

    def take(self, lines, rename):
        for line in lines[1:]:
            name = rename(line["name"])
            self.best.setdefault(name, {}).setdefault(line["bytes"], []).append(min(line["ns"]))

    def us(self, name, size):
        values = self.best.get(name, {}).get(size)
        return median(values) / 1000 if values else None


def attempt(bench, figures, what, run, rename):
    try:
        figures.take(run(), rename)
    except (Missing, OSError, ValueError) as e:
        bench.note(f"comm, {what}: {e}")


def measure_world(bench, port, ranks):
    figures, rounds, batches = Figures(), 3 if bench.quick else 7, 5
    for i in range(rounds):
        number = f"{ranks}-{i}"
        for name in GLOO:
            attempt(bench, figures, name, lambda a=name, n=number: gloo(bench, a, ranks, batches, n), str)
        attempt(bench, figures, "muster", lambda n=number: muster(bench, port, ranks, batches, f"u{n}", {}), str)
        attempt(bench, figures, "muster-unix", lambda n=number: muster(bench, port, ranks, batches, f"s{n}", {"MUSTER_COMM_SHM": "0"}),
                lambda _: "muster-unix")
        attempt(bench, figures, "muster-inet", lambda n=number: muster(bench, port, ranks, batches, f"i{n}", {"MUSTER_COMM_UNIX": "0"}),
                lambda _: "muster-inet")
        attempt(bench, figures, "mpich", lambda: mpich(bench, ranks, batches), str)
    for size in SIZES:
        values = {name: figures.us(name, size) for name in ("muster", "muster-unix", "muster-inet", "mpich")}
        of_gloo = {name: figures.us(name, size) for name in GLOO if figures.us(name, size)}
        fastest = min(of_gloo, key=of_gloo.get, default=None)
        values["gloo"] = of_gloo.get(fastest)
        limit = 0.2 if size <= 1024 else 1.0
        bench.add("comm", f"all-reduce, {ranks} ranks, {text_of(size)}", "us", values,
                  [("ratio", limit, "gloo"), ("ratio", 1.0, "muster-unix")], note=fastest or "")


def text_of(size):
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"


def measure(bench):
    with rdzv_server(bench) as (port, _):
        for ranks in (2, 4):
            measure_world(bench, port, ranks)
