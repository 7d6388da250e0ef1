"""Where a source stands, as a vector that a query can meet: one encoder for rows, one for columns.

Both see the offset as the observer sees it (h⁻¹δ, in steps), so any function of it is equivariant.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from turnwise.checks import require_known

ENCODINGS = ("mlp", "table")
HIDDEN = 16


class AxisPerceptron(nn.Module):
    """A small perceptron of one real coordinate, so turns finer than 90° need no interpolation.

    Paper:    Romero & Cordonnier 2021 (GSA-Nets), appendix on positional encodings.
    Departs:  biases start at random and the norm has an ordinary epsilon.  With zero bias the norm
              cancels the magnitude, and the encoding tells left from right but not near from far.
    """

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.spread = nn.Linear(1, HIDDEN)
        self.norm = nn.LayerNorm(HIDDEN, eps=eps)
        self.mix = nn.Linear(HIDDEN, width)

    def forward(self, place: Float[Tensor, " *many"]) -> Float[Tensor, "*many width"]:
        hidden = self.norm(self.spread(place[..., None].to(self.spread.weight)))
        return self.mix(nn.functional.silu(hidden))


class AxisTable(nn.Module):
    """One learned vector per whole step, up to `reach` steps; farther ones count as the farthest.

    Paper:    Ramachandran et al. 2019, "Stand-Alone Self-Attention in Vision Models".
    """

    def __init__(self, width: int, reach: int) -> None:
        super().__init__()
        self.reach = reach
        self.vector = nn.Embedding(2 * reach + 1, width)

    def forward(self, place: Float[Tensor, " *many"]) -> Float[Tensor, "*many width"]:
        steps = place.round().long().clamp(-self.reach, self.reach)
        return self.vector(steps + self.reach)


class PlaceEncoding(nn.Module):
    """[rows | columns]: the encodings of the two coordinates, side by side."""

    def __init__(self, row: nn.Module, col: nn.Module) -> None:
        super().__init__()
        self.row, self.col = row, col

    def forward(self, place: Float[Tensor, "*many 2"]) -> Float[Tensor, "*many width"]:
        row, col = place.unbind(-1)
        return torch.cat([self.row(row), self.col(col)], dim=-1)


def place_encoding(
    kind: str, row_width: int, col_width: int, *, eps: float, reach: int
) -> PlaceEncoding:
    """An encoding by name: "mlp", or "table" (for whole steps, up to `reach`)."""
    require_known(kind, ENCODINGS, "encoding")
    if kind == "mlp":
        return PlaceEncoding(AxisPerceptron(row_width, eps), AxisPerceptron(col_width, eps))
    return PlaceEncoding(AxisTable(row_width, reach), AxisTable(col_width, reach))
