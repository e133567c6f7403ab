"""Under Slurm: the batch script of the guide, on a cluster of lab hosts with munge, slurmctld and slurmd of Debian."""
import os
import re
import shutil

import pytest
from conftest import BIN, ROOT

SCRIPT = ROOT / "docs" / "examples" / "job.sbatch"
NEEDS = {"munged": "munge", "slurmctld": "slurmctld", "slurmd": "slurmd", "sbatch": "slurm-client", "runuser": "util-linux"}
CONF = """
ClusterName=lab
SlurmctldHost=n1
SlurmUser=root
AuthType=auth/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
SchedulerParameters=batch_sched_delay=1,sched_interval=1
StateSaveLocation=/var/tmp/slurmctld
SlurmdSpoolDir=/var/tmp/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
NodeName=n[1-%d] CPUs=2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
"""
WORKER = """#!/bin/sh
echo "worker $RANK of $WORLD_SIZE local $LOCAL_RANK node $GROUP_RANK of $GROUP_WORLD_SIZE on $(hostname) id $TORCHELASTIC_RUN_ID"
exit ${FAIL_WITH:-0}
"""
SAYS = r"worker (\d+) of (\d+) local (\d+) node (\d+) of (\d+) on (\S+) id (\S+)"
PATH = f"{BIN}:{os.environ.get('PATH', '/usr/bin:/bin')}:/usr/sbin:/sbin"


class Cluster:
    def __init__(self, lab, count):
        self.lab = lab
        self.env = {"SLURM_CONF": str(lab.share / "slurm.conf"), "PATH": PATH}
        (lab.share / "slurm.conf").write_text(CONF % count)
        # No plugin of ours uses cgroups, but slurmd wants to know which kind it does not use.
        pure_v2 = all(line.startswith("0::") for line in open("/proc/self/cgroup", encoding="ascii"))
        (lab.share / "cgroup.conf").write_text("CgroupPlugin=cgroup/v2\nIgnoreSystemd=yes\n" if pure_v2 else "CgroupPlugin=cgroup/v1\n")
        self.worker = lab.share / "worker.sh"
        self.worker.write_text(WORKER)
        self.worker.chmod(0o755)
        for i in range(1, count + 1):
            lab.lab("exec", i, "sh", "-c", "mkdir -p /var/tmp/slurmd /var/tmp/slurmctld && install -d -o munge -g munge /run/munge /var/lib/munge /var/log/munge && "
                    "install -o munge -g munge -m 400 /dev/null /etc/munge/munge.key && "
                    "head -c 128 /dev/zero >/etc/munge/munge.key && runuser -u munge -- munged")
        ctld = self.start(1, "slurmctld", "slurmctld", "-D", "-c")
        ctld.wait_line(r"Running as primary controller", 60)
        for i in range(1, count + 1):
            self.start(i, "slurmd", "slurmd", "-D", "-N", f"n{i}").wait_line(r"slurmd started", 60)
        self.until(f"[ $(sinfo -h -t idle -N | wc -l) = {count} ]")

    def start(self, host, name, *words):
        return self.lab.start(f"{name} on n{host}", host, *words, env=self.env)

    def run(self, name, *words, status=0):
        """A command on n1, to its end; what it said."""
        p = self.start(1, name, *words)
        got = p.wait(120)
        assert got == status, f"{name}: status {got}, {status} was due:\n{p.text()}"
        return p.text()

    def until(self, test):
        """Slurm tells its states to who asks only."""
        self.run("until", "sh", "-c", f"until {test}; do sleep 0.1; done")

    def sbatch(self, *words, env=None, status=0):
        """A batch job, to its end; what it wrote."""
        self.env.update(env or {})
        out = self.lab.share / "batch.out"
        said = self.run("sbatch", "sbatch", "--wait", f"--output={out}", *words, status=status)
        return re.search(r"Submitted batch job (\d+)", said).group(1), out.read_text()


def workers(text):
    """What the workers said, by rank."""
    found = sorted((tuple(m) for m in re.findall(SAYS, text)), key=lambda m: int(m[0]))
    return [(int(rank), int(world), int(local), int(node), int(nodes), host, id_) for rank, world, local, node, nodes, host, id_ in found]


@pytest.fixture
def cluster(hosts):
    missing = sorted({package for tool, package in NEEDS.items() if shutil.which(tool, path=PATH) is None})
    if missing:
        pytest.skip(f"Slurm is not here: apt-get install {' '.join(missing)}")
    return lambda n: Cluster(hosts(n), n)


def test_the_batch_script_of_the_guide_runs_one_job_on_two_nodes(cluster):
    c = cluster(2)
    job, said = c.sbatch(SCRIPT, c.worker, env={"WORKERS_PER_NODE": "2"})
    assert workers(said) == [(r, 4, r % 2, r // 2, 2, f"n{r // 2 + 1}", f"slurm-{job}.0") for r in range(4)], said
    port = 20000 + int(job) % 8000
    for rank in (0, 1):
        assert re.search(rf"taken from Slurm: --nnodes=2 \(SLURM_STEP_NUM_NODES\) --node-rank={rank} \(SLURM_NODEID\) "
                         rf"--rdzv=n1:{port} \(SLURM_STEP_NODELIST\) --rdzv-id=slurm-{job}.0 ", said), said
    job, said = c.sbatch(SCRIPT, c.worker, env={"FAIL_WITH": "3"}, status=1)
    assert re.search(rf"job slurm-{job}.0 failed: .*exit(ed)? .*3", said), said


def test_what_is_not_started_one_a_node_says_what_to_type(cluster):
    c = cluster(2)
    job, said = c.sbatch("--nodes=2", "--ntasks-per-node=1", f"--wrap=node-agent {c.worker}", status=1)
    assert f"Slurm job {job} has 2 nodes, and this is no step of it: type srun --ntasks-per-node=1" in said, said
    assert not workers(said)
    said = c.run("srun", "srun", "-N2", "--ntasks-per-node=2", "node-agent", c.worker, status=1)
    assert "srun started 4 tasks on 2 nodes, and one agent a node is wanted: srun --ntasks-per-node=1" in said, said
    said = c.run("srun", "srun", "-N2", "--ntasks-per-node=2", "node-agent", "--surroundings=slurm", c.worker)
    assert [(w[0], w[1], w[3], w[4], w[5]) for w in workers(said)] == [(r, 4, r, 4, f"n{r // 2 + 1}") for r in range(4)], said
    said = c.run("srun", "srun", "-N1", "node-agent", c.worker)  # One node needs nobody's word.
    assert [(w[0], w[1]) for w in workers(said)] == [(0, 1)] and "taken from" not in said, said


@pytest.mark.parametrize("tool, package, line, says, prefix", [
    ("mpirun.openmpi", "openmpi-bin", "mpirun.openmpi --map-by ppr:1:node node-agent", "Open MPI", "openmpi-"),
    ("mpiexec.hydra", "mpich", "mpiexec.hydra -ppn 1 node-agent", "PMI", "pmi-")])
def test_mpi_launchers_in_an_allocation_start_one_job_on_two_nodes(cluster, tool, package, line, says, prefix):
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not here: apt-get install {package}")
    c = cluster(2)
    env = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "TMPDIR": "/tmp"}
    _, said = c.sbatch("--nodes=2", "--ntasks-per-node=1", f"--wrap={line} {c.worker}", env=env)
    found = workers(said)
    assert [(w[0], w[1], w[3]) for w in found] == [(0, 2, 0), (1, 2, 1)] and {w[5] for w in found} == {"n1", "n2"}, said
    assert len({w[6] for w in found}) == 1 and found[0][6].startswith(prefix), said
    assert len(re.findall(rf"taken from {says}: --nnodes=2 ", said)) == 2, said
