"""Attention by relative position alone: a vector for each near offset, one for all others.

    out_p = Σ_s φ(q_p)·φ(e_{s−p}) v_s / Σ_s φ(q_p)·φ(e_{s−p}),     e_δ = e_far unless δ is near
          = [φ_q·φ_far Σ_s v_s + Σ_{near δ} φ_q·(φ_δ − φ_far) v_{p+δ}] / [the same of ones]

One sum over all tokens and a correction over the near ones: linear in the tokens.  The correction
is a sum of shifted products ("plain"), or two matrix products for each tile of the image, between
its 8 × 8 pixels and all pixels near any of them ("tiles"): more pairs, at a lower cost each.

Paper:    Horn et al. 2021, "Translational Equivariance in Kernelizable Attention" (strategy 2).
Symbols:  e is their w; `reach` their clipping distance; near is |rows| + |cols| < reach.
Departs:  any table of near offsets, not of their distance alone; with `wrap` the image is periodic,
          and circular shifts are exact.
"""

import math
from itertools import groupby

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from turnwise.errors import require, require_known
from turnwise.geometry.windows import tiles_of

Steps = list[tuple[int, int]]
Grid = Float[Tensor, "batch head row col feature"]
GridValues = Float[Tensor, "batch head row col dim_out"]
Maps = Float[Tensor, "map wide_row wide_col dim_out"]
POSITION_BACKENDS = ("auto", "plain", "tiles")
TILE = 8  # pixels: smaller tiles share fewer neighbours, larger ones have more useless pairs


def near_steps(reach: int) -> Steps:
    """Return all (row, col) steps with |row| + |col| < reach."""
    side = range(1 - reach, reach)
    return [(row, col) for row in side for col in side if abs(row) + abs(col) < reach]


def gather_near(
    weight: Float[Tensor, "batch head row col step"],
    value: GridValues,
    steps: Steps,
    *,
    wrap: bool,
) -> GridValues:
    """Return Σ_δ weight_δ(p) v(p + δ), with zeros beyond the border or, if `wrap`, periodically.

    A sum of shifted products: no tensor of size tokens × steps × channels is needed.
    """
    rows, cols = value.shape[2:4]
    reach = _longest(steps)
    wide = _with_surroundings(value, reach, wrap=wrap).permute(0, 3, 1, 2)
    wide = wide.contiguous().unflatten(0, value.shape[:2])
    weights = weight.movedim(-1, 0).unsqueeze(3)  # (step, batch, head, 1, row, col)
    total = torch.zeros_like(wide[..., :rows, :cols])
    for (row, col), factor in zip(steps, weights.contiguous(), strict=True):
        top, left = reach + row, reach + col
        total = total + factor * wide[..., top : top + rows, left : left + cols]
    return total.movedim(2, -1)


def gather_in_tiles(
    query: Grid, near: Float[Tensor, "step feature"], value: GridValues, steps: Steps, *, wrap: bool
) -> GridValues:
    """Return Σ_δ q(p)·near_δ v(p + δ), as `gather_near` of the weights q·near, tile by tile.

    For all pixels i of a tile and k of its surroundings: weight_ik = q_i·near_{k−i}, 0 if not near.
    `steps` are all near ones, in the order of `near_steps`.
    """
    reach = _longest(steps)
    kernel = _near_each_pixel(near, steps, reach)
    wide = _with_surroundings(value, reach, wrap=wrap).unflatten(0, value.shape[:2])
    return _tiled(query, kernel, wide)


def _tiled(
    query: Grid,
    kernel: Float[Tensor, "pixel feature wide_pixel"],
    wide: Float[Tensor, "batch head wide_row wide_col dim_out"],
) -> GridValues:
    (batch, heads, rows, cols, _), dim = query.shape, wide.shape[-1]
    down, across, side = -(-rows // TILE), -(-cols // TILE), math.isqrt(kernel.shape[-1])
    missing = (0, 0, 0, across * TILE - cols, 0, down * TILE - rows)
    tiles = tiles_of(F.pad(wide.flatten(0, 1), missing), side, TILE)
    values = tiles.flatten(3, 4).flatten(0, 2)  # (tile, wide pixel, dim)
    queries = F.pad(query, missing).unflatten(3, (across, TILE)).unflatten(2, (down, TILE))
    queries = queries.permute(3, 5, 0, 1, 2, 4, 6).flatten(2, 5).flatten(0, 1)  # (pixel, tile, ·)
    weight = queries @ kernel  # (pixel, tile of a map, wide pixel)
    mixed = (weight.transpose(0, 1) @ values).view(batch, heads, down, across, TILE, TILE, dim)
    return mixed.transpose(3, 4).flatten(4, 5).flatten(2, 3)[:, :, :rows, :cols]


def _near_each_pixel(
    near: Float[Tensor, "step feature"], steps: Steps, reach: int
) -> Float[Tensor, "pixel feature wide_pixel"]:
    """Return near_{k−i} for every pixel i of a tile and every k of its surroundings."""
    lines, first = [], 0
    for _, line in groupby(steps, key=lambda step: step[0]):  # from left to right
        cols = [col for _, col in line]
        part = near[first : first + len(cols)]
        lines.append(F.pad(part, (0, 0, reach + cols[0], reach - cols[-1])))
        first += len(cols)
    margin = [TILE - 1] * 4
    square = F.pad(torch.stack(lines).permute(2, 0, 1), margin)  # (feature, row, col)
    slid = _slid(_slid(square, 1), 3)  # (feature, pixel's row, row, pixel's col, col)
    return slid.permute(1, 3, 0, 2, 4).flatten(3, 4).flatten(0, 1)


def _slid(x: Float[Tensor, "..."], dim: int) -> Tensor:
    """Return x shifted by each of the `TILE` positions i: (…, i, x from TILE − 1 − i on, …).

    Copies of x and one more entry, written one after the other and read in lines of the length of
    x, begin one entry earlier from line to line.
    """
    length = x.shape[dim]
    longer = F.pad(x, [0, 0] * (x.ndim - 1 - dim) + [0, 1]).unsqueeze(dim)
    copies = longer.expand(*x.shape[:dim], TILE, -1, *x.shape[dim + 1 :]).flatten(dim, dim + 1)
    lines = copies.narrow(dim, 0, TILE * length).unflatten(dim, (TILE, length))
    return lines.narrow(dim + 1, TILE - 1, length - TILE + 1)


def _longest(steps: Steps) -> int:
    return max(max(map(abs, step)) for step in steps)


def _with_surroundings(value: GridValues, reach: int, *, wrap: bool) -> Maps:
    """Pad by `reach` pixels on every side, with zeros or periodically."""
    maps = value.flatten(0, 1)
    if not wrap:
        return F.pad(maps, (0, 0, reach, reach, reach, reach))
    for dim in (1, 2):
        last = maps.narrow(dim, maps.shape[dim] - reach, reach)
        maps = torch.cat([last, maps, maps.narrow(dim, 0, reach)], dim=dim)
    return maps


def attend_by_position(
    query: Grid,
    near: Float[Tensor, "step feature"],
    far: Float[Tensor, " feature"],
    value: GridValues,
    steps: Steps,
    *,
    everything: Float[Tensor, "batch head dim_out"],
    wrap: bool = False,
    backend: str = "auto",
) -> Float[Tensor, "batch head row col dim"]:
    """Return the formula above for every pixel; the last channel of `value` must hold ones.

    `everything` is Σ_s of the values over all tokens, including those without a pixel.
    """
    require_known(backend, POSITION_BACKENDS, "backend")
    whole = steps == near_steps(1 + _longest(steps))
    require(
        whole or backend != "tiles", "tiles need all near steps, in order; use backend='plain'."
    )
    plain = backend == "plain" or not whole
    with torch.autocast(value.device.type, enabled=False):  # which would round the sums
        total = (query @ far)[..., None] * everything[:, :, None, None]
        above, below = _corrections(query, near - far, value, steps, wrap, plain)
        return (total[..., :-1] + above) / (total[..., -1:] + below)


def _corrections(
    query: Grid,
    near: Float[Tensor, "step feature"],
    value: GridValues,
    steps: Steps,
    wrap: bool,
    plain: bool,
) -> tuple[Float[Tensor, "batch head row col dim"], Float[Tensor, "batch head row col 1"]]:
    """Return Σ_δ q·near_δ v(p + δ) of the values, and of the ones in their last channel."""
    if wrap and not plain:  # every pixel has the same near steps: no need to gather ones
        values = gather_in_tiles(query, near, value[..., :-1], steps, wrap=True)
        return values, (query @ near.sum(dim=0))[..., None]
    if plain:
        both = gather_near(query @ near.mT, value, steps, wrap=wrap)
    else:
        both = gather_in_tiles(query, near, value, steps, wrap=wrap)
    return both[..., :-1], both[..., -1:]
