"""Norms, blocks, crops and pools of group self-attention networks, on fields."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from turnwise.errors import require
from turnwise.geometry.layouts import field_to_regular, regular_to_field
from turnwise.layers.gsa.attention import AttentionPlan, GroupSelfAttention
from turnwise.layers.gsa.published import Convention

Field = Float[Tensor, "batch group row col channel"]
NewField = Float[Tensor, "batch group newrow newcol newchannel"]


class FieldNorm(nn.Module):
    """Layer norm over the channels of each group element and pixel.

    Departs:  the published programs normalise over the whole sample, which couples all tokens.
    """

    def __init__(self, width: int, convention: Convention) -> None:
        super().__init__()
        self.over_image, self.eps = convention.norm_over_image, convention.norm_eps
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, field: Field) -> Field:
        if not self.over_image:
            return F.layer_norm(field, field.shape[-1:], self.weight, self.bias, self.eps)
        return F.layer_norm(field, field.shape[1:], eps=self.eps) * self.weight + self.bias


class FieldBatchNorm(nn.BatchNorm3d):
    """Batch norm of each channel, over the batch, the group elements and the pixels."""

    def forward(self, field: Field) -> Field:
        return super().forward(field.movedim(-1, 1)).movedim(1, -1)


NORMS = ("layer", "batch")
ACTIVATIONS = {"silu": nn.SiLU, "relu": nn.ReLU}


@dataclass(frozen=True)
class BlockStyle:
    """The norm and the activation of a network."""

    norm: str = "layer"
    activation: str = "silu"

    def make_norm(self, width: int, convention: Convention) -> FieldNorm | FieldBatchNorm:
        return FieldNorm(width, convention) if self.norm == "layer" else FieldBatchNorm(width)

    def make_activation(self) -> nn.Module:
        return ACTIVATIONS[self.activation]()


class GSABlock(nn.Module):
    """Attention and a narrow MLP, each with a norm before and after it.

    y = crop(x) + drop(act(norm(attention(act(norm(x))))))
    x ← y + norm(W₂ act(norm(W₁ y)))

    Paper:    Romero & Cordonnier 2021 (GSA-Nets), as in its program.
    Symbols:  act is SiLU ("Swish"), or as `style` says; W₁ halves the width; `crop` pixels are cut
              at every side.
    """

    feature_layout = "field"

    def __init__(
        self,
        plan: AttentionPlan,
        in_width: int,
        width: int,
        crop: int,
        dropout: float,
        style: BlockStyle = BlockStyle(),  # noqa: B008 - it is frozen
    ) -> None:
        super().__init__()
        convention, half = plan.convention, width // 2
        self.crop, self.crop_before = crop, convention.crop_before
        self.activation = style.make_activation()
        self.norm_in = style.make_norm(in_width, convention)
        self.attention = GroupSelfAttention(
            plan.group, in_width, width, head_dim=half, **plan.options
        )
        self.norm_out = style.make_norm(width, convention)
        self.dropout = nn.Dropout(dropout)
        self.shortcut = nn.Identity() if in_width == width else nn.Linear(in_width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, half),
            style.make_norm(half, convention),
            style.make_activation(),
            nn.Linear(half, width),
            style.make_norm(width, convention),
        )

    def forward(self, field: Field) -> NewField:
        before, after = (self.crop, 0) if self.crop_before else (0, self.crop)
        regular = field_to_regular(self.activation(self.norm_in(field)))
        mixed = regular_to_field(self.attention(regular, crop=before))
        mixed = self.dropout(self.activation(self.norm_out(mixed)))
        field = crop_field(mixed, after) + self.shortcut(crop_field(field, self.crop))
        return field + self.mlp(field)


def crop_field(field: Field, pixels: int) -> NewField:
    """Return the field without the outermost `pixels` on every side."""
    rows, cols = field.shape[2:4]
    return field[:, :, pixels : rows - pixels, pixels : cols - pixels]


def pool_kernel(size: int) -> int:
    """Return 2 for even sizes, 3 for odd ones: with stride 2 both sample symmetrically."""
    return 2 + size % 2


class FieldPool(nn.Module):
    """Maximum over small windows with stride 2, which halves the sides (rounded down).

    Departs:  the published 2×2 windows ignore the last row and column of odd sizes, which is not
              equivariant; here windows over an odd side are 3 long and overlap.
    """

    feature_layout = "field"

    def __init__(self, convention: Convention) -> None:
        super().__init__()
        self.even_pools = convention.even_pools

    def forward(self, field: Field) -> NewField:
        rows, cols = field.shape[2:4]
        require(min(rows, cols) > 1, f"a field of {rows} x {cols} pixels is too small to pool.")
        kernel = (2, 2) if self.even_pools else (pool_kernel(rows), pool_kernel(cols))
        images = field.permute(0, 1, 4, 2, 3).flatten(0, 1)  # (batch·group, channel, row, col)
        pooled = F.max_pool2d(images, kernel, stride=2).unflatten(0, field.shape[:2])
        return pooled.permute(0, 1, 3, 4, 2)
