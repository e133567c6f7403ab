"""Host one of torch's own stores for the loader: torch_store.py libuv|legacy prints its port, ends at the end of its input."""
import sys
from datetime import timedelta

from torch.distributed import TCPStore

store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60),
                 use_libuv=sys.argv[1] == "libuv")
print(store.port, flush=True)
sys.stdin.read()
