"""What bash, zsh and fish make of a half-typed command line, with the installed completions: keys are typed at a terminal, and the
program that the line then starts says which words it got."""
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

import agentlib
import mulib
from mulib import PATIENCE

BUILD = Path(mulib.BIN).resolve().parent

pytestmark = pytest.mark.skipif(agentlib.SANITIZED, reason="completions are text, the same in each build: once is enough")

# Stands in for the programs: it only has to tell what the shell made of the line.
SAYS = "#!/bin/sh\nprintf '\\nGOT'; printf '<%s>' \"$@\"; printf 'END\\n'\n"
TAB = "\t"


@pytest.fixture(scope="module")
def share(tmp_path_factory):
    """The completions as they are installed."""
    prefix = tmp_path_factory.mktemp("installed")
    p = subprocess.run(["cmake", "--install", BUILD, "--component", "completions", "--prefix", str(prefix)], capture_output=True, text=True,
                       timeout=PATIENCE, check=False)
    assert p.returncode == 0, p.stderr
    return prefix / "share"


class Terminal:
    """A shell at a terminal. Nothing is waited for but text, with a limit."""

    def __init__(self, folder, words, env):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.execvpe(words[0], words, env)
        self.text = ""

    def until(self, pattern):
        end = time.monotonic() + PATIENCE
        while not re.search(pattern, self.text):
            left = end - time.monotonic()
            ready = left > 0 and select.select([self.fd], [], [], left)[0]
            assert ready, f"the shell did not come to {pattern!r}: {self.text!r}"
            try:
                got = os.read(self.fd, 65536)
            except OSError:
                got = b""
            assert got, f"the shell ended before {pattern!r}: {self.text!r}"
            self.text += got.decode("utf-8", "replace")
        return re.search(pattern, self.text)

    def type(self, keys):
        self.text = ""
        os.write(self.fd, keys.encode())

    def end(self):
        os.kill(self.pid, signal.SIGKILL)
        os.close(self.fd)
        os.waitpid(self.pid, 0)


def bash(folder, share, env):
    rc = folder / "bashrc"
    rc.write_text("PS1='READY> '\nbind 'set bell-style none'\nbind 'set enable-bracketed-paste off'\n" +
                  "".join(f". {share}/bash-completion/completions/{p}\n" for p in ("node-agent", "rdzv-server", "muster")))
    return Terminal(folder, ["bash", "--noprofile", "--rcfile", str(rc), "-i"], env)


def zsh(folder, share, env):
    (folder / ".zshrc").write_text(f"fpath=({share}/zsh/site-functions $fpath)\nautoload -U compinit\ncompinit -u -d {folder}/dump\n"
                                   "unsetopt beep zle_bracketed_paste prompt_sp\nPS1='READY> '\n")
    return Terminal(folder, ["zsh", "-d", "-i"], {**env, "ZDOTDIR": str(folder)})


def make_stand_ins(folder):
    for name in ("node-agent", "rdzv-server", "muster"):
        path = folder / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(SAYS)
        path.chmod(0o755)
    (folder / "training.py").touch()
    (folder / "logs-of-mine").mkdir()
    (folder / "logs-in-a-file").touch()
    return {"PATH": f"{folder}/bin:/usr/bin:/bin", "HOME": str(folder), "TERM": "dumb", "LANG": "C.UTF-8"}


@pytest.fixture(scope="module", params=["bash", "zsh"])
def terminal(request, share, tmp_path_factory):
    """A shell that waits for a line."""
    if shutil.which(request.param) is None:
        pytest.skip(f"{request.param} is not installed: apt-get install {request.param}")
    folder = tmp_path_factory.mktemp(request.param)
    t = {"bash": bash, "zsh": zsh}[request.param](folder, share, make_stand_ins(folder))
    t.until("READY> ")
    yield t
    t.end()


LINES = [
    ("a flag", f"node-agent --standa{TAB}x", ["--standalone", "x"]),
    ("of two, as far as they agree", f"node-agent --rdzv-e{TAB}h x", ["--rdzv-endpoint", "h", "x"]),
    ("a word behind a blank", f"node-agent --surroundings kub{TAB}x", ["--surroundings", "kubernetes", "x"]),
    ("a word behind the sign", f"node-agent --surroundings=sl{TAB}x", ["--surroundings=slurm", "x"]),
    ("a word beside what is no word", f"node-agent --nproc-per-node=au{TAB}x", ["--nproc-per-node=auto", "x"]),
    ("only directories", f"node-agent --log-dir logs-{TAB} x", ["--log-dir", "logs-of-mine/", "x"]),
    ("the program", f"node-agent --standalone trai{TAB}x", ["--standalone", "training.py", "x"]),
    ("behind a switch comes no value", f"node-agent -m --on-jo{TAB}re{TAB}x", ["-m", "--on-join", "restart", "x"]),
    ("a file of the program", f"node-agent a.py --config trai{TAB}x", ["a.py", "--config", "training.py", "x"]),
    ("no flag of ours behind the program", f"node-agent a.py --standa{TAB}x", ["a.py", "--standax"]),
    ("a command", f"muster sta{TAB}tra", ["status", "tra"]),
    ("a flag behind a command", f"muster nodes --js{TAB}x", ["nodes", "--json", "x"]),
    ("a word behind a command", f"muster status --color al{TAB}--wat{TAB}x", ["status", "--color", "always", "--watch", "x"]),
    ("a program behind run", f"muster run -- trai{TAB}x", ["run", "--", "training.py", "x"]),
    ("the server's flags", f"rdzv-server --max-c{TAB}7", ["--max-connections", "7"]),
    ("the server's words", f"rdzv-server --log-level=war{TAB}--log-fo{TAB}js{TAB}x", ["--log-level=warning", "--log-format", "json", "x"]),
]


def words_cut(words):
    return [part for w in words for part in (w.split("=", 1) if w.startswith("--") else [w])]


@pytest.mark.parametrize("keys,words", [line[1:] for line in LINES], ids=[line[0] for line in LINES])
def test_what_is_typed_is_completed(terminal, keys, words):
    terminal.type(keys + "\n")
    got = terminal.until(r"\nGOT(<.*>)END\r?\n").group(1)[1:-1].split("><")
    # zsh puts the sign behind a flag that wants a value, and takes the slash away where the next word begins.
    assert [w.rstrip("/") for w in words_cut(got)] == [w.rstrip("/") for w in words_cut(words)]
    terminal.until(r"END[\s\S]*READY> ")


def test_every_word_is_shown(terminal):
    terminal.type(f"node-agent --exit-status={TAB}{TAB}")
    terminal.until(r"first[\s\S]*one|one[\s\S]*first")
    terminal.type("\n")
    terminal.until(r"END[\s\S]*READY> ")


@pytest.fixture(scope="module")
def fish(share, tmp_path_factory):
    """fish says itself what it would offer."""
    if shutil.which("fish") is None:
        pytest.skip("fish is not installed: apt-get install fish")
    folder = tmp_path_factory.mktemp("fish")
    env = make_stand_ins(folder)
    folder_of_fish = share / "fish" / "vendor_completions.d"

    def offers(line):
        code = f"set fish_complete_path {folder_of_fish} $fish_complete_path; complete -C \"$argv[1]\""
        p = subprocess.run(["fish", "--no-config", "-c", code, line], capture_output=True, text=True, cwd=folder, env=env,
                           timeout=PATIENCE, check=False)
        assert p.returncode == 0 and not p.stderr, p.stderr
        return [s.split("\t")[0] for s in p.stdout.splitlines()]
    return offers


@pytest.mark.parametrize("line,wanted", [
    ("node-agent --standa", ["--standalone"]),
    ("node-agent --surroundings kub", ["kubernetes"]),
    ("node-agent --surroundings=sl", ["--surroundings=slurm"]),
    ("node-agent --exit-status ", ["first", "one"]),
    ("node-agent --log-dir logs-", ["logs-of-mine/"]),
    ("node-agent -t 3 --on-jo", ["--on-join"]),
    ("node-agent --standalone trai", ["training.py"]),
    ("node-agent a.py --standa", []),
    ("node-agent -- --standa", []),
    ("rdzv-server --log-level=", ["--log-level=debug", "--log-level=error", "--log-level=info", "--log-level=warning"]),
    ("rdzv-server trai", []),
    ("muster sta", ["status"]),
    ("muster status --ti", ["--timeout"]),
    ("muster run trai", ["training.py"]),
    ("rdzv-server --port-file trai", ["training.py"]),
])
def test_fish_offers(fish, line, wanted):
    assert sorted(fish(line)) == wanted


@pytest.mark.parametrize("program", ["node-agent", "rdzv-server", "muster"])
def test_every_option_is_offered(share, program):
    """In each shell's file, as --help lists them."""
    text = subprocess.run([os.path.join(mulib.BIN, program), "--help"], capture_output=True, text=True, timeout=PATIENCE, check=True).stdout
    options = set(re.findall(r"^  (?:-\w, )?--([a-z0-9-]+)", text, re.M))
    assert len(options) > (5 if program == "muster" else 15)
    bash_file = (share / "bash-completion/completions" / program).read_text()
    assert set(re.search(r"compgen -W '(--[^']*)'", bash_file).group(1).replace("--", "").split()) == options
    zsh_file = (share / "zsh/site-functions" / f"_{program}").read_text()
    assert set(re.findall(r"--([a-z0-9-]+)=?(?:\[|\})", zsh_file)) == options
    fish_file = (share / "fish/vendor_completions.d" / f"{program}.fish").read_text()
    assert set(re.findall(r"^complete .* -l ([a-z0-9-]+) ", fish_file, re.M)) == options
