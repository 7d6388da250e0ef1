"""Sizes and channels: definitions on small images, and exact symmetry."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from turnwise.data.transforms import (
    check_image_options,
    convert_channels,
    crop_centre,
    crop_square,
    fit_images,
    resize,
)
from turnwise.errors import InputError


def noise(*shape):
    return torch.randint(0, 256, shape, dtype=torch.uint8)


def test_crop_is_central():
    images = torch.arange(35, dtype=torch.uint8).view(1, 1, 5, 7)
    assert crop_centre(images, 3, 3).flatten().tolist() == [9, 10, 11, 16, 17, 18, 23, 24, 25]


def test_the_aspect_is_cut_and_never_stretched():
    images = torch.zeros(1, 1, 4, 10, dtype=torch.uint8)
    images[..., 3:7] = 200
    assert crop_square(images).shape == (1, 1, 4, 4)
    assert resize(images, 2).unique().tolist() == [200]


def test_halving_is_the_tent_of_the_definition():
    """At half the size each new pixel weighs four old ones by 1, 3, 3, 1 along each axis."""
    images = noise(1, 1, 8, 8)
    tent = torch.tensor([1.0, 3, 3, 1], dtype=torch.float64) / 8
    expected = tent @ images[0, 0, 1:5, 1:5].double() @ tent
    assert abs(resize(images, 4)[0, 0, 1, 1].double() - expected) <= 0.5 + 1e-5


@given(st.integers(2, 20), st.integers(1, 30), st.integers(0, 1000))
def test_resampling_commutes_with_rotations_and_flips(side, size, seed):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (1, 1, side, side), dtype=torch.uint8, generator=generator)
    resized = resize(images, size)
    assert torch.equal(resize(images.rot90(1, (2, 3)), size), resized.rot90(1, (2, 3)))
    assert torch.equal(resize(images.flip(3), size), resized.flip(3))


def test_the_same_size_changes_nothing():
    images = noise(3, 1, 6, 6)
    assert torch.equal(resize(images, 6), images)


def test_many_images_are_resampled_like_one(monkeypatch):
    monkeypatch.setattr("turnwise.data.transforms._CHUNK", 150)  # two images of 3·25 at a time
    images = noise(5, 3, 5, 5)
    single = torch.cat([resize(image.unsqueeze(0), 4) for image in images])
    assert torch.equal(resize(images, 4), single)


def test_grey_is_repeated_and_colour_becomes_luma():
    assert convert_channels(noise(2, 1, 3, 3), 3).shape == (2, 3, 3, 3)
    colours = torch.tensor([[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255]])
    luma = convert_channels(colours.byte().view(4, 3, 1, 1), 1)
    assert luma.flatten().tolist() == [76, 150, 29, 255]


def test_grey_to_colour_and_back_is_the_identity():
    images = noise(2, 1, 4, 4)
    assert torch.equal(convert_channels(convert_channels(images, 3), 1), images)


def test_crop_comes_before_resampling():
    images = torch.zeros(1, 1, 8, 8, dtype=torch.uint8)
    images[..., 2:6, 2:6] = 90
    assert fit_images(images, 2, 3, 4).unique().tolist() == [90]


def test_crop_larger_than_the_image():
    with pytest.raises(InputError, match=r"crop = 9 is larger .* 8×8 pixels; write crop=8 or less"):
        fit_images(noise(1, 1, 8, 8), None, None, 9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((0, None, None), "image_size = 0 must be at least 1"),
        ((None, 2, None), "channels = 2 is not possible; write 1 for grey or 3 for colour"),
        ((None, None, -1), "crop = -1 must be at least 1"),
    ],
)
def test_impossible_options(options, message):
    with pytest.raises(InputError, match=message):
        check_image_options(*options)
