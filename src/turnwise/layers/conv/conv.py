"""Convolutions on the group, on regular features (batch, channel, group, row, col).

    LiftingConv2d           y(g, o, p) = b[o] + Σ_i Σ_δ K[o, i](g⁻¹δ) f(i, p + δ)
    GroupConv2d             y(g, o, p) = b[o] + Σ_{m, i} Σ_δ K[o, i, g⁻¹m](g⁻¹δ) f(m, i, p + δ)
    GroupDepthwiseConv2d    y(g, o, p) = b[o] + Σ_δ K[o](g⁻¹δ) f(g, o, p + δ)
    MaxOverGroup            y(o, p)    = max_g f(g, o, p)

Letters:  g, m group elements of output and input;  o, i their channels;  p a pixel, δ an offset.
Paper:    Cohen & Welling 2016, "Group Equivariant Convolutional Networks".

Each layer is one ordinary convolution on the layout "maps" (`geometry.layouts`); conversions are
views.  `stages` says how a layer samples the image (`geometry.sizes`): an image size that a stage
samples off-centre is not exact, and a model must refuse it.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from turnwise.errors import InputError, require, require_divisible, require_positive
from turnwise.geometry.layouts import maps_to_regular, on_maps, regular_to_maps
from turnwise.geometry.sizes import Stage
from turnwise.groups import PlanarGroup
from turnwise.layers.conv.filters import filters_for, initialise_weight
from turnwise.layers.expansion import CachedExpansion

Group = PlanarGroup | str
Image = Float[Tensor, "batch in_channels row col"]
Regular = Float[Tensor, "batch in_channels group row col"]
NewRegular = Float[Tensor, "batch out_channels group new_row new_col"]


class FilterConv2d(nn.Module):
    """What the convolutions of this module share: filters that the group rotates, and a bias.

    The bias is the same for every group element: one per element would not be equivariant.
    """

    def __init__(
        self,
        group: Group,
        channels: tuple[int, int],
        stage: Stage,
        filters: str,
        weight_shape: tuple[int, ...],
        bias: bool,
    ) -> None:
        super().__init__()
        self.group, (self.in_channels, self.out_channels) = PlanarGroup.named(group), channels
        self.kernel_size, self.stride, self.padding = stage
        self.stages = (stage,)
        self.filters = filters_for(filters, group, self.kernel_size)
        self.weight = nn.Parameter(torch.empty(*weight_shape, self.filters.free))
        self.bias = nn.Parameter(torch.zeros(self.out_channels)) if bias else None
        self._rotated = CachedExpansion[Tensor]()
        initialise_weight(self.weight)

    def _convolve(self, maps: Tensor, filters: Tensor, groups: int = 1) -> NewRegular:
        """Convolve for all group elements in one call."""
        bias = None if self.bias is None else self.bias.repeat(self.group.order)
        maps = F.conv2d(maps, filters, bias, self.stride, self.padding, groups=groups)
        return maps_to_regular(maps, self.group.order)

    def extra_repr(self) -> str:
        padding = f", padding={self.padding}" if self.padding else ""
        return (
            f"{self.group}, {self.in_channels}, {self.out_channels}, "
            f"kernel_size={self.kernel_size}, stride={self.stride}{padding}"
            f"{', bias=False' if self.bias is None else ''}, filters={self.filters.kind}"
        )

    def __repr__(self) -> str:
        return f"{self._get_name()}({self.extra_repr()})"  # on one line, without `filters`


class LiftingConv2d(FilterConv2d):
    """Convolution from an image to the group: each group element has its own rotated filter.

    y(g, o, p) = b[o] + Σ_i Σ_δ K[o, i](g⁻¹δ) f(i, p + δ)

    Args:
        group: the group, by name ("C4", "D4", …) or as a `PlanarGroup`.
        in_channels: channels of the image.
        out_channels: channels of each group element of the output.
        kernel_size: side of the square filters, in pixels.
        stride: distance between windows, in pixels.
        padding: zeros around the image. By default (kernel_size − 1) // 2, which keeps the size of
            an odd kernel at stride 1 and halves an even size with an even kernel at stride 2.
        bias: whether to add a learned bias, the same for every group element.
        filters: "pixel" for free pixels, which needs a group of the pixel grid; "continuous" for
            rings times circular harmonics, for any group; "auto" is "pixel" where possible.

    Shape:
        - Input: (batch, in_channels, row, col), an image.
        - Output: (batch, out_channels, |G|, new_row, new_col), regular features.

    >>> lift = LiftingConv2d("D4", 3, 16, kernel_size=3)
    >>> lift(torch.randn(2, 3, 28, 28)).shape
    torch.Size([2, 16, 8, 28, 28])
    """

    def __init__(
        self,
        group: Group,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int = 1,
        padding: int | None = None,
        bias: bool = True,
        *,
        filters: str = "auto",
    ) -> None:
        require_positive(in_channels=in_channels, out_channels=out_channels)
        channels, stage = (in_channels, out_channels), stage_of(kernel_size, stride, padding)
        super().__init__(group, channels, stage, filters, (out_channels, in_channels), bias)

    def forward(self, image: Image) -> NewRegular:
        require_image(image, self.in_channels)
        return self._convolve(image, self._rotated(self.weight, self.filters.lifting))


class GroupConv2d(FilterConv2d):
    """Convolution on the group: every element sees all elements and pixels from its own frame.

    y(g, o, p) = b[o] + Σ_{m, i} Σ_δ K[o, i, g⁻¹m](g⁻¹δ) f(m, i, p + δ)

    Args:
        group: the group, by name ("C4", "D4", …) or as a `PlanarGroup`.
        in_channels: channels of each group element of the input.
        out_channels: channels of each group element of the output.
        kernel_size: side of the square filters, in pixels.
        stride: distance between windows, in pixels.
        padding: zeros around the features; by default (kernel_size − 1) // 2.
        bias: whether to add a learned bias, the same for every group element.
        filters: "pixel", "continuous" or "auto", as for `LiftingConv2d`.

    Shape:
        - Input: (batch, in_channels, |G|, row, col), regular features.
        - Output: (batch, out_channels, |G|, new_row, new_col), regular features.

    >>> conv = GroupConv2d("D4", 16, 32, kernel_size=3, stride=2)
    >>> conv(torch.randn(2, 16, 8, 27, 27)).shape
    torch.Size([2, 32, 8, 14, 14])
    """

    def __init__(
        self,
        group: Group,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int = 1,
        padding: int | None = None,
        bias: bool = True,
        *,
        filters: str = "auto",
    ) -> None:
        require_positive(in_channels=in_channels, out_channels=out_channels)
        channels, stage = (in_channels, out_channels), stage_of(kernel_size, stride, padding)
        shape = (out_channels, in_channels, PlanarGroup.named(group).order)
        super().__init__(group, channels, stage, filters, shape, bias)

    def forward(self, x: Regular) -> NewRegular:
        require_regular(x, self.group, self.in_channels)
        filters = self._rotated(self.weight, self.filters.group_conv)
        return self._convolve(regular_to_maps(x), filters)


class GroupDepthwiseConv2d(FilterConv2d):
    """Convolution of each group element and channel by itself; mixing is left to other layers.

    y(g, o, p) = b[o] + Σ_δ K[o](g⁻¹δ) f(g, o, p + δ)

    Args:
        group: the group, by name ("C4", "D4", …) or as a `PlanarGroup`.
        channels: channels of each group element.
        kernel_size: side of the square filters, in pixels.
        filters: "pixel", "continuous" or "auto", as for `LiftingConv2d`.

    Shape:
        - Input and output: (batch, channels, |G|, row, col), regular features.

    >>> GroupDepthwiseConv2d("C4", 16, kernel_size=5)(torch.randn(2, 16, 4, 9, 9)).shape
    torch.Size([2, 16, 4, 9, 9])
    """

    def __init__(
        self, group: Group, channels: int, kernel_size: int, *, filters: str = "auto"
    ) -> None:
        require_positive(channels=channels)
        stage = stage_of(kernel_size, 1, None)
        super().__init__(group, (channels, channels), stage, filters, (channels, 1), True)

    def forward(self, x: Regular) -> NewRegular:
        require_regular(x, self.group, self.in_channels)
        maps = regular_to_maps(x)
        filters = self._rotated(self.weight, self.filters.lifting)
        return self._convolve(maps, filters, groups=maps.shape[1])


def stage_of(kernel_size: int, stride: int, padding: int | None) -> Stage:
    """Return how a convolution samples; `padding` None is (kernel_size − 1) // 2."""
    require_positive(kernel_size=kernel_size, stride=stride)
    padding = (kernel_size - 1) // 2 if padding is None else padding
    require(padding >= 0, f"padding = {padding} must be 0 or more pixels.")
    return Stage(kernel_size, stride, padding)


def require_regular(x: Tensor, group: PlanarGroup, channels: int) -> None:
    """Raise unless x is (batch, channels, |G|, row, col)."""
    if x.ndim != 5 or x.shape[1:3] != (channels, group.order):  # not `require`: the message would
        raise InputError(  # be traced
            f"the layer takes features of {channels} channels and {group.order} group elements, "
            f"(batch, {channels}, {group.order}, row, col); got shape {tuple(x.shape)}."
        )


def require_image(x: Tensor, channels: int) -> None:
    """Raise unless x is (batch, channels, row, col)."""
    if x.ndim != 4 or x.shape[1] != channels:
        raise InputError(
            f"the layer takes images of {channels} channels, (batch, {channels}, row, col); "
            f"got shape {tuple(x.shape)}."
        )


class MaxOverGroup(nn.Module):
    """Maximum over the group: y(o, p) = max_g f(g, o, p), an image that rotates with the input.

    Args:
        group: the group, by name ("C4", "D4", …) or as a `PlanarGroup`.

    Shape:
        - Input: (batch, channel, |G|, row, col), regular features.
        - Output: (batch, channel, row, col), an image.

    >>> MaxOverGroup("D4")(torch.randn(2, 16, 8, 7, 7)).shape
    torch.Size([2, 16, 7, 7])
    """

    def __init__(self, group: Group) -> None:
        super().__init__()
        self.group = PlanarGroup.named(group)

    def forward(
        self, x: Float[Tensor, "batch channel group row col"]
    ) -> Float[Tensor, "batch channel row col"]:
        require_regular(x, self.group, x.shape[1])
        # not amax: its gradient compares with the maximum, which a compiled graph may recompute in
        # another precision, and 0 / 0 is not a number
        return x.max(dim=2).values

    def extra_repr(self) -> str:
        return str(self.group)


def channels_of_element(group: Group, width: int) -> int:
    """Return the channels of each group element, of `width` in all."""
    order = PlanarGroup.named(group).order
    require_divisible(width, order, "width", f"it is split over {order} group elements")
    return width // order


def oriented_conv(
    group: Group,
    in_width: int,
    width: int,
    stage: Stage,
    oriented: tuple[bool, bool],
    *,
    bias: bool = True,
) -> nn.Module:
    """Make a convolution whose input, output or both are regular features, the other an image.

    Widths count the channels of all group elements together. The layer has |G| times fewer
    parameters than a plain convolution if the output is regular, else as many.
    """
    old, new = oriented
    require(old or new, "neither the input nor the output is regular; use a RotoConv2d.")
    layer = GroupConv2d if old else LiftingConv2d
    conv = layer(
        group,
        channels_of_element(group, in_width) if old else in_width,
        channels_of_element(group, width) if new else width,
        *stage,
        bias=bias,
    )
    return conv if new else nn.Sequential(conv, MaxOverGroup(group))


class CircularConv2d(nn.Module):
    """A convolution with circular padding: a circular shift of the input shifts the output.

    The input is continued periodically by half a window on every side; the margin of the output,
    where `layer` padded with zeros, is cropped. The layer takes images or regular features.

    Args:
        layer: a convolution with odd windows that keeps the size.
        kernel_size: side of its windows.

    Shape:
        - Input and output: those of `layer`.

    >>> conv = CircularConv2d(GroupConv2d("C4", 2, 3, kernel_size=5), kernel_size=5)
    >>> conv(torch.randn(1, 2, 4, 8, 8)).shape
    torch.Size([1, 3, 4, 8, 8])
    """

    def __init__(self, layer: nn.Module, kernel_size: int) -> None:
        super().__init__()
        odd = kernel_size % 2 == 1
        require(odd, f"kernel_size = {kernel_size} must be odd to keep the size; "
                f"try {kernel_size + 1}.")  # fmt: skip
        self.layer, self.margin = layer, kernel_size // 2

    def forward(self, x: Float[Tensor, "batch *axes row col"]) -> Tensor:
        margin, (rows, cols) = self.margin, x.shape[-2:]
        if margin > min(rows, cols):  # not `require`: the message would be traced
            raise InputError(
                f"windows of {2 * margin + 1} pixels go round features of {rows} x {cols} pixels "
                f"more than once; use at most {2 * min(rows, cols) + 1}."
            )
        wide = on_maps(lambda maps: F.pad(maps, (margin,) * 4, mode="circular"), x)
        return self.layer(wide)[..., margin : margin + rows, margin : margin + cols]
