"""A reader of GET /events, and the numbers of GET /metrics, for black-box tests."""
import contextlib
import http.client
import json
import socket
import threading
import time

import mulib


class Event:
    def __init__(self, number, data, at):
        self.number, self.status, self.at = number, json.loads(data), at


class Events:
    """Reads the stream on a thread, as fast as it can; `start=False`: not before start()."""

    def __init__(self, server, path="/v1/events", start=True):
        self.connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        self.connection.request("GET", path)
        self.answer = self.connection.getresponse()
        self.events, self.comments, self.retry = [], 0, None
        self.ended = None  # How: "clean", or what went wrong.
        self.changed = threading.Condition()
        self.thread = threading.Thread(target=self._read, daemon=True)
        if start:
            self.start()

    def start(self):
        self.thread.start()

    def _read(self):
        fields, how = {}, "clean"
        try:
            while line := self.answer.readline():
                at = time.monotonic()
                text = line.decode().rstrip("\n")
                name, _, value = text.partition(":")
                with self.changed:
                    if text == "" and "data" in fields:
                        assert fields["event"] == "status"
                        self.events.append(Event(int(fields["id"]), fields["data"], at))
                    if text == "":
                        fields = {}
                    elif name == "":
                        self.comments += 1
                    elif name == "retry":
                        self.retry = int(value)
                    else:
                        assert name not in fields, text
                        fields[name] = value.removeprefix(" ")
                    self.changed.notify_all()
        except (OSError, ValueError, AttributeError, AssertionError, http.client.HTTPException) as e:  # Or it was closed by the test.
            how = repr(e)
        with self.changed:
            self.ended = how
            self.changed.notify_all()

    def wait(self, test, what, timeout=None, after=0):
        """The first event for which test(status) holds."""
        end = time.monotonic() + (timeout or mulib.PATIENCE)
        at = after
        with self.changed:
            while True:
                while at < len(self.events):
                    if test(self.events[at].status):
                        return self.events[at]
                    at += 1
                left = end - time.monotonic()
                assert left > 0 and self.ended is None, f"{what}: {len(self.events)} events, {self.ended}"
                self.changed.wait(left)

    def wait_end(self):
        with self.changed:
            assert self.changed.wait_for(lambda: self.ended is not None, mulib.PATIENCE), "the stream goes on"
        return self.ended

    def wait_comment(self, count, timeout):
        with self.changed:
            return self.changed.wait_for(lambda: self.comments >= count, timeout)

    def count(self):
        with self.changed:
            return len(self.events)

    def close(self):
        with contextlib.suppress(OSError, AttributeError):
            self.connection.sock.shutdown(socket.SHUT_RDWR)
        self.connection.close()


def metrics_text(server):
    code, headers, body = server.get("/v1/metrics")
    assert code == 200 and headers["Content-Type"].startswith("text/plain; version=0.0.4"), (code, headers)
    return body.decode()


def samples(server):
    """{name: value}, labels in the name as the text has them."""
    lines = [line.rpartition(" ") for line in metrics_text(server).splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


def wait_sample(server, name, test):
    end = time.monotonic() + mulib.PATIENCE
    while True:
        got = samples(server)
        if test(got.get(name)):
            return got
        assert time.monotonic() < end, f"{name} is {got.get(name)}"
        time.sleep(0.02)
