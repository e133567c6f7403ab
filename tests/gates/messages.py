"""Gate: docs/troubleshooting.md quotes what the programs say, and says something of all that is said in the files below.

Quotes are the spans in the first column of tables that begin with "it says"; `…` stands for what differs. usage: messages.py ROOT"""
import re
import sys

import tree

PAGE = "docs/troubleshooting.md"
ROOMS = ("agent/", "base/", "launcher/", "rendezvous/")
# Their sentences about failures and waiting are all on the page.
WHOLE = (*("agent/life/%s.c" % n for n in ("act", "checks", "drain", "end", "health", "leave", "link", "round", "stop", "time")), "agent/link/link.c", "agent/link/link_connect.c", "base/addr.c",
         "base/cause.c", "rendezvous/job/hello.c", "rendezvous/job/roster.c", "rendezvous/job/words.c")
NO_MESSAGES = re.compile(r"digraph|label=|(?<!\w)chaos\)$|frees the")
# Sections about parts that a tree may lack.
PARTS = {"The token": "base/token.c", "A node as a service": "agent/service/service.c"}
SYSTEMS = {"connection refused"}  # The system's own words.
LITERAL = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
CONVERSION = re.compile(r"%[-+ #0]*\d*(?:\.(?:\d+|\*))?(?:hh|h|ll|l|j|z|t)?[a-zA-Z]|\\n")


def literals(text):
    """String literals as the compiler joins them, with … for each conversion."""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    text = re.sub(r"^#include.*$", "", text, flags=re.M)
    # "%" PRId64 " s", and names of macros that are texts.
    text = re.sub(r'%[-0-9]*"\s*PRI\w+\s*"', "%d", text)
    text = re.sub(r'%[-0-9]*"\s*PRI\w+', '%d"', text)
    text = re.sub(r'(?<!\\)"\s*[A-Z_]{4,}\s*"', "…", text)
    text = re.sub(r'(?<!\\)"\s*"', "", text)
    return [CONVERSION.sub("…", m[1]).replace("%%", "%").replace('\\"', '"') for m in LITERAL.finditer(text)]


def pieces(text, letters):
    """What stands between the …, as far as it says anything."""
    found = (p.strip(" ,;:.()'") for p in text.split("…"))
    return [p for p in found if len(re.sub(r"[^A-Za-z]", "", p)) >= letters]


def quotes(page, names):
    page = "".join(s for s in re.split(r"^(?=## )", page, flags=re.M)
                   if PARTS.get(s.split("\n")[0].removeprefix("## "), PAGE) in names)
    for table in re.split(r"\n\n", page):
        if not table.lstrip().startswith("| it says"):
            continue
        for row in table.strip().split("\n")[2:]:
            yield from re.findall(r"`([^`]*)`", row.split(" | ")[0])


def main(root):
    page = tree.read(root, PAGE)
    names = tree.files(root)
    said = [(name, s) for name in names if name.startswith(ROOMS) and name.endswith((".c", ".h"))
            for s in literals(tree.read(root, name))]
    all_said = "\n".join(s for _, s in said)
    faults = []
    count = 0
    for quote in quotes(page, names):
        count += 1
        for p in pieces(quote, 3):
            if p not in all_said and p not in SYSTEMS:
                faults.append("%s: no program says '%s' (of '%s')" % (PAGE, p, quote))
    flat = re.sub(r"\s+", " ", page.replace("`", ""))
    for name, s in said:
        if name in WHOLE and s.count(" ") >= 2 and not NO_MESSAGES.search(s):
            lacking = [p for p in pieces(s, 8) if p not in flat]
            if lacking:
                faults.append("%s says '%s', of which %s has no '%s': add a row for it" % (name, s, PAGE, lacking[0]))
    tree.finish("messages", faults, count)


main(sys.argv[1])
