"""Preparing an image and rotating it commute, whatever sizes a backbone asks for."""

import pytest
import torch

from turnwise.errors import InputError
from turnwise.inference.preparation import Preparation, commutation_error


def image(rows=40, cols=40, channels=3):
    return torch.randint(0, 256, (channels, rows, cols), dtype=torch.uint8)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize(("size", "resize"), [(16, 0), (16, 20), (21, 25), (40, 0)])
def test_central_crops_commute_with_rotations_and_flips(size, resize, mode):
    prepare = Preparation(size, 3, resize, mode)
    assert prepare.is_symmetric and prepare.symmetrised() == prepare
    assert commutation_error(prepare) == 0


def test_a_crop_of_an_odd_number_of_pixels_is_made_symmetric():
    """Such as timm's crop_pct of 0.95: 224 of 235 pixels."""
    odd = Preparation(22, 3, 25)
    assert not odd.is_symmetric and commutation_error(odd) > 0
    assert odd.symmetrised() == Preparation(22, 3, 26)
    assert commutation_error(odd.symmetrised()) == 0


@pytest.mark.parametrize("channels", [1, 3])
def test_the_prepared_image_has_the_size_and_channels_of_the_model(channels):
    prepare = Preparation(12, channels, 16)
    for found in (prepare(image(30, 50)), prepare(image(9, 7, 1))):
        assert found.shape == (channels, 12, 12) and found.dtype == torch.uint8
    assert Preparation(12)(image(channels=1)).shape == (1, 12, 12)


def test_the_crop_is_the_middle_of_the_resampled_square():
    pixels = image(20, 30)
    assert torch.equal(Preparation(16, 3, 20)(pixels), pixels[:, 2:18, 7:23])


def test_bicubic_differs_from_bilinear():
    assert not torch.equal(
        Preparation(20, 3)(pixels := image()), Preparation(20, 3, 0, "bicubic")(pixels)
    )


@pytest.mark.parametrize(
    ("numbers", "message"),
    [((0, 3), "size = 0"), ((20, 3, 10), "resize = 10 is smaller"), ((9, 3, 0, "box"), "box")],
)
def test_impossible_preparations_are_refused(numbers, message):
    with pytest.raises(InputError, match=message):
        Preparation(*numbers)
