"""Norms and pools of regular features, and stems made of them: from an image to the group.

Regular features are (batch, channel, group, row, col), see `geometry.layouts`.
"""

from dataclasses import dataclass
from itertools import pairwise

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from turnwise.errors import require, require_known
from turnwise.geometry.layouts import maps_to_regular, regular_to_maps
from turnwise.geometry.sizes import Stage
from turnwise.groups import PlanarGroup
from turnwise.layers.conv.conv import GroupConv2d, LiftingConv2d, require_regular
from turnwise.layers.conv.filters import covering_overlap

Group = PlanarGroup | str
Image = Float[Tensor, "batch channel row col"]
Regular = Float[Tensor, "batch channel group row col"]
NewRegular = Float[Tensor, "batch new_channel group new_row new_col"]

POOLS = ("max", "average")
ACTIVATIONS = {"relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU}


class GroupBatchNorm2d(nn.Module):
    """Batch norm of regular features: statistics over batch, group and pixels, for each channel.

    Args:
        group: the group, by name ("C4", "D4", …) or as a `PlanarGroup`.
        num_features: channels of each group element.
        eps, momentum: as for `torch.nn.BatchNorm2d`.

    Shape:
        - Input and output: (batch, num_features, |G|, row, col), regular features.

    >>> import torch
    >>> GroupBatchNorm2d("D4", 16)(torch.randn(2, 16, 8, 7, 7)).shape
    torch.Size([2, 16, 8, 7, 7])
    """

    def __init__(
        self, group: Group, num_features: int, eps: float = 1e-5, momentum: float = 0.1
    ) -> None:
        super().__init__()
        self.group, self.num_features = PlanarGroup.named(group), num_features
        self.norm = nn.BatchNorm2d(num_features, eps, momentum)

    def forward(self, x: Regular) -> Regular:
        require_regular(x, self.group, self.num_features)
        images = x.transpose(1, 2)
        if images.is_contiguous():  # group elements count as images: a view, as the kernel needs it
            normed = self.norm(images.flatten(0, 1))
            return normed.unflatten(0, (-1, self.group.order)).transpose(1, 2)
        if not self.training:
            return maps_to_regular(self._normalise_maps(regular_to_maps(x)), self.group.order)
        wide = x.permute(0, 3, 4, 2, 1).flatten(2, 3)  # group elements count as columns
        normed = self.norm(wide.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        return normed.unflatten(2, (-1, self.group.order)).permute(0, 4, 3, 1, 2)

    def _normalise_maps(
        self, maps: Float[Tensor, "batch maps row col"]
    ) -> Float[Tensor, "batch maps row col"]:
        """Normalise by the running statistics: many maps at once, where there are few channels."""
        norm, order = self.norm, self.group.order
        assert norm.running_mean is not None
        assert norm.running_var is not None
        mean, variance = norm.running_mean.repeat(order), norm.running_var.repeat(order)
        weight, bias = norm.weight.repeat(order), norm.bias.repeat(order)
        return F.batch_norm(maps, mean, variance, weight, bias, eps=norm.eps)

    def extra_repr(self) -> str:
        return f"{self.group}, {self.num_features}, eps={self.norm.eps}"

    def __repr__(self) -> str:
        return f"{self._get_name()}({self.extra_repr()})"  # on one line, without `norm`


class GroupLayerNorm(nn.Module):
    """Layer norm of regular features: over the channels of each group element and pixel.

    Args:
        group: the group, by name ("C4", "D4", …) or as a `PlanarGroup`.
        num_features: channels of each group element.
        eps: as for `torch.nn.LayerNorm`.

    Shape:
        - Input and output: (batch, num_features, |G|, row, col), regular features.

    >>> import torch
    >>> GroupLayerNorm("C4", 16)(torch.randn(2, 16, 4, 7, 7)).shape
    torch.Size([2, 16, 4, 7, 7])
    """

    def __init__(self, group: Group, num_features: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.group, self.num_features = PlanarGroup.named(group), num_features
        self.norm = nn.LayerNorm(num_features, eps)

    def forward(self, x: Regular) -> Regular:
        require_regular(x, self.group, self.num_features)
        return self.norm(x.permute(0, 3, 4, 2, 1)).permute(0, 4, 3, 1, 2)

    def extra_repr(self) -> str:
        return f"{self.group}, {self.num_features}, eps={self.norm.eps}"

    def __repr__(self) -> str:
        return f"{self._get_name()}({self.extra_repr()})"  # on one line, without `norm`


NORMS = {"layer": GroupLayerNorm, "batch": GroupBatchNorm2d}


class GroupPool2d(nn.Module):
    """Maximum or average over small windows with stride 2, which halves the sides.

    An average over 3 pixels has the weights ¼, ½, ¼, so pixels that two windows share count no more
    than others.

    Args:
        group: the group, by name ("C4", "D4", …) or as a `PlanarGroup`.
        kernel_size: 2 or 3 pixels. By default 2 on even sides and 3 on odd ones, which samples
            every size symmetrically; 2 is exact on even sides only, 3 on odd ones.
        mode: "max" or "average".

    Shape:
        - Input: (batch, channel, |G|, row, col), regular features.
        - Output: (batch, channel, |G|, row // 2, col // 2), regular features.

    >>> import torch
    >>> GroupPool2d("D4")(torch.randn(2, 16, 8, 28, 28)).shape
    torch.Size([2, 16, 8, 14, 14])
    """

    def __init__(self, group: Group, kernel_size: int | None = None, mode: str = "max") -> None:
        super().__init__()
        require_known(mode, POOLS, "pool")
        require(
            kernel_size in (None, 2, 3),
            f"kernel_size = {kernel_size} must be 2, 3 or None (by side).",
        )
        self.group = PlanarGroup.named(group)
        self.kernel_size, self.mode = kernel_size, mode

    def forward(self, x: Regular) -> NewRegular:
        require_regular(x, self.group, x.shape[1])
        maps, (rows, cols) = regular_to_maps(x), x.shape[-2:]
        kernel = [self.kernel_size or 2 + side % 2 for side in (rows, cols)]
        require(
            rows >= kernel[0] and cols >= kernel[1],
            f"features of {rows} x {cols} pixels are too small for windows of {max(kernel)}.",
        )
        if self.mode == "max":
            return maps_to_regular(F.max_pool2d(maps, kernel, stride=2), self.group.order)
        pairs = F.avg_pool2d(maps, [side - 1 for side in kernel], stride=1)
        return maps_to_regular(F.avg_pool2d(pairs, 2, stride=2), self.group.order)

    def extra_repr(self) -> str:
        return f"{self.group}, kernel_size={self.kernel_size}, mode={self.mode}"


@dataclass(frozen=True)
class StemPlan:
    """The design of a stem: one entry of `kernels`, `strides` and `pools` for each convolution.

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
        require_known(self.norm, NORMS, "norm")
        require_known(self.activation, ACTIVATIONS, "activation")
        require(0 <= self.dropout < 1, f"dropout = {self.dropout} must be from 0 to below 1.")
        counts = {len(self.widths) + 1, len(self.kernels), len(self.strides), len(self.pools)}
        require(
            len(counts) == 1,
            f"kernels = {self.kernels}, strides = {self.strides} and pools = {self.pools} must "
            f"have one entry for each convolution, and widths = {self.widths} one less.",
        )


class ConvStem(nn.Module):
    """Convolutions from an image to the group: conv, norm, activation, optional pool, dropout."""

    feature_layout = "regular"

    def __init__(self, group: Group, in_channels: int, out_channels: int, plan: StemPlan) -> None:
        super().__init__()
        parts, stages = list[nn.Module](), list[Stage]()
        channels = pairwise((in_channels, *plan.widths, out_channels))
        steps = zip(channels, plan.kernels, plan.strides, plan.pools, strict=True)
        for (old, new), kernel, stride, pool in steps:
            layer = GroupConv2d if parts else LiftingConv2d
            conv = layer(group, old, new, kernel, stride, bias=False, filters=plan.filters)
            parts += [conv, NORMS[plan.norm](group, new), ACTIVATIONS[plan.activation]()]
            stages += conv.stages
            if pool:
                parts.append(GroupPool2d(group, pool, plan.pool))
                stages.append(Stage(pool, 2))
            parts.append(nn.Dropout(plan.dropout))
        self.layers, self.stages = nn.Sequential(*parts), tuple(stages)

    def forward(self, image: Image) -> NewRegular:
        return self.layers(image)


class PatchLift(nn.Module):
    """Patch embedding on the group: one token per patch, for every group element.

    Args:
        group: the group, by name ("C4", "D4", …) or as a `PlanarGroup`.
        in_channels: channels of the image.
        out_channels: channels of each group element of the output.
        patch: side of a patch, in pixels.
        overlap: pixels by which the filters reach beyond the patch on every side. By default 0 for
            pixel filters; continuous filters live on a disc, which misses the corners of a square,
            and get the smallest overlap that covers the patch.
        filters: "pixel", "continuous" or "auto", as for `LiftingConv2d`.

    Shape:
        - Input: (batch, in_channels, row, col), an image.
        - Output: (batch, out_channels, |G|, row // patch, col // patch), regular features.

    >>> import torch
    >>> PatchLift("D4", 3, 16, patch=4)(torch.randn(2, 3, 28, 28)).shape
    torch.Size([2, 16, 8, 7, 7])
    """

    feature_layout = "regular"

    def __init__(
        self,
        group: Group,
        in_channels: int,
        out_channels: int,
        patch: int,
        overlap: int | None = None,
        filters: str = "auto",
    ) -> None:
        super().__init__()
        if overlap is None:
            overlap = covering_overlap(filters, group, patch)
        kernel = patch + 2 * overlap
        self.lift = LiftingConv2d(
            group, in_channels, out_channels, kernel, patch, overlap, filters=filters
        )
        self.group, self.stages = self.lift.group, self.lift.stages

    def forward(self, image: Image) -> NewRegular:
        return self.lift(image)
