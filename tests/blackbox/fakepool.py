"""A server of jobs that does what a test tells it: the HTTP side of the pool as docs say it, with the faults of a network. What the real
server does with jobs has tests of its own; here it is muster that is looked at."""
import http.server
import json
import threading
import time
import urllib.parse


class Job:
    def __init__(self, pool, job_id, spec):
        self.pool = pool
        self.id = job_id
        self.spec = spec
        self.state = "queued"
        self.sentence = "1 of 2 nodes is free"
        self.exit_status = None
        self.cause = None
        self.lines = []  # dicts
        self.stops = []  # bodies of /stop
        self.on_stop = None
        self.attempt = 1  # Starts so far.
        self.placed = []
        self.incidents = [{"number": 1}]  # None: no round of it is known.

    def say(self, text, rank=0, stream="stdout", host="n1", at_ms=None):
        with self.pool.changed:
            ms = int(time.time() * 1000) if at_ms is None else at_ms
            self.lines.append({"at": "2026-11-30T12:00:00.000Z", "unix_ms": ms, "host": host, "rank": rank, "stream": stream, "text": text})
            self.pool.changed.notify_all()

    def become(self, state, sentence="", exit_status=None, cause=None):
        with self.pool.changed:
            self.state, self.sentence, self.exit_status, self.cause = state, sentence, exit_status, cause
            self.pool.changed.notify_all()

    def over(self):
        return self.state in ("done", "failed", "stopped")

    def shown(self):
        return {"id": self.id, "name": self.spec.get("name", ""), "state": self.state, "exit_status": self.exit_status, "cause": self.cause,
                "argv": self.spec.get("argv"), "nnodes": self.spec.get("nnodes"), "nproc_per_node": self.spec.get("nproc_per_node"),
                "attempt": self.attempt, "placed": self.placed, "submitted_at": "2026-11-30T12:00:00.000Z", "started_at": None, "ended_at": None,
                "sentence": self.sentence}


class Pool:
    """Serves on a port of its own until stop()."""

    def __init__(self, port=0):
        self.changed = threading.Condition()
        self.jobs = {}
        self.asked = []  # (method, path with its query)
        self.status = {"version": "0.1.0", "uptime_s": 5, "now": "2026-11-30T12:00:00.000Z", "server": {"jobs_live": 0, "agents": 0}, "jobs": [],
                       "pool": {"nodes": [], "queue": []}}
        self.refuse = {}  # path: (status, body)
        self.cut_after = None  # Lines of each stream, then it is cut.
        self.beat_s = 0.5
        self.end_time = False
        self.connections = set()
        self.streams = 0  # That know from where on they send.
        self._serve(port)

    def _serve(self, port):
        pool = self

        class Handler(_Handler):
            pass
        Handler.pool = pool
        http.server.ThreadingHTTPServer.allow_reuse_address = True
        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.http.daemon_threads = True
        self.port = self.http.server_address[1]
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()

    def add(self, job_id="train-5f3a9c", state="running", **spec):
        job = Job(self, job_id, spec)
        job.state = state
        with self.changed:
            self.jobs[job_id] = job
            self.changed.notify_all()
        return job

    def wait_job(self, limit_s=20):
        with self.changed:
            assert self.changed.wait_for(lambda: self.jobs, limit_s), "no job was submitted"
            return next(iter(self.jobs.values()))

    def wait(self, test, what, limit_s=20):
        with self.changed:
            assert self.changed.wait_for(test, limit_s), what

    def cut(self):
        """Every connection ends without a word."""
        import socket
        with self.changed:
            for c in list(self.connections):
                try:
                    c.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass

    def go_away(self):
        with self.changed:
            self.end_time = True
            self.changed.notify_all()
        self.http.shutdown()
        self.http.server_close()
        self.cut()
        self.thread.join(20)

    def come_back(self):
        self.end_time = False
        self._serve(self.port)

    stop = go_away


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    pool = None

    def log_message(self, *_):
        pass

    def setup(self):
        super().setup()
        with self.pool.changed:
            self.pool.connections.add(self.connection)

    def finish(self):
        with self.pool.changed:
            self.pool.connections.discard(self.connection)
        try:
            super().finish()
        except OSError:
            pass

    def answer(self, status, body):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def route(self, method):
        pool = self.pool
        path, _, query = self.path.partition("?")
        query = {k: v[-1] for k, v in urllib.parse.parse_qs(query).items()}
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with pool.changed:
            pool.asked.append((method, self.path))
            pool.changed.notify_all()
        path = path[3:] if path.startswith("/v1/") else path
        if path in pool.refuse:
            return self.answer(*pool.refuse[path])
        if (method, path) == ("GET", "/status"):
            return self.answer(200, pool.status)
        if (method, path) == ("POST", "/jobs"):
            assert self.headers["Content-Type"] == "application/json"
            spec = json.loads(body)
            job = pool.add(f"{spec.get('name') or 'job'}-5f3a9c", "queued", **spec)
            return self.answer(201, {"id": job.id, "state": job.state, "sentence": job.sentence})
        parts = path.strip("/").split("/")
        if method == "POST" and parts[0] == "nodes" and parts[2:] in (["drain"], ["undrain"]):
            if parts[1] != "n1":
                return self.answer(404, {"error": "no node on offer has that id or name: muster pool lists them"})
            sentence = "n1 takes no new jobs, and 1 on it is asked to leave" if parts[2] == "drain" else "n1 takes jobs again"
            return self.answer(202, {"job": None, "node": "a1", "host": "n1", "timeout_ms": 60000, "sentence": sentence})
        job = pool.jobs.get(urllib.parse.unquote(parts[1])) if parts[0] == "jobs" and len(parts) > 1 else None
        if job is None:
            return self.answer(404, {"error": "there is no such job"})
        if method == "GET" and len(parts) == 2:
            return self.answer(200, job.shown())
        if method == "GET" and parts[2:] == ["incidents"] and job.incidents is not None:
            return self.answer(200, {"id": job.id, "left_out": 0, "incidents": job.incidents})
        if method == "GET" and parts[2:] == ["logs"]:
            return self.logs(job, query)
        if method == "POST" and parts[2:] == ["stop"]:
            with pool.changed:
                job.stops.append(json.loads(body) if body else {})
                pool.changed.notify_all()
            if job.on_stop:
                job.on_stop(job.stops[-1])
            return self.answer(202, {"id": job.id, "state": "stopping", "sentence": "its workers are told to end"})
        if method == "POST" and parts[2:] == ["resume"]:
            if not job.over():
                return self.answer(409, {"error": f"job {job.id} is {job.state}: only one that has ended can be resumed"})
            job.become("queued", "it is the first in the queue")
            return self.answer(202, {"id": job.id, "state": "queued", "sentence": job.sentence})
        return self.answer(404, {"error": "there is no such page", "paths": ["/status"]})

    def chunk(self, data):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def logs(self, job, query):
        pool = self.pool
        self.send_response(200)
        self.send_header("Content-Type", "application/x-ndjson")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        at = sent = 0
        since_ms = time.time() * 1000 - float(query["since"]) * 1000 if "since" in query else 0
        rank = int(query.get("rank", -2))
        wanted = lambda line: line["unix_ms"] >= since_ms and rank in (-2, line["rank"])  # noqa: E731
        skipped = set()
        if "lines" in query:  # Of each node so many.
            n = int(query["lines"])
            with pool.changed:
                for host in {line["host"] for line in job.lines}:
                    theirs = [i for i, line in enumerate(job.lines) if wanted(line) and line["host"] == host]
                    skipped |= set(theirs[:max(0, len(theirs) - n)])
        with pool.changed:
            pool.streams += 1
            pool.changed.notify_all()
        try:
            while True:
                with pool.changed:
                    done = lambda: at < len(job.lines) or job.over() or pool.end_time or query.get("follow") != "1"  # noqa: E731
                    news = pool.changed.wait_for(done, pool.beat_s)
                    lines = [line for i, line in enumerate(job.lines[at:], at) if i not in skipped]
                    at = len(job.lines)
                    over = job.over() or query.get("follow") != "1"
                for line in lines:
                    if wanted(line):
                        self.chunk(json.dumps(line).encode() + b"\n")
                        sent += 1
                        if pool.cut_after is not None and sent >= pool.cut_after:
                            self.close_connection = True
                            return self.connection.close()
                if pool.end_time:
                    self.close_connection = True
                    return None
                if over:
                    end = {"end": True, "state": job.state, "exit_status": job.exit_status}
                    self.chunk(json.dumps(end).encode() + b"\n")
                    self.wfile.write(b"0\r\n\r\n")
                    return None
                if not news:
                    self.chunk(b"\n")
        except OSError:
            self.close_connection = True
        return None

    def do_GET(self):
        self.route("GET")

    def do_POST(self):
        self.route("POST")
