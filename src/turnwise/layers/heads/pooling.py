"""Heads: from features on the group to outputs that are invariant, or that rotate with the image.

Tokens are (batch, token, group, channel).  A group element permutes the tokens and acts on the
group axis, so pooling over both is invariant; pooling over the tokens alone gives a function on the
group, (g v)(h) = v(g⁻¹h); pooling over neither gives a field.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from turnwise.errors import require, require_known, require_positive
from turnwise.geometry.layouts import field_to_regular, regular_to_tokens
from turnwise.groups import PlanarGroup
from turnwise.layers.conv.conv import GroupConv2d, require_regular
from turnwise.layers.conv.stem import GroupBatchNorm2d

Field = Float[Tensor, "batch group row col channel"]
Regular = Float[Tensor, "batch channel group row col"]
Tokens = Float[Tensor, "batch token group channel"]
COMBINE = ("mean", "max", "both")


class InvariantPool(nn.Module):
    """Pool regular features over pixels and group: one vector per image, invariant under the group.

    Args:
        group: the group, by name ("C4", "D4", …) or as a `PlanarGroup`.
        over_pixels: "mean", "max", or "both" side by side, which doubles the channels.
        over_group: the same, over the group; it follows the pooling over the pixels.

    Shape:
        - Input: (batch, channel, |G|, row, col), regular features.
        - Output: (batch, channel), or two or four times the channels (see `pooled_width`).

    >>> InvariantPool("D4")(torch.randn(2, 16, 8, 7, 7)).shape
    torch.Size([2, 16])
    """

    def __init__(
        self, group: PlanarGroup | str, over_pixels: str = "mean", over_group: str = "mean"
    ) -> None:
        super().__init__()
        require_known(over_pixels, COMBINE, "over_pixels")
        require_known(over_group, COMBINE, "over_group")
        self.group = PlanarGroup.named(group)
        self.over_pixels, self.over_group = over_pixels, over_group

    def forward(self, x: Regular) -> Float[Tensor, "batch pooled"]:
        require_regular(x, self.group, x.shape[1])
        return invariant(regular_to_tokens(x), self.over_pixels, self.over_group)

    def extra_repr(self) -> str:
        return f"{self.group}, over_pixels={self.over_pixels}, over_group={self.over_group}"


def invariant(
    tokens: Tokens, over_tokens: str = "mean", over_group: str = "mean"
) -> Float[Tensor, "batch pooled"]:
    """Pool over the tokens, then over the group: one vector for each image.

    Each by "mean", "max", or "both" side by side, which doubles the width (see `pooled_width`).
    """
    return _pool(_pool(tokens, over_tokens), over_group)


def pooled_width(width: int, over_tokens: str = "mean", over_group: str = "mean") -> int:
    """Return the number of channels that `invariant` gives."""
    return width * (1 + (over_tokens == "both")) * (1 + (over_group == "both"))


def _pool(x: Float[Tensor, "batch many *rest"], how: str) -> Float[Tensor, "batch *newrest"]:
    """Pool the axis after the batch by an operation that does not depend on its order."""
    require_known(how, COMBINE, "way to combine")
    if how == "mean":
        return x.mean(dim=1)
    # not amax: its gradient compares with the maximum, which a compiled graph may recompute in
    # another precision, and 0 / 0 is not a number
    most = x.max(dim=1).values
    return most if how == "max" else torch.cat([x.mean(dim=1), most], dim=-1)


class Overview(nn.Module):
    """A group convolution as large as the feature map, with norm and ReLU: one token per image.

    y(g, o) = relu(norm(Σ_{m, i} Σ_p K[o, i, g⁻¹m](g⁻¹p) f(m, i, p)))    p from the map's centre

    Pooling forgets where the tokens are; this layer keeps how they are arranged, in the frame of
    each group element.  The price: one image size, and no invariance to shifts.

    Paper:    none; steerable networks end so (Weiler & Cesa 2019, their last convolution is as
              large as its maps).
    """

    def __init__(self, group: PlanarGroup | str, width: int, out_width: int, side: int) -> None:
        super().__init__()
        self.side = side
        self.look = GroupConv2d(group, width, out_width, side, padding=0, bias=False)
        self.norm = GroupBatchNorm2d(group, out_width)

    def forward(self, field: Field) -> Float[Tensor, "batch 1 group out_width"]:
        rows, cols = field.shape[2:4]
        require(
            rows == cols == self.side,
            f"the overview takes {self.side} x {self.side} tokens, got {rows} x {cols}.",
        )
        return regular_to_tokens(self.norm(self.look(field_to_regular(field))).relu())


def orientation(tokens: Tokens) -> Float[Tensor, "batch group channel"]:
    """Return the mean over the tokens, which the group permutes along its axis."""
    return tokens.mean(dim=1)


class OrientationHead(nn.Module):
    """One score per group element: the orientation of the image.

    All group elements share one linear map.  Rotating the image by g moves the score of h to g·h,
    so the largest score gives the rotation, up to those that leave the image unchanged.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.score = nn.Linear(width, 1, bias=False)  # a bias would shift all scores alike

    def forward(self, tokens: Tokens) -> Float[Tensor, "batch group"]:
        return self.score(orientation(tokens)).squeeze(-1)


class DenseHead(nn.Module):
    """One linear map of every group element and pixel, from tokens to a field.

    Its mean over the group is an image that rotates with the input, as segmentation needs it.
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
