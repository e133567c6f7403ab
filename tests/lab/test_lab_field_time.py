"""Field cases F23 and F24: clocks that differ or jump, name servers that are slow. Each test's name begins with the number of its case."""
import time

import pytest
from conftest import BIN
from fieldlib import NET, ONCE_MORE, PORT, compile_c, field, field_hosts  # noqa: F401 (fixtures)

A = NET + "1"
E = f"--rdzv={A}:{PORT}"

CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static long shift(void) /* Seconds, from a file that a test may change meanwhile. */
{
    char text[32] = "";
    const char *path = getenv("CLOCK_SHIFT");
    int fd = path != NULL ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0)
        return 0;
    (void)!read(fd, text, sizeof text - 1);
    close(fd);
    return atol(text);
}
int clock_gettime(clockid_t id, struct timespec *t)
{
    static int (*real)(clockid_t, struct timespec *);
    if (real == NULL)
        real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int r = real(id, t);
    if (r == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE))
        t->tv_sec += shift();
    return r;
}
int gettimeofday(struct timeval *t, void *zone)
{
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    t->tv_sec = now.tv_sec;
    t->tv_usec = now.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *ret)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (ret != NULL)
        *ret = now.tv_sec;
    return now.tv_sec;
}
"""


@ONCE_MORE
@pytest.mark.parametrize("shifts", [("-60",), ("60",), ("0", "3600", "-3600")], ids=["behind", "ahead", "jumps"])
def test_f23_clocks_that_differ_or_jump_change_nothing(field, field_hosts, standing, shifts):  # noqa: F811
    library = compile_c(field_hosts.share, "clock", CLOCK)
    shift = field.folder / "shift"
    shift.write_text(shifts[0])
    # B may be the host of the rendezvous as well: its clock is the strange one in both variants.
    there = {"LD_PRELOAD": library, "CLOCK_SHIFT": shift, "ASAN_OPTIONS": "verify_asan_link_order=0"}
    if standing:
        field.server()
    words = [E, "--nnodes=2", *field.work(4)]
    a, b = field.agent(1, *words), field.agent(2, *words, env=there)
    started = field.wait_written(2, 10)
    assert (time.monotonic_ns() - b.began_ns) / 1e9 <= 5, "both start within 5 s"
    assert {s.world for s in started} == {2}
    off = {s.host: s.time for s in started}
    assert abs(off["n2"] - off["n1"] - int(shifts[0])) < 5, "the clock on n2 is as the test wants it"
    for s in shifts[1:]:
        time.sleep(1.5)
        shift.write_text(s)
    field.wait_written(2, 15, "end")
    ended = time.monotonic()
    assert [a.wait(10), b.wait(10)] == [0, 0], field.story()
    assert time.monotonic() - ended <= 3
    assert len(field.written("start")) == 2 and field.written("term") == []


RESPONDER = r"""
import socket, sys, time, threading
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("127.0.0.1", 53))
print("ready", flush=True)
def answer(q, peer):
    time.sleep(float(sys.argv[1]))
    end = 12
    while q[end]:
        end += q[end] + 1
    s.sendto(q[:2] + b"\x81\x83" + q[4:6] + b"\0\0\0\0\0\0" + q[12:end + 5], peer)
while True:
    q, peer = s.recvfrom(512)
    print("query", flush=True)
    threading.Thread(target=answer, args=(q, peer), daemon=True).start()
"""

CLIENTS = r"""
import socket, struct, sys, time
host, port = sys.argv[1], int(sys.argv[2])
HELLO = struct.pack("<BI", 0, 0x3C85F7CE)
def ping(s, n):
    s.sendall(struct.pack("<BI", 13, n))
    got = b""
    while len(got) < 4:
        part = s.recv(4 - len(got))
        assert part
        got += part
    assert struct.unpack("<I", got)[0] == n
def client():
    s = socket.create_connection((host, port), timeout=10)
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    s.sendall(HELLO)
    return s
t0 = time.monotonic()
held = [client() for _ in range(100)]
for i, s in enumerate(held):
    ping(s, i)
t1 = time.monotonic()
new = []
worst = 0
for i in range(20):
    new.append(client())
    t = time.monotonic()
    ping(held[0], i)
    worst = max(worst, time.monotonic() - t)
print(t1 - t0, worst)
"""


def name_server(field, host, delay_s):
    script = field.folder / "responder.py"
    script.write_text(RESPONDER)
    field.touched.add(host)
    field.sh(host, "echo 'nameserver 127.0.0.1' > /etc/resolv.conf; echo '127.0.0.1 localhost' > /etc/hosts")
    proc = field.lab.start("name server", host, "/usr/bin/python3", "-S", script, delay_s)
    proc.wait_line("ready", 10)
    return proc


def clients(field, host, port):
    script = field.folder / "clients.py"
    script.write_text(CLIENTS)
    return map(float, field.sh(host, f"/usr/bin/python3 -ES {script} {A} {port}").split())


def test_f24_a_slow_name_server_slows_no_store(field):
    names = name_server(field, 1, 0.1)
    field.sh(1, "/usr/bin/python3 -S -c 'import socket; print(socket.getfqdn(\"10.88.0.2\"))'")
    asked = len(names.matches("query"))
    assert asked > 0, "somebody who looks a name up asks this name server"
    field.server()
    everybody, old_one = clients(field, 2, PORT)
    assert everybody <= 1 and old_one <= 0.020, (everybody, old_one)
    assert len(names.matches("query")) == asked, "the server asked for no name"
    # The workers' store of an agent is no different.
    field.agent(1, E, "--nnodes=1", *field.work(20))
    master = field.wait_written(1, 10)[0]
    assert master.master_addr == A
    everybody, old_one = clients(field, 2, master.master_port)
    assert everybody <= 1 and old_one <= 0.020, (everybody, old_one)
    assert len(names.matches("query")) == asked, "nor did the agent"


def test_f24_a_slow_name_server_slows_no_standalone_job(field):
    took = {}
    for delay_s in (0, 0.1):
        names = name_server(field, 1, delay_s)
        best = 9.0
        for _ in range(3):
            t = time.monotonic()
            field.sh(1, f"{BIN / 'node-agent'} --standalone --no-python /bin/true")
            best = min(best, time.monotonic() - t)
        took[delay_s] = best
        assert not names.matches("query")
        names.end()
    assert took[0.1] <= took[0] + 0.5, took
