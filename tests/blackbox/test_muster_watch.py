"""muster ... --watch: a change is shown when it happens, by the server's events; by asking again where the server is older."""
import http.server
import json
import threading
import time

import mulib
from eventlib import samples, wait_sample
from mulib import Agent
from musterlib import Muster


def watch(port, *words):
    return Muster(*words, f"--rdzv=127.0.0.1:{port}")


def test_a_change_is_shown_within_a_tenth_of_a_second_and_nobody_polls(server):
    with mulib.closing_all() as things:
        w = watch(server.port, "nodes", "--watch=60")
        things.append(w)
        wait_sample(server, "muster_event_readers", lambda v: v == 1)
        took = []
        for n in range(5):
            begun = time.monotonic()
            things.append(Agent(server, run_id=f"job{n}", host=f"node{n}"))
            w.out.wait(f"job{n} .*node{n} ")
            took.append(time.monotonic() - begun)
            time.sleep(0.1)
        print(f"ms: {[round(t * 1000, 1) for t in took]}")
        assert min(took) < 0.1, took
        assert samples(server)['muster_http_requests_total{path="/status",code="200"}'] == 1


def test_ages_are_drawn_anew_without_news(server):
    w = watch(server.port, "status", "--watch=0.2")
    w.out.wait("up 0.*no|up 0")
    w.out.wait("up 2 s|up 2.0 s|up 2\\.", timeout=20)
    assert samples(server)['muster_http_requests_total{path="/status",code="200"}'] == 1
    w.close()


def test_json_is_one_document_a_line_at_each_change(server):
    w = watch(server.port, "jobs", "--json", "--watch")
    w.out.wait(r"^\[\]$")
    a = Agent(server, run_id="one", host="n1")
    w.out.wait('"one"')
    a.close()
    w.close()
    documents = [json.loads(line) for line in w.out.lines]
    assert documents[0] == [] and documents[-1][0]["id"] == "one" and len(documents) < 10


def test_an_older_server_is_asked_again_and_again():
    class Older(http.server.BaseHTTPRequestHandler):
        asked = []

        def do_GET(self):
            self.asked.append(self.path)
            there = self.path == "/status"
            body = json.dumps({"version": "0.0.1", "uptime_s": len(self.asked), "now": "2026-11-30T06:46:42.123Z", "address": "x",
                               "server": {"jobs_live": len(self.asked), "agents": 0}, "jobs": []} if there else {"error": "no such page"})
            self.send_response(200 if there else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *words):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Older) as older:
        threading.Thread(target=older.serve_forever, daemon=True).start()
        w = watch(older.server_address[1], "status", "--watch=0.1")
        w.out.wait("rdzv-server 0.0.1.* [5-9] jobs")
        w.close()
        older.shutdown()
    assert Older.asked.count("/v1/events") == 1 and Older.asked.count("/status") >= 4
