"""Convolutions from pictures to the group and on it, and what stands around them in a stem.

Inside a stem a field is stored as maps, (batch, group·channel, row, col), channel g·width + o: so
one ordinary convolution mixes poses, channels and pixels, in either memory format.  `maps_to_field`
and `maps_to_tokens` lead out of it; of maps in torch.channels_last, tokens are a view.

Letters:  g, m poses of output and input;  o, i their channels;  p a pixel, δ a step from it.
A layer says in `stages` how it samples the picture (see `geometry.sizes`); a model must refuse the
sizes that this leaves off-centre.

Convolutions on a picture without a border: what leaves on one side comes in on the other.

Zeros around a picture tell a network where its border is, and so where the object stands; on a
torus, circular shifts are exact symmetries, and moving an object over blank ground is one of them.
"""

from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from turnwise.errors import InputError, require, require_known, require_positive
from turnwise.geometry.sizes import Stage
from turnwise.groups import PlanarGroup
from turnwise.layers.conv.filters import covering_overlap, filters_for, start_weight
from turnwise.layers.gsa.blocks import pool_kernel

Group = PlanarGroup | str
Pictures = Float[Tensor, "batch channel row col"]
Maps = Float[Tensor, "batch pose_channel row col"]
NewMaps = Float[Tensor, "batch new_pose_channel newrow newcol"]
Field = Float[Tensor, "batch group row col channel"]
Tokens = Float[Tensor, "batch token group channel"]

NORMS = ("layer", "batch")
POOLS = ("max", "average")
ACTIVATIONS = {"relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU}


def maps_to_field(maps: Maps, poses: int) -> Field:
    """The field that the maps store."""
    return maps.unflatten(1, (poses, -1)).permute(0, 1, 3, 4, 2)


def field_to_maps(field: Field) -> Maps:
    """The maps that store the field."""
    return field.permute(0, 1, 4, 2, 3).flatten(1, 2)


def maps_to_tokens(maps: Maps, poses: int) -> Tokens:
    """One token for each pixel, row by row; it holds all poses."""
    return maps.permute(0, 2, 3, 1).flatten(1, 2).unflatten(-1, (poses, -1))


def tokens_to_maps(tokens: Tokens, rows: int, cols: int) -> Maps:
    """The tokens back on their pixels, as maps in torch.channels_last."""
    return tokens.flatten(2).unflatten(1, (rows, cols)).permute(0, 3, 1, 2)


class LiftingConv(nn.Module):
    """From a picture to maps: every pose looks at it through its own turn of one filter.

    y(g, o, p) = b[o] + Σ_i Σ_δ K[o, i](g⁻¹δ) f(i, p + δ)

    Paper:    Cohen & Welling 2016, "Group Equivariant Convolutional Networks".
    """

    def __init__(
        self,
        group: Group,
        in_chans: int,
        width: int,
        kernel: int,
        *,
        stride: int = 1,
        padding: int | None = None,
        filters: str = "auto",
        bias: bool = True,
    ) -> None:
        super().__init__()
        require_positive(in_chans=in_chans, width=width)
        self.stages = (_stage(kernel, stride, padding),)
        self.filters = filters_for(filters, group, kernel)
        self.weight = nn.Parameter(torch.empty(width, in_chans, self.filters.free))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None
        start_weight(self.weight)

    def forward(self, pictures: Pictures) -> NewMaps:
        filters = self.filters.lifting(self.weight)
        return _convolve(pictures, filters, self.bias, self.stages[0])


class GroupConv(nn.Module):
    """From maps to maps: every pose looks at all poses and pixels, from its own frame.

    y(g, o, p) = b[o] + Σ_{m, i} Σ_δ K[o, i, g⁻¹m](g⁻¹δ) f(m, i, p + δ)

    Paper:    Cohen & Welling 2016, "Group Equivariant Convolutional Networks".
    """

    def __init__(
        self,
        group: Group,
        in_width: int,
        width: int,
        kernel: int,
        *,
        stride: int = 1,
        padding: int | None = None,
        filters: str = "auto",
        bias: bool = True,
    ) -> None:
        super().__init__()
        require_positive(in_width=in_width, width=width)
        self.stages = (_stage(kernel, stride, padding),)
        self.filters = filters_for(filters, group, kernel)
        poses = self.filters.order
        self.weight = nn.Parameter(torch.empty(width, in_width, poses, self.filters.free))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None
        start_weight(self.weight)

    def forward(self, maps: Maps) -> NewMaps:
        _require_maps(maps, *self.weight.shape[2:0:-1])
        return _convolve(maps, self.filters.group(self.weight), self.bias, self.stages[0])


class DepthwiseConv(nn.Module):
    """From maps to maps, each pose and channel by itself: cheap, and leaves poses to other layers.

    y(g, o, p) = b[o] + Σ_δ K[o](g⁻¹δ) f(g, o, p + δ)
    """

    def __init__(self, group: Group, width: int, kernel: int, *, filters: str = "auto") -> None:
        super().__init__()
        require_positive(width=width)
        self.stages = (_stage(kernel, 1, None),)
        self.filters = filters_for(filters, group, kernel)
        self.weight = nn.Parameter(torch.empty(width, 1, self.filters.free))
        self.bias = nn.Parameter(torch.zeros(width))
        start_weight(self.weight)

    def forward(self, maps: Maps) -> NewMaps:
        _require_maps(maps, self.filters.order, len(self.weight))
        filters = self.filters.lifting(self.weight)
        return _convolve(maps, filters, self.bias, self.stages[0], groups=maps.shape[1])


def _stage(kernel: int, stride: int, padding: int | None) -> Stage:
    """By default padding keeps the size, or with an even kernel halves it exactly at stride 2."""
    require_positive(kernel=kernel, stride=stride)
    padding = (kernel - 1) // 2 if padding is None else padding
    require(padding >= 0, f"padding = {padding} must be 0 or more pixels.")
    return Stage(kernel, stride, padding)


def _require_maps(maps: Maps, poses: int, width: int) -> None:
    require(
        maps.shape[1] == poses * width,
        f"the layer takes {poses} poses of {width} channels, {poses * width} maps in all, "
        f"got {maps.shape[1]}.",
    )


def _convolve(
    maps: Maps, filters: Tensor, bias: Tensor | None, stage: Stage, groups: int = 1
) -> NewMaps:
    """One call for all poses; a bias of its own for each pose would break the law."""
    if bias is not None:
        bias = bias.repeat(len(filters) // len(bias))
    return F.conv2d(maps, filters, bias, stage.stride, stage.padding, groups=groups)


class MapNorm(nn.Module):
    """Mean 0 and spread 1, channel by channel, then an affine map; all alike for every pose.

    "layer": over the channels of each pose and pixel.  "batch": over pictures, poses and pixels,
    with one running mean and variance for each channel.
    """

    def __init__(self, group: Group, width: int, kind: str = "layer") -> None:
        super().__init__()
        require_known(kind, NORMS, "norm")
        self.poses, self.width = PlanarGroup.named(group).order, width
        self.by_batch = kind == "batch"
        self.norm = nn.BatchNorm2d(width) if self.by_batch else nn.LayerNorm(width)

    def forward(self, maps: Maps) -> Maps:
        _require_maps(maps, self.poses, self.width)
        if not self.by_batch:
            tokens = self.norm(maps_to_tokens(maps, self.poses))
            return tokens_to_maps(tokens, *maps.shape[2:])
        if maps.is_contiguous():  # poses count as pictures: a view, as torch's kernel wants it
            normed = self.norm(maps.unflatten(1, (self.poses, -1)).flatten(0, 1))
            return normed.unflatten(0, (-1, self.poses)).flatten(1, 2)
        wide = maps.permute(0, 2, 3, 1).unflatten(-1, (self.poses, -1)).flatten(2, 3)
        normed = self.norm(wide.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)  # poses count as columns
        return normed.unflatten(2, (-1, self.poses)).flatten(3).permute(0, 3, 1, 2)


class GroupPool(nn.Module):
    """The maximum or average of small windows with stride 2, which halves the sides.

    Windows are `kernel` = 2 or 3 pixels long, by default (0) 2 on even sides and 3 on odd ones.  An
    average of 3 has the weights ¼, ½, ¼: pixels that two windows share count no more than others.
    """

    def __init__(self, kind: str = "max", kernel: int = 0) -> None:
        super().__init__()
        require_known(kind, POOLS, "pool")
        require(kernel in (0, 2, 3), f"kernel = {kernel} must be 2 or 3, or 0: by each side.")
        self.by_maximum, self.kernel = kind == "max", kernel

    def forward(self, maps: Maps) -> NewMaps:
        rows, cols = maps.shape[2:]
        kernel = [self.kernel or pool_kernel(side) for side in (rows, cols)]
        fits = rows >= kernel[0] and cols >= kernel[1]
        require(fits, f"maps of {rows} x {cols} pixels are too small for windows of {max(kernel)}.")
        if self.by_maximum:
            return F.max_pool2d(maps, kernel, stride=2)
        pairs = F.avg_pool2d(maps, [side - 1 for side in kernel], stride=1)
        return F.avg_pool2d(pairs, 2, stride=2)


@dataclass(frozen=True)
class StemPlan:
    """What a stem is made of: one entry of `kernels`, `strides` and `pools` for each convolution.

    `widths` are those between the convolutions; `pools` are 0 (none) or windows of 2 or 3 pixels.
    """

    widths: tuple[int, ...]
    kernels: tuple[int, ...]
    strides: tuple[int, ...]
    pools: tuple[int, ...]
    pool: str = "max"
    norm: str = "batch"
    activation: str = "relu"
    dropout: float = 0.0
    filters: str = "auto"

    def __post_init__(self) -> None:
        require_known(self.activation, ACTIVATIONS, "activation")
        require(0 <= self.dropout < 1, f"dropout = {self.dropout} must be from 0 to below 1.")
        counts = {len(self.widths) + 1, len(self.kernels), len(self.strides), len(self.pools)}
        require(
            len(counts) == 1,
            f"kernels = {self.kernels}, strides = {self.strides} and pools = {self.pools} must be "
            f"as many as convolutions, and widths = {self.widths} one less.",
        )


class ConvStem(nn.Module):
    """From a picture to maps by small steps, each conv – norm – activation (– pool) – drop-out."""

    def __init__(self, group: Group, in_chans: int, width: int, plan: StemPlan) -> None:
        super().__init__()
        parts, stages = list[nn.Module](), list[Stage]()
        shapes = pairwise((in_chans, *plan.widths, width))
        steps = zip(shapes, plan.kernels, plan.strides, plan.pools, strict=True)
        for (old, new), kernel, stride, pool in steps:
            layer = GroupConv if parts else LiftingConv
            conv = layer(group, old, new, kernel, stride=stride, filters=plan.filters, bias=False)
            parts += [conv, MapNorm(group, new, plan.norm), ACTIVATIONS[plan.activation]()]
            stages += conv.stages
            if pool:
                parts.append(GroupPool(plan.pool, pool))
                stages.append(Stage(pool, 2))
            parts.append(nn.Dropout(plan.dropout))
        self.layers, self.stages = nn.Sequential(*parts), tuple(stages)

    def forward(self, pictures: Pictures) -> NewMaps:
        return self.layers(pictures)


class PatchLift(nn.Module):
    """One token per patch, seen from every pose, with `overlap` pixels more on every side.

    A continuous filter lives on a disc, which in a square misses the corners: where no overlap is
    given, it gets the smallest one that lets it see the whole patch.
    """

    def __init__(
        self,
        group: Group,
        in_chans: int,
        width: int,
        patch: int,
        overlap: int | None = None,
        filters: str = "auto",
    ) -> None:
        super().__init__()
        if overlap is None:
            overlap = covering_overlap(filters, group, patch)
        kernel = patch + 2 * overlap
        self.lift = LiftingConv(
            group, in_chans, width, kernel, stride=patch, padding=overlap, filters=filters
        )
        self.stages = self.lift.stages

    def forward(self, pictures: Pictures) -> NewMaps:
        return self.lift(pictures)


class Wrapped(nn.Module):
    """A layer of odd windows that keeps the size, `kernel` wide, as if the maps were periodic.

    The maps are continued by half a window on every side, and what the layer makes of the margin,
    where it padded by itself, is cut off.
    """

    def __init__(self, layer: nn.Module, kernel: int) -> None:
        super().__init__()
        require(
            kernel % 2 == 1, f"kernel = {kernel} must be odd to keep the size; try {kernel + 1}."
        )
        self.layer, self.margin = layer, kernel // 2

    def forward(self, maps: Maps) -> Float[Tensor, "batch newchannel row col"]:
        margin, (rows, cols) = self.margin, maps.shape[2:]
        if margin > min(rows, cols):  # not by `require`: a message is not to be traced
            raise InputError(
                f"windows of {2 * margin + 1} pixels go round maps of {rows} x {cols} more than "
                f"once; use at most {2 * min(rows, cols) + 1}."
            )
        wide = F.pad(maps, (margin,) * 4, mode="circular")
        return self.layer(wide)[..., margin : margin + rows, margin : margin + cols]
