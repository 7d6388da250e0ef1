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
from jaxtyping import Bool, Float, Float64, Int64, Shaped
from torch import Tensor

from turnwise.data.masks import BACKGROUND, IGNORED_CLASS, INSIDE, TOUCHING
from turnwise.data.pixel_scores import boundary_f1, class_overlaps

Labels = Int64[Tensor, "image row col"]
THRESHOLDS = tuple(t / 100 for t in range(50, 100, 5))
SMALLEST = 8  # pixels of an instance
SCORES = ("ap50", "ap75", "ap", "pq", "dice", "iou", "boundary_f1")


def group_instances(probabilities: Float[Tensor, "image 3 row col"]) -> Labels:
    """Return the instances, numbered from 1 by rising area; 0 is the background."""
    foreground = probabilities[:, BACKGROUND] < 0.5
    inside = foreground & (probabilities[:, INSIDE] > 0.5)
    labels = _grow(_number_by_area(connected_components(inside)), foreground)
    rest = connected_components(foreground & (labels == 0))  # instances too thin for an inside
    return _number_by_area(torch.where(rest > 0, rest + labels.max(), labels), SMALLEST)


def connected_components(mask: Bool[Tensor, "image row col"]) -> Labels:
    """Return components of pixels that touch at sides or corners, each with a number of its own.

    Every pixel holds the index of a pixel of its component, at first its own.  In each round the
    pixel that is named takes the largest index next to any pixel that names it, and then every
    pixel takes what the pixel that it names holds.
    """
    index = torch.arange(mask.numel(), device=mask.device).view_as(mask)
    joined = [mask[one] & mask[other] for one, other in TOUCHING]
    ends = [
        torch.cat([index[pair[side]][both] for pair, both in zip(TOUCHING, joined, strict=True)])
        for side in (0, 1)
    ]
    one, other = torch.cat(ends), torch.cat(ends[::-1])
    labels = index.flatten()
    while True:
        before = labels
        labels = labels.scatter_reduce(0, labels[one], labels[other], "amax")
        labels = labels[labels]
        if torch.equal(before, labels):
            first = index[:, :1, :1]  # of each image
            return (labels.view_as(mask) - first + 1) * mask


def _grow(labels: Labels, foreground: Bool[Tensor, "image row col"]) -> Labels:
    """Let labels spread over the foreground, to the next pixels on four sides at a time."""
    while True:
        before, near = labels, labels.clone()
        for one, other in TOUCHING[:2]:
            near[one] = torch.maximum(near[one], before[other])
            near[other] = torch.maximum(near[other], before[one])
        labels = torch.where((before == 0) & foreground, near, before)
        if torch.equal(before, labels):
            return labels


def _number_by_area(labels: Labels, smallest: int = 1) -> Labels:
    """Number the labels of each image from 1 by rising area; those below `smallest` become 0."""
    return torch.stack([_number_one(image, smallest) for image in labels])


def _number_one(labels: Int64[Tensor, "row col"], smallest: int) -> Int64[Tensor, "row col"]:
    areas = labels.flatten().bincount()
    areas[0] = 0
    names = (areas >= smallest).nonzero()[:, 0]
    numbers = torch.zeros_like(areas)
    numbers[names[areas[names].argsort(stable=True)]] = torch.arange(
        1, len(names) + 1, device=labels.device
    )
    return numbers[labels]


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


def score_instances(
    probabilities: Float[Tensor, "image 3 row col"], masks: Shaped[Tensor, "image row col"]
) -> dict[str, Float64[Tensor, " image"]]:
    """Return `SCORES` of each image on the CPU, NaN where one is undefined.

    Dice and IoU are those of the pixels of all instances together, against the background.
    """
    predicted, true = group_instances(probabilities).cpu(), masks.cpu().long()
    foreground = (true > 0).long().masked_fill(true < 0, IGNORED_CLASS)
    overlaps = class_overlaps((predicted > 0).long(), foreground, 2)
    matched = match_instances(predicted, true)
    ap = matched["ap"]
    return {
        "ap50": ap[:, THRESHOLDS.index(0.5)],
        "ap75": ap[:, THRESHOLDS.index(0.75)],
        "ap": ap.mean(dim=1),
        "pq": matched["pq"],
        "dice": overlaps["dice"][:, 1],
        "iou": overlaps["iou"][:, 1],
        "boundary_f1": boundary_f1(predicted, true),
    }
