"""The transformer block on the group, and its parts.

    x ← x + drop(a · attention(norm(x)))
    x ← x + drop(b · mlp(norm(x)))

Every part is equivariant: linear maps are group convolutions, norms share statistics and the affine
map over the group, and drop path drops all group elements of a sample.  (Dropout in the MLP does
not: in training it drops entries of each group element independently.)

Inside, tokens are (batch, token, group, channel); the block itself takes regular features.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from turnwise.errors import require, require_known, require_positive
from turnwise.geometry.layouts import regular_to_tokens, tokens_to_regular
from turnwise.groups import PlanarGroup
from turnwise.layers.conv.conv import require_regular
from turnwise.layers.tables import has_hooks
from turnwise.layers.transformer.irreps import (
    IrrepBasis,
    Irreps,
    by_kernel,
    gelu_of_irreps,
    rounded_by_autocast,
    to_irreps,
)
from turnwise.layers.transformer.linear import GroupLinear, in_irreps
from turnwise.layers.transformer.plain import DropPath

Tokens = Float[Tensor, "batch token group channel"]
Regular = Float[Tensor, "batch channel group row col"]
Linear = Callable[[PlanarGroup, int, int], nn.Module]


class TokenNorm(nn.Module):
    """Layer norm over the group elements and channels of a token; they share the affine map.

    Paper:    Ba et al. 2016, "Layer Normalization".
    """

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, tokens: Float[Tensor, "*many group channel"]) -> Tensor:
        order, flat = tokens.shape[-2], tokens.flatten(-2)
        weight, bias = self.weight.repeat(order), self.bias.repeat(order)
        return F.layer_norm(flat, flat.shape[-1:], weight, bias, self.eps).view_as(tokens)

    def to_irreps(
        self, tokens: Float[Tensor, "token group channel"], basis: IrrepBasis, backend: str = "auto"
    ) -> Irreps:
        """Return Q norm(x), in one kernel where there is one."""
        if not by_kernel(tokens, backend):
            return to_irreps(self(tokens), basis, backend)
        from turnwise.kernels.irreps_launch import norm_to_irreps

        kind = rounded_by_autocast(tokens[:0]).dtype
        given = tokens.contiguous(), self.weight, self.bias, self.eps, kind, basis.group
        return Irreps(*norm_to_irreps(*given)[:2])


class ImageNorm(nn.Module):
    """Layer norm over all tokens, group elements and channels of an image.

    Tokens keep their relative size: empty background stays small, where `TokenNorm` would amplify
    its noise to the size of everything else.

    Paper:    Yu et al. 2022, "MetaFormer Is Actually What You Need for Vision" (its modified layer
              norm).
    """

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, tokens: Tokens) -> Tokens:
        variance, mean = torch.var_mean(tokens, dim=(1, 2, 3), correction=0, keepdim=True)
        return (tokens - mean) * torch.rsqrt(variance + self.eps) * self.weight + self.bias


NORMS = {"token": TokenNorm, "image": ImageNorm}


class LayerScale(nn.Module):
    """A learned factor for each channel of a residual branch, small at first.

    Paper:    Touvron et al. 2021, "Going deeper with Image Transformers".
    """

    no_weight_decay = ("factor",)

    def __init__(self, width: int, start: float) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.full((width,), start))

    def forward(self, branch: Tokens) -> Tokens:
        return branch * self.factor


def factor_of(scale: nn.Module) -> Float[Tensor, " channel"] | None:
    return scale.factor if isinstance(scale, LayerScale) else None


class GroupMLP(nn.Module):
    """W₂ gelu(W₁ x), with group linear maps; in irreps nothing between them is stored otherwise."""

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
        irreps = to_irreps(tokens, self.gather.irrep_basis())
        return self.gather.leave_irreps(self.hidden_irreps(irreps)).view_as(tokens)

    def in_irreps(self) -> bool:
        """Return whether both maps are in irreps and no dropout needs the regular basis."""
        drops = self.training and self.dropout.p > 0
        return not drops and in_irreps(self.spread) and in_irreps(self.gather)

    def hidden_irreps(self, irreps: Irreps) -> Irreps:
        """Return Q gelu(Qᵀ Ŵ₁ x̂ + b₁)."""
        hidden, bias = self.spread.forward_in_irreps(irreps), self.spread.bias
        if bias is None:
            bias = hidden.dim1.new_zeros(hidden.dim1.shape[-1])
        return gelu_of_irreps(hidden, bias, self.spread.irrep_basis())


class GroupTokenBlock(nn.Module):
    """`GroupTransformerBlock` on tokens (batch, row · col, group, channel).

    Models chain these blocks.  Their tokens are contiguous, and so are the gradients that compiled
    blocks pass to one another; with regular features, a step of `turnwise_vit_base` compiled block
    by block takes 6 % longer.
    """

    feature_layout = "tokens"
    attention: Any  # runs in irreps if it has `mix_irreps` and `in_irreps()` is true
    norm_attention: Any  # one of NORMS
    norm_mlp: Any

    def __init__(  # noqa: PLR0913 - all but three are named and have a default
        self,
        group: PlanarGroup | str,
        channels: int,
        attention: nn.Module,
        *,
        mlp_ratio: float = 4.0,
        linear: Linear = GroupLinear,
        drop_path: float = 0.0,
        dropout: float = 0.0,
        layer_scale: float = 0.0,
        norm: str = "token",
    ) -> None:
        super().__init__()
        require_known(norm, NORMS, "norm")
        hidden = int(channels * mlp_ratio)
        require_positive(channels=channels)
        require(hidden > 0, f"mlp_ratio = {mlp_ratio} leaves no hidden channel of {channels}.")
        self.group, self.channels = PlanarGroup.named(group), channels
        self.norm_attention, self.attention = NORMS[norm](channels), attention
        self.norm_mlp = NORMS[norm](channels)
        self.mlp = GroupMLP(self.group, channels, hidden, linear, dropout)
        scaled = layer_scale > 0
        self.scale_attention = LayerScale(channels, layer_scale) if scaled else nn.Identity()
        self.scale_mlp = LayerScale(channels, layer_scale) if scaled else nn.Identity()
        self.drop_path = DropPath(drop_path)

    def forward(self, tokens: Tokens, rows: int, cols: int) -> Tokens:
        if self._stays_in_irreps():
            return self._forward_in_irreps(tokens, rows, cols)
        normed = tokens_to_regular(self.norm_attention(tokens), rows, cols)
        mixed = regular_to_tokens(self.attention(normed))
        tokens = tokens + self.drop_path(self.scale_attention(mixed))
        return tokens + self.drop_path(self.scale_mlp(self.mlp(self.norm_mlp(tokens))))

    def _stays_in_irreps(self) -> bool:
        """Return whether all maps are in irreps and nothing needs the regular basis between them.

        The short path does not call the parts: it is not taken if a part has a hook or was replaced
        by another class.
        """
        if not self._has_original_parts() or has_hooks(self):
            return False
        dropped = self.training and self.drop_path.rate > 0
        mixes = hasattr(self.attention, "mix_irreps") and self.attention.in_irreps()
        return mixes and self.mlp.in_irreps() and not dropped

    def _has_original_parts(self) -> bool:
        scales = (type(self.scale_attention), type(self.scale_mlp))
        return (
            type(self.norm_attention) is type(self.norm_mlp) is TokenNorm
            and type(self.mlp) is GroupMLP
            and type(self.mlp.dropout) is nn.Dropout
            and type(self.drop_path) is DropPath
            and all(kind in (LayerScale, nn.Identity) for kind in scales)
        )

    def _forward_in_irreps(self, tokens: Tokens, rows: int, cols: int) -> Tokens:
        """Compute the same, with the regular basis in the softmax and the GELU only."""
        stream = tokens.flatten(0, 1)
        project, gather = self.attention.to_output, self.mlp.gather
        basis = project.irrep_basis()
        mixed = self.attention.mix_irreps(self.norm_attention.to_irreps(stream, basis), rows, cols)
        stream = project.leave_irreps(mixed, stream, factor_of(self.scale_attention))
        hidden = self.mlp.hidden_irreps(self.norm_mlp.to_irreps(stream, basis))
        return gather.leave_irreps(hidden, stream, factor_of(self.scale_mlp)).view_as(tokens)

    def extra_repr(self) -> str:
        return f"{self.group}, {self.channels}"


class GroupTransformerBlock(GroupTokenBlock):
    """Attention and an MLP on the group, each with a norm before it and a residual connection.

    Args:
        group: the group, by name ("C4", "D4", …) or as a `PlanarGroup`.
        channels: channels of each group element.
        attention: a layer from regular features to regular features, as `GroupRotaryAttention`.
        mlp_ratio: hidden channels of the MLP relative to `channels`.
        linear: makes the linear maps of the MLP, from (group, in_features, out_features).
        drop_path, dropout: rates of stochastic depth and of dropout in the MLP.
        layer_scale: initial layer scale; 0 is none.
        norm: "token" (layer norm of each token) or "image" (over all tokens of an image).

    Shape:
        - Input and output: (batch, channels, |G|, row, col), regular features.

    >>> from turnwise.layers import GroupRotaryAttention
    >>> block = GroupTransformerBlock("D4", 16, GroupRotaryAttention("D4", 16, num_heads=2))
    >>> block(torch.randn(1, 16, 8, 7, 7)).shape
    torch.Size([1, 16, 8, 7, 7])
    """

    feature_layout = "regular"

    def forward(self, x: Regular) -> Regular:  # type: ignore[override]
        require_regular(x, self.group, self.channels)
        rows, cols = x.shape[3:]
        return tokens_to_regular(super().forward(regular_to_tokens(x), rows, cols), rows, cols)
