"""Sizes and channels: definitions on small pictures, and the symmetry that is promised."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from turnwise.data.resample import check_wishes, crop_centre, fit, to_channels, to_size, to_square
from turnwise.errors import InputError


def noise(*shape):
    return torch.randint(0, 256, shape, dtype=torch.uint8)


def test_crop_is_central():
    images = torch.arange(35, dtype=torch.uint8).view(1, 1, 5, 7)
    assert crop_centre(images, 3, 3).flatten().tolist() == [9, 10, 11, 16, 17, 18, 23, 24, 25]


def test_the_aspect_is_cut_and_never_stretched():
    images = torch.zeros(1, 1, 4, 10, dtype=torch.uint8)
    images[..., 3:7] = 200
    assert to_square(images).shape == (1, 1, 4, 4)
    assert to_size(images, 2).unique().tolist() == [200]


def test_halving_is_the_tent_of_the_definition():
    """At half the size each new pixel weighs four old ones by 1, 3, 3, 1 along each axis."""
    images = noise(1, 1, 8, 8)
    tent = torch.tensor([1.0, 3, 3, 1], dtype=torch.float64) / 8
    expected = tent @ images[0, 0, 1:5, 1:5].double() @ tent
    assert abs(to_size(images, 4)[0, 0, 1, 1].double() - expected) <= 0.5 + 1e-5


@given(st.integers(2, 20), st.integers(1, 30), st.integers(0, 1000))
def test_resampling_commutes_with_turns_and_mirrors(side, size, seed):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (1, 1, side, side), dtype=torch.uint8, generator=generator)
    resized = to_size(images, size)
    assert torch.equal(to_size(images.rot90(1, (2, 3)), size), resized.rot90(1, (2, 3)))
    assert torch.equal(to_size(images.flip(3), size), resized.flip(3))


def test_the_same_size_changes_nothing():
    images = noise(3, 1, 6, 6)
    assert torch.equal(to_size(images, 6), images)


def test_many_pictures_are_resampled_like_one(monkeypatch):
    monkeypatch.setattr("turnwise.data.resample._AT_ONCE", 150)  # two pictures of 3·25 at a time
    images = noise(5, 3, 5, 5)
    single = torch.cat([to_size(image.unsqueeze(0), 4) for image in images])
    assert torch.equal(to_size(images, 4), single)


def test_grey_is_repeated_and_colour_becomes_luma():
    assert to_channels(noise(2, 1, 3, 3), 3).shape == (2, 3, 3, 3)
    colours = torch.tensor([[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255]])
    luma = to_channels(colours.byte().view(4, 3, 1, 1), 1)
    assert luma.flatten().tolist() == [76, 150, 29, 255]


def test_grey_survives_the_way_to_colour_and_back():
    images = noise(2, 1, 4, 4)
    assert torch.equal(to_channels(to_channels(images, 3), 1), images)


def test_crop_comes_before_resampling():
    images = torch.zeros(1, 1, 8, 8, dtype=torch.uint8)
    images[..., 2:6, 2:6] = 90
    assert fit(images, 2, 3, 4).unique().tolist() == [90]


def test_crop_larger_than_the_picture():
    with pytest.raises(InputError, match=r"crop = 9 is larger .* 8×8 pixels; write crop=8 or less"):
        fit(noise(1, 1, 8, 8), None, None, 9)


@pytest.mark.parametrize(
    ("wishes", "message"),
    [
        ((0, None, None), "image_size = 0 must be at least 1"),
        ((None, 2, None), "channels = 2 is not possible; write 1 for grey or 3 for colour"),
        ((None, None, -1), "crop = -1 must be at least 1"),
    ],
)
def test_impossible_wishes(wishes, message):
    with pytest.raises(InputError, match=message):
        check_wishes(*wishes)
