"""How a network's convolutions are made, plain or turned: the one switch `roto` of its families.

A family is described by a design, a frozen dataclass whose fields are the options of its models;
one of them is `roto`.  Each is registered twice: by its name, with `roto` as an option, and as
`roto_NAME`, which is equivariant.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from inspect import Parameter, Signature
from typing import Any

from torch import nn

from turnwise.errors import require
from turnwise.geometry.sizes import Stage, extended, nearest_sizes, remainder_of, size_after
from turnwise.groups import PlanarGroup, require_grid_group
from turnwise.layers.conv.conv import MapNorm
from turnwise.layers.conv.oriented import oriented_conv, width_of_pose
from turnwise.layers.roto.conv import RotoConv
from turnwise.models.registry import Task, register

ROTO = "roto_"


@dataclass(frozen=True)
class ConvMaker:
    """Makes convolutions for maps of known size: RotoConv where `roto`, else those of torch.

    With `extend` windows see what the published ones leave unseen on one side, which makes every
    size exact; without it a model must refuse the sizes that leave something.  Where old or new
    maps are `oriented` the convolution is one on the group (layers/oriented.py).
    """

    group: PlanarGroup
    roto: bool
    reduce: str = "max"
    algorithm: str = "auto"
    extend: bool = True

    def __post_init__(self) -> None:
        if self.roto:
            require_grid_group(self.group)

    @property
    def promise(self) -> PlanarGroup:
        """The group under which the network is exact."""
        return self.group if self.roto else PlanarGroup.named("C1")

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
        left = self.remainder(size, stage)
        if not self.roto:
            return nn.Conv2d(in_width, width, *stage, bias=bias)
        if any(oriented):
            whole = extended(stage, left)
            return oriented_conv(self.group, in_width, width, whole, oriented, bias=bias)
        return RotoConv(
            self.group, in_width, width, stage,
            remainder=left, bias=bias, reduce=self.reduce, algorithm=self.algorithm,
        )  # fmt: skip

    def batch_norm(self, width: int, oriented: bool = False) -> nn.Module:
        """Over pictures and pixels, and where maps are oriented over poses."""
        if not oriented:
            return nn.BatchNorm2d(width)
        return MapNorm(self.group, width_of_pose(self.group, width), "batch")

    def max_pool(self, stage: Stage, size: int) -> nn.MaxPool2d:
        """The greatest of turned windows is the greatest of one that sees what they all see."""
        return nn.MaxPool2d(*extended(stage, self.remainder(size, stage)))

    def sampling(self, stage: Stage, size: int) -> Stage:
        """The stage as it is made, for `geometry.sizes`."""
        return extended(stage, self.remainder(size, stage))


def require_oriented(stages: int, depths: Sequence[int], roto: bool, reduce: str) -> None:
    """Raise unless the first `stages` of a network may keep their poses."""
    require(
        0 <= stages < len(depths),
        f"oriented = {stages} must be from 0 to {len(depths) - 1}: the last of {len(depths)} "
        "stages reads out maps without poses.",
    )
    require(
        roto or stages == 0,
        f"oriented = {stages} keeps the poses of a group; use the roto_ twin, or set it to 0.",
    )
    require(
        reduce == "max" or stages == 0,
        f"oriented = {stages} takes the greatest pose at its end, and reduce is {reduce!r}; use "
        "reduce = 'max', or set oriented to 0.",
    )


def require_room(size: int, stages: Sequence[Stage], what: str) -> None:
    """Raise unless every stage finds a window's worth of pixels, seen to the last or not."""

    def fits(size: int) -> bool:
        for stage in stages:
            if size + 2 * stage.padding < stage.kernel:
                return False
            size = size_after(size, stage)
        return True

    nearest = nearest_sizes(size, fits)
    words = " or ".join(map(str, nearest))
    require(size in nearest, f"image_size = {size} is too small for {what}; try {words}.")


def register_twins(
    name: str, design: Any, make: Callable[[Task, Any], nn.Module], description: str
) -> None:
    """Make a family known as `name`, and its equivariant twin as `roto_NAME`."""
    turned = f"Exactly equivariant twin (RotoConv) of {name}: {description}"
    register(name)(_family(design, make, description))
    register(ROTO + name)(_family(replace(design, roto=True), make, turned, fixed=("roto",)))


def _family(
    design: Any,
    make: Callable[[Task, Any], nn.Module],
    description: str,
    fixed: tuple[str, ...] = (),
) -> Callable[..., nn.Module]:
    """A function (task, *, …) whose options are the fields of a design but the fixed ones."""

    def build(task: Task, **options: Any) -> nn.Module:
        chosen = {k: tuple(v) if isinstance(v, list) else v for k, v in options.items()}
        return make(task, replace(design, **chosen))

    free = [
        Parameter(field.name, Parameter.KEYWORD_ONLY, default=getattr(design, field.name))
        for field in fields(design)
        if field.name not in fixed
    ]
    task = Parameter("task", Parameter.POSITIONAL_OR_KEYWORD)
    build.__doc__ = description
    build.__signature__ = Signature([task, *free])  # type: ignore[attr-defined]
    return build
