"""Turned digits: the definition, the exact cases, and the file that the protocol once made."""

import math

import numpy as np
import pytest

from turnwise.data.readers.arrays import read_arrays
from turnwise.data.readers.rotated_mnist import COUNTS, TEST_SEED, generate, randomly_rotated, turn
from turnwise.errors import InputError


@pytest.mark.parametrize("quarters", range(5))
def test_quarter_turns_are_exact_and_counter_clockwise(rng, quarters):
    images = rng.integers(0, 256, (3, 7, 7), np.uint8)
    images[:, [0, -1]] = images[:, :, [0, -1]] = 0  # rounding may push the border outside
    turned = turn(images, np.full(3, quarters * math.pi / 2))
    assert np.array_equal(turned, np.rot90(images, quarters, axes=(1, 2)))


def test_each_picture_has_its_own_angle(rng):
    images = np.pad(rng.integers(0, 256, (2, 5, 5), np.uint8), ((0, 0), (1, 1), (1, 1)))
    turned = turn(images, np.array([0.0, math.pi]))
    assert np.array_equal(turned[0], images[0])
    assert np.array_equal(turned[1], images[1, ::-1, ::-1])


def test_definition():
    """One pixel of a turn by 30°, spelled out: look back by the angle and mix four neighbours."""
    image = np.arange(81, dtype=np.uint8).reshape(9, 9)
    angle, row, col = math.pi / 6, 3, 6
    x, y = col - 4, -(row - 4)
    from_x = math.cos(angle) * x + math.sin(angle) * y
    from_y = -math.sin(angle) * x + math.cos(angle) * y
    back_row, back_col = 4 - from_y, 4 + from_x
    top, left = int(back_row), int(back_col)
    down, right = back_row - top, back_col - left
    expected = sum(
        weight * image[r, c]
        for r, c, weight in [
            (top, left, (1 - down) * (1 - right)),
            (top, left + 1, (1 - down) * right),
            (top + 1, left, down * (1 - right)),
            (top + 1, left + 1, down * right),
        ]
    )
    assert turn(image[None], np.array([angle]))[0, row, col] == round(expected)


def test_corners_come_from_outside_and_are_black():
    turned = turn(np.full((1, 28, 28), 255, np.uint8), np.array([math.pi / 4]))
    assert turned[0, 0, 0] == turned[0, -1, 0] == 0
    assert turned[0, 14, 14] == 255


def test_turned_at_random_keeps_the_order_and_draws_angles_by_the_seed(rng):
    images = rng.integers(0, 256, (30, 9, 9), np.uint8)
    angles = np.random.default_rng(TEST_SEED).uniform(0, 2 * math.pi, 30)
    turned = randomly_rotated(images)
    for image, angle, result in zip(images, angles, turned, strict=True):
        assert np.array_equal(turn(image[None], np.array([angle]))[0], result)
    assert not np.array_equal(turned, randomly_rotated(images, seed=1))
    quarters = np.histogram(angles, bins=4, range=(0, 2 * math.pi))[0]
    assert quarters.min() >= 3, "all around"


def test_too_few_digits():
    few = np.zeros((10, 28, 28), np.uint8)
    with pytest.raises(InputError, match=r"needs 62,000, got 10; use the whole MNIST"):
        generate(few, np.zeros(10, np.uint8))


def test_the_protocol_gives_the_stored_file_again(real_data):
    """All 48,608,000 pixels and 62,000 labels."""
    mnist = read_arrays(real_data / "mnist" / "mnist.npz")
    stored = read_arrays(real_data / "rotmnist-generated" / "rotmnist-generated.npz")
    arrays = generate(
        np.concatenate([mnist["train_images"], mnist["test_images"]]),
        np.concatenate([mnist["train_labels"], mnist["test_labels"]]),
    )
    assert {name: len(array) for name, array in arrays.items()} == {
        f"{split}_{kind}": count for split, count in COUNTS.items() for kind in ("images", "labels")
    }
    differing = {name: int((array != stored[name]).sum()) for name, array in arrays.items()}
    assert differing == dict.fromkeys(arrays, 0)
