"""MNIST and sets made from it: idx files, rotated digits.

Rotated MNIST exists in two forms.  The original files of `mnist_rotation_new` (.amat) are text: 784
grey values in [0, 1] and a label per line.  Their pixels are stored column by column.  Published
readers take them row by row, which transposes every digit: harmless for training and testing on
these files, wrong for a model of upright MNIST.

Without the original files, the set is generated from MNIST by the published protocol: 62,000
digits, each rotated by one angle.  It is not the original image for image: our own fixed seed draws
digits and angles, and the digits come from MNIST's train and test splits together.  So a model
trained on MNIST has seen digits of its test split; to test such a model on rotated digits, use
`mnist_rotated`, which rotates MNIST's own test images.
"""

import gzip
import io
import math
import struct
import zipfile
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64, UInt8
from numpy.typing import NDArray

from turnwise.data.catalogue import CATALOGUE, Entry
from turnwise.data.dataset import SPLITS, Examples, concatenate
from turnwise.data.limits import require_small_unpacked
from turnwise.data.readers import Source, damaged, reader, to_examples
from turnwise.data.readers.npz import read_splits
from turnwise.data.storage import DataFolders, find_or_download
from turnwise.errors import InputError, require
from turnwise.files import fill_atomic

_GZIP = b"\x1f\x8b"
_UINT8 = 8

TRAIN_VALID = "mnist_all_rotation_normalized_float_train_valid.amat"
TEST = "mnist_all_rotation_normalized_float_test.amat"
AMAT_ROWS = {TRAIN_VALID: 12_000, TEST: 50_000}
_SIDE = 28
_ROUNDING = 1e-3  # values above 1 or below 0 by less than this are the writer's rounding

SEED = 20070620
TEST_SEED = 20071120  # of the angles of `mnist_rotated`
COUNTS = {"train": 10_000, "val": 2_000, "test": 50_000}
_CHUNK = 1000


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Read an idx file of bytes, compressed by gzip or not.

    The format: two zeros, a type, the number of axes, their lengths, the values.
    """
    try:
        with path.open("rb") as plain:
            is_packed = plain.read(2) == _GZIP
            plain.seek(0)
            with gzip.open(plain) if is_packed else plain as file:
                return _parse_idx(file, path)
    except (OSError, EOFError, zlib.error) as error:
        raise damaged(path, f"it cannot be decompressed ({error})") from None


def _parse_idx(file: io.BufferedIOBase, path: Path) -> NDArray[np.uint8]:
    """Read the header, and as many bytes as it promises."""
    start = file.read(4)
    if len(start) < 4 or start[:3] != bytes([0, 0, _UINT8]) or start[3] not in (1, 3):
        raise damaged(path, "it does not begin as an idx file of bytes does")
    lengths = file.read(4 * start[3])
    if len(lengths) < 4 * start[3]:
        raise damaged(path, "it ends inside its header")
    shape = struct.unpack(f">{start[3]}I", lengths)
    require_small_unpacked(path, math.prod(shape))
    content = file.read(math.prod(shape) + 1)
    if len(content) != math.prod(shape):
        more = len(content) > math.prod(shape)
        raise damaged(
            path,
            f"its header promises {math.prod(shape):,} bytes of shape {shape}, "
            f"{'more' if more else f'{len(content):,}'} follow",
        )
    return np.frombuffer(content, np.uint8).reshape(shape)


@reader("idx")
def read_mnist(entry: Entry, folders: DataFolders, image_size: int | None) -> Source:
    """Read MNIST or Fashion-MNIST from one .npz file or from idx files."""
    packed = [download.file for download in entry.downloads]
    plain = [file.removesuffix(".gz") for file in packed]
    paths = folders.find_any(*entry.files, plain)
    paths = paths or find_or_download(entry.name, entry.downloads, folders)
    if paths[0].suffix == ".npz":
        splits = read_splits(paths[0], entry, ("train", "test"))
        return Source(splits, f"original images and labels, from {paths[0].name}")
    splits = {}
    for split, (images, labels) in {"train": paths[:2], "test": paths[2:]}.items():
        arrays = read_idx(images), read_idx(labels)
        splits[split] = to_examples(*arrays, images, len(entry.classes), entry.channels)
    return Source(splits, "original images and labels, from the idx files")


def _parse_amat(
    file: io.TextIOBase, rows: int, path: Path
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    try:
        table = np.loadtxt(file, dtype=np.float32, ndmin=2, max_rows=rows + 1)
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
    """Read images, rounded to bytes, and labels of the file `name`: `path`, or inside that zip."""
    try:
        if path.suffix != ".zip":
            with path.open(encoding="ascii") as file:
                return _parse_amat(file, AMAT_ROWS[name], path)
        with zipfile.ZipFile(path) as archive:
            inside = {Path(member).name: member for member in archive.namelist()}
            if name not in inside:
                raise damaged(path, f"{name} is missing in it")
            require_small_unpacked(path, archive.getinfo(inside[name]).file_size)
            with archive.open(inside[name]) as packed:
                return _parse_amat(
                    io.TextIOWrapper(packed, encoding="ascii"), AMAT_ROWS[name], path
                )
    except InputError:
        raise
    except (OSError, EOFError, ValueError, RuntimeError, zlib.error, zipfile.BadZipFile) as error:
        raise damaged(path, f"it cannot be read ({error})") from None  # RuntimeError: encrypted


def _read_amat_files(entry: Entry, paths: list[Path]) -> Source:
    both, test = (
        to_examples(*read_amat(path, name), path, len(entry.classes), entry.channels)
        for path, name in zip(paths, (TRAIN_VALID, TEST), strict=True)
    )
    position, val = torch.arange(len(both)), len(both) // 6  # 2,000 of 12,000
    splits = {"train": both.take(position[:-val]), "val": both.take(position[-val:]), "test": test}
    return Source(splits, "mnist_rotation_new (Larochelle et al.), rounded to 8 bits")


@reader("rotated_mnist")
def _read_rotated_mnist(entry: Entry, folders: DataFolders, image_size: int | None) -> Source:
    """Read the original text files, their zip, or the generated file; otherwise generate it."""
    text, archive, generated = entry.files
    if found := folders.find(*text):
        return _read_amat_files(entry, found)
    if found := folders.find(*archive):
        return _read_amat_files(entry, [found[0], found[0]])
    provenance = "generated from MNIST by the published protocol; not mnist_rotation_new"
    if found := folders.find(*generated):
        return Source(read_splits(found[0], entry), provenance)
    stored = read_mnist(CATALOGUE[entry.options["base"]], folders, None).splits
    digits = concatenate([stored["train"], stored["test"]])
    arrays: dict[str, Any] = {
        **generate_rotated_mnist(
            digits.images[:, 0].numpy(), digits.labels.numpy().astype(np.uint8)
        )
    }
    path = folders.cache / generated[0]
    with suppress(InputError):  # without a cache it is generated in every call
        fill_atomic(path, lambda temporary: np.savez_compressed(temporary, **arrays))
    classes, channels = len(entry.classes), entry.channels
    splits = {
        s: to_examples(arrays[f"{s}_images"], arrays[f"{s}_labels"], path, classes, channels)
        for s in SPLITS
    }
    return Source(splits, provenance)


@reader("rotated_test")
def _read_rotated_test(entry: Entry, folders: DataFolders, image_size: int | None) -> Source:
    upright = read_mnist(CATALOGUE[entry.options["base"]], folders, None)
    test = upright.splits["test"]
    rotated = torch.from_numpy(rotate_randomly(test.images[:, 0].numpy())).unsqueeze(1)
    splits = {"train": upright.splits["train"], "test": Examples(rotated, test.labels)}
    note = "; test images generated here, each rotated by one angle, uniform over 360°"
    return Source(splits, upright.provenance + note)


def rotate(
    images: UInt8[np.ndarray, "image side side"], angles: Float64[np.ndarray, " image"]
) -> UInt8[np.ndarray, "image side side"]:
    """Rotate each image counter-clockwise by its own angle, in radians, about its centre.

    Bilinear in float64, rounded to bytes; pixels from outside the image are 0.
    """
    side = images.shape[1]
    centre = (side - 1) / 2
    row, col = np.mgrid[:side, :side].reshape(2, 1, -1) - centre
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    from_row, from_col = centre + sin * col + cos * row, centre + cos * col - sin * row
    inside = (from_row >= 0) & (from_row <= side - 1) & (from_col >= 0) & (from_col <= side - 1)
    top = np.clip(np.floor(from_row), 0, side - 2).astype(np.int64)
    left = np.clip(np.floor(from_col), 0, side - 2).astype(np.int64)
    down, right = from_row - top, from_col - left
    flat = images.reshape(len(images), -1).astype(np.float64)

    def at(rows: NDArray[np.int64], cols: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.take_along_axis(flat, rows * side + cols, axis=1)

    upper = (1 - right) * at(top, left) + right * at(top, left + 1)
    lower = (1 - right) * at(top + 1, left) + right * at(top + 1, left + 1)
    mixed = np.where(inside, (1 - down) * upper + down * lower, 0.0)
    return np.rint(mixed).astype(np.uint8).reshape(images.shape)


def _rotate_in_chunks(images: NDArray[np.uint8], angles: NDArray[np.float64]) -> NDArray[np.uint8]:
    starts = range(0, len(images), _CHUNK)
    return np.concatenate([rotate(images[s : s + _CHUNK], angles[s : s + _CHUNK]) for s in starts])


def rotate_randomly(
    images: UInt8[np.ndarray, "image side side"], seed: int = TEST_SEED
) -> UInt8[np.ndarray, "image side side"]:
    """Rotate each image by one angle, uniform over 360°; the order stays."""
    angles = np.random.default_rng(seed).uniform(0, 2 * np.pi, len(images))
    return _rotate_in_chunks(images, angles)


def generate_rotated_mnist(
    images: UInt8[np.ndarray, "image 28 28"], labels: UInt8[np.ndarray, " image"]
) -> dict[str, NDArray[np.uint8]]:
    """Generate `train_images`, `train_labels`, … from MNIST's train and test splits, in order."""
    total = sum(COUNTS.values())
    require(
        len(images) >= total,
        f"rotated MNIST is drawn from 70,000 digits and needs {total:,}, got {len(images):,}; "
        "use the whole MNIST.",
    )
    generator = np.random.default_rng(SEED)
    chosen = generator.permutation(len(images))[:total]
    rotated = _rotate_in_chunks(images[chosen], generator.uniform(0, 2 * np.pi, total))
    arrays, start = {}, 0
    for split, count in COUNTS.items():
        arrays[f"{split}_images"] = rotated[start : start + count]
        arrays[f"{split}_labels"] = labels[chosen[start : start + count]]
        start += count
    return arrays
