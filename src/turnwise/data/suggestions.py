"""Suggest an image size, a symmetry group and a fill mode from the images, each with its reason."""

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor

from turnwise.data.readers.decoding import FEW, side_of_most
from turnwise.data.transforms import convert_channels
from turnwise.geometry.warps import AUTO, choose_fill
from turnwise.groups import PlanarGroup, act_on_image

CHANGE = 0.25  # of a pixel's standard deviation: how far a mean image may be from its rotation
CHANCE = 3.0  # times the squared standard error: what chance explains
_SIDE = 16

Sizes = Counter[tuple[int, int]]  # how many images have (rows, cols)


class Suggestion(NamedTuple):
    """A value for a setting, and the reason in a sentence without a full stop."""

    value: str
    reason: str


def suggest_image_size(sizes: Sizes, largest: int) -> Suggestion:
    """Suggest a size to which few images are enlarged, at most `largest` pixels.

    >>> suggest_image_size(Counter({(50, 50): 9, (40, 60): 1}), 96).value
    '40'
    """
    side = side_of_most(sizes)
    if side > largest:
        reason = f"{side} pixels take too long for a first training on this machine"
        return Suggestion(str(largest), reason)
    if len(sizes) == 1 and len(set(*sizes)) == 1:
        return Suggestion(str(side), "all images have this size")
    return Suggestion(str(side), f"{1 - FEW:.0%} of the images are at least as large")


def suggest_group(images: UInt8[Tensor, "image channel side side"]) -> Suggestion:
    """Suggest the symmetries under which the mean of all images stays the same.

    If images have an up, so has their mean: tissue and satellite images have none, and clothes do.
    """
    small = F.adaptive_avg_pool2d(convert_channels(images, 1).double(), _SIDE)
    turns = [_change(small, "C4", g) for g in (1, 2, 3)]
    flips = [_change(small, "D4", 4 + g) for g in range(4)]
    mirror = _change(small, "D1", 1)
    shown = f"of a pixel's standard deviation, over {len(images):,} images"
    if max(*turns, *flips) <= CHANGE:
        most = max(*turns, *flips)
        return Suggestion(
            "D4", f"rotations by 90° and flips change the mean image by at most {most:.2f} {shown}"
        )
    if max(turns) <= CHANGE:
        return Suggestion(
            "C4", f"rotations by 90° change the mean image by at most {max(turns):.2f} {shown}, "
            f"and flips by up to {max(flips):.2f}"
        )  # fmt: skip
    up = f"the images have an up: rotations by 90° change their mean by up to {max(turns):.2f}"
    if mirror <= CHANGE:
        return Suggestion(
            "D1", f"{up} {shown}, and the flip of left and right by {mirror:.2f}; choose D4 if the "
            "images to predict have any orientation"
        )  # fmt: skip
    return Suggestion(
        "C1", f"{up} {shown}, and the flip of left and right by {mirror:.2f}; choose C4 if the "
        "images to predict have any orientation"
    )  # fmt: skip


def suggest_fill(images: UInt8[Tensor, "image channel side side"]) -> Suggestion:
    """Suggest what rotated images show outside their borders."""
    fill = choose_fill(AUTO, images)
    black = "most" if fill == "zeros" else "not most"
    return Suggestion(fill, f"{black} pixels at the borders of the images are black")


def _change(images: Float[Tensor, "image 1 side side"], group: str, g: int) -> float:
    """Return how far g moves the mean image, in units of a pixel's standard deviation.

    It is 0 if chance explains the difference.
    """
    act: Callable[[Tensor], Tensor] = lambda x: act_on_image(PlanarGroup.named(group), g, x)  # noqa: E731
    mean, variance = images.mean(0, keepdim=True), images.var(0, keepdim=True, correction=0)
    squared = (mean - act(mean)).square()
    error = (variance + act(variance)) / len(images)
    if float(squared.mean()) <= CHANCE * float(error.mean()):
        return 0.0
    return float((squared.mean() / variance.mean()).sqrt())
