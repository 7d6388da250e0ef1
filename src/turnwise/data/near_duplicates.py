"""Find images that are nearly the same, also where one is rotated, flipped, or saved again.

Each image becomes a small grey version without its mean and contrast.  Two images are nearly the
same if these correlate strongly, at 8 pixels a side and then at 16, in one of the eight
orientations of the square.  Images with little contrast, such as empty background, are not
compared.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch.nn.functional as F
from jaxtyping import Float, Shaped, UInt8
from torch import Tensor

from turnwise.data.transforms import convert_channels
from turnwise.groups import PlanarGroup, act_on_image

ALIKE_COARSE, ALIKE = 0.98, 0.99  # correlation at 8 and at 16 pixels
CONTRAST = 4.0  # grey levels: standard deviation below which an image counts as empty
MOST = 10_000  # pairs that are returned
_COARSE, _FINE = 8, 16
_BLOCK = 1024


class Pair(NamedTuple):
    """Two positions, and the correlation of the images there."""

    first: int
    second: int
    correlation: float


def find_near_duplicates(images: UInt8[Tensor, "image channel side side"]) -> list[Pair]:
    """Return pairs of nearly equal images, by position, at most `MOST` of them."""
    grey = convert_channels(images, 1).float()
    fine = F.adaptive_avg_pool2d(grey, _FINE)
    shown = (fine.flatten(1).std(1) >= CONTRAST).nonzero()[:, 0]
    fine = fine[shown]
    group = PlanarGroup.named("D4")
    views = [act_on_image(group, g, fine) for g in range(group.order)]
    coarse = [_standardised(F.adaptive_avg_pool2d(view, _COARSE)) for view in views]
    detailed = [_standardised(view) for view in views]
    best: dict[tuple[int, int], float] = {}
    for i, j, g in _candidates(coarse):
        correlation = (detailed[0][i] * detailed[g][j]).sum(1)
        for a, b, value in zip(i.tolist(), j.tolist(), correlation.tolist(), strict=True):
            if value >= ALIKE:
                best[a, b] = max(value, best.get((a, b), 0.0))
        if len(best) >= MOST:
            break
    return [
        Pair(int(shown[a]), int(shown[b]), value) for (a, b), value in sorted(best.items())[:MOST]
    ]


def _standardised(images: Float[Tensor, "image 1 side side"]) -> Float[Tensor, "image pixel"]:
    flat = images.flatten(1)
    return F.normalize(flat - flat.mean(1, keepdim=True), dim=1)


def _candidates(
    views: list[Float[Tensor, "image pixel"]],
) -> Iterator[tuple[Shaped[Tensor, " pair"], Shaped[Tensor, " pair"], int]]:
    """Yield positions i < j, and the orientation in which j looks like i."""
    for start in range(0, len(views[0]), _BLOCK):
        block = views[0][start : start + _BLOCK]
        for g, view in enumerate(views):
            close = (block @ view[start:].T).triu(1) >= ALIKE_COARSE
            i, j = close.nonzero().T
            if len(i):
                yield i + start, j + start, g
