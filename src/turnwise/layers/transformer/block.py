"""The block of a transformer on the group: tokens look at each other, then each thinks for itself.

x <- x + drop(a · attention(norm(x)))
x <- x + drop(b · mlp(norm(x)))

Tokens are (batch, token, group, channel).  Every part commutes with the group: linear maps are
group convolutions, norms have the same statistics and the same affine map for every pose, and a
dropped path is dropped for all poses alike.  (Dropout in the perceptron is not: in training it
drops the channels of each pose by themselves.)
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from turnwise.errors import require, require_positive
from turnwise.groups import PlanarGroup
from turnwise.layers.tables import has_hooks
from turnwise.layers.transformer.irreps import (
    Irreps,
    PoseBasis,
    by_kernel,
    gelu_of_irreps,
    rounded_by_autocast,
    to_irreps,
)
from turnwise.layers.transformer.linear import GroupLinear, in_irreps
from turnwise.layers.transformer.plain import DropPath

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

    def forward(self, tokens: Float[Tensor, "*many group channel"]) -> Tensor:
        poses = tokens.shape[-2]
        flat = tokens.flatten(-2)
        weight, bias = self.weight.repeat(poses), self.bias.repeat(poses)
        return F.layer_norm(flat, flat.shape[-1:], weight, bias, self.eps).view_as(tokens)

    def to_irreps(
        self, tokens: Float[Tensor, "token group channel"], basis: PoseBasis, backend: str = "auto"
    ) -> Irreps:
        """Q norm(x), in one step where there is a kernel for it."""
        if not by_kernel(tokens, backend):
            return to_irreps(self(tokens), basis, backend)
        from turnwise.kernels.irreps_launch import norm_to_irreps

        kind = rounded_by_autocast(tokens[:0]).dtype
        given = tokens.contiguous(), self.weight, self.bias, self.eps, kind, basis.group
        return Irreps(*norm_to_irreps(*given)[:2])


class LayerScale(nn.Module):
    """A learned factor for each channel, small at first: a deep network starts as a shallow one.

    Paper:    Touvron et al. 2021, "Going deeper with Image Transformers".
    """

    def __init__(self, width: int, start: float) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.full((width,), start))

    def forward(self, branch: Tokens) -> Tokens:
        return branch * self.factor


def factor_of(scale: nn.Module) -> Float[Tensor, " channel"] | None:
    return scale.factor if isinstance(scale, LayerScale) else None


class GroupMLP(nn.Module):
    """W₂ gelu(W₁ x), with group linear maps.

    Where both maps work in irreps, nothing between them is written in poses.
    """

    spread: Any  # as `linear` makes it
    gather: Any

    def __init__(
        self, group: PlanarGroup, width: int, hidden: int, linear: Linear, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.spread, self.gather = linear(group, width, hidden), linear(group, hidden, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tokens) -> Tokens:
        if not self.in_irreps():
            return self.gather(self.dropout(F.gelu(self.spread(tokens))))
        irreps = to_irreps(tokens, self.gather.pose_basis())
        return self.gather.leave_irreps(self.hidden_irreps(irreps)).view_as(tokens)

    def in_irreps(self) -> bool:
        """Whether both maps work in irreps, and nothing between them must see the poses."""
        drops = self.training and self.dropout.p > 0
        return not drops and in_irreps(self.spread) and in_irreps(self.gather)

    def hidden_irreps(self, irreps: Irreps) -> Irreps:
        """Q gelu(Qᵀ Ŵ₁ x̂ + b₁)."""
        hidden, bias = self.spread.forward_in_irreps(irreps), self.spread.bias
        if bias is None:
            bias = hidden.numbers.new_zeros(hidden.numbers.shape[-1])
        return gelu_of_irreps(hidden, bias, self.spread.pose_basis())


class GroupTransformerBlock(nn.Module):
    """Attention (a part: any layer from tokens, rows, cols to tokens) and a perceptron."""

    attention: Any  # in irreps too if it has `mix_irreps`, and says so (`in_irreps`)

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
        if self._stays_in_irreps():
            return self._forward_in_irreps(tokens, rows, cols)
        mixed = self.attention(self.norm_attention(tokens), rows, cols)
        tokens = tokens + self.drop_path(self.scale_attention(mixed))
        return tokens + self.drop_path(self.scale_mlp(self.mlp(self.norm_mlp(tokens))))

    def _stays_in_irreps(self) -> bool:
        """Whether all maps work in irreps, and nothing of what they give is dropped.

        The short way does not call the parts: where one has a hook, or was replaced by another
        kind, the long way is taken.
        """
        if not self._is_as_made() or has_hooks(self):
            return False
        dropped = self.training and self.drop_path.rate > 0
        mixes = hasattr(self.attention, "mix_irreps") and self.attention.in_irreps()
        return mixes and self.mlp.in_irreps() and not dropped

    def _is_as_made(self) -> bool:
        scales = (type(self.scale_attention), type(self.scale_mlp))
        return (
            type(self.norm_attention) is type(self.norm_mlp) is TokenNorm
            and type(self.mlp) is GroupMLP
            and type(self.mlp.dropout) is nn.Dropout
            and type(self.drop_path) is DropPath
            and all(kind in (LayerScale, nn.Identity) for kind in scales)
        )

    def _forward_in_irreps(self, tokens: Tokens, rows: int, cols: int) -> Tokens:
        """The same, where poses are seen by the softmax and the gelu alone."""
        stream = tokens.flatten(0, 1)
        project, gather = self.attention.to_output, self.mlp.gather
        basis = project.pose_basis()
        mixed = self.attention.mix_irreps(self.norm_attention.to_irreps(stream, basis), rows, cols)
        stream = project.leave_irreps(mixed, stream, factor_of(self.scale_attention))
        hidden = self.mlp.hidden_irreps(self.norm_mlp.to_irreps(stream, basis))
        return gather.leave_irreps(hidden, stream, factor_of(self.scale_mlp)).view_as(tokens)
