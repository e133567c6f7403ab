"""Gate: what is printed from tables stands in docs/ as it is printed. usage: generated.py ROOT DESCRIBE [--write]

docs/states/*.dot are whole files; in docs/protocol.md, docs/faults.md, docs/metrics.md and docs/guides/security.md the text between the two markers is. --write puts it there.
"""
import os
import subprocess
import sys

BEGIN = "<!-- printed by muster-describe %s; `ninja states` renews it -->\n"
END = "<!-- end of the printed part -->\n"


def printed(describe, what):
    return subprocess.run([describe, what], capture_output=True, text=True, check=True).stdout


def spliced(name, what, text, part):
    begin = BEGIN % what
    head, _, rest = text.partition(begin)
    _, end, tail = rest.partition(END)
    if not end:
        sys.exit("%s has lost a marker" % name)
    return head + begin + "\n" + part.strip("\n") + "\n\n" + END + tail


def main(root, describe, write):
    stale = []
    plan = [("docs/states/%s.dot" % m, None, m) for m in ("job", "life")] + [("docs/%s.md" % page, spliced, what) for page, what in (("protocol", "protocol"), ("faults", "chaos"), ("metrics", "metrics"), ("guides/security", "allow"))]
    for name, how, what in plan:
        path = os.path.join(root, name)
        old = open(path, encoding="utf-8").read() if os.path.exists(path) else ""
        new = how(name, what, old, printed(describe, what)) if how else printed(describe, what)
        if new == old:
            continue
        stale.append(name)
        if write:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as f:
                f.write(new)
    for name in stale:
        print("%s %s" % (name, "renewed" if write else "differs from the tables: build the target `states`"))
    print("generated: %d looked at, %d stale" % (len(plan), len(stale)))
    sys.exit(1 if stale and not write else 0)


main(sys.argv[1], sys.argv[2], "--write" in sys.argv[3:])
