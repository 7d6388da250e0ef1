"""A linear map of tokens; on a CPU, where it pays, as a convolution of one pixel.

    y = W x + b

A token is then a pixel of a picture one pixel wide, and W a filter of 1 × 1.  The numbers are the
same, but torch gives matrix products in float32 to MKL and convolutions to oneDNN, which was twice
as fast on the one processor it was measured on (AMD; benchmarks/linear_attention.py --parts map).
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.grad import conv2d_weight

from turnwise.attention.lean import may_be_lean

Rows = Float[Tensor, "row width"]
FEWEST = 1 << 15  # numbers: of pictures much smaller torch thinks that they do not pay


def may_convolve(x: Float[Tensor, "*many width"]) -> bool:
    """Whether torch would ask oneDNN, and there are tokens enough to ask it for.

    With one thread it would not, nor where the user has switched oneDNN off.
    """
    return (
        may_be_lean(x)
        and x.dtype == torch.float32
        and x.numel() >= FEWEST
        and torch.get_num_threads() > 1
        and torch.backends.mkldnn.is_available()
        and bool(torch.backends.mkldnn.enabled)
        and not torch.is_autocast_enabled("cpu")
    )


def map_rows(
    rows: Rows,
    weight: Float[Tensor, "out_width width"],
    bias: Float[Tensor, " out_width"] | None = None,
) -> Float[Tensor, "row out_width"]:
    """W x + b of every row x."""
    if not may_convolve(rows):
        return F.linear(rows, weight, bias)
    mapped = F.conv2d(_as_picture(rows), weight[:, :, None, None], bias)
    return mapped.permute(0, 2, 3, 1).flatten(0, 2)


def weight_gradient(
    gradient: Float[Tensor, "row out_width"], rows: Rows
) -> Float[Tensor, "out_width width"]:
    """Σ g xᵀ over the rows: what `map_rows` sends back to W."""
    if not may_convolve(rows):
        return gradient.mT @ rows
    size = (gradient.shape[1], rows.shape[1], 1, 1)
    return conv2d_weight(_as_picture(rows), size, _as_picture(gradient))[:, :, 0, 0]


def _as_picture(rows: Rows) -> Float[Tensor, "1 width row 1"]:
    """The same memory: a picture whose channels lie side by side."""
    return rows.contiguous()[None, :, None].permute(0, 3, 1, 2)


class TokenLinear(nn.Module):
    """`nn.Linear`, with its weights, their names and their start."""

    def __init__(self, width: int, out_width: int) -> None:
        super().__init__()
        plain = nn.Linear(width, out_width)
        self.weight, self.bias = plain.weight, plain.bias

    def forward(self, x: Float[Tensor, "*many width"]) -> Float[Tensor, "*many out_width"]:
        if not may_convolve(x):
            return F.linear(x, self.weight, self.bias)
        mapped = map_rows(x.reshape(-1, x.shape[-1]), self.weight, self.bias)
        return mapped.view(*x.shape[:-1], -1)

    def extra_repr(self) -> str:
        out_width, width = self.weight.shape
        return f"{width} -> {out_width}"
