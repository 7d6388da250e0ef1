"""Attention by place alone, near and far: a vector for each near offset, one for all the rest.

    out_p = Σ_s φ(q_p)·φ(e_{s−p}) v_s / Σ_s φ(q_p)·φ(e_{s−p}),     e_δ = e_far unless δ is near
          = [φ_q·φ_far Σ_s v_s + Σ_{near δ} φ_q·(φ_δ − φ_far) v_{p+δ}] / [the same of ones]

One sum over all tokens and a correction over the near ones: linear in the tokens.

Paper:    Horn et al. 2021, "Translational Equivariance in Kernelizable Attention" (strategy 2).
Symbols:  e is their w; `reach` their clipping distance; near is |rows| + |cols| < reach.
Departs:  any table of near offsets, not of their distance alone; with `wrap` the picture has no
          border, and circular shifts are exact.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

Steps = list[tuple[int, int]]
Grid = Float[Tensor, "batch head row col feature"]
GridValues = Float[Tensor, "batch head row col dim_out"]


def near_steps(reach: int) -> Steps:
    """All (row, col) steps with |row| + |col| < reach."""
    side = range(1 - reach, reach)
    return [(row, col) for row in side for col in side if abs(row) + abs(col) < reach]


def gather_near(
    weight: Float[Tensor, "batch head row col step"],
    value: GridValues,
    steps: Steps,
    *,
    wrap: bool,
) -> GridValues:
    """Σ_δ weight_δ(p) v(p + δ); beyond the border is nothing, or with `wrap` the other side.

    A sum of shifted products: nothing of size tokens × steps × channels is ever written.
    """
    rows, cols = value.shape[2:4]
    reach = max(max(map(abs, step)) for step in steps)
    pad = [reach] * 4
    maps = value.permute(0, 1, 4, 2, 3).flatten(0, 1)
    wide = F.pad(maps, pad, mode="circular") if wrap else F.pad(maps, pad)
    wide = wide.unflatten(0, value.shape[:2])  # (batch, head, dim_out, wide row, wide col)
    weights = weight.movedim(-1, 0).unsqueeze(3)  # (step, batch, head, 1, row, col)
    total = torch.zeros_like(wide[..., :rows, :cols])
    for (row, col), factor in zip(steps, weights.contiguous(), strict=True):
        top, left = reach + row, reach + col
        total = total + factor * wide[..., top : top + rows, left : left + cols]
    return total.movedim(2, -1)


def attend_by_place(
    query: Grid,
    near: Float[Tensor, "step feature"],
    far: Float[Tensor, " feature"],
    value: GridValues,
    steps: Steps,
    *,
    everything: Float[Tensor, "batch head dim_out"],
    wrap: bool = False,
) -> Float[Tensor, "batch head row col dim"]:
    """The formula above for every pixel; the last channel of `value` must hold the ones.

    `everything` is Σ_s of the values over all tokens, those without a pixel among them.
    """
    with torch.autocast(value.device.type, enabled=False):  # it would round the sums
        correction = gather_near(query @ (near - far).mT, value, steps, wrap=wrap)
        total = (query @ far)[..., None] * everything[:, :, None, None] + correction
        return total[..., :-1] / total[..., -1:]
