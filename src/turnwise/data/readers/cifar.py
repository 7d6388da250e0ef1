"""CIFAR-10 in its binary form: records of one label and 3 × 32 × 32 bytes, colour by colour.

The binary form is read because the Python form would have to be unpickled.
"""

import tarfile
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from turnwise.data.readers.arrays import damaged

TRAIN = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
TEST = ("test_batch.bin",)
FOLDER = "cifar-10-batches-bin"
_RECORD = 1 + 3 * 32 * 32


def split_records(content: bytes, path: Path) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Pictures (n, 32, 32, 3) and labels of one batch."""
    if not content or len(content) % _RECORD:
        raise damaged(
            path, f"a batch must be whole records of {_RECORD} bytes, got {len(content):,} bytes"
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, _RECORD)
    return records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), records[:, 0]


def _from_archive(path: Path) -> dict[str, bytes]:
    try:
        with tarfile.open(path, "r:gz") as archive:
            found = {Path(member.name).name: member for member in archive if member.isfile()}
            missing = [name for name in (*TRAIN, *TEST) if name not in found]
            if missing:
                raise damaged(path, f"{missing[0]} is missing in it")
            content = {}
            for name in (*TRAIN, *TEST):
                file = archive.extractfile(found[name])
                assert file is not None, "regular files can be extracted"
                content[name] = file.read()
            return content
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise damaged(path, f"it is no whole .tar.gz archive ({error})") from None


def _from_folder(path: Path) -> dict[str, bytes]:
    content = {}
    for name in (*TRAIN, *TEST):
        try:
            content[name] = (path / name).read_bytes()
        except OSError as error:
            raise damaged(path, f"{name} cannot be read in it ({error.strerror})") from None
    return content


def read_batches(path: Path) -> dict[str, tuple[NDArray[np.uint8], NDArray[np.uint8]]]:
    """Train and test, pictures and labels, from the archive or the folder it unpacks to."""
    content = _from_folder(path) if path.is_dir() else _from_archive(path)
    splits = {}
    for split, names in (("train", TRAIN), ("test", TEST)):
        batches = [split_records(content[name], path / name) for name in names]
        images, labels = zip(*batches, strict=True)
        splits[split] = np.concatenate(images), np.concatenate(labels)
    return splits
