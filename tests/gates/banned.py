"""Gate: functions that this project does not call. usage: banned.py ROOT

Everywhere: what overflows, guesses, or shares hidden state. In the product also: memory and clocks outside base/, so that tests
can make memory fail and move time. In tests: sleeping, because a test waits for an event with a deadline (a turn of a millisecond while
looking for a file is no sleep); they may use strtol and its kin, as they read what they wrote themselves.
"""
import re
import sys

import tree

EVERYWHERE = {
    "strcpy": "mu_strcopy()", "strcat": "mu_buf", "sprintf": "snprintf", "vsprintf": "vsnprintf", "gets": "fgets",
    "strtok": "strcspn", "strtok_r": "strcspn", "atoi": "mu_parse_i64()", "atol": "mu_parse_i64()", "atoll": "mu_parse_i64()",
    "atof": "mu_parse_seconds()", "strtol": "mu_parse_i64()", "strtoll": "mu_parse_i64()", "strtoul": "mu_parse_i64()",
    "strtoull": "mu_parse_i64()", "rand": "a seed", "srand": "a seed", "random": "a seed", "system": "posix_spawn",
    "popen": "posix_spawn", "gmtime": "gmtime_r", "localtime": "localtime_r", "ctime": "mu_iso8601()", "asctime": "mu_iso8601()",
    "usleep": "a timer", "alloca": "a buffer", "tmpnam": "mkstemp", "mktemp": "mkstemp",
    "uv_spawn": "clone3, measured at a thousandth of its time", "gethostbyname": "uv_getaddrinfo",
}
PRODUCT = {
    "malloc": "mu_alloc()", "calloc": "mu_zalloc()", "realloc": "mu_realloc()", "strdup": "mu_strdup()",
    "strndup": "mu_strdup()", "asprintf": "mu_buf_addf()", "clock_gettime": "mu_now_ns()", "gettimeofday": "mu_unix_ms()",
    "time": "mu_unix_ms()", "sleep": "a timer", "nanosleep": "a timer",
}
TESTS = {"sleep": "a wait for the event", "uv_sleep": "a wait for the event"}
OWN_TEXT = ("strtol", "strtoll", "strtoul", "strtoull")
PRODUCT_FOLDERS = ("base/", "rendezvous/", "agent/", "launcher/", "worker-sdk/")
# Where a banned call is the point, with the reason.
ALLOWED = {
    ("base/mem.c", "realloc"): "the one place that asks the heap",
    ("base/clock.c", "clock_gettime"): "the one place that reads clocks",
    ("rendezvous/server/watch.c", "nanosleep"): "half a millisecond in a storm of newcomers, so that one wake-up serves many",
}


def main(root):
    faults = []
    names = tree.files(root, (".c", ".h"))
    for name in names:
        banned = dict(EVERYWHERE)
        if name.startswith(PRODUCT_FOLDERS):
            banned.update(PRODUCT)
        if name.startswith("tests/"):
            banned.update(TESTS)
        if name.startswith(("tests/", "bench/")):
            for word in OWN_TEXT:
                del banned[word]
        call = re.compile(r"(?<![\w.>])(%s)\s*\(" % "|".join(banned))
        for number, line in enumerate(tree.bare(tree.read(root, name)).split("\n"), 1):
            for m in call.finditer(line):
                if (name, m.group(1)) not in ALLOWED:
                    faults.append("%s:%d: %s() is banned: use %s" % (name, number, m.group(1), banned[m.group(1)]))
    tree.finish("banned functions", faults, len(names))


main(sys.argv[1])
