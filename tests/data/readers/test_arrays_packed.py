"""Runs of encoded pictures: what went in comes out, and damage is named."""

import numpy as np
import pytest

from turnwise.data.readers.arrays import unpack


def test_a_lossless_strip_comes_back_exactly(rng, encode):
    strips = rng.integers(0, 256, (3, 5 * 8, 8, 3), np.uint8)
    run, offsets = encode(strips, "WEBP", lossless=True)
    assert np.array_equal(unpack(run, offsets), strips.reshape(15, 8, 8, 3))


def test_single_jpegs_come_back_nearly(encode):
    flat = np.full((4, 16, 16, 3), 90, np.uint8)
    flat[1] = 200
    pictures = unpack(*encode(flat, quality=95))
    assert pictures.shape == flat.shape
    assert np.abs(pictures.astype(int) - flat).max() <= 2


def test_a_damaged_picture_is_numbered(rng, encode):
    run, offsets = encode(rng.integers(0, 256, (3, 16, 16, 3), np.uint8))
    broken = run.copy()
    broken[offsets[1] : offsets[1] + 10] = 0
    with pytest.raises(ValueError, match="encoded picture 1 is damaged"):
        unpack(broken, offsets)


def test_a_truncated_picture_is_noticed(rng, encode):
    run, offsets = encode(rng.integers(0, 256, (2, 16, 16, 3), np.uint8))
    with pytest.raises(ValueError, match="encoded picture 1 is damaged"):
        unpack(run[:-100], np.array([*offsets[:-1], offsets[-1] - 100]))


@pytest.mark.parametrize("change", [lambda o: o[1:], lambda o: o[:-1], lambda o: o[[0, 2, 1, 3]]])
def test_offsets_must_cover_the_run(rng, encode, change):
    run, offsets = encode(rng.integers(0, 256, (3, 8, 8, 3), np.uint8))
    with pytest.raises(ValueError, match="must ascend from 0 to the length of the run"):
        unpack(run, change(offsets))


def test_types_of_run_and_offsets(rng, encode):
    run, offsets = encode(rng.integers(0, 256, (2, 8, 8, 3), np.uint8))
    with pytest.raises(ValueError, match="a run must be a row of uint8, got float64"):
        unpack(run.astype(float), offsets)
    with pytest.raises(ValueError, match="offsets must be a row of integers, got float64"):
        unpack(run, offsets.astype(float))


def test_a_picture_that_is_no_strip(rng, encode):
    with pytest.raises(ValueError, match="picture 0 of 12×8 pixels is no strip of squares"):
        unpack(*encode(rng.integers(0, 256, (1, 12, 8, 3), np.uint8)))


def test_sizes_may_not_differ(encode):
    with pytest.raises(ValueError, match="must have one size, got 8 to 16 pixels"):
        unpack(*encode([np.zeros((8, 8, 3), np.uint8), np.zeros((16, 16, 3), np.uint8)]))
