"""Service mode between hosts: a job of the pool outlives its host."""
import subprocess

from conftest import BIN, HERE
from test_lab_allow import muster, token_file
from unitlib import until

WORKER = """#!/bin/sh
hostname >>"$1/hosts"
[ "$(sort -u "$1/hosts" | wc -l)" -gt 1 ] && exit 3
exec sleep 600
"""


def lines_of(path, limit_s):
    """Its lines, once there is one."""
    until(lambda: path.exists() and path.read_text().endswith("\n"), f"{path} has a line", limit_s)
    return path.read_text().split()


def test_a_job_of_the_pool_whose_host_loses_power_goes_on_at_another(hosts):
    lab = hosts(3)
    token = token_file(lab)
    program = lab.share / "program"
    program.write_text(WORKER)
    program.chmod(0o755)
    lab.server(1, 29500, "--fence", 4, "--token-file", token)
    for host in (2, 3):
        service = lab.start(f"service on n{host}", host, BIN / "node-agent", "--service", "--rdzv=n1:29500", "--slots=1", "--token-file", token,
                            f"--log-dir=/tmp/kept{host}")
        service.wait_line("service.offered", 20)
    run = subprocess.Popen([HERE / "lab", "exec", "1", BIN / "muster", "run", "--name=here", "--no-python", "--cwd=/tmp", "--token-file", token, "--",
                            program, lab.share], env=lab.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        first = lines_of(lab.share / "hosts", 20)[0]
        lab.lab("kill", first[1:])
        said, _ = run.communicate(timeout=90)
    finally:
        run.kill()
        run.wait()
    assert run.returncode == 3, said
    hosts_seen = lines_of(lab.share / "hosts", 1)
    assert sorted(set(hosts_seen)) == ["n2", "n3"] and hosts_seen[0] == first, hosts_seen
    status, text = muster(lab, 1, "incidents", "--token-file", token)
    assert status == 0 and f"the agent on {first} was not heard for its whole lease" in text, text
