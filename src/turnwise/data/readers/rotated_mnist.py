"""Rotated MNIST made from MNIST by the published protocol: 62,000 digits, each turned by one angle.

This is not `mnist_rotation_new` picture for picture: digits and angles are drawn by our own fixed
seed, and the digits come from MNIST's train and test parts mixed.  So a model that was trained on
MNIST has seen digits of its test split; for the way from upright to turned digits there is
`randomly_rotated`, of MNIST's own test pictures.
"""

from collections.abc import Iterator

import numpy as np
from jaxtyping import Float64, UInt8
from numpy.typing import NDArray

from turnwise.errors import require

SEED = 20070620
TEST_SEED = 20071120  # of the angles of `mnist_rotated`
COUNTS = {"train": 10_000, "val": 2_000, "test": 50_000}
_AT_ONCE = 1000


def turn(
    images: UInt8[np.ndarray, "picture side side"], angles: Float64[np.ndarray, " picture"]
) -> UInt8[np.ndarray, "picture side side"]:
    """Each picture turned counter-clockwise by its angle, in radians, about its centre.

    Bilinear in float64, rounded to bytes; what falls from outside the picture is 0.
    """
    side = images.shape[1]
    centre = (side - 1) / 2
    row, col = np.mgrid[:side, :side].reshape(2, 1, -1) - centre
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    from_row, from_col = centre + sin * col + cos * row, centre + cos * col - sin * row
    inside = (from_row >= 0) & (from_row <= side - 1) & (from_col >= 0) & (from_col <= side - 1)
    top = np.clip(np.floor(from_row), 0, side - 2).astype(np.int64)
    left = np.clip(np.floor(from_col), 0, side - 2).astype(np.int64)
    down, right = from_row - top, from_col - left
    flat = images.reshape(len(images), -1).astype(np.float64)

    def at(rows: NDArray[np.int64], cols: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.take_along_axis(flat, rows * side + cols, axis=1)

    upper = (1 - right) * at(top, left) + right * at(top, left + 1)
    lower = (1 - right) * at(top + 1, left) + right * at(top + 1, left + 1)
    mixed = np.where(inside, (1 - down) * upper + down * lower, 0.0)
    return np.rint(mixed).astype(np.uint8).reshape(images.shape)


def _turn_in_parts(
    images: NDArray[np.uint8], angles: NDArray[np.float64]
) -> Iterator[NDArray[np.uint8]]:
    for start in range(0, len(images), _AT_ONCE):
        yield turn(images[start : start + _AT_ONCE], angles[start : start + _AT_ONCE])


def randomly_rotated(
    images: UInt8[np.ndarray, "picture side side"], seed: int = TEST_SEED
) -> UInt8[np.ndarray, "picture side side"]:
    """The same pictures in the same order, each turned by one angle, uniform over a full turn."""
    angles = np.random.default_rng(seed).uniform(0, 2 * np.pi, len(images))
    return np.concatenate(list(_turn_in_parts(images, angles)))


def generate(
    images: UInt8[np.ndarray, "picture 28 28"], labels: UInt8[np.ndarray, " picture"]
) -> dict[str, NDArray[np.uint8]]:
    """Arrays `train_images`, `train_labels`, … from MNIST's train and test parts, in this order."""
    total = sum(COUNTS.values())
    require(
        len(images) >= total,
        f"rotated MNIST is drawn from 70,000 digits and needs {total:,}, got {len(images):,}; "
        "use the whole MNIST.",
    )
    generator = np.random.default_rng(SEED)
    chosen = generator.permutation(len(images))[:total]
    angles = generator.uniform(0, 2 * np.pi, total)
    turned = np.concatenate(list(_turn_in_parts(images[chosen], angles)))
    arrays, start = {}, 0
    for split, count in COUNTS.items():
        arrays[f"{split}_images"] = turned[start : start + count]
        arrays[f"{split}_labels"] = labels[chosen[start : start + count]]
        start += count
    return arrays
