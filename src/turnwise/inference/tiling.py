"""Maps of images of any size, by tiles that overlap: exact under the symmetries of the grid.

The plan of the tiles depends on the image's sides alone and contains the mirror image of every tile
(`geometry.tiles`), and overlapping tiles are averaged with weights that have the symmetry of the
square.  So the map of the rotated image is the rotated map, as exactly as the model's own are, for
the whole image.  Images smaller than a tile are continued by reflection, equally on both sides or,
where that would take half a pixel, in both ways that are nearest to it.
"""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Shaped, UInt8
from numpy.typing import NDArray
from torch import Tensor

from turnwise.data.instances import group_instances
from turnwise.data.masks import IGNORED_CLASS, boundaries
from turnwise.errors import require
from turnwise.geometry.tiles import TilePlan, blending_window
from turnwise.inference.predictor import Predictor

Image = Shaped[Tensor, "channel row col"]
Map = Float[Tensor, "class row col"]
OUTLINE = (255, 32, 32)  # of objects, in overlays


class Tiling(NamedTuple):
    """The side of a tile and the pixels that neighbours share at least."""

    side: int = 256
    overlap: int = 64


def predict_map(predictor: Predictor, image: Image, tiling: Tiling | None = None) -> Map:
    """Return the probabilities of every pixel, in float64.

    Memory is that of the image's map and of one batch of tiles.
    """
    side, overlap = tiling or Tiling()
    exact = getattr(predictor.model, "exact_size", lambda size: (size,))(side)
    require(
        side in exact,
        f"tiles of {side} pixels cannot be exact; try {' or '.join(map(str, exact))}.",
    )
    rows, cols = image.shape[1:]
    plan = TilePlan(rows, cols, side, overlap)
    window, tiles = blending_window(side), list(plan)
    total = weight = torch.zeros(0)
    for start in range(0, len(tiles), predictor.batch_size):
        batch = tiles[start : start + predictor.batch_size]
        found = predictor.probabilities(torch.stack([_cut(image, *t, side) for t in batch]))
        require(
            found.ndim == 4 and found.shape[2:] == (side, side),
            f"the model returns shape {tuple(found.shape[1:])} for a tile, and no map; use a model "
            "with one output per pixel, such as turnwise_unet_small.",
        )
        if not len(total):
            total = torch.zeros(found.shape[1], rows, cols, dtype=torch.float64)
            weight = torch.zeros(rows, cols, dtype=torch.float64)
        for (row, col), tile in zip(batch, found.double(), strict=True):
            a, b = (
                slice(max(row, 0), min(row + side, rows)),
                slice(max(col, 0), min(col + side, cols)),
            )
            inside = slice(a.start - row, a.stop - row), slice(b.start - col, b.stop - col)
            total[:, a, b] += (window * tile)[:, *inside]
            weight[a, b] += window[inside]
    return total / weight


def _cut(image: Image, row: int, col: int, side: int) -> Shaped[Tensor, "channel {side} {side}"]:
    """Return a tile; beyond the image it is continued by reflection at its edges."""
    rows, cols = (
        _reflected(torch.arange(first, first + side), length)
        for first, length in zip((row, col), image.shape[1:], strict=True)
    )
    return image[:, rows][:, :, cols]


def _reflected(index: Tensor, length: int) -> Tensor:
    index = index % (2 * length)
    return torch.minimum(index, 2 * length - 1 - index)


def label_image(predictor: Predictor, found: Map) -> NDArray[np.uint16]:
    """Return the number of the instance of each pixel, or its class, by the model's target."""
    if predictor.kind.kind == "instances":
        labels = group_instances(found[None].float())[0]
    else:
        labels = found.argmax(dim=0)
    return labels.numpy().astype(np.uint16)


def overlay(
    image: UInt8[Tensor, "channel row col"], labels: NDArray[np.uint16]
) -> NDArray[np.uint8]:
    """Return the image in colour, with the outlines of the labels."""
    colour = image.expand(3, -1, -1).permute(1, 2, 0).numpy().copy()
    values = torch.from_numpy(labels.astype(np.int64))
    edges = boundaries(values[None])[0] & (values != 0) & (values != IGNORED_CLASS)
    colour[edges.numpy()] = OUTLINE
    return colour
