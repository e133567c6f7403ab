#!/usr/bin/env python3
"""Make the first corpus of fuzz_store from the captures and a few stories of its own.

make_corpus_store.py CAPTURES_FOLDER OUT_FOLDER. Files that the fuzzer found later stand beside these.
"""
import glob
import json
import os
import struct
import sys

FEED, FEED_MODERN, DRAIN, DRAIN_SOME, CLOSE, WIPE, TAKE_READY, STATS = range(8)


def step(what, who=0):
    return bytes([what << 2 | who])


def feed(who, data, what=FEED):
    return step(what, who) + struct.pack("<H", len(data)) + data


def s(text):
    data = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(data)) + data


def from_capture(doc):
    out = b""
    for m in doc["messages"]:
        who = (ord(m.get("conn", "A")) - 65) % 4
        if m.get("dir") == "c2s" and m.get("hex"):
            out += feed(who, bytes.fromhex(m["hex"]))
        elif m.get("dir") == "c2s" and m.get("event") == "close":
            out += step(CLOSE, who)
        elif m.get("dir") == "s2c":
            out += step(TAKE_READY) + step(DRAIN, who)
    return out


def q(n):
    return struct.pack("<q", n)


STORIES = {
    "large": feed(0, b"\x01" + s("/b") + s(b"x" * 39000), FEED_MODERN) + feed(1, b"\x03" + s("/b"), FEED_MODERN)
    + feed(0, b"\x09" + s("/b") + s(b"y" * 20000)) + feed(1, b"\x03" + s("/b")) + step(DRAIN_SOME, 1) + step(DRAIN, 1),
    "multi": feed(0, b"\x0b" + q(3) + b"".join(s("/k%d" % i) + s(b"z" * 17000 * i) for i in range(3)), FEED_MODERN)
    + feed(0, b"\x0a" + q(3) + s("/k0") + s("/k2") + s("/none") + b"\x11\x07"),
    "offers": feed(0, b"\x06" + q(2) + s("/q") + s("/q"), FEED_MODERN) + feed(1, b"\x06" + q(1) + s("/q"), FEED_MODERN)
    + feed(2, b"\x0e" + s("/q") + s("item"), FEED_MODERN) + step(CLOSE, 0) + step(DRAIN, 1) + feed(1, b"\x0c")
    + feed(3, b"\x0f" + s("/q") + b"\x10" + s("/q"), FEED_MODERN),
    "wipe": feed(0, b"\x06" + q(2) + s("/a") + s("/b"), FEED_MODERN) + feed(1, b"\x01" + s("/a") + s("1"), FEED_MODERN)
    + step(WIPE) + feed(1, b"\x01" + s("/b") + s("1")) + step(STATS) + feed(1, b"\x12" + s("/a") + q(1)),
    "watch": feed(3, b"\x07" + s("/w")) + feed(0, b"\x01" + s("/w") + s("1") + b"\x04" + s("/w") + q(9) + b"\x08" + s("/w"), FEED_MODERN)
    + feed(2, b"\x01" + s("/w") + s("") + s("v")) + step(DRAIN, 3),
    "slow": b"".join(feed(0, b"\x01" + s("/v") + s(b"v" * 3000) + b"\x03" + s("/v"), FEED_MODERN) for _ in range(6)) + step(TAKE_READY),
    "bad": feed(0, b"\x00\x01\x02\x03\x04") + feed(1, b"GET / HTTP/1.1\r\n") + feed(2, b"\x01" + q(41), FEED_MODERN) + feed(3, b"\x06" + q(51), FEED_MODERN),
}


def main():
    captures, out = sys.argv[1], sys.argv[2]
    os.makedirs(out, exist_ok=True)
    for path in sorted(glob.glob(os.path.join(captures, "*.json"))):
        doc = json.load(open(path))
        with open(os.path.join(out, os.path.basename(path)[:-5]), "wb") as f:
            f.write(from_capture(doc))
    for name, data in STORIES.items():
        with open(os.path.join(out, "story-" + name), "wb") as f:
            f.write(data)


if __name__ == "__main__":
    main()
