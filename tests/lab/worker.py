#!/usr/bin/env python3
"""A worker that does what it is told by signals, and tells what it does through a FIFO.

worker.py FIFO [escapee]   SIGUSR1: exit with 7; SIGUSR2: exit with 0; anything else as usual.
escapee: also leave a grandchild in a session of its own, forked twice, that sleeps.
"""
import os
import signal
import socket
import sys


def tell(fifo, what, pid=None):
    env = os.environ
    line = f"{what} {env['RANK']} {env['TORCHELASTIC_RESTART_COUNT']} {pid or os.getpid()} {socket.gethostname()} {env['WORLD_SIZE']}\n"
    fd = os.open(fifo, os.O_WRONLY)
    os.write(fd, line.encode())
    os.close(fd)


def escape(fifo):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            tell(fifo, "escaped")
            while True:
                signal.pause()
        os._exit(0)
    os.wait()


def main():
    fifo = sys.argv[1]
    signal.signal(signal.SIGUSR1, lambda *_: os._exit(7))
    signal.signal(signal.SIGUSR2, lambda *_: os._exit(0))
    if "escapee" in sys.argv[2:]:
        escape(fifo)
    tell(fifo, "start")
    while True:
        signal.pause()


main()
