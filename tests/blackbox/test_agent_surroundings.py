"""node-agent where somebody else starts it: real mpiexec (Hydra), real mpirun (Open MPI), an operator's variables, a host file.

All "nodes" are on this machine, each with an agent of its own."""
import re
import shutil

import pytest

from agentlib import unused_port
from mulib import program

SAY = 'say("worker", RANK, "of", WORLD, "node", NODE, "id", E["TORCHELASTIC_RUN_ID"])'
WORKER = r"^worker (\d+) of (\d+) node (\d+) id (\S+)$"
MPIRUN = ["--oversubscribe", "--mca", "btl", "self"]
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def need(name, package):
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not here: apt-get install {package}")
    return path


def hydra(job, *words, env=None):
    return job.start(*words, exe=need("mpiexec.hydra", "mpich"), env=env)


def openmpi(job, *words):
    return job.start(*MPIRUN, *words, exe=need("mpirun.openmpi", "openmpi-bin"), env=AS_ROOT)


def workers(*launches):
    """(rank, world, node) of all, by rank; they are of one job, whose id comes second."""
    found = [m.groups() for a in launches for m in map(lambda s: re.search(WORKER, s), a.out.lines) if m]
    assert len({f[3] for f in found}) == 1, found
    return sorted((int(r), int(w), int(n)) for r, w, n, _ in found), found[0][3]


# --- Hydra ---

def test_processes_of_hydra_are_one_job_when_each_is_to_be_a_node(job):
    a = hydra(job, "-n", "3", program("node-agent"), "--surroundings=pmi", "--nproc-per-node=2", job.worker(SAY)).ends(0)
    ranks, run_id = workers(a)
    assert ranks == [(r, 6, r // 2) for r in range(6)] and run_id.startswith("pmi-kvs_")
    said = a.err.text()
    for rank in range(3):
        assert re.search(rf"node-agent: taken from PMI: --nnodes=3 \(PMI_SIZE\) --node-rank={rank} \(PMI_RANK\) --rdzv=\S+:2\d\d\d\d "
                         rf"\(rank 0, over PMI_FD\) --rdzv-id={run_id} \(PMI's job name\)", said), said


def test_hydra_with_one_process_a_host_needs_no_flag(job):
    """Two names for this machine, and a launcher that starts everything here."""
    a = hydra(job, "-launcher", "fork", "-hosts", "127.0.0.2,127.0.0.3", "-ppn", "1", "-n", "2", program("node-agent"), job.worker(SAY)).ends(0)
    assert workers(a)[0] == [(0, 2, 0), (1, 2, 1)]
    assert len(re.findall(r"--rdzv=127\.0\.0\.2:2\d\d\d\d ", a.err.text())) == 2, a.err.text()


def test_several_processes_of_hydra_on_a_host_are_told_what_to_type(job):
    a = hydra(job, "-n", "2", program("node-agent"), job.worker(SAY)).ends(1)
    assert "node-agent: error: MPI_LOCALNRANKS=2: one agent a node is wanted: start it with mpiexec -ppn 1" in a.err.text()
    assert not a.out.lines or not any(s.startswith("worker") for s in a.out.lines)


def test_a_single_process_of_hydra_is_as_without_it(job):
    a = hydra(job, "-n", "1", program("node-agent"), job.worker(SAY)).ends(0)
    assert workers(a)[0] == [(0, 1, 0)] and "taken from" not in a.err.text()


def test_a_failed_worker_is_hydras_failure_too(job):
    a = hydra(job, "-n", "2", program("node-agent"), "--surroundings=pmi", job.worker(SAY + "\nsys.exit(3 if RANK == 1 else 0)")).ends(1)
    assert len(re.findall(r"node-agent: job pmi-kvs_\S+ failed: ", a.err.text())) == 2


@pytest.mark.parametrize("end, why", [("exec 9<>/dev/null", "Socket operation on non-socket"), ("exec 9>&-", "Bad file descriptor")])
def test_a_line_to_the_process_manager_that_is_none_gets_a_sentence(job, end, why):
    a = job.start(job.worker(SAY), pre=["sh", "-c", end + '; exec "$@"', "sh"], env={"PMI_FD": "9", "PMI_RANK": "0", "PMI_SIZE": "2"}).ends(1)
    assert re.search(rf"error: PMI_FD=9: response_to_init: {why}\. Give --rdzv=HOST, the first node's name, to all", a.err.text()), a.err.text()


# --- Open MPI ---

def test_processes_of_open_mpi_are_one_job_when_each_is_to_be_a_node(job):
    a = openmpi(job, "-n", "3", program("node-agent"), "--surroundings=openmpi", "--nproc-per-node=2", job.worker(SAY)).ends(0)
    ranks, run_id = workers(a)
    assert ranks == [(r, 6, r // 2) for r in range(6)] and re.fullmatch(r"openmpi-\d+", run_id)
    said = a.err.text()
    for rank in range(3):
        assert re.search(rf"taken from Open MPI: --nnodes=3 \(OMPI_COMM_WORLD_SIZE\) --node-rank={rank} \(OMPI_COMM_WORLD_RANK\) "
                         rf"--rdzv=\S+:2\d\d\d\d \(OMPI_MCA_orte_hnp_uri\) --rdzv-id={run_id} ", said), said


def test_several_processes_of_open_mpi_on_a_host_are_told_what_to_type(job):
    a = openmpi(job, "-n", "2", program("node-agent"), job.worker(SAY))
    assert a.wait() != 0
    assert "OMPI_COMM_WORLD_LOCAL_SIZE=2: one agent a node is wanted: start it with mpirun --map-by ppr:1:node" in a.err.text()


# --- an operator's variables, a host file ---

def test_pods_of_an_older_pytorchjob_meet_at_their_master(job):
    port = unused_port()
    env = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    worker = job.worker(SAY)
    both = [job.start("--nproc-per-node=2", worker, env={**env, "RANK": str(i)}) for i in (1, 0)]
    for a in both:
        a.ends(0)
    assert workers(*both)[0] == [(r, 4, r // 2) for r in range(4)]
    assert f"taken from Kubernetes: --nnodes=2 (WORLD_SIZE) --node-rank=1 (RANK) --rdzv=localhost:{port} (MASTER_ADDR, MASTER_PORT)" in both[0].err.text()


def test_a_host_file_is_all_that_two_nodes_need(job):
    """Both lines are this machine, so --node-rank says which is whose; the meeting point's port is the one flag of the test."""
    port = unused_port()
    hosts = job.file("hosts", "# ours\n127.0.0.1 slots=2\n127.0.0.2:1\n")
    worker = job.worker(SAY)
    both = [job.start(f"--hostfile={hosts}", f"--rdzv=127.0.0.1:{port}", f"--node-rank={i}", worker) for i in (0, 1)]
    for a in both:
        a.ends(0)
    assert workers(*both)[0] == [(0, 3, 0), (1, 3, 0), (2, 3, 1)]
    assert "taken from the host file: --nnodes=2 (its lines) --nproc-per-node=1 (its slots)" in both[1].err.text()


def test_a_host_file_of_one_line_gives_its_slots(job):
    hosts = job.file("hosts", "localhost slots=3\n")
    a = job.start(f"--hostfile={hosts}", job.worker(SAY)).ends(0)
    assert workers(a)[0] == [(r, 3, 0) for r in range(3)]
    assert "taken from the host file: --nproc-per-node=3 (its slots)" in a.err.text()


def test_an_agent_in_a_worker_of_another_is_no_node_of_the_job(job):
    inner = job.worker('say("inner", RANK, WORLD)')
    outer = job.worker(f'os.execv({program("node-agent")!r}, ["node-agent", {inner!r}])')
    a = hydra(job, "-n", "2", program("node-agent"), "--surroundings=pmi", outer).ends(0)
    assert sorted(s for s in a.out.lines if s.startswith("inner")) == ["inner 0 1", "inner 0 1"]
