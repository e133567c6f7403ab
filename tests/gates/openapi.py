"""Gate: docs/openapi.json describes what rendezvous/server/routes.c serves, all of it and nothing else; and its schemas of status and
incidents are those of docs/*.schema.json. usage: openapi.py ROOT [--write]

--write renews the schemas. Paths are written by hand: a new row of the table needs its words.
"""
import json
import os
import re
import sys

import tree

ROW = re.compile(r'\{(\w+), "([^"]+)", (SRV_\w+), \w+\}')
SCHEMAS = {"Status": "docs/status.schema.json", "Incidents": "docs/incidents.schema.json"}
METHODS = ("get", "put", "post", "delete", "patch", "options", "head", "trace")
NOTHING_TOLD = ("$schema", "$id", "$defs")


def routes(root):
    """{(method, path): deed}"""
    rows = ROW.findall(tree.read(root, "rendezvous/server/routes.c"))
    return {(method.lower(), path): deed for method, path, deed in rows}


def moved(name, value):
    """The schema as it stands in a larger document: what it defined for itself has the name in front."""
    if isinstance(value, dict):
        return {k: f"#/components/schemas/{name}_{v[len('#/$defs/'):]}" if k == "$ref" else moved(name, v) for k, v in value.items()}
    return [moved(name, v) for v in value] if isinstance(value, list) else value


def wanted_schemas(root):
    ret = {}
    for name, path in SCHEMAS.items():
        schema = json.loads(tree.read(root, path))
        ret[name] = moved(name, {k: v for k, v in schema.items() if k not in NOTHING_TOLD})
        for inner, v in schema.get("$defs", {}).items():
            ret[f"{name}_{inner}"] = moved(name, v)
    return ret


def references(value):
    if isinstance(value, dict):
        for k, v in value.items():
            if k == "$ref":
                yield v
            yield from references(v)
    elif isinstance(value, list):
        for v in value:
            yield from references(v)


def find(document, reference):
    at = document
    for part in reference[2:].split("/"):
        at = at.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(at, dict) else None
    return at


def check_operation(document, where, operation, path, deed, faults):
    for key in ("summary", "operationId", "responses", "tags"):
        if not operation.get(key):
            faults.append(f"{where}: it has no {key}")
    named = {find(document, p["$ref"])["name"] if "$ref" in p else p["name"] for p in operation.get("parameters", [])}
    for name in re.findall(r"\{(\w+)\}", path):
        if name not in named:
            faults.append(f"{where}: the parameter {name} is not described")
    if deed == "SRV_CHANGES" and "403" not in operation.get("responses", {}):
        faults.append(f"{where}: it changes something, so it can be forbidden: 403 is missing")


def check(root, document, faults):
    served = routes(root)
    told = {(m, p): op for p, item in document["paths"].items() for m, op in item.items() if m in METHODS}
    for method, path in sorted(served.keys() - told.keys()):
        faults.append(f"{method.upper()} {path} is served and not described in docs/openapi.json")
    for method, path in sorted(told.keys() - served.keys()):
        faults.append(f"{method.upper()} {path} is described in docs/openapi.json and not served by routes.c")
    for key in sorted(served.keys() & told.keys()):
        check_operation(document, f"{key[0].upper()} {key[1]}", told[key], key[1], served[key], faults)
    ids = [op.get("operationId") for op in told.values()]
    faults += [f"two operations are called {i}" for i in {i for i in ids if ids.count(i) > 1}]
    faults += [f"{r} leads nowhere" for r in sorted(set(references(document))) if not r.startswith("#/") or find(document, r) is None]
    return len(served)


def main(root, write):
    name = os.path.join(root, "docs", "openapi.json")
    with open(name, encoding="utf-8") as f:
        document = json.load(f)
    faults = []
    schemas = document["components"]["schemas"]
    wanted = wanted_schemas(root)
    others = {k: v for k, v in schemas.items() if k.split("_")[0] not in SCHEMAS}
    if schemas != {**others, **wanted}:
        if write:
            document["components"]["schemas"] = {**others, **wanted}
            with open(name, "w", encoding="utf-8") as f:
                f.write(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
        else:
            faults.append("the schemas in docs/openapi.json differ from docs/*.schema.json: tests/gates/openapi.py . --write")
    looked_at = check(root, document, faults)
    tree.finish("openapi", faults, looked_at)


main(sys.argv[1], "--write" in sys.argv[2:])
