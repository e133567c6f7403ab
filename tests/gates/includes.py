"""Gate: each room includes what its row allows, and nothing else. usage: includes.py ROOT

Includes start at the root of the repository. A file's own header comes first, which proves that it stands alone.
"""
import os
import re
import sys

import tree

PURE_BASE = ["base/%s.h" % n for n in ("check", "err", "mem", "str", "parse", "json", "cause", "ctl", "limits", "words", "shown", "date", "backoff")]
ISO = set("assert.h ctype.h errno.h float.h inttypes.h iso646.h limits.h locale.h math.h setjmp.h signal.h stdalign.h stdarg.h "
          "stdatomic.h stdbool.h stddef.h stdint.h stdio.h stdlib.h stdnoreturn.h string.h time.h".split())
LIBRARIES = ("uv.h", "cjson/", "microhttpd.h", "openssl/", "sqlite3.h", "curl/", "hwloc", "uthash.h", "utlist.h", "utarray.h",
             "nccl.h", "cuda", "nvml.h")

# Most particular first: folder or file, what of ours it may include (prefixes), which libraries, and whether it is pure.
ROWS = [
    ("base/ctl.c", ["base/"], ["cjson/"], True),
    ("base/crypto_module.", ["base/crypto_module.h"], ["openssl/"], False),
    ("base/", ["base/"], ["uthash.h"], False),
    ("rendezvous/store/", PURE_BASE + ["rendezvous/store/"], ["uthash.h", "utlist.h"], True),
    ("rendezvous/job/", PURE_BASE + ["rendezvous/job/"], ["uthash.h", "utlist.h"], True),
    ("rendezvous/pool/", PURE_BASE + ["rendezvous/pool/"], ["uthash.h", "utlist.h"], True),
    ("agent/life/", PURE_BASE + ["agent/life/"], ["uthash.h", "utlist.h"], True),
    ("agent/surroundings/", PURE_BASE + ["agent/surroundings/"], [], True),
    ("rendezvous/server/submission.c", ["base/", "rendezvous/"], ["cjson/"], False),
    ("rendezvous/server/", ["base/", "rendezvous/"], ["uv.h", "openssl/", "sqlite3.h", "microhttpd.h", "curl/", "uthash.h", "utlist.h"], False),
    ("agent/chaos.", PURE_BASE + ["agent/chaos.h"], [], True),
    ("agent/workers/lines.", PURE_BASE + ["agent/workers/lines.h"], [], True),
    ("agent/workers/", ["base/", "agent/workers/", "agent/life/"], ["uv.h", "hwloc", "cjson/", "uthash.h", "utlist.h"], False),
    ("agent/link/", ["base/", "agent/link/", "agent/life/"], ["uv.h", "hwloc", "cjson/", "uthash.h", "utlist.h"], False),
    ("agent/service/book.", PURE_BASE + ["agent/service/book.h"], [], True),
    ("agent/service/line.", PURE_BASE + ["agent/service/line.h"], [], True),
    ("agent/service/record.", PURE_BASE + ["agent/service/record.h"], [], True),
    ("agent/service/", ["base/", "agent/service/", "agent/workers/", "agent/link/", "agent/options.h"], ["uv.h", "cjson/"], False),
    ("agent/main.c", ["base/", "agent/", "rendezvous/server/", "rendezvous/store/"], ["uv.h"], False),
    ("agent/notice_module.", ["agent/notice_module.h"], ["curl/"], False),
    ("agent/", ["base/", "agent/"], ["uv.h", "cjson/"], False),
    ("worker-sdk/include/", [], [], False),
    ("worker-sdk/src/store/store_serve.", ["base/", "worker-sdk/", "rendezvous/store/"], ["uthash.h", "utlist.h"], False),
    ("worker-sdk/", ["base/", "worker-sdk/"], ["uthash.h", "utlist.h", "cjson/"], False),
    ("trainer-example/", ["trainer-example/"], ["cuda", "cublas"], False),
    ("launcher/doctor/facts.", PURE_BASE + ["launcher/doctor/"], ["cjson/"], True),
    ("launcher/doctor/judge", PURE_BASE + ["launcher/doctor/"], ["cjson/"], True),
    ("launcher/", ["base/", "launcher/"], ["curl/", "cjson/", "uv.h"], False),
]
PURE_FILES = tuple("base/%s.%s" % (n, s) for n in ("check", "err", "mem", "str", "parse", "json", "cause", "ctl", "words", "shown", "date", "backoff") for s in "ch")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.M)
AGENT_HOSTS = ("agent/hosting.c",)  # The only file of the agent that may host the server.


def row_of(name):
    if name in AGENT_HOSTS:
        return ROWS[[r[0] for r in ROWS].index("agent/main.c")]
    for row in ROWS:
        if name.startswith(row[0]):
            return row
    return None


def check(root, name, row, faults):
    _, ours, libraries, pure = row
    pure = pure or name in PURE_FILES
    if name in PURE_FILES:
        ours = PURE_BASE  # The pure half of base does not lean on the other.
    first = None
    for kind, what in INCLUDE.findall(tree.read(root, name)):
        first = first or what
        if kind == '"':
            if not os.path.isfile(os.path.join(root, what)):
                faults.append('%s: "%s" is no file of this repository (includes start at its root)' % (name, what))
            elif not what.startswith(tuple(ours)):
                faults.append('%s: "%s" is none of its business: it may include %s' % (name, what, ", ".join(ours)))
        elif what.startswith(LIBRARIES):
            if not what.startswith(tuple(libraries)):
                faults.append("%s: <%s> is not a library of this room" % (name, what))
        elif pure and what not in ISO:
            faults.append("%s: <%s> is not ISO C, and this room is pure" % (name, what))
    header = name[:-2] + ".h"
    inner = os.path.dirname(name) + "/internal.h"  # A room's inner header may stand for its contract: it includes it first.
    if name.endswith(".c") and os.path.isfile(os.path.join(root, header)) and first not in (header, inner):
        faults.append('%s: its own header "%s" comes first' % (name, header))


def main(root):
    faults = []
    looked_at = 0
    for name in tree.files(root, (".c", ".h")):
        row = row_of(name)
        if row is None:
            continue
        looked_at += 1
        check(root, name, row, faults)
    tree.finish("include rule", faults, looked_at)


main(sys.argv[1])
