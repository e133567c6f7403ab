"""A node on offer, by hand: docs/protocol.md "Service mode". It does what the test says, and nothing by itself."""
import http.client
import json
import os
import threading

import mulib


class Node(mulib.Agent):
    def __init__(self, server, host="n1", slots=8, gpus=0, node=None, has=(), say_has=True):
        super().__init__(server, host=host, node=node, hello=False)
        self.host = host
        offer = {"type": "offer", "version": "test", "node": self.node, "host": host, "slots": slots, "gpus": gpus,
                 "cpus": 4, "pid": 77, "user": "tester"}
        self.sock.sendall(b"MUSTER/1\n" + mulib.frame(offer))
        self.welcome = self.expect("welcome")
        for job in has:
            self.send("has", **job)
        if say_has:
            self.send("has", job="")

    def placed(self, assign, state, status=0, text=""):
        self.send("placed", job=assign["job"], attempt=assign["attempt"], state=state, status=status, text=text)

    def run(self):
        """The next assignment, which is said to be running."""
        a = self.expect("assign")
        self.placed(a, 0)
        self.placed(a, 1)
        return a

    def beat(self, seq=1):
        self.send("beat", round=0, seq=seq)
        return self.expect("beat", skip=())


class Beating:
    """Keeps nodes alive that the test does not talk to."""

    def __init__(self, *nodes):
        self.nodes = nodes
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self):
        while not self.over.wait(0.3):
            for n in self.nodes:
                try:
                    n.send("beat", round=0)
                except OSError:
                    pass

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()


def ask(server, method, path, body=None):
    code, _, text = server.get(path, method, json.dumps(body) if body is not None else None)
    return code, json.loads(text)


def submit(server, **fields):
    code, answer = ask(server, "POST", "/v1/jobs", {"argv": ["./train", "--x"], **fields})
    assert code == 201, answer
    return answer["id"]


def job(server, name):
    code, answer = ask(server, "GET", "/v1/jobs/" + name)
    assert code == 200, answer
    return answer


def wait_job(server, name, test, what):
    end = mulib.time.monotonic() + mulib.PATIENCE
    pause = threading.Event()
    while True:
        j = job(server, name)
        if test(j):
            return j
        assert mulib.time.monotonic() < end, f"{what}: {json.dumps(j, indent=1)}"
        pause.wait(0.005)


def wait_state(server, name, state):
    return wait_job(server, name, lambda j: j["state"] == state, state)


class Logs:
    """GET /v1/jobs/ID/logs, line by line."""

    def __init__(self, server, name, query=""):
        self.connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=mulib.PATIENCE)
        self.connection.request("GET", f"/v1/jobs/{name}/logs{query}")
        self.response = self.connection.getresponse()
        self.status = self.response.status

    def line(self):
        """The next one that is no heartbeat; None at the end."""
        end = mulib.time.monotonic() + mulib.PATIENCE
        while True:
            raw = self.response.readline()
            assert mulib.time.monotonic() < end, "nothing but heartbeats came"
            if not raw:
                return None
            if raw.strip():
                return json.loads(raw)

    def close(self):
        self.connection.close()


def random_id():
    return os.urandom(8).hex()
