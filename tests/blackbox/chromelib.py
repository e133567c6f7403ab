"""A real Chromium, driven over the pipe of its DevTools protocol: nothing but Debian's package `chromium` is needed.

It talks to this machine alone: names lead nowhere, and what it would ask its makers is switched off."""
import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import time

from mulib import PATIENCE

FLAGS = ["--headless=new", "--no-first-run", "--no-default-browser-check", "--disable-gpu", "--disable-dev-shm-usage", "--disable-sync",
         "--disable-background-networking", "--disable-component-update", "--disable-domain-reliability", "--disable-extensions",
         "--disable-features=Translate,OptimizationHints,MediaRouter,DialMediaRouteProvider", "--hide-scrollbars", "--mute-audio",
         "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--no-proxy-server", "--force-color-profile=srgb"]


def program():
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Chromium:
    def __init__(self, folder):
        commands, self.out = os.pipe()
        self.inp, answers = os.pipe()
        flags = FLAGS + (["--no-sandbox"] if os.getuid() == 0 else [])
        # It reads commands from descriptor 3 and writes answers to 4.
        self.log = open(os.path.join(folder, "chromium.log"), "wb")
        self.process = subprocess.Popen(
            ["bash", "-c", f'exec "$0" "$@" 3<&{commands} 4>&{answers}', program(), *flags, "--remote-debugging-pipe",
             f"--user-data-dir={folder}/chromium", "about:blank"],
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, pass_fds=(commands, answers), env={**os.environ, "HOME": str(folder)})
        os.close(commands)
        os.close(answers)
        self.buffer = b""
        self.number = 0
        self.events = []

    def _message(self, end):
        while b"\0" not in self.buffer:
            left = end - time.monotonic()
            assert left > 0 and select.select([self.inp], [], [], left)[0], "Chromium does not answer"
            part = os.read(self.inp, 1 << 20)
            assert part, "Chromium has ended; see chromium.log"
            self.buffer += part
        one, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(one)

    def call(self, method, session=None, **params):
        self.number += 1
        m = {"id": self.number, "method": method, "params": params}
        if session:
            m["sessionId"] = session
        data = json.dumps(m).encode() + b"\0"
        while data:
            data = data[os.write(self.out, data):]
        end = time.monotonic() + 3 * PATIENCE
        while True:
            got = self._message(end)
            if got.get("id") == self.number:
                assert "error" not in got, (method, got["error"])
                return got["result"]
            if "method" in got:
                self.events.append(got)

    def page(self, **kw):
        return Page(self, **kw)

    def close(self):
        with contextlib.suppress(AssertionError, OSError):
            self.call("Browser.close")
        os.close(self.out)
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.inp)
        self.log.close()


class Page:
    """One tab, in a browser profile of its own."""

    def __init__(self, browser, width=1280, height=900, dark=False, still=True, scale=1, before=None):
        self.browser = browser
        self.context = browser.call("Target.createBrowserContext")["browserContextId"]
        target = browser.call("Target.createTarget", url="about:blank", browserContextId=self.context)["targetId"]
        self.session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")
        self.size(width, height, scale)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
                                                          {"name": "prefers-reduced-motion", "value": "reduce" if still else "no-preference"}])
        if before:
            self.call("Page.addScriptToEvaluateOnNewDocument", source=before)

    def call(self, method, **params):
        return self.browser.call(method, session=self.session, **params)

    def size(self, width, height, scale=1):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=width < 600)

    def open(self, url):
        self.call("Page.navigate", url=url)
        return self

    def js(self, expression):
        r = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in r, (expression, r["exceptionDetails"])
        return r["result"].get("value")

    def wait(self, expression, what=None, timeout=None):
        """Until it is true in the page; looked at in each of its frames."""
        ms = int(1000 * (timeout or PATIENCE))
        got = self.js(f"""new Promise(done => {{
            const end = Date.now() + {ms};
            (function look() {{
                let v;
                try {{ v = {expression}; }} catch (e) {{ v = null; }}
                if (v) return done({{v: true}});
                if (Date.now() > end) return done({{text: document.body.innerText}});
                setTimeout(look, 10);
            }})();
        }})""")
        assert "v" in got, f"{what or expression} did not come; the page says:\n{got['text']}"

    def text(self, selector):
        return self.js(f"(document.querySelector({json.dumps(selector)}) || {{}}).innerText")

    def key(self, name, ctrl=False):
        codes = {"Tab": 9, "Enter": 13, "Home": 36, "End": 35, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
        more = {"text": "\r"} if name == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=codes[name],
                      modifiers=2 if ctrl else 0, **(more if kind == "keyDown" else {}))

    def events(self, method):
        return [e["params"] for e in self.browser.events if e["method"] == method and e.get("sessionId") == self.session]

    def complaints(self):
        """What stands in the console, but for the one question that old servers and proxies do not know."""
        self.js("0")
        entries = [e["entry"] for e in self.events("Log.entryAdded")]
        found = [e["text"] + " " + e.get("url", "") for e in entries if not e.get("url", "").endswith("/v1/events")]
        found += [e["exceptionDetails"].get("exception", {}).get("description", str(e)) for e in self.events("Runtime.exceptionThrown")]
        found += [str(e["args"]) for e in self.events("Runtime.consoleAPICalled")]
        return found

    def asked(self):
        """Every address that it asked for."""
        return [e["request"]["url"] for e in self.events("Network.requestWillBeSent")]

    def shot(self, path, clip_height=None):
        height = clip_height or self.js("Math.ceil(document.documentElement.getBoundingClientRect().height)")
        width = self.js("innerWidth")
        r = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True,
                      clip={"x": 0, "y": 0, "width": width, "height": height, "scale": 1})
        with open(path, "wb") as f:
            f.write(base64.b64decode(r["data"]))

    def close(self):
        self.browser.call("Target.disposeBrowserContext", browserContextId=self.context)
