#!/usr/bin/env python3
"""Make digits.bin, the data of the training tests, from the digits that scikit-learn ships.

    make_digits.py digits.csv.gz digits.bin

Source: "Optical Recognition of Handwritten Digits" (E. Alpaydin, C. Kaynak; UCI), its test part: 1797 images of 8 x 8 pixels with
values 0 to 16. scikit-learn keeps it as sklearn/datasets/data/digits.csv.gz: 64 pixels and the label a line.

The file, little-endian: the 8 bytes MUSTDS01; count, height, width, classes and levels as u32; the pixels of all images, row by row,
as u8; the labels as u8. Users train on the first 1437 items and test on the rest.
"""
import csv
import gzip
import struct
import sys

HEIGHT = WIDTH = 8
CLASSES, LEVELS = 10, 16


def main(source, target):
    with gzip.open(source, "rt", newline="") as f:
        rows = [[int(float(cell)) for cell in row] for row in csv.reader(f) if row]
    for number, row in enumerate(rows, 1):
        if len(row) != HEIGHT * WIDTH + 1 or not all(0 <= v <= LEVELS for v in row[:-1]) or not 0 <= row[-1] < CLASSES:
            sys.exit(f"{source}: row {number} is no 8 x 8 digit")
    with open(target, "wb") as f:
        f.write(struct.pack("<8s5I", b"MUSTDS01", len(rows), HEIGHT, WIDTH, CLASSES, LEVELS))
        f.write(bytes(v for row in rows for v in row[:-1]))
        f.write(bytes(row[-1] for row in rows))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
