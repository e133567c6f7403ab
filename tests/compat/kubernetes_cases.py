"""The manifests of docs/examples against Kubernetes' schemas, strictly; and that the numbers in each fit together.

usage: kubernetes_cases.py ROOT, with a Python that has kubernetes-validate. Custom resources: their own fields against
tests/data/kubernetes-custom.schema.json, what they hold of Kubernetes' (pod templates, jobs) against its schema."""
import copy
import pathlib
import sys

import jsonschema
import kubernetes_validate
import yaml

VERSION = "1.29"


def refused(check, *args):
    try:
        check(*args)
    except (kubernetes_validate.ValidationError, jsonschema.ValidationError):
        return True
    return False


def native(resource):
    kubernetes_validate.validate(resource, VERSION, strict=True)


def pod_template(template):
    native({"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "x"}, "template": template})


def job_template(template):
    native({"apiVersion": "batch/v1", "kind": "Job", "metadata": template.get("metadata", {"name": "x"}), "spec": template["spec"]})


class Custom:
    def __init__(self, root, name):
        import json
        schema = json.loads((root / "tests/data/kubernetes-custom.schema.json").read_text())
        self.schema = {"$ref": "#/$defs/" + name, "$defs": schema["$defs"]}

    def __call__(self, resource):
        jsonschema.Draft202012Validator(self.schema).validate(resource)
        spec = resource["spec"]
        for replica in spec.get("pytorchReplicaSpecs", {}).values():
            pod_template(replica["template"])
        for job in spec.get("replicatedJobs", []):
            job_template(job["template"])


def environment(pod):
    return {e["name"]: e.get("value", e.get("valueFrom")) for e in pod["containers"][0].get("env", [])}


def main(root):
    checks = {"Service": native, "Job": native, "PyTorchJob": Custom(root, "pytorchjob"), "JobSet": Custom(root, "jobset")}
    found = {}
    for path in sorted((root / "docs/examples").glob("*.yaml")):
        for resource in yaml.safe_load_all(path.read_text()):
            kind = resource["kind"]
            checks[kind](resource)
            # The check must be able to fail: a field that does not exist, at the top of spec and deep within.
            wrong = copy.deepcopy(resource)
            wrong["spec"]["nonsense"] = 1
            assert refused(checks[kind], wrong), f"{path.name}: {kind} with a senseless field was taken"
            found.setdefault(path.name, {})[kind] = resource
            print(f"{path.name}: {kind}: valid")
    deep = copy.deepcopy(found["kubernetes-pytorchjob.yaml"]["PyTorchJob"])
    deep["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["imag"] = "x"
    assert refused(checks["PyTorchJob"], deep), "a misspelt field of a container was taken"

    job, service = found["kubernetes-job.yaml"]["Job"], found["kubernetes-job.yaml"]["Service"]
    pod = job["spec"]["template"]["spec"]
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == int(environment(pod)["MUSTER_NNODES"])
    assert pod["subdomain"] == service["metadata"]["name"] and service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    (jobs,) = found["kubernetes-jobset.yaml"]["JobSet"]["spec"]["replicatedJobs"]
    of_one, env = jobs["template"]["spec"], environment(jobs["template"]["spec"]["template"]["spec"])
    assert of_one["completions"] == of_one["parallelism"] == int(env["MUSTER_PODS_PER_JOB"])
    assert jobs["replicas"] * of_one["completions"] == int(env["MUSTER_NNODES"])
    assert env["MUSTER_JOB_INDEX"]["fieldRef"]["fieldPath"] == "metadata.labels['jobset.sigs.k8s.io/job-index']"
    assert len(found) == 3, sorted(found)


main(pathlib.Path(sys.argv[1]))
