"""A worker that needs nothing but Python: every rank adds up its share of an integral, and all meet at the store whose address
MASTER_ADDR and MASTER_PORT name. The store's protocol is PyTorch's; the few commands used here are in docs/protocol.md."""
import os
import socket
import struct
import time

SET, GET, WAIT, VALIDATE, PING = 1, 3, 6, 0, 13
MAGIC = 0x3C85F7CE


class Store:
    def __init__(self, host, port):
        self.s = socket.create_connection((host, port), timeout=60)
        self.s.sendall(struct.pack("<BIBI", VALIDATE, MAGIC, PING, os.getpid()))
        assert struct.unpack("<I", self.read(4))[0] == os.getpid()

    def read(self, n):
        got = b""
        while len(got) < n:
            more = self.s.recv(n - len(got))
            if not more:
                raise ConnectionError("the store closed the connection")
            got += more
        return got

    def text(self, b):
        return struct.pack("<Q", len(b)) + b

    def set(self, key, value):
        self.s.sendall(struct.pack("<B", SET) + self.text(key.encode()) + self.text(value.encode()))

    def get(self, key):
        """Waits until it is there."""
        self.s.sendall(struct.pack("<BQ", WAIT, 1) + self.text(key.encode()))
        self.read(1)
        self.s.sendall(struct.pack("<B", GET) + self.text(key.encode()))
        return self.read(struct.unpack("<Q", self.read(8))[0]).decode()


def main():
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = Store(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    steps = 1_200_000
    total = sum(4.0 / (1.0 + ((i + 0.5) / steps) ** 2) for i in range(rank, steps, world)) / steps
    store.set("part/%d" % rank, repr(total))
    pi = sum(float(store.get("part/%d" % r)) for r in range(world))
    print("rank %d of %d on %s: my part %.6f, all of us %.9f" % (rank, world, socket.gethostname(), total, pi), flush=True)
    time.sleep(2)  # Long enough to be looked at.
    if rank == 0:  # It may share its machine with the store: the others say when they have read.
        for r in range(1, world):
            store.get("done/%d" % r)
    else:
        store.set("done/%d" % rank, "1")
        store.s.shutdown(socket.SHUT_WR)
        store.s.recv(1)


main()
