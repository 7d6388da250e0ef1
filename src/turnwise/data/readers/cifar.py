"""CIFAR-10 in its binary form: records of one label and 3 × 32 × 32 bytes, colour by colour.

The Python form is not read, because it would have to be unpickled.
"""

import tarfile
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from turnwise.data.catalogue import Entry
from turnwise.data.dataset import concatenate
from turnwise.data.limits import require_small_unpacked
from turnwise.data.readers import Source, damaged, reader, to_examples
from turnwise.data.readers.npz import read_splits
from turnwise.data.storage import DataFolders, find_or_download

TRAIN = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
TEST = ("test_batch.bin",)
_RECORD = 1 + 3 * 32 * 32


def split_records(content: bytes, path: Path) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return the images (n, 32, 32, 3) and labels of one batch."""
    if not content or len(content) % _RECORD:
        raise damaged(
            path, f"a batch must be whole records of {_RECORD} bytes, got {len(content):,} bytes"
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, _RECORD)
    return records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), records[:, 0]


def _read_archive(path: Path) -> dict[str, bytes]:
    try:
        with tarfile.open(path, "r:gz") as archive:
            found = {Path(member.name).name: member for member in archive if member.isfile()}
            missing = [name for name in (*TRAIN, *TEST) if name not in found]
            if missing:
                raise damaged(path, f"{missing[0]} is missing in it")
            content = {}
            for name in (*TRAIN, *TEST):
                require_small_unpacked(path, found[name].size)
                file = archive.extractfile(found[name])
                assert file is not None, "regular files can be extracted"
                content[name] = file.read()
            return content
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise damaged(path, f"it is no whole .tar.gz archive ({error})") from None


def _read_folder(path: Path) -> dict[str, bytes]:
    content = {}
    for name in (*TRAIN, *TEST):
        try:
            content[name] = (path / name).read_bytes()
        except OSError as error:
            raise damaged(path, f"{name} cannot be read in it ({error.strerror})") from None
    return content


def read_batches(path: Path) -> dict[str, tuple[NDArray[np.uint8], NDArray[np.uint8]]]:
    """Read the images and labels of train and test from the archive or the unpacked folder."""
    content = _read_folder(path) if path.is_dir() else _read_archive(path)
    splits = {}
    for split, names in (("train", TRAIN), ("test", TEST)):
        batches = [split_records(content[name], path / name) for name in names]
        images, labels = zip(*batches, strict=True)
        splits[split] = np.concatenate(images), np.concatenate(labels)
    return splits


@reader("cifar10")
def _read_cifar10(entry: Entry, folders: DataFolders, image_size: int | None) -> Source:
    """Read two .npz files, or the binary batches."""
    packed, *binary = entry.files
    if found := folders.find(*packed):
        first = read_splits(found[0], entry, ("train",))
        second = read_splits(found[1], entry, ("train", "test"))
        train = concatenate([first["train"], second["train"]])
        provenance = (
            "original pixels and labels, losslessly packed in cifar10_part1.npz and _part2.npz"
        )
        return Source({"train": train, "test": second["test"]}, provenance)
    found = next(filter(None, (folders.find(*form) for form in binary)), None)
    path = (found or find_or_download(entry.name, entry.downloads, folders))[0]
    splits = {
        split: to_examples(*arrays, path, len(entry.classes), entry.channels)
        for split, arrays in read_batches(path).items()
    }
    return Source(splits, "original pixels and labels, the binary version")
