"""node-agent on one node: what workers are given, what may be run, and what comes back as exit status."""
import os
import re
import subprocess

import pytest

import agentlib
import mulib

DATA = os.path.join(os.environ.get("MUSTER_SOURCE", "."), "tests", "data", "torchrun-env.txt")

DUMP = """
import json
say("ENV", json.dumps({k: v for k, v in E.items()}))
"""


# --- the environment ---

def captures():
    """Blocks of tests/data/torchrun-env.txt: (mode, agent) -> workers in order: (given, set)."""
    found = {}
    with open(DATA, encoding="ascii") as f:
        for line in f.read().splitlines():
            if line.startswith("worker "):
                _, mode, agent = line.split(" ")
                block = ({}, {})
                found.setdefault((mode, agent), []).append(block)
            elif line.startswith("given "):
                name, value = line[6:].split("=", 1)
                block[0][name] = value
            elif line and not line.startswith("#"):
                name, value = line.split("=", 1)
                block[1][name] = value
    return found


C10D = ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:{port}", "--rdzv-id=job42", "--rdzv-conf=last_call_timeout=2"]
STATIC = ["--nnodes=2", "--nproc-per-node=2", "--master-addr=127.0.0.1", "--master-port={port}"]
MODES = {
    "default_1x1": {"a": []},
    "default_1x4": {"a": ["--nproc-per-node=4"]},
    "standalone_1x4": {"a": ["--standalone", "--nnodes=1", "--nproc_per_node=4"]},
    "omp_given_1x2": {"a": ["--nproc-per-node=2"]},
    "static_1x2": {"a": ["--nproc-per-node=2", "--master-port={port}"]},
    "static_2x2": {"n0": STATIC + ["--node-rank=0"], "n1": STATIC + ["--node-rank=1"]},
    "c10d_1x2": {"a": ["--nnodes=1", "--nproc-per-node=2"] + C10D},
    "c10d_2x2": {"a": ["--nnodes=2", "--nproc-per-node=2"] + C10D, "b": ["--nnodes=2", "--nproc-per-node=2"] + C10D},
    "hetero_1+3_roles": {"a": ["--nnodes=2", "--role=x", "--nproc-per-node=1"] + C10D,
                         "b": ["--nnodes=2", "--role=y", "--nproc-per-node=3"] + C10D},
    "virtual_local_rank": {"a": ["--nproc-per-node=2", "--virtual-local-rank"]},
    "virtual_local_rank_with_CUDA_VISIBLE_DEVICES": {"a": ["--nproc-per-node=2", "--virtual-local-rank"]},
    "log_dir_dev_null": {"a": ["--log-dir=/dev/null"]},
    "share_off_1x2": {"a": ["--nproc-per-node=2"]},
    "stale_env_overridden": {"a": []},
}


# Beside torchrun's, for workers built on the SDK.
OURS = {"MUSTER_AGENT_FD": "3", "MUSTER_ROUND": "1"}


def shape(name, value, mode, port):
    """What of a value must be the same: all of it, but for names that are made up anew for each launch."""
    if name == "MASTER_PORT":
        return str(port) if mode.startswith("static") else "<port>"
    if name == "MASTER_ADDR":  # torchrun: the full host name; here a loopback address, where all nodes are on one host.
        return "<loopback>" if value in ("localhost", "127.0.0.1") else value
    if name in ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE"):
        value = re.sub(r"^.*/(torchelastic)_\w+/", r"\1_X/", value)
        value = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "<uuid>", value)
        return re.sub(r"_\w{8}/attempt", "_X/attempt", value)
    return value


def worker_environments(agent, given):
    found = []
    for line in agent.out.lines:
        env = eval(line.split(" ", 1)[1])  # pylint: disable=eval-used
        found.append({k: v for k, v in env.items() if given.get(k) != v})
    return sorted(found, key=lambda e: (int(e["RANK"]), e.get("CUDA_VISIBLE_DEVICES", "")))


@pytest.mark.parametrize("mode", MODES)
def test_workers_get_torchruns_environment(job, mode):
    port = agentlib.unused_port()
    recorded = {a: blocks for (m, a), blocks in captures().items() if m == mode}
    assert recorded.keys() == MODES[mode].keys()
    script = job.file("dump.py", agentlib.HEADER + DUMP)
    given = {k: v.replace("$TMPDIR", str(job.folder)) for k, v in next(iter(recorded.values()))[0][0].items()}
    python = {"PYTHON_EXEC": "/usr/bin/python3"}  # One that adds no variables of its own.
    agents = {}
    for name, words in MODES[mode].items():
        agents[name] = job.start(*[w.format(port=port) for w in words], script, env={**given, **python})
    started = set(agentlib.environment({**given, **python, "TMPDIR": ""}))
    got, want = {}, {}
    for name, a in agents.items():
        a.ends(0)
        # Which of two equal nodes is node 0 is not the capture's to say.
        for env in worker_environments(a, given):
            key = env.get("GROUP_RANK"), env.get("RANK")
            got[key] = {k: shape(k, v, mode, port) for k, v in env.items() if k not in started or k in given}
        for block_given, env in recorded[name]:
            want[env["GROUP_RANK"], env["RANK"]] = {**{k: shape(k, v, mode, port) for k, v in env.items()
                                                       if block_given.get(k) != v}, **OURS}
    if mode == "hetero_1+3_roles":  # Roles may have met in the other order.
        def by_role(envs):
            return sorted((e["ROLE_NAME"], e["ROLE_RANK"], e["ROLE_WORLD_SIZE"], e["LOCAL_WORLD_SIZE"]) for e in envs.values())
        assert by_role(got) == by_role(want)
        return
    assert got.keys() == want.keys()
    for key in want:
        assert sorted(got[key].items()) == sorted(want[key].items()), key


def test_a_worker_has_its_own_session_the_callers_folder_and_stdin_and_no_other_descriptor(job):
    w = job.worker('say(os.getsid(0) == os.getpid(), os.getcwd(), sys.stdin.readline().strip(), *sorted(os.listdir("/proc/self/fd")))')
    read_end, write_end = os.pipe()
    os.write(write_end, b"typed\n")
    os.close(write_end)
    a = job.start(w, stdin=read_end).ends(0)
    os.close(read_end)
    assert a.out.text() == f"True {job.folder} typed 0 1 2 3 4"  # 3 is its socket to the agent, 4 the listing itself.


def test_a_worker_starts_with_every_signal_at_its_default_and_none_blocked(job):
    ignoring = ["sh", "-c", 'trap "" HUP USR1 PIPE CHLD; exec "$@"', "sh"]
    a = job.start("--no-python", "grep", "-E", "Sig(Blk|Ign)", "/proc/self/status", pre=ignoring).ends(0)
    assert a.out.lines == ["SigBlk:\t" + 16 * "0", "SigIgn:\t" + 16 * "0"]


# --- programs ---

def test_a_python_script_runs_as_python_u_script(job):
    script = job.file("s.py", "import sys; print(sys.orig_argv[1:], sys.argv[1:], end=''); sys.stdin and None")
    a = job.start(script, "x", "--y=z").ends(0)
    assert a.out.text() == str(["-u", script, "x", "--y=z"]) + " ['x', '--y=z']"


def test_an_executable_python_script_runs_under_our_interpreter(job):
    script = job.file("tool", "#!/usr/bin/env python3\nimport sys; print(sys.orig_argv[1:])\n", 0o755)
    assert job.start(script).ends(0).out.text() == str(["-u", script])


def test_a_module_runs_as_python_m(job):
    job.file("mod.py", "import sys; print(__name__, sys.orig_argv[1:4], sys.argv[1:])")
    a = job.start("-m", "mod", "x").ends(0)
    assert a.out.text() == str("__main__") + " ['-u', '-m', 'mod'] ['x']"


def test_python_exec_names_the_interpreter(job):
    other = job.file("mypython", "#!/bin/sh\necho mine \"$@\"\n", 0o755)
    a = job.start("s.py", "x", env={"PYTHON_EXEC": other}).ends(0)
    assert a.out.text() == "mine -u s.py x"


def test_an_executable_file_runs_as_it_is(job):
    a = job.start("--nproc-per-node=2", "/bin/echo", "--nproc-per-node=7", "$local_rank").ends(0)
    assert sorted(a.out.lines) == ["--nproc-per-node=7 0", "--nproc-per-node=7 1"]


def test_a_program_with_another_interpreter_runs_as_it_is(job):
    script = job.file("tool", "#!/bin/sh\necho \"$0 $1 of $WORLD_SIZE\"\n", 0o755)
    a = job.start("./tool", "arg").ends(0)
    assert a.out.text() == "./tool arg of 1" and script


def test_no_python_looks_the_program_up_in_path(job):
    folder = job.folder / "bin"
    folder.mkdir()
    job.file("bin/here", "#!/bin/sh\necho found $0 $*\n", 0o755)
    a = job.start("--no-python", "here", "1", env={"PATH": f"/nowhere:{folder}:/bin"}).ends(0)
    assert a.out.text() == f"found {folder}/here 1"


def test_a_bare_name_that_is_no_file_here_but_a_program_in_path_is_found_there(job):
    (job.folder / "bin").mkdir()
    job.file("bin/tool", "#!/bin/sh\necho found $0 $*\n", 0o755)
    job.file("bin/script.py", "#!/usr/bin/python3\nprint('in PATH')\n", 0o755)
    path = {"PATH": f"/nowhere:{job.folder}/bin:/usr/bin:/bin"}
    assert job.start("tool", "1", env=path).ends(0).out.text() == f"found {job.folder}/bin/tool 1"
    job.file("tool", "print('a file here comes first, as with torchrun')\n")
    assert "a file here comes first" in job.start("tool", env=path).ends(0).out.text()
    assert "can't open file" in job.start("script.py", env=path).ends(1).err.text()  # Python's own business, as with torchrun.


# --- exit statuses, and what is said ---

@pytest.mark.parametrize("how, code, text", [
    ("pass", 0, None),
    ("sys.exit(3)", 1, r"rank 0 \(local rank 0, pid \d+\) on \S+ exited with status 3"),
    ("sys.exit(255)", 1, r"rank 0 .* exited with status 255"),
    ("os.kill(os.getpid(), signal.SIGSEGV)", 1, r"rank 0 .* SIGSEGV"),
    ("os.kill(os.getpid(), signal.SIGKILL)", 1, r"rank 0 .* SIGKILL"),
])
def test_exit_status_follows_the_workers(job, how, code, text):
    a = job.start(job.worker(how)).ends(code)
    if text is None:
        assert a.err.text() == ""
    else:
        assert re.search(text, a.cause()), a.verdict()
        assert "Root Cause (first observed failure):" in a.err.text()


def programs_that_cannot_be_run(job):
    job.file("plain", "no program")
    job.file("bad", "#!/no/such/interpreter\n", 0o755)
    job.file("broken", "\x7fELF but not really", 0o755)
    folder = job.folder / "folder"
    folder.mkdir()


@pytest.mark.parametrize("words, text", [
    (["--no-python", "./missing"], r"execve '\./missing': No such file or directory"),
    (["--no-python", "missing"], r"program 'missing' is not in PATH"),
    (["--no-python", "./plain"], r"execve '\./plain': Permission denied"),
    (["--no-python", "./bad"], r"execve '\./bad': its interpreter '/no/such/interpreter' \(#! line\) does not exist"),
    (["./bad"], r"execve '\./bad': its interpreter '/no/such/interpreter' \(#! line\) does not exist"),
    (["--no-python", "./broken"], r"execve '\./broken': Exec format error"),
    (["--no-python", "./folder"], r"execve '\./folder': Permission denied"),
    (["missing.py"], r"rank 0 .* exited with status 2"),
])
def test_a_program_that_cannot_be_run_is_named_with_the_reason(job, words, text):
    programs_that_cannot_be_run(job)
    a = job.start(*words).ends(1)
    assert re.search(text, a.err.text()), a.err.text()
    if "PATH" not in text:
        assert len([s for s in a.err.lines if "failed: " in s]) == 1


@pytest.mark.parametrize("words, code, text", [
    ([], 2, "program"),
    (["--max-restarts=x", "true"], 2, "--max-restarts"),
    (["--no-such-flag", "true"], 2, "--no-such-flag"),
    (["--rdzv=h", "--standalone", "true"], 2, "--rdzv and --standalone"),
    (["--nnodes", "0", "true"], 1, "--nnodes"),  # As torchrun: a value found senseless later is no usage.
    (["--tee=4", "true"], 1, "--tee: \"4\" is not one digit 0 to 3"),
    (["--logs-specs=mine", "true"], 1, "use --log-dir, --redirects and --tee"),
    (["--numa-binding=x", "true"], 2, "--numa-binding: \"x\" is not one of node|socket|exclusive|core-complex"),
    (["--exit-status=x", "true"], 2, "--exit-status: \"x\" is not one of one|first"),
    (["--local-ranks-filter=a", "true"], 1, "--local-ranks-filter: \"a\" is not a whole number"),
    (["--tee-stdout", "true"], 2, "unknown flag"),
])
def test_bad_usage_is_told_in_a_sentence(job, words, code, text):
    a = job.start(*words).ends(code)
    said = [s for s in a.err.lines if s.startswith("node-agent: error: ")]
    assert len(said) == 1 and text in said[0] and a.out.text() == ""
    assert a.err.lines[-1] == ("node-agent --help lists all flags." if code == 2 else said[0])


def test_help_into_a_reader_that_has_seen_enough_is_no_failure_and_a_full_disk_is(job):
    script = job.file("s", """set -o pipefail
for i in 1 2 3 4 5; do
    "$0" --help | true || echo failed: $?  # The reader is gone before the first byte, or soon after it.
    "$0" --help | head -1 > /dev/null || echo failed: $?
done
"$0" --help > /dev/full 2>/dev/null && echo a full disk went unnoticed
exit 0
""")
    p = subprocess.run(["bash", "-c", f'. "{script}"', mulib.program("node-agent")], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                       timeout=mulib.PATIENCE, check=True)
    assert p.stdout == b""


def test_a_broken_console_does_not_end_the_job(job):
    read_end, write_end = os.pipe()
    os.close(read_end)
    w = job.worker(f'open("{job.folder}/done", "w").close() if signal.getsignal(signal.SIGPIPE) else None')
    p = subprocess.run([mulib.program("node-agent"), "--nproc-per-node=2", w], stderr=write_end, stdout=write_end,
                       env=agentlib.environment(), timeout=mulib.PATIENCE, check=False)
    os.close(write_end)
    assert p.returncode == 0 and (job.folder / "done").exists()


# --- many ---

def test_256_instant_exits_again_and_again_are_all_noticed(job):
    rounds = 4 if agentlib.SANITIZED else 15
    a = job.start("--standalone", "--nproc-per-node=256", f"--max-restarts={rounds - 1}", "--no-python", "sh", "-c",
                  f"[ $TORCHELASTIC_RESTART_COUNT = {rounds - 1} ] || exit 9").ends(0, 60)
    said = [s for s in a.err.lines if "OMP_NUM_THREADS" not in s and "server.stood_still" not in s]  # Where it is slow to start them all.
    assert len(said) == rounds - 1, a.err.text()
    for n, line in enumerate(said, 1):
        assert re.match(rf"node-agent: round {n} ended: rank \d+ .* exited with status 9; the group starts again "
                        rf"\(restart {n} of {rounds - 1}\)$", line), line
    for n in range(2):
        b = job.start("--nproc-per-node=256", "--no-python", "false").ends(1)
        assert re.match(r"rank \d+ .* exited with status 1", b.cause()), n


def test_twenty_standalone_jobs_at_once_do_not_meet(job):
    w = job.worker('say(E["TORCHELASTIC_RUN_ID"], WORLD, STORE)')
    agents = [job.start("--standalone", "--nproc-per-node=2", w) for _ in range(20)]
    seen = set()
    for a in agents:
        a.ends(0)
        assert a.is_quiet() and len(a.out.lines) == 2 and len(set(a.out.lines)) == 1, a.out.text()
        seen.add(a.out.lines[0])
    assert len(seen) == 20


def test_a_thousand_workers_end_promptly_on_sigterm(job):
    import signal
    import time
    count = 300 if agentlib.SANITIZED else 1000
    w = job.file("w", "#!/bin/sh\necho up\nexec sleep 600\n", 0o755)
    a = job.start(f"--nproc-per-node={count}", w)
    a.out.wait_count("up", count)
    began = time.monotonic()
    a.signal(signal.SIGTERM)
    a.ends(1)
    took = time.monotonic() - began
    assert took < (20 if agentlib.SANITIZED else 8), took  # The grace is 30 s.
    assert "told to stop by SIGTERM" in a.verdict()


# --- limits of the machine ---

@pytest.mark.parametrize("program,words", [("node-agent", ["--help"]), ("node-agent", ["--version"]), ("rdzv-server", ["--help"]),
                                           ("rdzv-server", ["--version"]), ("trainer", ["--help"]), ("trainer", ["--version"])])
def test_text_that_cannot_be_written_is_no_success(program, words):
    path = os.path.join(mulib.BIN, program)
    if not os.path.exists(path):
        pytest.skip(f"built without {program}")
    with open("/dev/full", "wb") as full:
        p = subprocess.run([path, *words], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert p.returncode == 1 and p.stderr == f"{program}: cannot write to standard output: No space left on device\n", p


def test_a_console_that_takes_nothing_is_no_success(job):
    w = job.worker("say('lost')")
    with open("/dev/full", "wb") as full:
        p = subprocess.run([mulib.program("node-agent"), "--label", "--nproc-per-node=2", w], stdout=full, stderr=subprocess.PIPE,
                           text=True, env=agentlib.environment(), check=False)
    assert p.returncode == 1 and "stdout cannot be written: No space left on device" in p.stderr, p
    assert "2 lines of workers were not shown: No space left on device" in p.stderr, p


@pytest.mark.parametrize("words,needed", [(["--nproc-per-node=4"], 37), (["--nproc-per-node=2", "--tee=3"], 50)])
def test_a_limit_of_open_files_that_is_too_low_is_named_at_once(job, words, needed):
    w = job.worker("print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])".replace("print", "import resource; print"))
    argv = [mulib.program("node-agent"), *words, w]

    def run(soft, hard):
        return subprocess.run(["prlimit", f"--nofile={soft}:{hard}", *argv], capture_output=True, text=True, cwd=job.folder,
                              env=agentlib.environment({"TMPDIR": str(job.folder)}), timeout=mulib.PATIENCE, check=False)

    p = run(18, 18)
    assert p.returncode == 1 and f"the limit of open files is 18, and an agent with {words[0][-1]} workers needs {needed}: raise it" \
        in p.stderr, p
    p = run(needed, needed)
    assert p.returncode == 0, p
    p = run(18, 4096)  # Raised for the agent, not for the workers.
    assert p.returncode == 0 and re.search(r"\b18$", p.stdout.splitlines()[0]), p
