"""The block of a transformer on the group: tokens look at each other, then each thinks for itself.

x <- x + drop(a · attention(norm(x)))
x <- x + drop(b · mlp(norm(x)))

Tokens are (batch, token, group, channel).  Every part commutes with the group: linear maps are
group convolutions, norms have the same statistics and the same affine map for every pose, and what
is dropped is dropped for all poses alike.
"""

from collections.abc import Callable
from typing import TypeGuard

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from turnwise.checks import require, require_positive
from turnwise.groups import PlanarGroup
from turnwise.layers.group_linear import GroupLinear
from turnwise.layers.irrep_blocks import gelu_of_irreps, to_irreps
from turnwise.layers.transformer import DropPath

Tokens = Float[Tensor, "batch token group channel"]
Linear = Callable[[PlanarGroup, int, int], nn.Module]


class TokenNorm(nn.Module):
    """Mean 0 and spread 1 over all poses and channels of a token; one affine map for all poses.

    Paper:    Ba et al. 2016, "Layer Normalization".
    """

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, tokens: Tokens) -> Tokens:
        poses = tokens.shape[-2]
        flat = tokens.flatten(-2)
        weight, bias = self.weight.repeat(poses), self.bias.repeat(poses)
        return F.layer_norm(flat, flat.shape[-1:], weight, bias, self.eps).view_as(tokens)


class LayerScale(nn.Module):
    """A learned factor for each channel, small at first: a deep network starts as a shallow one.

    Paper:    Touvron et al. 2021, "Going deeper with Image Transformers".
    """

    def __init__(self, width: int, start: float) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.full((width,), start))

    def forward(self, branch: Tokens) -> Tokens:
        return branch * self.factor


class GroupMLP(nn.Module):
    """W₂ gelu(W₁ x), with group linear maps.

    Where both maps work in irreps, nothing between them is written in poses.
    """

    def __init__(
        self, group: PlanarGroup, width: int, hidden: int, linear: Linear, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.spread, self.gather = linear(group, width, hidden), linear(group, hidden, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tokens) -> Tokens:
        drops = self.training and self.dropout.p > 0
        if not drops and in_irreps(self.spread) and in_irreps(self.gather):
            return think_in_irreps(self.spread, self.gather, tokens)
        return self.gather(self.dropout(F.gelu(self.spread(tokens))))


def in_irreps(linear: nn.Module) -> TypeGuard[GroupLinear]:
    return isinstance(linear, GroupLinear) and linear.basis == "irreps"


def think_in_irreps(spread: GroupLinear, gather: GroupLinear, tokens: Tokens) -> Tokens:
    """W₂ gelu(W₁ x + b₁) + b₂ as  Qᵀ Ŵ₂ Q gelu(Qᵀ Ŵ₁ Q x + b₁) + b₂."""
    basis = spread.pose_basis(tokens)
    hidden = spread.forward_in_irreps(to_irreps(tokens, basis))
    bias = hidden.numbers.new_zeros(spread.out_width) if spread.bias is None else spread.bias
    return gather.leave_irreps(gelu_of_irreps(hidden, bias, basis), like=tokens)


class GroupTransformerBlock(nn.Module):
    """Attention (a part: any layer from tokens, rows, cols to tokens) and a perceptron."""

    def __init__(
        self,
        group: PlanarGroup,
        width: int,
        attention: nn.Module,
        *,
        mlp_ratio: float = 4.0,
        linear: Linear = GroupLinear,
        drop_path: float = 0.0,
        dropout: float = 0.0,
        layer_scale: float = 0.0,
    ) -> None:
        super().__init__()
        hidden = int(width * mlp_ratio)
        require_positive(width=width)
        require(hidden > 0, f"mlp_ratio = {mlp_ratio} leaves no hidden channel of {width}.")
        self.norm_attention, self.attention = TokenNorm(width), attention
        self.norm_mlp = TokenNorm(width)
        self.mlp = GroupMLP(group, width, hidden, linear, dropout)
        scaled = layer_scale > 0
        self.scale_attention = LayerScale(width, layer_scale) if scaled else nn.Identity()
        self.scale_mlp = LayerScale(width, layer_scale) if scaled else nn.Identity()
        self.drop_path = DropPath(drop_path)

    def forward(self, tokens: Tokens, rows: int, cols: int) -> Tokens:
        mixed = self.attention(self.norm_attention(tokens), rows, cols)
        tokens = tokens + self.drop_path(self.scale_attention(mixed))
        return tokens + self.drop_path(self.scale_mlp(self.mlp(self.norm_mlp(tokens))))
