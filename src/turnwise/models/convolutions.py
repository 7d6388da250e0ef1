"""The one switch `roto` of the convolutional families: plain convolutions or equivariant ones.

Each family is registered twice: as `NAME`, with `roto` as an option, and as `roto_NAME`, which is
always equivariant.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from turnwise.errors import require
from turnwise.geometry.layouts import on_maps
from turnwise.geometry.sizes import Stage, extended, nearest_sizes, remainder_of, size_after
from turnwise.groups import PlanarGroup, require_grid_group
from turnwise.layers.conv.conv import channels_of_element, oriented_conv
from turnwise.layers.conv.stem import GroupBatchNorm2d
from turnwise.layers.roto.conv import ALGORITHMS, REDUCTIONS, RotoConv2d
from turnwise.models.contract import TRIVIAL
from turnwise.models.registry import Builder, register
from turnwise.options import Options, option

ROTO = "roto_"


@dataclass(frozen=True)
class RotoDesign(Options):
    """The options that all convolutional families share."""

    roto: bool = option(False, "use equivariant convolutions (RotoConv)")
    reduce: str = option(
        "max", "how RotoConv reduces the responses over the group", choices=REDUCTIONS
    )
    algorithm: str = option(
        "auto", "how RotoConv is computed", choices=ALGORITHMS, changes_output=False
    )
    oriented: int = option(
        0, "number of first stages with group convolutions, whose features keep the group axis, "
        "at the same width and with |G| times fewer parameters", at_least=0, at_most=64,
    )  # fmt: skip

    def require_oriented(self, depths: Sequence[int]) -> None:
        """Raise unless the first `oriented` stages may keep the group axis."""
        require(
            self.oriented < max(1, len(depths)),
            f"oriented = {self.oriented} must be from 0 to {len(depths) - 1}: the last of "
            f"{len(depths)} stages has no group axis.",
        )
        require(
            self.roto or self.oriented == 0,
            f"oriented = {self.oriented} needs equivariant convolutions; use the roto_ model, or "
            "set it to 0.",
        )
        require(
            self.reduce == "max" or self.oriented == 0,
            f"oriented = {self.oriented} ends with the maximum over the group, and reduce is "
            f"{self.reduce!r}; use reduce = 'max', or set oriented to 0.",
        )


class MaxPool2d(nn.MaxPool2d):
    """Torch's max pool, also of regular features."""

    def forward(self, x: Tensor) -> Tensor:
        return on_maps(super().forward, x)


@dataclass(frozen=True)
class ConvMaker:
    """Makes convolutions for features of known size: RotoConv if `roto`, else torch's.

    With `extend`, kernels are enlarged to cover the pixels that the published ones leave unseen on
    one side, which makes every size exact; without it a model must refuse sizes with a remainder.
    Where the input or the output is `oriented`, the convolution is a group convolution.
    """

    group: PlanarGroup
    roto: bool
    reduce: str = "max"
    algorithm: str = "auto"
    extend: bool = True

    def __post_init__(self) -> None:
        if self.roto:
            require_grid_group(self.group)

    @classmethod
    def of(cls, group: PlanarGroup, design: RotoDesign, extend: bool = True) -> "ConvMaker":
        return cls(group, design.roto, design.reduce, design.algorithm, extend)

    @property
    def exact_group(self) -> PlanarGroup:
        """The group under which the network is exact."""
        return self.group if self.roto else TRIVIAL

    def remainder(self, size: int, stage: Stage) -> int:
        left = remainder_of(size, stage)
        return left if self.roto and self.extend else 0

    def conv(
        self,
        in_width: int,
        width: int,
        stage: Stage,
        size: int,
        bias: bool = True,
        oriented: tuple[bool, bool] = (False, False),
    ) -> nn.Module:
        """Return a convolution; `oriented` says whether input and output have a group axis."""
        left = self.remainder(size, stage)
        if not self.roto:
            return nn.Conv2d(in_width, width, *stage, bias=bias)
        if any(oriented):
            whole = extended(stage, left)
            return oriented_conv(self.group, in_width, width, whole, oriented, bias=bias)
        return RotoConv2d(
            self.group, in_width, width, *stage, bias=bias, remainder=left, reduce=self.reduce,
            algorithm=self.algorithm,
        )  # fmt: skip

    def batch_norm(self, width: int, oriented: bool = False) -> nn.Module:
        """Return a batch norm, whose statistics are also over the group axis if `oriented`."""
        if not oriented:
            return nn.BatchNorm2d(width)
        return GroupBatchNorm2d(self.group, channels_of_element(self.group, width))

    def max_pool(self, stage: Stage, size: int) -> nn.MaxPool2d:
        """Return a max pool; the maximum over rotated windows is that over their union."""
        return MaxPool2d(*extended(stage, self.remainder(size, stage)))

    def sampling(self, stage: Stage, size: int) -> Stage:
        """Return the stage as it is made, for `geometry.sizes`."""
        return extended(stage, self.remainder(size, stage))


def require_large_enough(size: int, stages: Sequence[Stage], what: str) -> None:
    """Raise unless every stage has at least one window's worth of pixels."""

    def fits(size: int) -> bool:
        for stage in stages:
            if size + 2 * stage.padding < stage.kernel:
                return False
            size = size_after(size, stage)
        return True

    nearest = nearest_sizes(size, fits)
    words = " or ".join(map(str, nearest))
    require(size in nearest, f"image_size = {size} is too small for {what}; try {words}.")


def register_both(name: str, design: Any, build: Builder, description: str) -> None:
    """Register a family as `name`, and its equivariant variant as `roto_NAME`."""
    register(name, design, description)(build)
    equivariant = replace(design, roto=True)
    register(ROTO + name, equivariant, f"Exactly equivariant {description}", ("roto",))(build)
