#!/usr/bin/env python3
"""What PyTorch's DistributedSampler and randperm give: prints tests/data/sampler.json.

usage: gen_sampler.py [--large] > sampler.json        (needs torch and numpy; --large: 6 GiB of memory, a minute more)

A list of at most 40 numbers is written out. Of a longer one there is the SHA-256 of its numbers as little-endian int64, and its
first and last 8.
"""
import hashlib
import json
import sys

import numpy
import torch
from torch.utils.data import DistributedSampler

WRITTEN_OUT = 40
ENDS = 8
LARGE = 2**32 // 20  # Where randperm changes its way.


def summary(numbers):
    a = numpy.asarray(numbers, dtype="<i8")
    out = {"n": int(a.size)}
    if a.size <= WRITTEN_OUT:
        out["indices"] = a.tolist()
    else:
        out["head"], out["tail"] = a[:ENDS].tolist(), a[-ENDS:].tolist()
    out["sha256"] = hashlib.sha256(a.tobytes()).hexdigest()
    return out


def generator(seed):
    g = torch.Generator()
    g.manual_seed(seed)
    return g


def words(seed, count):
    """The generator's 32-bit words. randint() with a range below 2**28 takes one word modulo the range, so the remainders for two
    ranges without a common factor tell the whole word."""
    low = torch.randint(0, 2**27, (count,), generator=generator(seed)).tolist()
    rest = torch.randint(0, 39, (count,), generator=generator(seed)).tolist()
    return [next(a + (h << 27) for h in range(32) if (a + (h << 27)) % 39 == b) for a, b in zip(low, rest)]


def permutation(n, seed):
    return {"n": n, "seed": seed, **summary(torch.randperm(n, generator=generator(seed)).numpy())}


def sampled(n, world, seed, epoch, shuffle, drop_last, ranks=None):
    out = {"dataset_len": n, "world": world, "seed": seed, "epoch": epoch, "shuffle": shuffle, "drop_last": drop_last, "ranks": []}
    lists = {}
    for rank in ranks or range(world):
        s = DistributedSampler(range(n), num_replicas=world, rank=rank, shuffle=shuffle, seed=seed, drop_last=drop_last)
        s.set_epoch(epoch)
        out["num_samples"], out["total_size"] = s.num_samples, s.total_size
        lists[str(rank)] = summary(list(s))
    out["ranks"] = lists if ranks else list(lists.values())
    return out


def all_cases():
    for n, world in ((10, 1), (10, 2), (10, 3), (10, 4), (3, 8), (1, 4), (8, 8), (17, 4), (100, 3)):
        for shuffle in (True, False):
            for drop_last in (False, True):
                for epoch in (0, 1) if shuffle else (0,):
                    yield sampled(n, world, 0, epoch, shuffle, drop_last)
    for seed, epoch in ((42, 0), (42, 9), (43, 8), (2**32 - 1, 0), (2**32 - 1, 1), (2**32, 5), (2**40 + 7, 0), (-1, 0)):
        yield sampled(23, 4, seed, epoch, True, False)
    for world in (1, 2, 3, 4, 8):
        for epoch in (0, 1, 9):
            for drop_last in (False, True):
                yield sampled(1437, world, 0, epoch, True, drop_last)
    for n, world, seed, epoch in ((60000, 8, 0, 3), (65536, 4, 1, 0), (65537, 4, 1, 0), (1281167, 8, 42, 89)):
        yield sampled(n, world, seed, epoch, True, False)
    yield sampled(1281167, 512, 0, 1, True, False, ranks=(0, 1, 511))


def main():
    sizes = [(0, 0), (1, 0), (2, 0), (5, 0), (40, 7), (624, 0), (625, 0), (1248, 3), (10**6, 0)]
    if "--large" in sys.argv:
        sizes += [(LARGE - 1, 0), (LARGE, 0), (LARGE + 1, 0)]
    json.dump({
        "made_with": f"torch {torch.__version__}, numpy {numpy.__version__}, CPU",
        "hash": "sha256 over the list as int64 little-endian",
        "raw_u32": {str(s): words(s, 8) for s in (0, 1, 42, 2**32 - 1)},
        "raw_u32_at_625th": {"seed": 0, "value": words(0, 1300)[624]},
        "randperm": [permutation(n, s) for n, s in sizes],
        "distributed_sampler": list(all_cases()),
    }, sys.stdout)


if __name__ == "__main__":
    main()
