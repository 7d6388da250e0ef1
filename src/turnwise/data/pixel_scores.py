"""How well maps of classes agree: Dice, IoU and the F1 of boundaries, for each image.

    Dice         2 |A ∩ B| / (|A| + |B|), of the pixels of a class
    IoU          |A ∩ B| / |A ∪ B|
    boundary F1  of the pixels at a boundary, those of A within `TOLERANCE` pixels of one of B and
                 the reverse

A class that is in neither map of an image has no score there, and is left out of means.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float64, Int64, Shaped
from torch import Tensor

from turnwise.data.masks import IGNORED_CLASS, boundaries

Classes = Int64[Tensor, "image row col"]
TOLERANCE = 2  # pixels


def class_overlaps(
    predicted: Classes, true: Classes, classes: int
) -> dict[str, Float64[Tensor, "image class"]]:
    """Return `dice` and `iou` of every class in every image; NaN where neither map has it."""
    counts = true != IGNORED_CLASS
    numbers = range(classes)
    a = torch.stack([((predicted == c) & counts).sum((1, 2)) for c in numbers], dim=1).double()
    b = torch.stack([(true == c).sum((1, 2)) for c in numbers], dim=1).double()
    both = torch.stack([((predicted == c) & (true == c)).sum((1, 2)) for c in numbers], dim=1)
    return {
        "dice": 2 * both / _known(a + b),
        "iou": both / _known(a + b - both),
    }


def boundary_f1(
    predicted: Shaped[Tensor, "image row col"], true: Shaped[Tensor, "image row col"]
) -> Float64[Tensor, " image"]:
    """Return the F1 of boundary pixels, between any two values; NaN if there are none."""
    counts = true >= 0
    a, b = (boundaries(values) & counts for values in (predicted, true))
    near_a, near_b = (
        F.max_pool2d(edge[:, None].float(), 2 * TOLERANCE + 1, 1, TOLERANCE)[:, 0] > 0
        for edge in (a, b)
    )
    sizes = [edge.sum((1, 2)).double() for edge in (a, b)]
    hits = [(edge & near).sum((1, 2)).double() for edge, near in ((a, near_b), (b, near_a))]
    precision, recall = (hit / size.clamp_min(1) for hit, size in zip(hits, sizes, strict=True))
    f1 = 2 * precision * recall / (precision + recall).clamp_min(1e-12)
    return torch.where(sizes[0] + sizes[1] > 0, f1, torch.nan)


def _known(size: Float64[Tensor, "image class"]) -> Float64[Tensor, "image class"]:
    return torch.where(size > 0, size, torch.nan)
