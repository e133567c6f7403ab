#!/usr/bin/env python3
"""Makes the pictures of docs/page.md: usage: tools/page_shots.py BIN_FOLDER [OUTPUT_FOLDER]

A real server and a real Chromium; the nodes are the tests' agents, which say what makes a picture worth looking at. Takes a minute."""
import collections
import os
import pathlib
import struct
import sys
import tempfile
import time
import zlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
os.environ["MUSTER_BIN"] = os.path.abspath(sys.argv[1])
sys.path.insert(0, str(ROOT / "tests" / "blackbox"))

import chromelib  # noqa: E402
from mulib import Agent, Server  # noqa: E402

TRACE = """Traceback (most recent call last):
  File "train.py", line 212, in <module>
    main()
  File "train.py", line 168, in main
    loss.backward()
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.25 GiB
"""
TAIL = "step 1180 loss 2.4127 grad 0.91\nstep 1190 loss 2.4093 grad 0.88\nstep 1200 loss 2.4061 grad 1.36\n" + TRACE


class Group:
    def __init__(self, server, run_id, nodes, nproc, here=None, spares=(), **fields):
        self.fields = dict(run_id=run_id, nproc=nproc, nnodes=(nodes, nodes), gpus=nproc, **fields)
        self.agents = [Agent(server, host=f"gpu{i + 1:02d}", **self.fields) for i in range(here or nodes)]
        if here is None:
            self.start()
        self.spares = [Agent(server, host=h, **self.fields) for h in spares]

    def expect(self, what):
        for a in self.agents:
            a.expect(what, skip=("welcome", "waiting", "beat", "granted"))

    def start(self):
        self.expect("start")
        for a in self.agents:
            a.started()

    def beats(self, seconds, first, rate, slow=()):
        """Beats until then, ten a second; `slow`: {(node, local rank): lack}."""
        end = time.monotonic() + seconds
        began = time.monotonic()
        while time.monotonic() < end:
            step = int(first + rate * (time.monotonic() - began))
            for k, a in enumerate(self.agents):
                a.send("beat", round=a.round, steps=[max(0, step - (3 * k + 5 * i) % 4 - dict(slow).get((k, i), 0)) for i in range(a.fields["nproc"])])
            for a in self.spares:
                a.send("beat", round=0)
            time.sleep(0.1)
        return step

    def fail(self, node, took, others=(), **cause):
        self.agents[node].failed(**cause)
        for k, local in others:
            self.agents[k].failed(local_rank=local, kind="worker_exit", exit_code=1, rank=8 * k + local, at_unix_ms=int(time.time() * 1000))
        self.expect("stop")
        time.sleep(took)
        for a in self.agents:
            a.stopped()


def rows_of(path):
    """Width, and the rows of a PNG as Chromium makes them (8 bits, RGB or RGBA), as lists of colours."""
    data = path.read_bytes()
    at, pixels = 8, b""
    while at < len(data):
        n, kind = struct.unpack(">I4s", data[at:at + 8])
        body = data[at + 8:at + 8 + n]
        at += 12 + n
        if kind == b"IHDR":
            width, height, depth, colour = struct.unpack(">IIBB", body[:10])
            assert depth == 8 and colour in (2, 6)
        elif kind == b"IDAT":
            pixels += body
    raw = zlib.decompress(pixels)
    size = 3 if colour == 2 else 4
    before = bytearray(width * size)
    rows = []
    for y in range(height):
        start = y * (width * size + 1)
        how, row = raw[start], bytearray(raw[start + 1:start + 1 + width * size])
        for i in range(len(row) if how else 0):
            left = row[i - size] if i >= size else 0
            up = before[i]
            if how == 4:
                corner = before[i - size] if i >= size else 0
                guess = left + up - corner
                value = min((abs(guess - left), 0, left), (abs(guess - up), 1, up), (abs(guess - corner), 2, corner))[2]
            else:
                value = (0, left, up, (left + up) // 2)[how]
            row[i] = (row[i] + value) & 255
        rows.append([bytes(row[i:i + 3]) for i in range(0, len(row), size)])
        before = row
    return width, rows


def smaller(path):
    """The same picture with the 256 colours that it has most of, and for each other one the nearest of them."""
    width, rows = rows_of(path)
    counts = collections.Counter(c for row in rows for c in row)
    palette = [c for c, _ in counts.most_common(256)]
    index = {c: i for i, c in enumerate(palette)}
    for c in counts:
        if c not in index:
            index[c] = min(range(len(palette)), key=lambda i: sum((a - b) ** 2 for a, b in zip(palette[i], c)))
    raw = b"".join(b"\0" + bytes(index[c] for c in row) for row in rows)
    out = b"\x89PNG\r\n\x1a\n"
    for kind, body in ((b"IHDR", struct.pack(">IIBBBBB", width, len(rows), 8, 3, 0, 0, 0)), (b"PLTE", b"".join(palette)),
                       (b"IDAT", zlib.compress(raw, 9)), (b"IEND", b"")):
        out += struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
    path.write_bytes(out)
    print(path, len(out))
    assert len(out) < 150000, "too large for the repository"


def main():
    out = pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else ROOT / "docs" / "images")
    out.mkdir(parents=True, exist_ok=True)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="muster-shots."))
    server = Server(folder, "--lease=60")
    browser = chromelib.Chromium(str(folder))
    url = f"http://127.0.0.1:{server.port}/"
    now = lambda: int(time.time() * 1000)  # noqa: E731
    old = Group(server, "tokenize", 1, 4)
    old.agents[0].failed(local_rank=2, rank=2, kind="worker_exit", exit_code=3, at_unix_ms=now())
    old.expect("stop")
    old.agents[0].stopped()
    train = Group(server, "llama-8b", 12, 8, spares=["gpu13"], max_restarts=3)
    waits = Group(server, "eval-nightly", 2, 8, here=1)
    pages = [browser.page(width=1280, height=900).open(url), browser.page(width=1280, height=900, dark=True).open(url),
             browser.page(width=360, height=780, scale=1.5).open(url), browser.page(width=360, height=780, scale=1.5, dark=True).open(url)]
    step = train.beats(6, 1000, 30)
    train.fail(8, 0.4, local_rank=5, rank=69, kind="worker_signal", signo=9, pid=48213, step=step, at_unix_ms=now(), out_of_memory=1)
    train.start()
    step = train.beats(9, 1100, 30)
    train.agents[3].failed(local_rank=2, rank=26, kind="worker_exit", exit_code=1, pid=51877, step=step, at_unix_ms=now() - 12, tail=TAIL, trace=TRACE,
                           message="torch.OutOfMemoryError: CUDA out of memory")
    train.expect("stop")
    pages[0].wait("document.querySelector('#grid .failed')")
    time.sleep(0.3)
    for k, local in ((0, 0), (0, 3), (7, 1)):
        train.agents[k].failed(local_rank=local, rank=8 * k + local, kind="worker_exit", exit_code=1, at_unix_ms=now())
    time.sleep(1.3)
    for page, name in zip(pages, ("page-failed", None, None, "page-phone-dark")):
        page.wait("document.querySelector('#trace').textContent")
        if name:
            page.shot(out / f"{name}.png", 900 if name == "page-failed" else 780)
    for a in train.agents:
        a.stopped(stop_ms=800, reclaim_ms=100)
    train.start()
    train.beats(9, 1200, 30, slow={(6, 3): 75}.items())
    for page, name in zip(pages, ("page", "page-dark", "page-phone", None)):
        if name:
            page.js("document.activeElement.blur()")
            page.shot(out / f"{name}.png", 780 if "phone" in name else page.js("document.documentElement.scrollHeight") if name == "page" else 900)
    browser.close()
    server.stop()
    del old, waits
    for path in sorted(out.glob("page*.png")):
        smaller(path)


main()
