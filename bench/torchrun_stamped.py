"""torchrun that says when it has loaded: torchrun_stamped.py FIFO ARGS... writes "T agent 0 PID" once its imports are done, so that
the time of a rendezvous is not the time of Python's imports."""
import os
import sys
import time

from torch.distributed import run

with open(sys.argv[1], "w") as fifo:
    fifo.write(f"{time.monotonic_ns()} agent 0 {os.getpid()}\n")
run.main(sys.argv[2:])
