"""From tokens on the group to answers: what stays when the picture turns, and what turns with it.

Tokens are (batch, token, group, channel).  An element g permutes the tokens and turns the poses, so
what combines all of both is invariant; what combines the tokens alone is a function on the group,
(g v)(h) = v(g⁻¹h); and what combines neither is a field.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from turnwise.errors import require, require_known, require_positive
from turnwise.groups import PlanarGroup
from turnwise.layers.conv.conv import GroupConv, MapNorm, field_to_maps, maps_to_tokens

Field = Float[Tensor, "batch group row col channel"]
Tokens = Float[Tensor, "batch token group channel"]
COMBINE = ("mean", "max", "both")


def invariant(
    tokens: Tokens, over_tokens: str = "mean", over_group: str = "mean"
) -> Float[Tensor, "batch pooled"]:
    """One vector for each picture: first the tokens are combined, then the poses.

    Each by "mean", "max", or "both" side by side, which doubles the width (see `pooled_width`).
    """
    return _combine(_combine(tokens, over_tokens), over_group)


def pooled_width(width: int, over_tokens: str = "mean", over_group: str = "mean") -> int:
    """The number of channels that `invariant` gives."""
    return width * (1 + (over_tokens == "both")) * (1 + (over_group == "both"))


def _combine(x: Float[Tensor, "batch many *rest"], how: str) -> Float[Tensor, "batch *newrest"]:
    """The axis after the batch, combined by an operation that no order of it can change."""
    require_known(how, COMBINE, "way to combine")
    if how == "mean":
        return x.mean(dim=1)
    # not amax: its gradient compares with the maximum, which a compiled graph may compute again
    # in another precision, and 0 / 0 is not a number
    most = x.max(dim=1).values
    return most if how == "max" else torch.cat([x.mean(dim=1), most], dim=-1)


class Overview(nn.Module):
    """One look at the whole field, for each pose from its own frame: one token for the picture.

    y(g, o) = relu(norm(Σ_{m, i} Σ_p K[o, i, g⁻¹m](g⁻¹p) f(m, i, p)))    p from the field's centre

    A pool forgets where the tokens stood; this tells what stands above what, seen from each pose,
    and only then are the poses combined.  Its price: the field has one size, and a picture moved
    to the side is another picture.

    Paper:    none; steerable networks end so (Weiler & Cesa 2019, their last convolution is as
              large as its maps).
    """

    def __init__(self, group: PlanarGroup | str, width: int, out_width: int, side: int) -> None:
        super().__init__()
        self.side, self.poses = side, PlanarGroup.named(group).order
        self.look = GroupConv(group, width, out_width, side, padding=0, bias=False)
        self.norm = MapNorm(group, out_width, "batch")

    def forward(self, field: Field) -> Float[Tensor, "batch 1 group out_width"]:
        rows, cols = field.shape[2:4]
        require(
            rows == cols == self.side,
            f"the overview looks at {self.side} x {self.side} tokens, got {rows} x {cols}.",
        )
        maps = self.norm(self.look(field_to_maps(field)))
        return maps_to_tokens(maps.relu(), self.poses)


def orientation(tokens: Tokens) -> Float[Tensor, "batch group channel"]:
    """The mean over the tokens, for each pose: the group permutes the poses, and nothing else."""
    return tokens.mean(dim=1)


class OrientationHead(nn.Module):
    """One score for each pose, by a linear map that all poses share: which way up is the picture?

    Turning by g moves the score of h to g·h, so the largest score tells the turn, up to those that
    leave the picture as it is.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.score = nn.Linear(width, 1, bias=False)  # a bias would add the same to all poses

    def forward(self, tokens: Tokens) -> Float[Tensor, "batch group"]:
        return self.score(orientation(tokens)).squeeze(-1)


class DenseHead(nn.Module):
    """A vector for each pose and pixel, by one linear map for all: tokens to a field.

    Its mean over the group is a picture that turns with the input, as segmentation needs it.
    """

    def __init__(self, width: int, out_width: int) -> None:
        super().__init__()
        require_positive(width=width, out_width=out_width)
        self.project = nn.Linear(width, out_width)

    def forward(
        self, tokens: Tokens, rows: int, cols: int
    ) -> Float[Tensor, "batch group {rows} {cols} out_width"]:
        require(
            tokens.shape[1] == rows * cols,
            f"{rows} x {cols} pixels are {rows * cols} tokens, got {tokens.shape[1]}.",
        )
        return self.project(tokens).unflatten(1, (rows, cols)).permute(0, 3, 1, 2, 4)
