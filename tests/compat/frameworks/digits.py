"""The 8 x 8 digits of tests/data/digits.bin, as the scripts here want them."""
import struct

import torch
from torch.utils.data import TensorDataset


def load(path, count=512):
    """The first `count` images as 64 floats from 0 to 1 each, and their labels."""
    with open(path, "rb") as f:
        raw = bytearray(f.read())
    magic, total, height, width, _, levels = struct.unpack_from("<8s5I", raw)
    assert magic == b"MUSTDS01" and count <= total, f"{path} is no digits file with {count} images"
    head, pixels = struct.calcsize("<8s5I"), total * height * width
    images = torch.frombuffer(raw, dtype=torch.uint8, count=pixels, offset=head).view(total, height * width)
    labels = torch.frombuffer(raw, dtype=torch.uint8, count=total, offset=head + pixels)
    return images[:count].float() / levels, labels[:count].long()


def dataset(path, count=512):
    return TensorDataset(*load(path, count))
