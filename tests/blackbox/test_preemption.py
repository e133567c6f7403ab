"""--preemption-url: a node whose machine is about to be taken away leaves in order, as the clouds tell it."""
import datetime
import http.server
import threading
import time

import pytest

from test_drain import LIMIT_S, Group, check_halts, pytestmark, wait_steps  # noqa: F401 (the mark counts here too)


class Metadata:
    """A metadata service on loopback: pages {(method, path): function of the request's headers -> (status, body)}."""

    def __init__(self, pages):
        self.pages, self.asked = pages, []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def answer(self):
                outer.asked.append((self.command, self.path))
                status, body = outer.pages.get((self.command, self.path), lambda h: (404, "not found"))(self.headers)
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body.encode())
            do_GET = do_PUT = answer

            def log_message(self, *args):
                pass
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.host = "127.0.0.1:%d" % self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def metadata():
    made = []

    def make(pages):
        made.append(Metadata(pages))
        return made[-1]
    yield make
    for m in made:
        m.close()


def after(seconds, style):
    t = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=seconds)
    return t.strftime(style)


def aws(notice):
    def action(headers):
        if headers.get("X-aws-ec2-metadata-token") != "secret":
            return 401, ""
        return (200, '{"action": "terminate", "time": "%s"}' % after(120, "%Y-%m-%dT%H:%M:%SZ")) if notice.is_set() else (404, "")

    def token(headers):
        return (200, "secret") if headers.get("X-aws-ec2-metadata-token-ttl-seconds") else (400, "")
    return {("PUT", "/latest/api/token"): token, ("GET", "/latest/meta-data/spot/instance-action"): action}


def gcp(notice):
    def preempted(headers):
        return (200, "TRUE" if notice.is_set() else "FALSE") if headers.get("Metadata-Flavor") == "Google" else (403, "")
    return {("GET", "/computeMetadata/v1/instance/preempted"): preempted}


def azure(notice):
    def events(headers):
        event = '{"EventType": "Preempt", "Resources": ["vm7"], "NotBefore": "%s"}' % after(60, "%a, %d %b %Y %H:%M:%S GMT")
        return (200, '{"Events": [%s]}' % (event if notice.is_set() else "")) if headers.get("Metadata") == "true" else (400, "")
    return {("GET", "/metadata/instance/compute/name?api-version=2021-02-01&format=text"): lambda h: (200, "vm7"),
            ("GET", "/metadata/scheduledevents?api-version=2020-07-01"): events}


@pytest.mark.parametrize("kind, pages, reason, left_s", [
    ("aws", aws, "preemption notice of AWS: terminate at ", 115), ("gcp", gcp, "preemption notice of GCP: preempted", 25),
    ("azure", azure, "preemption notice of Azure: Preempt at ", 55)])
def test_a_notice_makes_the_node_leave(job, server, metadata, monkeypatch, kind, pages, reason, left_s):
    notice = threading.Event()
    service = metadata(pages(notice))
    monkeypatch.setenv("MUSTER_METADATA_HOST", service.host)
    g = Group(job, server, "1:2", 240)
    stays, leaves = g.add("--node-rank=0"), g.add("--node-rank=1", f"--preemption-url={kind}")
    wait_steps(server, 5)
    assert g.node(leaves)["drain"] is None and service.asked
    notice.set()
    text = leaves.err.wait(r"this node is to leave \(preemption notice", timeout=LIMIT_S)
    text = next(s for s in leaves.err.lines if "this node is to leave (" in s)
    assert reason in text, text
    shown = int(text.split("or after ")[1].split(" s")[0])
    assert left_s - 8 <= shown <= left_s, text
    leaves.ends(0, LIMIT_S)
    stays.ends(0, LIMIT_S)
    check_halts([stays, leaves], 4)


def test_any_url_will_do_and_trouble_is_said_once(job, server, metadata):
    status = [503]
    service = metadata({("GET", "/gone?x=1"): lambda h: (status[0], "body")})
    g = Group(job, server, "1:2", 400)
    stays, leaves = g.add("--node-rank=0"), g.add("--node-rank=1", f"--preemption-url=http://{service.host}/gone?x=1", "--drain-timeout=30")
    wait_steps(server, 5)
    leaves.err.wait(r"--preemption-url: http://\S+: HTTP status 503 is neither a notice", timeout=LIMIT_S)
    end = time.monotonic() + LIMIT_S
    while len(service.asked) < 2:
        assert time.monotonic() < end
        time.sleep(0.05)
    assert leaves.err.text().count("--preemption-url:") == 1
    status[0] = 200
    leaves.ends(0, LIMIT_S)
    stays.ends(0, LIMIT_S)
    assert "has left job d in order (preemption notice)" in leaves.err.text()


def test_a_service_that_is_not_there_disturbs_nobody(job, server):
    g = Group(job, server, "1", 40)
    a = g.add("--preemption-url=http://127.0.0.1:1/")
    a.ends(0, LIMIT_S)
    assert a.err.text().count("--preemption-url:") == 1


@pytest.mark.parametrize("value", ["oracle", "ftp://x", "", "http://me:secret@host/"])
def test_what_is_neither_is_a_usage_error(job, value):
    a = job.start("--standalone", f"--preemption-url={value}", "true")
    a.ends(2)
    assert "--preemption-url" in a.err.text()
