"""Two lab hosts as the pods of an Indexed Job: named and told as Kubernetes does it, with a hosts file as kubelet writes it."""
import re

from conftest import BIN

DOMAIN = "workers.ai.svc.cluster.local"
WORKER = """#!/bin/sh
echo "worker $RANK of $WORLD_SIZE node $GROUP_RANK on $(hostname) id $TORCHELASTIC_RUN_ID master $MASTER_ADDR"
"""


def make_pod(lab, i):
    """Host i becomes pod i - 1; it knows itself, and nobody else."""
    lab.lab("exec", i, "sh", "-c", f"hostname train-{i - 1} && printf '127.0.0.1\\tlocalhost\\n10.88.0.{i}\\ttrain-{i - 1}.{DOMAIN}\\ttrain-{i - 1}\\n' >/etc/hosts")


def start_pod(lab, i, worker):
    env = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "JOB_COMPLETION_INDEX": str(i - 1), "MUSTER_NNODES": "2"}
    return lab.start(f"pod {i - 1}", i, BIN / "node-agent", "--nproc-per-node=2", worker, env=env)


def test_the_pods_of_an_indexed_job_find_each_other_though_names_come_late(hosts):
    lab = hosts(2)
    worker = lab.share / "worker.sh"
    worker.write_text(WORKER)
    worker.chmod(0o755)
    for i in (1, 2):
        make_pod(lab, i)
    second = start_pod(lab, 2, worker)
    second.wait_line(rf"taken from Kubernetes: --nnodes=2 \(MUSTER_NNODES\) --node-rank=1 \(JOB_COMPLETION_INDEX\) --rdzv=train-0\.{DOMAIN}:29500", 20)
    lab.lab("exec", 2, "sh", "-c", f"printf '10.88.0.1\\ttrain-0.{DOMAIN}\\n' >>/etc/hosts")  # The cluster's DNS has it now.
    first = start_pod(lab, 1, worker)
    assert [p.wait(60) for p in (first, second)] == [0, 0], first.text() + second.text()
    for p, ranks in ((first, [0, 1]), (second, [2, 3])):
        said = sorted(p.matches(r"worker (\d) of 4 node (\d) on (\S+) id (\S+) master (\S+)"), key=lambda m: m.group(1))
        node = ranks[0] // 2
        assert [m.groups()[:4] for m in said] == [(str(r), str(node), f"train-{node}", "kubernetes-train") for r in ranks], p.text()
        assert all(re.fullmatch(r"10\.88\.0\.1", m.group(5)) for m in said), p.text()
