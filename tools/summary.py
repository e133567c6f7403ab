"""Count what ctest ran, from its JUnit files: single tests inside cmocka and pytest programs, failures by name, skips with their reasons.

usage: summary.py [--no-skips] FILE...   The last line is 'N passed, N failed, N skipped'. Exit status 1 on any failure, or on no test;
with --no-skips also on a skip.
"""
import re
import sys
import xml.etree.ElementTree as ET

PYTEST = re.compile(r"^(?:=+ )?((?:\d+ (?:passed|failed|skipped|errors?|xfailed|xpassed|warnings?|deselected)(?:, )?)+) in [\d.:]+", re.M)
CMOCKA = re.compile(r"^\[  (PASSED|FAILED|SKIPPED)\s*\] (\d+) test\(s\)", re.M)
REASON = re.compile(r"^SKIPPED \[(\d+)\] (.*)$", re.M)


def counts_inside(text):
    """(passed, failed, skipped) of the single tests, or None where the program does not tell."""
    n = {"passed": 0, "failed": 0, "skipped": 0}
    found = False
    for summary in PYTEST.findall(text):
        found = True
        for number, word in re.findall(r"(\d+) (\w+)", summary):
            key = {"error": "failed", "errors": "failed", "xpassed": "failed", "xfailed": "passed"}.get(word, word)
            if key in n:
                n[key] += int(number)
    for word, number in CMOCKA.findall(text):
        found = True
        n[word.lower()] += int(number)
    return (n["passed"], n["failed"], n["skipped"]) if found else None


def count_case(case, failed_names, skips):
    name = case.get("name")
    text = case.findtext("system-out") or ""
    status = case.get("status")
    inside = counts_inside(text)
    passed, failed, skipped = inside or (0, 0, 0)
    if status == "fail" and failed == 0:
        failed = 1  # It crashed, or ran out of time, or tells nothing.
    if status == "run" and inside is None:
        passed = 1
    if status in ("notrun", "disabled"):
        mark = case.find("skipped")
        message = mark.get("message") if mark is not None else ""
        if "Unable to find" in message:
            failed = 1  # Its program was not built: that is no skip.
        else:
            lines = [line for line in text.split("\n") if line.strip()]
            skipped = max(skipped, 1)
            if not REASON.search(text):
                skips.append("%s: %s" % (name, lines[-1].strip() if lines else message or "not run"))
    for number, reason in REASON.findall(text):
        skips.append("%s: %s (%s)" % (name, reason, number))
    if failed:
        failed_names.append(name)
    return passed, failed, skipped


def main(args):
    no_skips = "--no-skips" in args
    failed_names, skips, total = [], [], [0, 0, 0]
    for path in (a for a in args if not a.startswith("--")):
        for case in ET.parse(path).getroot().iter("testcase"):
            total = [a + b for a, b in zip(total, count_case(case, failed_names, skips))]
    for name in failed_names:
        print("FAILED  %s" % name)
    for skip in skips:
        print("SKIPPED %s" % skip)
    print("%d passed, %d failed, %d skipped" % tuple(total))
    return 1 if total[1] or total[0] == 0 or (no_skips and total[2]) else 0


sys.exit(main(sys.argv[1:]))
