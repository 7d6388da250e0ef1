"""Small files that unpack to fill the memory are refused before they do."""

import gzip
import io
import resource
import struct
import zipfile
import zlib

import numpy as np
import pytest
import torch

from turnwise.cli.main import main
from turnwise.data import limits, read_image
from turnwise.data.readers.mnist import TRAIN_VALID, read_amat, read_idx
from turnwise.data.readers.npz import read_arrays
from turnwise.errors import InputError
from turnwise.models import create_model, save


def png(rows, cols):
    """A grey PNG of zeros."""

    def chunk(kind, content):
        check = zlib.crc32(kind + content)
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", check)

    header = struct.pack(">IIBBBBB", cols, rows, 8, 0, 0, 0, 0)
    pixels = zlib.compress(bytes((cols + 1) * rows), 9)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        chunk(*part) for part in ((b"IHDR", header), (b"IDAT", pixels), (b"IEND", b""))
    )


@pytest.mark.parametrize("count", [6, 60_000])
def test_a_gzip_bomb_is_no_idx_file(tmp_path, count):
    """Its header promises little, or as much as follows; either way little is unpacked."""
    bomb = io.BytesIO()
    with gzip.open(bomb, "wb", compresslevel=1) as file:
        file.write(bytes([0, 0, 8, 3]) + struct.pack(">III", count, 100, 100))
        for _ in range(600):
            file.write(bytes(10**6))
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(bomb.getvalue())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError, match=r"unpacks to more than|more follow"):
        read_idx(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kB


def test_an_npz_bomb_is_refused(tmp_path):
    path = tmp_path / "a.npz"
    np.savez_compressed(path, train_images=np.zeros((300, 1000, 1000), np.uint8))
    with pytest.raises(InputError, match="unpacks to more than 268,435,456 bytes"):
        read_arrays(path)


def test_the_limit_is_configurable(tmp_path, monkeypatch):
    path = tmp_path / "a.npz"
    np.savez_compressed(path, a=np.zeros(10**4, np.uint8))
    assert read_arrays(path)["a"].nbytes == 10**4
    monkeypatch.setenv(limits.UNPACKED_VARIABLE, "5000")
    with pytest.raises(InputError, match=r"more than 5,000 bytes .* set TURNWISE_MAX_UNPACKED"):
        read_arrays(path)
    monkeypatch.setenv(limits.UNPACKED_VARIABLE, "many")
    with pytest.raises(InputError, match="TURNWISE_MAX_UNPACKED = many must be a whole number"):
        read_arrays(path)


def test_an_encrypted_archive_is_refused_in_one_line(tmp_path):
    path = tmp_path / "mnist_rotation_new.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(TRAIN_VALID, "0 " * 785)
    content = bytearray(path.read_bytes())
    content[6] |= 1  # the flag in the file's own header, and in the directory
    content[content.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"cannot be used: .*encrypted.*replace it by a good copy"):
        read_amat(path, TRAIN_VALID)


@pytest.mark.parametrize(("rows", "cols"), [(1, 80_000_000), (80_000, 2), (40_000, 40_000)])
def test_an_image_that_is_too_large_is_not_decoded(tmp_path, rows, cols):
    path = tmp_path / "a.png"
    path.write_bytes(png(rows, cols) if rows * cols < 10**8 else png(1, 1))
    if rows * cols >= 10**8:  # only the header says so
        content = bytearray(path.read_bytes())
        content[16:24] = struct.pack(">II", cols, rows)
        content[29:33] = struct.pack(">I", zlib.crc32(bytes(content[12:29])))
        path.write_bytes(content)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError, match=r"pixels"):
        read_image(path, 28)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000


def test_larger_images_can_be_allowed(tmp_path, monkeypatch):
    path = tmp_path / "a.png"
    path.write_bytes(png(20, 30))
    assert read_image(path).shape == (1, 20, 30)
    monkeypatch.setenv(limits.PIXELS_VARIABLE, "599")
    with pytest.raises(InputError, match=r"more than 599 pixels .* \(20 × 30\)"):
        read_image(path)


def test_predict_refuses_outputs_that_are_no_numbers(tmp_path, capsys):
    """It once printed class 0 with probability nan, and exit status 0."""
    model = create_model("orbit_vit", width=8, depth=1, heads=2, patch=7)
    with torch.no_grad():
        model.model.head.weight[3, 0] = torch.nan
    save(model, tmp_path / "net")
    (tmp_path / "a.png").write_bytes(png(28, 28))
    assert main(["predict", str(tmp_path / "net"), str(tmp_path / "a.png")]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "are not finite; the weights may be damaged" in printed.err
