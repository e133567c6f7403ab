"""Launch: the whole time of a launcher that starts N workers which do nothing, until it has ended."""
from .common import lines_of, median, ms

COUNTS = (1, 8, 64, 256)
LIMITS = {8: 2.0, 64: 1.3, 256: 1.3}  # Times the bare loop.
WORKER = "/bin/true"


def commands(bench, n):
    agent, hydra, torchrun = bench.ours("node-agent"), bench.peer("mpiexec.hydra"), bench.peer("torchrun")
    fast = {"loop": [bench.tool("spawn_loop"), n, WORKER]}
    if agent:
        fast["muster"] = [agent, "--standalone", f"--nproc-per-node={n}", "--no-python", WORKER]
    if hydra:
        fast["hydra"] = [hydra, "-n", n, WORKER]
    slow = {}
    if torchrun:
        slow["torchrun"] = [torchrun, "--standalone", f"--nproc-per-node={n}", "--no-python", WORKER]
    return fast, slow


def timed(bench, commands_by_name, rounds):
    """Interleaved; wall times of the runs that ended well, by name."""
    cmd, names = [bench.tool("timed"), rounds, 120000], list(commands_by_name)
    for i, name in enumerate(names):
        cmd += ["---"] * (i > 0) + commands_by_name[name]
    walls = {name: [] for name in names}
    for r in lines_of(cmd, 3600):
        name = names[r["command"]]
        if r["timed_out"] or r["status"] != 0:
            bench.note(f"launch: {name} {'hung' if r['timed_out'] else 'exited with %d' % r['status']}")
            continue
        walls[name].append(r["wall_ns"])
    return walls


def measure(bench):
    blocks, rounds = (1, 7) if bench.quick else (4, 10)
    for n in COUNTS:
        fast, slow = commands(bench, n)
        walls = {}
        for _ in range(blocks):
            for some in (timed(bench, fast, rounds), timed(bench, slow, 1) if slow else {}):
                for name, values in some.items():
                    walls.setdefault(name, []).extend(values)
        checks = [("ratio", 1.0, "hydra")] + ([("ratio", LIMITS[n], "loop")] if n in LIMITS else [])
        mins = {k: ms(min(v)) if v else None for k, v in walls.items()}
        mids = {k: ms(median(v)) for k, v in walls.items()}
        bench.add("launch", f"{n} workers, median", "ms", mids, checks)
        bench.add("launch", f"{n} workers, minimum", "ms", mins, checks)
