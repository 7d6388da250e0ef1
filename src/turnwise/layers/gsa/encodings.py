"""Relative positional encodings: one encoder for rows and one for columns.

Both take the offset in the frame of the output's group element (h⁻¹δ, in pixels), so any function
of it is equivariant.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from turnwise.errors import require_known

ENCODINGS = ("mlp", "table")
HIDDEN = 16


class AxisMLP(nn.Module):
    """A small MLP of one real coordinate, defined between the pixels, too.

    Paper:    Romero & Cordonnier 2021 (GSA-Nets), appendix on positional encodings.
    Departs:  biases start at random and the norm has an ordinary epsilon.  With zero bias the norm
              cancels the magnitude, and the encoding knows the direction but not the distance.
    """

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.spread = nn.Linear(1, HIDDEN)
        self.norm = nn.LayerNorm(HIDDEN, eps=eps)
        self.mix = nn.Linear(HIDDEN, width)

    def forward(self, coordinate: Float[Tensor, " *many"]) -> Float[Tensor, "*many width"]:
        hidden = self.norm(self.spread(coordinate[..., None].to(self.spread.weight)))
        return self.mix(nn.functional.silu(hidden))


class AxisTable(nn.Module):
    """One learned vector per whole step up to `reach`, and one for all farther steps on each side.

    Paper:    Ramachandran et al. 2019, "Stand-Alone Self-Attention in Vision Models".
    """

    no_weight_decay = ("vector.weight",)

    def __init__(self, width: int, reach: int) -> None:
        super().__init__()
        self.reach = reach
        self.vector = nn.Embedding(2 * reach + 1, width)

    def forward(self, coordinate: Float[Tensor, " *many"]) -> Float[Tensor, "*many width"]:
        steps = coordinate.round().long().clamp(-self.reach, self.reach)
        return self.vector(steps + self.reach)


class PositionEncoding(nn.Module):
    """[rows | columns]: the concatenated encodings of the two coordinates."""

    def __init__(self, row: nn.Module, col: nn.Module) -> None:
        super().__init__()
        self.row, self.col = row, col

    def forward(self, offset: Float[Tensor, "*many 2"]) -> Float[Tensor, "*many width"]:
        row, col = offset.unbind(-1)
        return torch.cat([self.row(row), self.col(col)], dim=-1)


def position_encoding(
    kind: str, row_width: int, col_width: int, *, eps: float, reach: int
) -> PositionEncoding:
    """Make an encoding by name: "mlp", or "table" (for whole steps, up to `reach`)."""
    require_known(kind, ENCODINGS, "encoding")
    if kind == "mlp":
        return PositionEncoding(AxisMLP(row_width, eps), AxisMLP(col_width, eps))
    return PositionEncoding(AxisTable(row_width, reach), AxisTable(col_width, reach))
