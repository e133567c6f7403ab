#!/usr/bin/env python3
"""What a PyTorch 1 program may expect of its store: legacy_cases.py HOST PORT, as store_cases.py; run with a torch 1.13."""
import json
import sys
import traceback
from datetime import timedelta

CASES = {}


def case(f):
    CASES[f.__name__] = f
    return f


@case
def legacy_set_and_get(new, key):
    a, b = new(), new()
    a.set(key + "k", "value")
    assert b.get(key + "k") == b"value"


@case
def legacy_add_and_num_keys(new, key):
    a = new()
    before = a.num_keys()
    assert [a.add(key + "n", 5), a.add(key + "n", -7)] == [5, -2]
    assert a.num_keys() == before + 1


@case
def legacy_compare_set(new, key):
    a = new()
    assert a.compare_set(key + "k", "", "v") == b"v"
    assert a.compare_set(key + "k", "x", "w") == b"v"
    assert a.compare_set(key + "k", "v", "w") == b"w"


@case
def legacy_delete(new, key):
    a = new()
    a.set(key + "k", "v")
    assert a.delete_key(key + "k") and not a.delete_key(key + "k")


@case
def legacy_wait(new, key):
    import threading
    a, b = new(), new()
    t = threading.Thread(target=b.wait, args=([key + "a", key + "b"],), daemon=True)
    t.start()
    a.set(key + "a", "1")
    a.set(key + "b", "1")
    t.join(20)
    assert not t.is_alive()


@case
def legacy_world_size(new, key):
    clients = [new(world_size=2, wait=True) for _ in range(2)]
    clients[0].set(key + "k", "v")
    assert clients[1].get(key + "k") == b"v"


def main():
    if sys.argv[1:] == ["--list"]:
        print("\n".join(CASES))
        return
    from torch.distributed import TCPStore

    def new(world_size=1, wait=False):
        return TCPStore(sys.argv[1], int(sys.argv[2]), world_size, False, timedelta(seconds=20), wait)

    for name, run in CASES.items():
        try:
            run(new, name + "/")
            ok, why = True, ""
        except Exception as e:  # noqa: BLE001 - this is the report
            ok, why = False, "".join(traceback.format_exception(e, limit=-3))
        print(json.dumps({"case": name, "ok": ok, "text": why}), flush=True)


if __name__ == "__main__":
    main()
