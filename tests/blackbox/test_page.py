"""The page at /: what is sent with it, and what people see of it, in a real Chromium.

After each test: nothing was asked of another origin, and nothing stands in the console."""
import contextlib
import http.server
import json
import os
import re
import signal
import subprocess
import threading
import time
import urllib.request

import pytest

import chromelib
import mulib
from mulib import OLD, PATIENCE, Agent, Group, Server, closing_all

needs_chromium = pytest.mark.skipif(not chromelib.program(), reason="chromium is not installed")
FILES = {"/": "text/html; charset=utf-8", "/page.css": "text/css; charset=utf-8", "/page.js": "text/javascript; charset=utf-8"}
# Counts frames, and how long drawing kept the page busy.
WATCH = """
    window.gaps = []; window.slow = [];
    new PerformanceObserver(list => { for (const e of list.getEntries()) slow.push(e.duration); }).observe({type: 'longtask'});
    (function frame(last) { requestAnimationFrame(now => { gaps.push(now - last); frame(now); }); })(performance.now());
"""


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    b = chromelib.Chromium(str(tmp_path_factory.mktemp("chromium")))
    yield b
    b.close()


@pytest.fixture
def browse(chromium):
    """Opens pages; what they asked for and complained of is checked at the end."""
    pages = []

    def open_page(server, path="", **kw):
        port = server if isinstance(server, int) else server.port
        p = chromium.page(**kw)
        p.origin = f"http://127.0.0.1:{port}/"
        p.may_fail = False
        pages.append(p)
        return p.open(p.origin + path)

    yield open_page
    for p in pages:
        complaints, asked = p.complaints(), p.asked()
        p.close()
        assert p.may_fail or not complaints, complaints
        assert asked and all(a.startswith((p.origin, "data:")) for a in asked), asked


def cells(page, state):
    return page.js(f"document.querySelectorAll('#grid .c.{state}').length")


# --- what is sent ---

def test_files_are_sent_with_types_tags_and_a_policy(server):
    total = 0
    for path, kind in FILES.items():
        code, head, body = server.get(path)
        assert code == 200 and head["Content-Type"] == kind and len(body) > 1000, (path, code, head)
        assert head["X-Frame-Options"] == "DENY" and head["Referrer-Policy"] == "no-referrer"
        assert head["X-Content-Type-Options"] == "nosniff" and head["Cache-Control"] == "no-cache"
        policy = {d.split()[0]: d.split()[1:] for d in head["Content-Security-Policy"].split(";")}
        assert policy["default-src"] == ["'none'"] and policy["script-src"] == policy["style-src"] == policy["connect-src"] == ["'self'"]
        assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == ["'none'"]
        with open(os.path.join(os.environ.get("MUSTER_SOURCE", "../.."), "rendezvous/server/page", path[1:] or "index.html"), "rb") as f:
            assert f.read() == body, f"{path} is not the file of the tree"
        assert server.get("/v1" + path)[2] == body
        total += len(body)
    assert total < 60000, f"{total} bytes: the page is to stay small"


def test_a_browser_that_has_a_file_is_told_so(server):
    for path in FILES:
        tag = server.get(path)[1]["ETag"]
        assert re.fullmatch(r'"[0-9a-f]{16}"', tag)
        for value, code in ((tag, 304), (f'W/{tag}', 304), (f'"x", {tag}', 304), ("*", 304), ('"0000000000000000"', 200)):
            request = urllib.request.Request(f"http://127.0.0.1:{server.port}{path}", headers={"If-None-Match": value})
            try:
                with urllib.request.urlopen(request, timeout=PATIENCE) as r:
                    got, head, body = r.status, r.headers, r.read()
            except urllib.error.HTTPError as e:
                got, head, body = e.code, e.headers, e.read()
            assert got == code and head["ETag"] == tag and (body == b"") == (code == 304), (path, value, got)
        assert f'path="{path}",code="304"}} 4\n'.encode() in server.get("/metrics")[2]


def test_the_page_is_read_only(server):
    for path in FILES:
        code, head, body = server.get(path, method="HEAD")
        assert code == 200 and body == b"" and int(head["Content-Length"]) > 1000
        assert server.get(path, method="POST", body=b"x")[0] == 405
    assert server.get("/page.html")[0] == 404


# --- what is seen ---

@needs_chromium
def test_an_empty_server_says_how_to_start_a_first_job(server, browse):
    p = browse(server)
    p.wait("!document.getElementById('empty').hidden", "the first steps")
    assert f"node-agent --rdzv=127.0.0.1:{server.port}" in p.text("#first-line") and "--nnodes=2" in p.text("#first-line")
    assert p.js("document.getElementById('job').hidden && document.getElementById('side').hidden")
    with closing_all() as things:
        things.append(Agent(server, run_id="first"))
        p.wait("document.querySelector('#sentence').textContent.includes('1 of 2 nodes')", "the job, without a reload")


@needs_chromium
def test_a_killed_worker_shows_with_restart_and_cause_without_reload(server, job, browse):
    p = browse(server)
    p.wait("!document.getElementById('empty').hidden")
    p.js("window.stays = 1")
    w = job.worker("say('pid', RANK, os.getpid(), RESTARTS)\nsys.stderr.write('the last words of %d\\n' % RANK)\nsys.stderr.flush()\nhang()\n")
    a, b = job.nodes(server, 2, "--nproc-per-node=2", "--max-restarts=2", "--rdzv-id=train", w)
    p.wait("document.querySelectorAll('#grid .c.running').length === 4", "four running workers")
    assert "Round 1 runs: 4 workers on 2 nodes" in p.text("#sentence") and "2 of 2 restarts left" in p.text("#next")
    assert p.js("document.getElementById('first-box').hidden")
    pid = next(int(m.group(2)) for m in (a.out.wait_count(r"^pid (\d) (\d+) 0", 2) + b.out.wait_count(r"^pid (\d) (\d+) 0", 2))
               if m.group(1) == "3")
    os.kill(pid, signal.SIGKILL)
    p.wait("document.querySelector('#sentence').textContent.startsWith('Round 2 runs')", "the restart")
    p.wait("document.querySelectorAll('#grid .c.running').length === 4", "four workers again")
    assert re.match(r"Rank 3 \(local rank 1, pid \d+\) on \S+ .*SIGKILL.*\(round 1, \d\d:\d\d:\d\d\)", p.text("#first")), p.text("#first")
    p.wait("document.querySelector('#cause').textContent.startsWith('Rank 3')", "the incident")
    p.wait("document.querySelector('#phases-key').textContent.includes('workers started')", "how long it took")
    assert "starts again (restart 1 of 2)" in p.text("#decision") and "the last words of 3" in p.text("#lines")
    assert "SIGKILL" in p.text("#cause-facts") and str(pid) in p.text("#cause-facts")
    assert p.js("document.querySelectorAll('#marks .mk').length") == 1 and p.text("#marks .mk") == "R"
    assert p.js("[...document.querySelectorAll('#spans .run')].map(e => e.textContent)") == ["round 1", "round 2"]
    assert "1 of 2" in p.text("#facts") and p.js("window.stays") == 1
    for agent in (a, b):
        agent.signal(signal.SIGTERM)
    for agent in (a, b):
        agent.wait()


@needs_chromium
def test_a_change_shows_soon_after_its_event(server, browse):
    """By events, a failure is on the page within a tenth of a second (as a rule; the machine may be busy)."""
    try:
        with contextlib.closing(server.connect()) as s:
            s.sendall(b"GET /v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            if b" 200 " not in s.recv(4096).split(b"\r\n")[0]:
                pytest.skip("this server has no /v1/events")
    except ConnectionError:
        pytest.skip("this server has no /v1/events")
    p = browse(server)
    took = []
    with closing_all() as things:
        g = Group(server, things, max_restarts=100)
        p.wait("document.querySelectorAll('#grid .c.running').length === 4")
        p.wait("document.getElementById('live').dataset.mode === 'live'", "events")
        for _ in range(9):
            p.js("""window.seen = new Promise(done => { const grid = document.getElementById('grid'); const o = new MutationObserver(() => {
                if (grid.querySelector('.c.failed, .c.killed, .c.stopping')) { o.disconnect(); done(Date.now()); } });
                o.observe(grid, {subtree: true, attributes: true}); }); 0""")
            at = time.time() * 1000
            g.agents[0].failed(kind="worker_signal", signo=9)
            took.append(p.js("window.seen") - at)
            for a in g.agents:
                a.expect("stop", skip=OLD)
            g.stopped()
            g.start()
            p.wait("document.querySelectorAll('#grid .c.running').length === 4")
    took.sort()
    print(f"a failure is on the page after {took[0]:.0f} ms, {took[4]:.0f} ms (median), {took[-1]:.0f} ms")
    assert took[4] < 500, took


class Proxy(http.server.ThreadingHTTPServer):
    """Before a server: knows nothing of events, or holds them back for ever."""
    daemon_threads = True

    def __init__(self, server, holds):
        self.asked = 0
        done = self.done = threading.Event()

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                if self.path == "/v1/events":
                    if holds:
                        done.wait()
                    else:
                        self.send_error(404)
                    return
                self.server.asked += self.path == "/v1/status"
                code, head, body = server.get(self.path)
                self.send_response(code)
                for name, value in head.items():
                    if name not in ("Connection", "Date", "Content-Length"):
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        self.port = self.server_address[1]
        self.thread = threading.Thread(target=self.serve_forever, daemon=True)
        self.thread.start()

    def close(self):
        self.done.set()
        self.shutdown()
        self.server_close()
        self.thread.join()


@pytest.fixture
def start_proxy(server):
    """Asked for before `browse`, so that pages are gone when it is closed."""
    with closing_all() as things:
        yield lambda holds: things.append(Proxy(server, holds)) or things[-1]


@needs_chromium
@pytest.mark.parametrize("holds", [False, True], ids=["knows no events", "holds events back"])
def test_behind_an_old_proxy_it_asks_each_second(server, start_proxy, browse, holds):
    with closing_all() as things:
        proxy = start_proxy(holds)
        g = Group(server, things)
        p = browse(proxy.port)
        p.wait("document.querySelectorAll('#grid .c.running').length === 4", "the job")
        p.wait("document.getElementById('live').textContent === 'asked each second'")
        g.fail(kind="worker_signal", signo=9)
        p.wait("document.querySelectorAll('#grid .c.killed, #grid .c.stopping').length > 0", "the failure")
        before, at = proxy.asked, time.monotonic()
        p.wait("(window.n = (window.n || 0) + 1) > 250", "two seconds and a half")
        assert 1 <= proxy.asked - before <= 2 + (time.monotonic() - at), "about once a second"


@needs_chromium
def test_a_server_that_wants_its_token_is_given_it(tmp_path, start_server, browse):
    if b"--read" not in subprocess.run([mulib.program("rdzv-server"), "--help"], capture_output=True, check=True).stdout:
        pytest.skip("this server has no --read=token")
    (tmp_path / "token").write_text("ab" * 32 + "\n")
    (tmp_path / "token").chmod(0o600)
    s = start_server(f"--token-file={tmp_path}/token", "--read=token")
    p = browse(s)
    p.may_fail = True # Refusals stand in the console.
    for token, answer in (("cd" * 32, "That is not the server"), ("ab" * 32, None)):
        p.wait("!document.getElementById('token').hidden", "the question for the token")
        p.js(f"document.getElementById('token-text').value = '{token}'; document.getElementById('token').requestSubmit()")
        if answer:
            p.wait(f"document.getElementById('lost').textContent.startsWith('{answer}')", answer)
    p.wait("!document.getElementById('empty').hidden && document.getElementById('lost').hidden", "the state")
    assert p.js("document.getElementById('token').hidden && !location.href.includes('ab')")


@needs_chromium
def test_a_server_that_is_gone_and_comes_back(tmp_path, start_server, browse):
    s = start_server(keep=True)
    p = browse(s)
    p.may_fail = True # Refused connections stand in the console.
    p.wait("!document.getElementById('empty').hidden")
    s.stop()
    p.wait("document.getElementById('live').dataset.mode === 'lost'", "that nobody answers")
    assert "No answer from the server. What is shown is from" in p.text("#lost")
    again = start_server(port=s.port, keep=True)
    p.wait("document.getElementById('lost').hidden", "that it is back")
    with closing_all() as things:
        things.append(Agent(again, run_id="later"))
        p.wait("document.getElementById('job-id').textContent === 'later'", "a job of the new server")


@needs_chromium
def test_keyboard(server, browse):
    with closing_all() as things:
        g = Group(server, things, nodes=3, nproc=4, max_restarts=5)
        for n in range(2):
            g.fail(node=n, kind="worker_exit", exit_code=n + 3)
            g.stopped()
            g.start()
        p = browse(server)
        p.wait("document.querySelectorAll('#grid .c.running').length === 12")
        p.wait("document.querySelectorAll('#marks .mk').length === 2")
        p.call("Page.bringToFront")

        def focused():
            return p.js("document.activeElement.getAttribute('aria-label') || document.activeElement.textContent")

        # Every stop of the Tab key shows where it is, and the grid is one stop.
        stops = []
        for _ in range(30):
            p.key("Tab")
            if p.js("document.activeElement === document.body"):
                break
            style = p.js("(s => s.outlineStyle + ' ' + parseFloat(s.outlineWidth))(getComputedStyle(document.activeElement))")
            assert style.startswith("solid") and float(style.split()[1]) >= 2, (focused(), style)
            stops.append(focused())
        assert stops[0] == "To the job" and "rank 0 running" in stops
        assert sum(s.startswith("rank ") for s in stops) == 1 and sum(s.startswith("Round ") and "exited" in s for s in stops) >= 1, stops
        # Within the grid: arrows, from row to row and over the ends.
        p.js("document.querySelector('#grid .c[tabindex=\"0\"]').focus()")
        columns = p.js("getComputedStyle(document.getElementById('grid')).gridTemplateColumns.split(' ').length")
        for key, rank in [("ArrowRight", 1), ("End", 3), ("ArrowRight", 4), ("ArrowLeft", 3), ("Home", 0), ("ArrowLeft", 0)]:
            p.key(key)
            assert focused() == f"rank {rank} running", key
        p.key("End", ctrl=True)
        assert focused() == "rank 11 running"
        p.key("Home", ctrl=True)
        p.key("ArrowDown")
        assert focused() == (f"rank {4 * columns} running" if columns < 3 else "rank 0 running")
        p.key("Home", ctrl=True)
        p.key("ArrowRight")
        assert "Rank 1 · node n0 · local rank 1 · running" in p.text("#inspect")
        p.key("Enter")
        assert p.js("document.activeElement.getAttribute('aria-selected')") == "true"
        p.js("document.activeElement.blur()")
        p.wait("document.getElementById('inspect').textContent.startsWith('Rank 1 ')", "the one that was kept")
        # On the time line: the arrows choose the incident.
        assert "exited with status 4" in p.text("#cause")
        p.js("document.querySelector('#marks [aria-pressed=true]').focus()")
        p.key("ArrowLeft")
        p.wait("document.getElementById('cause').textContent.includes('exited with status 3')", "the earlier incident")
        assert p.js("document.activeElement.className") == "mk"
        # Landmarks, one h1, and a name for each button.
        assert p.js("['header', 'nav[aria-label]', 'main'].every(s => document.querySelectorAll(s).length === 1)")
        assert p.js("[...document.querySelectorAll('h1')].filter(e => e.offsetParent).length") == 1
        assert p.js("[...document.querySelectorAll('button, a')].every(e => (e.getAttribute('aria-label') || e.textContent).trim())")


@needs_chromium
def test_a_chosen_incident_stays_and_the_newest_is_followed(server, browse):
    with closing_all() as things:
        g = Group(server, things, max_restarts=9)

        def fail(status):
            g.fail(kind="worker_exit", exit_code=status)
            g.stopped()
            g.start()

        fail(3), fail(4)
        p = browse(server)
        p.wait("document.getElementById('cause').textContent.includes('status 4')", "the newest")
        p.js("document.querySelectorAll('#incidents button')[1].click()")
        assert "status 3" in p.text("#cause")
        fail(5)
        p.wait("document.querySelectorAll('#incidents button').length === 3", "another incident")
        assert "status 3" in p.text("#cause")
        p.js("document.querySelectorAll('#incidents button')[0].click()")
        fail(6)
        p.wait("document.getElementById('cause').textContent.includes('status 6')", "the newest again")


@needs_chromium
def test_what_speaks_against_a_node_is_said_with_its_workers(server, browse):
    """What counts for --quarantine: as muster nodes says it."""
    with closing_all() as things:
        g = Group(server, things, max_restarts=9)
        for code in (3, 4):
            g.fail(node=1, kind="worker_exit", exit_code=code)
            g.stopped()
            g.start()
        p = browse(server)
        p.wait("document.querySelectorAll('#grid .c.running').length === 4")
        cells = {w: p.js(f"document.querySelectorAll('#grid .c')[{w}].click(), document.getElementById('inspect').textContent") for w in (0, 3)}
        assert "began here" not in cells[0], cells
        assert "node n1" in cells[3] and "2 failures began here, the last in round 2: " in cells[3] and "status 4" in cells[3], cells


@needs_chromium
def test_jobs_are_chosen_by_link(server, browse):
    with closing_all() as things:
        Group(server, things, run_id="one")
        Group(server, things, run_id="two")
        p = browse(server)
        p.wait("document.querySelectorAll('#jobs a').length === 2")
        assert p.text("#job-id") == "one"
        p.js("document.querySelectorAll('#jobs a')[1].click()")
        p.wait("document.getElementById('job-id').textContent === 'two'")
        assert p.js("document.querySelector('#jobs [aria-current]').textContent").startswith("runningtwo") and "two" in p.js("location.hash")
        q = browse(server, "#job=two")
        q.wait("document.getElementById('job-id').textContent === 'two'")


HOSTILE = "<script>document.title='taken'</script><img src=x onerror=alert(1)>\u202e\x1b[31mred\x07"
SHOWN = "<script>document.title='taken'</script><img src=x onerror=alert(1)>"


@needs_chromium
def test_hostile_words_are_shown_as_text(server, browse):
    with closing_all() as things:
        g = Group(server, things, run_id="<b>job</b>&amp;", hosts={0: "<i>host</i>\x1b]0;x\x07"}, max_restarts=3)
        g.agents[1].failed(kind="worker_exit", exit_code=1, rank=2, message=HOSTILE, tail=HOSTILE + "\n\x01 end\n", trace=HOSTILE)
        for a in g.agents:
            a.expect("stop", skip=OLD)
        for width in (1280, 360):
            p = browse(server, width=width, height=800)
            p.wait("document.getElementById('lines').textContent.includes('end')", "the last lines")
            assert p.text("#job-id") == "<b>job</b>&amp;"
            assert p.js("[...document.querySelectorAll('#grid .host')].map(e => e.textContent)")[0].startswith("<i>host</i>")
            for place in ("#lines", "#trace"):
                assert SHOWN in p.js(f"document.querySelector('{place}').textContent"), place
            assert p.js("document.querySelectorAll('i.host, b.job, img, main script, nav script').length") == 0
            assert p.js("document.title").startswith("<b>job</b>")
            everything = p.js("document.documentElement.textContent + [...document.querySelectorAll('*')].flatMap(e => "
                              "[...e.attributes].map(a => a.value)).join(' ')")
            bad = re.findall("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", everything)
            assert not bad, bad
            assert p.js("document.documentElement.scrollWidth") <= width


@needs_chromium
@pytest.mark.parametrize("width", [360, 768])
def test_narrow_screens_do_not_scroll_sideways(server, browse, width):
    with closing_all() as things:
        g = Group(server, things, nodes=4, nproc=8, run_id="a-run-id-of-many-letters" * 4, hosts={1: "a-long-host-name." * 3 + "example.com"},
                  spares=1, max_restarts=4)
        g.steps(lambda k, i: 123456789 + 10 * k)
        g.fail(kind="worker_exit", exit_code=1, message="x" * 300, tail="y" * 400 + "\n" + "z " * 100)
        p = browse(server, width=width, height=740)
        p.wait("document.getElementById('lines').textContent.includes('zz') || document.getElementById('lines').textContent.includes('z z')")
        wide = p.js("""[...document.querySelectorAll('header, nav section, main section')].filter(e => e.scrollWidth > e.clientWidth)
            .map(e => e.className + ' ' + e.getAttribute('aria-labelledby'))""")
        assert p.js("document.documentElement.scrollWidth") == width and not wide, wide
        tiles = p.js("[...document.querySelectorAll('.tile')].map(t => new Set([...t.querySelectorAll('.c')].map(c => c.offsetTop)).size)")
        assert max(tiles) == 1, "eight workers stand in one line"


CONTRAST = """(() => {
    const rgb = s => s.match(/[\\d.]+/g).map(Number);
    const lum = c => c.slice(0, 3).map(v => v / 255).map(v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
        .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
    const ground = e => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor); if (c.length < 4 || c[3] > 0) return c; } };
    const bad = [];
    for (const e of document.querySelectorAll('body *')) {
        if (!e.checkVisibility() || ![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()) || e.closest('.skip')) continue;
        const [a, b] = [lum(rgb(getComputedStyle(e).color)), lum(ground(e))].sort((x, y) => y - x);
        if ((a + .05) / (b + .05) < 4.5) bad.push(e.tagName + '.' + e.className + ' ' + e.textContent.slice(0, 20) + ' ' + ((a + .05) / (b + .05)).toFixed(2));
    }
    return bad;
})()"""


@needs_chromium
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_light_and_dark_can_be_read(server, browse, dark):
    with closing_all() as things:
        g = Group(server, things, nodes=2, nproc=4, spares=1, max_restarts=4)
        g.steps(lambda k, i: 100)
        g.agents[1].send("silent", round=1, workers=[0, 9000, 1, 1])
        p = browse(server, dark=dark)
        p.wait("document.querySelector('#grid .c.silent')", "a silent worker")
        ground = p.js("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
        assert max(ground) < 60 if dark else min(ground) > 200
        assert p.js(CONTRAST) == []
        g.fail(kind="worker_signal", signo=9, tail="words\n", trace="more words")
        p.wait("document.querySelector('#grid .c.killed') && document.querySelector('.mk')", "the failure")
        assert p.js(CONTRAST) == []
        # What colour says, a letter or a shape says as well.
        letters = p.js("[...document.querySelectorAll('#grid .c')].map(c => [c.className.split(' ')[1], c.textContent])")
        assert len({tuple(x) for x in letters if x[0] != "running"}) >= 3 and all(t for _, t in letters)


@needs_chromium
def test_reduced_motion_moves_nothing(server, browse):
    with closing_all() as things:
        Group(server, things)
        for still in (True, False):
            p = browse(server, still=still)
            p.wait("document.querySelector('.c.running')")
            assert (p.js("getComputedStyle(document.querySelector('.c')).transitionDuration") == "0s") == still


@needs_chromium
def test_who_is_behind_shows(server, browse):
    with closing_all() as things:
        g = Group(server, things, nodes=2, nproc=4)
        p = browse(server)
        end = time.monotonic() + PATIENCE
        step = 0
        while cells(p, "behind") != 1:
            step += 10
            g.steps(lambda k, i: step if (k, i) != (1, 2) else 5)
            assert time.monotonic() < end, p.text("#progress")
            p.wait("(window.n = (window.n || 0) + 1) % 20 === 0")
        assert p.text("#grid .c.behind") == "<" and "slowest is rank 6 on n1" in p.text("#progress")
        p.js("[...document.querySelectorAll('#sort button')].find(b => b.textContent === 'slowest first').click()")
        assert p.js("document.querySelector('#ranks .body .row').firstChild.textContent") == "6"


@needs_chromium
def test_queue_and_pool_show(server, browse):
    """As docs/status.md has them; a server without service mode has none."""
    pool = {"nodes": [{"id": f"a{i}", "host": "<b>n1</b>" if i == 0 else f"n{i}", "state": s, "slots": 8, "slots_free": 8 - 4 * (s == "busy"), "gpus": 8,
                       "gpus_free": [0, 1, 2, 3], "jobs": ["train-1"] if s == "busy" else []} for i, s in enumerate(["busy", "idle", "draining", "away"] * 300)],
            "queue": [{"id": "next-2", "name": "next", "state": "queued", "nodes": 2, "waits_for": "2 nodes with 8 free slots each; 1 is free"}]}
    p = browse(server)
    p.wait("!document.getElementById('empty').hidden")
    p.js("net.byEvents = true")
    p.wait("!net.polling", "the last question's answer")
    p.js(f"arrived(JSON.stringify({{...status, pool: {json.dumps(pool)}}}), true)")
    p.wait("!document.getElementById('pool-box').hidden")
    assert p.text("#pool-sum") == "300 busy, 300 idle, 300 draining, 300 away" and "<b>n1</b>" in p.text("#pool")
    assert "4 of 8 slots taken, 4 of 8 GPUs free: train-1" in p.text("#pool") and p.js("document.querySelectorAll('#pool .row').length") < 40
    assert "next" in p.text("#queue") and "2 nodes with 8 free slots each" in p.text("#queue") and p.text("#queue-sum") == "1 waiting"
    assert "muster run" in p.text("#pool-line")


def updates(p, seconds):
    """Ten updates a second with what the server answers then, as events would bring them; returns how drawing went."""
    return p.js(f"""(async () => {{
        gaps.length = slow.length = 0;
        let n = 0;
        for (const end = performance.now() + {seconds * 1000}; performance.now() < end; n++) {{
            const began = performance.now();
            arrived(await (await fetch('v1/status', {{cache: 'no-store'}})).text(), false);
            await new Promise(done => setTimeout(done, Math.max(0, 100 - (performance.now() - began))));
        }}
        const sorted = gaps.slice().sort((a, b) => a - b);
        return {{n, frames: gaps.length, median: sorted[sorted.length >> 1], worst: sorted.at(-1), busy: slow.reduce((a, b) => a + b, 0)}};
    }})()""")


@needs_chromium
@pytest.mark.skipif(mulib.is_sanitized(), reason="times are for builds without sanitizers")
@pytest.mark.parametrize("nodes", [64, 1000])
def test_many_workers_ten_times_a_second(server, browse, nodes):
    with closing_all() as things:
        began = time.monotonic()
        g = Group(server, things, nodes=nodes, nproc=8, hosts={i: f"node{i:04d}" for i in range(nodes)})
        stop = threading.Event()

        def beat():
            k = 0
            while not stop.wait(0.1 if nodes < 500 else 1):
                k += 1
                g.steps(lambda node, i: 10 * k + (3 * node + i) % 7)

        thread = threading.Thread(target=beat)
        thread.start()
        try:
            p = browse(server, before=WATCH)
            p.wait(f"document.querySelectorAll('#grid .c.running').length === {8 * nodes}", "all workers")
            p.wait("!document.getElementById('chart').hidden", "steps")
            p.js("window.kept = [...document.querySelectorAll('#grid .c')]; 0")
            got = updates(p, 4)
            print(f"{nodes} nodes of 8 workers: {got}, after {time.monotonic() - began:.1f} s in all")
            assert got["n"] > 3 and got["frames"] > 12 and got["worst"] < 3000, got
            assert p.js("kept.every((c, i) => c === document.querySelectorAll('#grid .c')[i])" if nodes < 100 else "kept.every(c => c.isConnected)")
            assert p.js("document.querySelectorAll('#ranks .row').length") < 60, "only rows in view are drawn"
            p.js("document.querySelector('#ranks .body').scrollTop = 1e9")
            p.wait(f"[...document.querySelectorAll('#ranks .body .row')].some(r => r.firstChild.textContent === '{8 * nodes - 1}')", "the last rank")
        finally:
            stop.set()
            thread.join()
