"""docs/guides/systemd.md as a newcomer follows it: what stands in its boxes, in their order, on three fresh hosts with systemd."""
import re
import shutil
import time

import pytest
from conftest import ROOT
from unitlib import NEXT, Machine, knows, next_packages, packages  # noqa: F401

GUIDE = ROOT / "docs" / "guides" / "systemd.md"
NAMES = ("head", "node1", "node2")
PACKAGES = ("muster", "libmuster0", "python3-muster")
# What a step needs that not every build has: (pattern of a command, what there is when it can be done, what is missing).
NEEDS = [(r"muster token", lambda: knows("muster", "token"), "muster has no `token`"),
         (r"node-agent\.(conf|service)", lambda: knows("node-agent", "--service"), "node-agent has no --service"),
         (r"muster (run|logs|stop|pool)|drain node2$", lambda: knows("muster", "run") and knows("node-agent", "--service"),
          "muster has no `run`")]
# As in a terminal, what $id is stays from one box to the next.
BEFORE = """export HOME=$(echo ~root); cd /srv/packages; command -v sudo >/dev/null || sudo() { "$@"; }
[ ! -f /run/guide ] || . /run/guide
set -e
"""
AFTER = "\n[ -z \"$id\" ] || echo \"id=$id\" >/run/guide\n"


def boxes():
    """(machines, commands) of each box."""
    for m in re.finditer(r"```sh\n# ([a-z0-9 ]+)\n(.*?)```", GUIDE.read_text(), re.S):
        yield m[1].split(), m[2]


def lacking(commands):
    return next((why for pattern, there, why in NEEDS if re.search(pattern, commands, re.M) and not there()), None)


def test_boxes_name_machines_and_commands():
    found = list(boxes())
    assert len(found) == GUIDE.read_text().count("```sh\n") > 10
    assert all(set(hosts) <= set(NAMES) and commands.strip() for hosts, commands in found)


def make_machines(hosts, packages, newer):  # noqa: F811
    lab = hosts(3, "--systemd")
    there = {}
    for i, name in enumerate(NAMES, 1):
        m = there[name] = Machine(lab, i)
        m.sh("sed -i -E 's/ n([123])$/&/; s/ n1$/ head n1/; s/ n2$/ node1 n2/; s/ n3$/ node2 n3/' /etc/hosts && hostname " + name)
        m.sh("mkdir -p /srv/packages/newer")
        for folder, files in (("", packages), ("newer", newer)):
            for p in PACKAGES:
                m.sh(f"cp {shutil.copy(files[p], lab.share)} /srv/packages/{folder}")
    # Root of head may log in on the nodes.
    there["head"].sh("cd ~root && mkdir -p -m 700 .ssh && rm -f .ssh/id_ed25519 && ssh-keygen -q -t ed25519 -N '' -f .ssh/id_ed25519 && "
                     f"cp .ssh/id_ed25519.pub {lab.share} && echo 'StrictHostKeyChecking accept-new' >.ssh/config")
    for name in NAMES[1:]:
        there[name].sh(f"cd ~root && mkdir -p -m 700 .ssh && cp {lab.share}/id_ed25519.pub .ssh/authorized_keys && systemctl start ssh")
    return there


def run_of(m, run_id):
    return next((j for j in m.status()["jobs"] if j["id"] == run_id), None)


def runs(m, run_id, round_min):
    m.until(f"curl -sf http://localhost:29500/status | python3 -c 'import json,sys; j = [j for j in json.load(sys.stdin)[\"jobs\"] if "
            f"j[\"id\"].startswith(\"{run_id}\")][0]; sys.exit(not (j[\"state\"] == \"running\" and j[\"round\"] >= {round_min}))'", 60)


def check(there, host, commands, said):
    """What a reader would see to be so, after some of the boxes."""
    head = there["head"]
    if "token new" in commands:
        assert {there[n].sh("stat -c '%U %a' /etc/muster/token") for n in NAMES} == {"root 600"}
    if "muster pool" in commands:
        assert "node1" in said and "node2" in said
        assert len(re.findall(r"rank \d of 4 on node[12]", said)) == 4, said
    if "--name=long" in commands:
        runs(head, "long", 1)
    if commands.startswith("sudo systemctl kill") and "node-agent.service" in commands:
        runs(head, "long", 2)
    if "enable --now node-agent@train" in commands and host == "node2":
        runs(head, "train", 1)
    if "muster workers train" in commands:
        assert len(re.findall(r"node[12]", said)) >= 4, said
    if commands.startswith("sudo systemctl kill") and "node-agent@train" in commands:
        runs(head, "train", 2)
    if "muster drain node2 --job train" in commands:
        there["node2"].until("[ $(systemctl show -P ActiveState node-agent@train) = inactive ]", 60)
    if "systemctl start node-agent@train" in commands:
        runs(head, "train", 3)
    if "newer" in commands and host == "node2":
        assert head.status()["version"] == NEXT
        runs(head, "train", 3)
        assert run_of(head, "train")["restarts"] == 0


def test_the_guide_leads_from_nothing_to_a_two_node_service(hosts, packages, next_packages):  # noqa: F811
    there = make_machines(hosts, packages, next_packages)
    left_out, began = [], time.monotonic()
    for machines, commands in boxes():
        why = lacking(commands)
        if why is not None:
            left_out.append(f"{why}: {commands.splitlines()[0]}")
            continue
        for host in machines:
            said = there[host].sh(BEFORE + commands + AFTER, limit_s=600)
            check(there, host, commands, said)
    assert time.monotonic() - began < 600, "ten minutes, as it says"
    job = run_of(there["head"], "train")
    assert (job["state"], job["restarts"], job["round"]) == ("running", 0, 3), job
    for line in left_out:
        print("left out, as", line)
    if left_out:
        pytest.skip("all but this was done as the guide says, and went well: " + "; ".join(sorted({s.split(":")[0] for s in left_out})))
