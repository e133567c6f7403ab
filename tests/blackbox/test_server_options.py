"""rdzv-server's command line: bad input gets one sentence that names the option, and status 2."""
import re
import signal
import socket
import subprocess

import pytest

import mulib


def run(*args):
    return subprocess.run([mulib.program("rdzv-server"), *args], capture_output=True, text=True, timeout=mulib.PATIENCE,
                          check=False)


@pytest.mark.parametrize("args, names", [
    (["--port", "abc"], "--port"),
    (["--port", "65536"], "--port"),
    (["--port", "-1"], "--port"),
    (["--port"], "--port PORT"),
    (["--lease", "soon"], "--lease"),
    (["--lease", "0"], "--lease"),
    (["--beat", "5", "--lease", "3"], "--beat"),
    (["--fence", "1"], "--fence"),
    (["--fence", "never"], "--fence"),
    (["--host", "localhost"], "--host"),
    (["--host", "300.1.1.1"], "--host"),
    (["--max-key-bytes", "1Q"], "--max-key-bytes"),
    (["--max-connections", "0"], "--max-connections"),
    (["--log-level", "loud"], "--log-level"),
    (["--log-format", "xml"], "--log-format"),
    (["--bogus"], "--bogus"),
    (["--bogus=1"], "--bogus"),
    (["--prot", "29500"], '"--prot" is not an option of rdzv-server: did you mean --port?'),
    (["--lese=3"], "did you mean --lease?"),
    (["--help=1"], "--help"),
    (["29500"], "29500"),
])
def test_bad_option_is_named_in_one_sentence(args, names):
    r = run(*args)
    assert r.returncode == 2 and r.stdout == ""
    lines = r.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("rdzv-server: ") and names in lines[0], r.stderr


def test_help_lists_every_option_the_parser_knows():
    r = run("--help")
    assert r.returncode == 0 and r.stderr == ""
    for option in ("host port port-file lease beat fence recovery state-dir first-bytes-timeout max-connections max-key-bytes "
                   "max-value-bytes max-store-memory max-unread log-level log-format version help").split():
        assert re.search(rf"^  --{option}\b", r.stdout, re.M), option


def test_version():
    r = run("--version")
    assert r.returncode == 0 and re.fullmatch(r"rdzv-server \d+\.\d+\.\d+\n", r.stdout)


def test_port_that_is_taken_says_so(server):
    r = run("--port", str(server.port))
    assert r.returncode == 1
    assert r.stderr == (f"rdzv-server: *:{server.port} is taken (pid {server.process.pid}, \"rdzv-server\"): choose another port, or "
                        "stop who has it\n")


def test_host_that_is_not_ours_says_so():
    r = run("--host", "192.0.2.1", "--port", "0")
    assert r.returncode == 1 and "192.0.2.1 is not an address of this machine" in r.stderr


def test_port_file_that_cannot_be_written_says_so(tmp_path):
    r = run("--port", "0", "--port-file", str(tmp_path / "no" / "file"))
    assert r.returncode == 1 and "--port-file" in r.stderr.splitlines()[-1]


@pytest.mark.parametrize("signo", [signal.SIGTERM, signal.SIGINT])
def test_stop_signals_end_it_with_status_0(start_server, signo):
    s = start_server()
    clients = [mulib.StoreClient(s), mulib.Agent(s, nnodes=(2, 2))]
    clients[1].expect("welcome")
    s.get("/healthz")
    assert s.stop(signo) == 0
    for c in clients:
        c.close()


def test_a_closed_terminal_does_not_end_it(start_server):
    s = start_server()
    s.process.send_signal(signal.SIGHUP)
    assert s.get("/healthz")[0] == 200
    s.process.send_signal(signal.SIGHUP)
    assert s.get("/healthz")[0] == 200


def test_every_address_is_the_default_and_one_can_be_chosen(start_server):
    every = start_server()
    assert every.log.wait(r"listening on \[::\]:%d .*open to whoever reaches" % every.port)
    for host in ("127.0.0.1", "127.0.0.2", "::1"):
        mulib.StoreClient(every, host=host).close()
    one = start_server("--host", "127.0.0.1")
    assert one.log.wait(r"listening on 127\.0\.0\.1:%d " % one.port)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", one.port), timeout=5)
    six = start_server("--host", "[::1]")
    assert six.log.wait(r"listening on \[::1\]:%d " % six.port)
    mulib.StoreClient(six, host="::1").close()


def test_json_log_is_one_object_a_line(start_server):
    import json
    s = start_server("--log-format", "json", "--log-level", "debug")
    a = mulib.Agent(s, nnodes=(1, 1), run_id='odd "id"')
    a.expect("welcome"), a.expect("start")
    s.log.wait(r'"event":"job.move"')
    a.close()
    s.log.wait(r"FAILED")
    s.stop()
    events = [json.loads(line) for line in s.log.lines if "listening on" not in line]
    moves = [e for e in events if e["event"] == "job.move"]
    assert [m["move"] for m in moves][:1] == ["GATHERING->RUNNING"]
    assert (moves[0]["round"], moves[0]["nodes"], moves[0]["world"]) == (1, 1, 2)


def test_a_state_dir_too_long_for_its_files_names_is_refused():
    r = run("--port", "0", "--state-dir", "/" + "d" * 2000)
    assert r.returncode == 2 and r.stderr.startswith("rdzv-server: --state-dir: longer than 999 bytes")
