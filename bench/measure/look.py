"""How soon people see what happened: 64 nodes of 8 workers (simulated agents), one worker fails; from before its agent's message is sent
until a line of `muster status --watch` says so, and until the page's grid shows it in a real Chromium. The agents, the server and the
browser are those of tests/blackbox."""
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

from .common import Missing, end_group, median

NODES, EACH = 64, 8
LIMIT_MS = 100
SETTLE_S = 0.3
SEES = """window.seen = new Promise(done => { const grid = document.getElementById('grid'); const o = new MutationObserver(() => {
    if (grid.querySelector('.c.failed, .c.killed, .c.stopping')) { o.disconnect(); done(Date.now()); } });
    o.observe(grid, {subtree: true, attributes: true}); }); 0"""


class Watcher:
    """`muster status --watch`, and when which of its lines came."""

    def __init__(self, muster, port):
        self.process = subprocess.Popen([muster, "status", "--watch=60", f"--rdzv=127.0.0.1:{port}"], stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)
        self.lines, self.changed = [], threading.Condition()
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def read(self):
        for line in self.process.stdout:
            with self.changed:
                self.lines.append((time.time() * 1e3, line.decode()))
                self.changed.notify_all()

    def when(self, pattern, after):
        """ms of the first line from number `after` on that matches."""
        end = time.monotonic() + 10
        with self.changed:
            while True:
                for at, line in self.lines[after:]:
                    if re.search(pattern, line):
                        return at
                if not self.changed.wait(max(0, end - time.monotonic())) and time.monotonic() >= end:
                    raise Missing(f"muster status --watch has no line {pattern!r} within 10 s: {self.lines[after:][-20:]}")

    def close(self):
        end_group(self.process)
        self.thread.join()


def rounds(bench, mulib, server, page):
    """[(ms until the lines, ms until the page)]"""
    took = []
    with mulib.closing_all() as things:
        group = mulib.Group(server, things, nodes=NODES, nproc=EACH, hosts={i: f"node{i:02d}" for i in range(NODES)}, max_restarts=1000)
        watcher = Watcher(bench.ours("muster"), server.port)
        things.append(watcher)
        watcher.when(f"{NODES * EACH}", 0)
        for n in range(11 if bench.quick else 41):
            if page is not None:
                page.wait(f"document.querySelectorAll('#grid .c.running').length === {NODES * EACH}")
                page.js(SEES)
            time.sleep(SETTLE_S)
            at, before = time.time() * 1e3, len(watcher.lines)
            group.agents[n % NODES].failed(local_rank=n % EACH, exit_code=100 + n)
            lines = watcher.when(rf"\b{100 + n}\b", before) - at
            took.append((lines, page.js("window.seen") - at if page is not None else None))
            for a in group.agents:
                a.expect("stop", skip=mulib.OLD)
            group.stopped()
            group.start()
    return took


def measure(bench):
    os.environ["MUSTER_BIN"] = str(bench.build / "bin")
    sys.path.insert(0, str(bench.root.parent / "tests" / "blackbox"))
    import chromelib
    import mulib
    server = mulib.Server(bench.tmp, name="look")
    browser = page = None
    try:
        if chromelib.program():
            browser = chromelib.Chromium(str(bench.tmp))
            page = browser.page().open(f"http://127.0.0.1:{server.port}/")
        else:
            bench.note("chromium is not installed: the page is not measured")
        took = rounds(bench, mulib, server, page)
    finally:
        if browser is not None:
            browser.close()
        server.stop()
    for what, some in (("muster status --watch shows it", [t[0] for t in took]), ("the page shows it", [t[1] for t in took])):
        some = sorted(t for t in some if t is not None)
        if some:
            bench.add("look", f"a worker of {NODES * EACH} fails: {what}, median", "ms", {"muster": median(some)}, [("max", LIMIT_MS)])
            bench.add("look", f"{what}, 90th percentile", "ms", {"muster": some[len(some) * 9 // 10]}, [("max", LIMIT_MS)])
