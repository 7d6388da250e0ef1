"""Instances from the classes of pixels, and how well they match the true ones.

Instances are grouped by symmetric steps alone: connected components of the inside, numbered by
their area, grow into the rest of the foreground; where two meet, the larger one takes the pixel.
So the label map of the rotated image is the rotated label map.  A watershed that visits pixels row
by row would break ties by the order of the pixels.

    match at t      a true and a predicted instance whose IoU is above t ≥ ½; each has at most one
    AP at t         matches / (matches + missed + invented), the mean over the images
    PQ              Σ IoU of matches at ½ / (matches + ½ missed + ½ invented)

Paper:    Caicedo et al. 2019, "Nucleus segmentation across imaging experiments" (the three classes,
          AP); Kirillov et al. 2019, "Panoptic Segmentation" (PQ).
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Float64, Int64, Shaped
from torch import Tensor

from turnwise.data.masks import BACKGROUND, INSIDE

Labels = Int64[Tensor, "image row col"]
THRESHOLDS = tuple(t / 100 for t in range(50, 100, 5))
SMALLEST = 8  # pixels of an instance
STEPS = 8  # of a label per test whether any label still moves


def group_instances(probabilities: Float[Tensor, "image 3 row col"]) -> Labels:
    """Return the instances, numbered from 1 by rising area; 0 is the background."""
    foreground = probabilities[:, BACKGROUND] < 0.5
    inside = foreground & (probabilities[:, INSIDE] > 0.5)
    labels = _grow(_number_by_area(connected_components(inside)), foreground)
    rest = connected_components(foreground & (labels == 0))  # instances too thin for an inside
    return _number_by_area(torch.where(rest > 0, rest + labels.max(), labels), SMALLEST)


def connected_components(mask: Bool[Tensor, "image row col"]) -> Labels:
    """Return components of pixels that touch at sides or corners, each with a number of its own."""
    # float32 is exact up to 2^24, and twice as fast
    wide = torch.float32 if mask[0].numel() < 2**24 else torch.float64
    first = torch.arange(1, mask[0].numel() + 1, device=mask.device, dtype=wide)
    labels = first.view_as(mask[0]) * mask
    while True:
        before = labels
        for _ in range(STEPS):
            labels = F.max_pool2d(labels[:, None], 3, 1, 1)[:, 0] * mask
        if torch.equal(before, labels):
            return labels.long()


def _grow(labels: Labels, foreground: Bool[Tensor, "image row col"]) -> Labels:
    """Let labels spread over the foreground, to the next pixels on four sides at a time."""
    spread = labels.to(torch.float32 if labels[0].numel() < 2**24 else torch.float64)
    while True:
        before = spread
        for _ in range(STEPS):
            down = F.max_pool2d(spread[:, None], (3, 1), 1, (1, 0))
            across = F.max_pool2d(spread[:, None], (1, 3), 1, (0, 1))
            near = torch.maximum(down, across)[:, 0]
            spread = torch.where((spread == 0) & foreground, near, spread)
        if torch.equal(before, spread):
            return spread.long()


def _number_by_area(labels: Labels, smallest: int = 1) -> Labels:
    """Number the labels of each image from 1 by rising area; those below `smallest` become 0."""
    return torch.stack([_number_one(image, smallest) for image in labels])


def _number_one(labels: Int64[Tensor, "row col"], smallest: int) -> Int64[Tensor, "row col"]:
    names, index, counts = labels.unique(return_inverse=True, return_counts=True)
    areas = torch.where((names > 0) & (counts >= smallest), counts, 0)
    rank = areas.argsort(stable=True).argsort()
    numbers = rank + 1 - (areas == 0).sum()
    return numbers.clamp_min(0)[index]


def overlaps(
    predicted: Shaped[Tensor, "row col"], true: Shaped[Tensor, "row col"]
) -> Float64[Tensor, "predicted true"]:
    """Return the IoU of every pair of instances; pixels below 0 in `true` do not count."""
    counts = true >= 0
    names, a = predicted[counts].long().unique(return_inverse=True)
    others, b = true[counts].long().unique(return_inverse=True)
    cells = torch.bincount(a * len(others) + b, minlength=len(names) * len(others))
    both = cells.view(len(names), len(others)).double()
    either = both.sum(1, keepdim=True) + both.sum(0) - both
    return (both / either)[names > 0][:, others > 0]


def match_instances(
    predicted: Shaped[Tensor, "image row col"], true: Shaped[Tensor, "image row col"]
) -> dict[str, Float64[Tensor, "image *columns"]]:
    """Return, for each image, AP at `THRESHOLDS` and PQ; NaN if there is nothing to find.

    Columns: `ap` (image, threshold), `pq` (image,), `found` and `true` (image,), the counts.
    """
    rows = [_match_one(one, other) for one, other in zip(predicted.cpu(), true.cpu(), strict=True)]
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def _match_one(
    predicted: Shaped[Tensor, "row col"], true: Shaped[Tensor, "row col"]
) -> dict[str, Tensor]:
    iou = overlaps(predicted, true)
    found, expected = iou.shape
    best = iou.amax(dim=1) if expected and found else iou.new_zeros(found)
    matches = torch.stack([(best > t).sum() for t in THRESHOLDS]).double()
    either = found + expected - matches
    sure = best[best > 0.5].sum()
    half = (found + expected) / 2
    return {
        "ap": torch.where(either > 0, matches / either, torch.nan),
        "pq": sure / half if half else iou.new_tensor(torch.nan),
        "found": iou.new_tensor(found),
        "true": iou.new_tensor(expected),
    }
