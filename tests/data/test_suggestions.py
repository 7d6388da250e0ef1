"""Suggestions follow from the images: an up is found, and none is where there is none."""

from collections import Counter

import pytest
import torch

from turnwise.data import load_dataset
from turnwise.data.suggestions import suggest_fill, suggest_group, suggest_image_size


@pytest.mark.parametrize(
    ("sizes", "value", "words"),
    [
        ({(50, 50): 10}, "50", "all images have this size"),
        ({(50, 50): 96, (1, 50): 2, (30, 40): 2}, "50", "95% of the images are at least as large"),
        ({(40, 60): 5}, "40", "95% of the images"),
        ({(1000, 900): 5}, "96", "900 pixels take too long for a first training on this machine"),
    ],
)
def test_sizes(sizes, value, words):
    found = suggest_image_size(Counter(sizes), 96)
    assert found.value == value and words in found.reason


def tissue(count=300):
    return torch.randint(256, (count, 3, 16, 16), dtype=torch.uint8)


def brighter(images, where):
    lit = images.clone()
    lit[where] = lit[where] // 2 + 128
    return lit


@pytest.mark.parametrize(
    ("images", "group"),
    [
        (tissue(), "D4"),
        (brighter(tissue(), (..., slice(0, 8), slice(None))), "D1"),  # sky above
        (brighter(tissue(), (..., slice(0, 8), slice(0, 8))), "C1"),
        (brighter(tissue(), (..., slice(5, 11), slice(5, 11))), "D4"),  # an object in the middle
    ],
)
def test_symmetries(images, group):
    found = suggest_group(images)
    assert found.value == group
    assert f"over {len(images)} images" in found.reason


def test_a_pinwheel_has_rotations_alone():
    images, bright = tissue(), torch.zeros(16, 16, dtype=torch.bool)
    bright[0:4, 0:8] = True
    pinwheel = bright | bright.rot90(1) | bright.rot90(2) | bright.rot90(3)
    images[..., pinwheel & ~pinwheel.flip(1)] = 255
    assert suggest_group(images).value == "C4"


def test_digits_have_an_up(digits):
    found = suggest_group(digits.train.images)
    assert found.value == "C1" and "choose C4 if the images to predict have any or" in found.reason
    assert suggest_fill(digits.train.images).value == "zeros"


def test_tiles_of_satellites_have_none():
    tiles = load_dataset("tiles").train.images
    assert (suggest_group(tiles).value, suggest_fill(tiles).value) == ("D4", "reflect")


def test_chance_is_not_taken_for_an_up():
    assert all(suggest_group(tissue(20)).value == "D4" for _ in range(5))
