"""idx files, plain and compressed, whole and damaged."""

import gzip

import numpy as np
import pytest

from turnwise.data.readers.idx import read_idx
from turnwise.errors import InputError


@pytest.fixture
def array(rng):
    return rng.integers(0, 256, (5, 4, 3), np.uint8)


@pytest.mark.parametrize("pack", [gzip.compress, bytes], ids=["gzip", "plain"])
def test_what_was_written_is_read(tmp_path, array, idx_bytes, pack):
    (tmp_path / "x").write_bytes(pack(idx_bytes(array)))
    assert np.array_equal(read_idx(tmp_path / "x"), array)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda c: c[:-1], r"promises 60 bytes of shape \(5, 4, 3\), 59 follow"),
        (lambda c: c + b"0", "promises 60 bytes .*, 61 follow"),
        (lambda c: c[:9], "it ends inside its header"),
        (lambda c: c[:3], "does not begin as an idx file"),
        (lambda c: b"\0\0\x0d" + c[3:], "does not begin as an idx file of bytes"),
        (lambda c: b"<html>" + c, "does not begin as an idx file"),
        (lambda c: gzip.compress(c)[:-20], "it cannot be unpacked"),
        (lambda c: gzip.compress(c)[:30] + b"xxxx" + gzip.compress(c)[34:], "cannot be unpacked"),
    ],
)
def test_damage_is_named(tmp_path, array, idx_bytes, spoil, message):
    (tmp_path / "x.gz").write_bytes(spoil(idx_bytes(array)))
    with pytest.raises(InputError, match=rf"x\.gz cannot be used: .*{message}.*good copy"):
        read_idx(tmp_path / "x.gz")
