"""What launchers cost while their workers run: memory and CPU of everything of theirs, without the workers."""
import time

from .common import Fifo, Missing, cpu_ns, program_of, pss_bytes, rdzv_server, running, tree

WORKERS = 8


def own(bench, pid):
    """The launcher's own processes: all below it that are not the worker."""
    worker = bench.tool("stamp")
    return [p for p in tree(pid) if program_of(p) not in (worker, "")]


def look(bench, pids, seconds):
    """PSS in MiB, CPU in ms a second."""
    before, t0 = sum(map(cpu_ns, pids)), time.monotonic()
    time.sleep(seconds)
    cpu = (sum(map(cpu_ns, pids)) - before) / 1e6 / (time.monotonic() - t0)
    return sum(map(pss_bytes, pids)) / 2**20, cpu


def launchers(bench, fifo):
    agent, hydra, torchrun = bench.ours("node-agent"), bench.peer("mpiexec.hydra"), bench.peer("torchrun")
    worker = [bench.tool("stamp"), fifo.path]
    if agent:
        yield "muster", [agent, "--standalone", f"--nproc-per-node={WORKERS}", "--no-python", *worker]
    if hydra:
        yield "hydra", [hydra, "-n", WORKERS, *worker]
    if torchrun:
        yield "torchrun", [torchrun, "--standalone", f"--nproc-per-node={WORKERS}", "--no-python", *worker]


def measure(bench):
    seconds = 3 if bench.quick else 10
    fifo, pss, cpu, count = Fifo(bench, "memory"), {}, {}, {}
    for name, cmd in launchers(bench, fifo):
        fifo.drain()
        try:
            with running(cmd, cwd=bench.tmp) as p:
                fifo.take(WORKERS, 60)
                pids = own(bench, p.pid)
                pss[name], cpu[name] = look(bench, pids, seconds)
                count[name] = len(pids)
        except Missing as e:
            bench.note(f"memory, {name}: {e}")
    note = ", ".join(f"{k}: {v} process{'es' * (v > 1)}" for k, v in count.items())
    bench.add("memory", f"launcher with {WORKERS} idle workers, PSS", "MiB", pss, [("max", 3.0)], note)
    bench.add("memory", f"launcher with {WORKERS} idle workers, CPU a second", "ms", cpu, [("max", 1.0)])
    fifo.close()
    try:
        with rdzv_server(bench) as (_, pid):
            server_pss, server_cpu = look(bench, tree(pid), seconds)
    except Missing as e:
        bench.note(f"memory: {e}")
        return
    bench.add("memory", "idle rdzv-server, PSS", "MiB", {"muster": server_pss}, [("max", 4.0)])
    bench.add("memory", "idle rdzv-server, CPU a second", "ms", {"muster": server_cpu}, [("max", 1.0)])
