"""The command muster as a person has it: its two streams as lines, or what a terminal shows."""
import os
import pty
import subprocess
import threading

import mulib
from mulib import PATIENCE, program


class Muster:
    """One muster, its stdout and stderr as lines."""

    def __init__(self, *words, env=None, cwd=None):
        self.p = subprocess.Popen([program("muster"), *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=cwd,
                                  env={**os.environ, **(env or {})})
        self.out = mulib.Lines(self.p.stdout)
        self.err = mulib.Lines(self.p.stderr)

    def end(self):
        """Waits for it. Its exit status."""
        code = self.p.wait(PATIENCE * 3)
        self.out.thread.join(PATIENCE)
        self.err.thread.join(PATIENCE)
        assert "Sanitizer" not in self.err.text() and "runtime error" not in self.err.text(), self.err.text()
        return code

    def close(self):
        """Ends it, whatever it does."""
        if self.p.poll() is None:
            self.p.kill()
        self.p.wait(PATIENCE)


class Terminal:
    """One muster at a terminal; `seen` grows by what it shows."""

    def __init__(self, *words):
        self.master, slave = pty.openpty()
        env = {k: v for k, v in os.environ.items() if k != "NO_COLOR"} | {"TERM": "xterm"}
        self.p = subprocess.Popen([program("muster"), *words], stdin=slave, stdout=slave, stderr=slave, env=env)
        os.close(slave)
        self.seen = bytearray()
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self):
        while True:
            try:
                got = os.read(self.master, 65536)
            except OSError:  # Nobody has its other end any more.
                return
            if not got:
                return
            self.seen.extend(got)

    def end(self):
        """Waits for it. Its exit status, and all that it showed."""
        code = self.p.wait(PATIENCE * 2)
        self.thread.join(PATIENCE)
        os.close(self.master)
        return code, self.seen.decode().replace("\r\n", "\n")
