"""The original rotated MNIST: text files of 784 grey values in [0, 1] and a label per line.

The pixels stand column by column.  Published readers take them row by row, which mirrors every
digit: harmless for training and testing on these files, wrong for a model of upright MNIST.
"""

import io
import zipfile
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from turnwise.data.readers.arrays import damaged

TRAIN_VALID = "mnist_all_rotation_normalized_float_train_valid.amat"
TEST = "mnist_all_rotation_normalized_float_test.amat"
ROWS = {TRAIN_VALID: 12_000, TEST: 50_000}
_SIDE = 28
_ROUNDING = 1e-3  # values above 1 or below 0 by less than this are the writer's rounding


def _parse(
    file: io.TextIOBase, rows: int, path: Path
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    try:
        table = np.loadtxt(file, dtype=np.float32, ndmin=2)
    except ValueError as error:
        raise damaged(path, f"it is no table of numbers ({error})") from None
    if table.shape != (rows, _SIDE**2 + 1):
        raise damaged(
            path,
            f"it must have {rows:,} lines of {_SIDE**2 + 1} numbers, "
            f"got {table.shape[0]:,} of {table.shape[1]}",
        )
    grey, labels = table[:, :-1], table[:, -1]
    if not (grey.min() >= -_ROUNDING and grey.max() <= 1 + _ROUNDING):
        raise damaged(path, f"grey values must be 0 to 1, got {grey.min():g} to {grey.max():g}")
    if not np.array_equal(labels, labels.round()):
        raise damaged(path, "the last number of each line must be a whole label")
    images = np.rint(grey.clip(0, 1) * 255).astype(np.uint8).reshape(-1, _SIDE, _SIDE)
    return images.transpose(0, 2, 1), labels.astype(np.int64)


def read_amat(path: Path, name: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Pictures, rounded to bytes, and labels of the file `name`: `path` or inside that zip."""
    try:
        if path.suffix != ".zip":
            with path.open(encoding="ascii") as file:
                return _parse(file, ROWS[name], path)
        with zipfile.ZipFile(path) as archive:
            inside = {Path(member).name: member for member in archive.namelist()}
            if name not in inside:
                raise damaged(path, f"{name} is missing in it")
            with archive.open(inside[name]) as packed:
                return _parse(io.TextIOWrapper(packed, encoding="ascii"), ROWS[name], path)
    except (OSError, EOFError, zlib.error, zipfile.BadZipFile) as error:
        raise damaged(path, f"it cannot be read ({error})") from None
