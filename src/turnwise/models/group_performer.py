"""A Performer on the group: equivariant to turns, mirrors and circular shifts, at a linear cost.

A small stem lifts the picture to the group, blocks of `layers.steered_attention` mix all poses of
all tokens through one state, and an invariant read-out names the class.  By default nothing has a
border: the logits do not change under C4 or D4, nor under circular shifts by whole tokens, and
moving an object over blank ground is such a shift.

Paper:    none; after Horn et al. 2021, "Translational Equivariance in Kernelizable Attention".
Symbols:  `width` counts the channels of all poses together; a pose has width / |G| of them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from inspect import Parameter, Signature
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from turnwise.errors import (
    InputError,
    require,
    require_divisible,
    require_kind,
    require_known,
    require_positive,
)
from turnwise.geometry.sizes import Stage, exact_sizes, output_size, require_exact_size
from turnwise.groups import PlanarGroup
from turnwise.layers.conv.conv import (
    GroupConv,
    GroupPool,
    LiftingConv,
    MapNorm,
    Wrapped,
    maps_to_tokens,
    tokens_to_maps,
)
from turnwise.layers.heads.pooling import COMBINE, invariant, pooled_width
from turnwise.layers.normalise import Normalise
from turnwise.layers.performer.steered import SteeredAttention
from turnwise.layers.transformer.block import GroupTransformerBlock, TokenNorm
from turnwise.layers.transformer.linear import GroupLinear
from turnwise.models.registry import Task, register

Field = Float[Tensor, "batch group row col channel"]
BORDERS = ("wrap", "zero")
POSE_MAPS = ("group", "pose")


def _pose_linear(group: PlanarGroup, in_width: int, out_width: int) -> nn.Linear:
    """The same map for every pose, which do not mix: linear in |G|."""
    return nn.Linear(in_width, out_width)


class PerformerStem(nn.Module):
    """Convolutions to and on the group, each with norm and ReLU; the first ones halve the picture.

    kernels: odd, one for each convolution.  A token has `patch` pixels, a power of 2.
    """

    def __init__(
        self,
        group: PlanarGroup,
        in_chans: int,
        width: int,
        kernels: tuple[int, ...],
        patch: int,
        wrap: bool,
    ) -> None:
        super().__init__()
        halvings = patch.bit_length() - 1
        require(
            patch == 2**halvings and halvings <= len(kernels) and len(kernels) > 0,
            f"patch = {patch} must be a power of 2, at most {2 ** len(kernels)}: each of the "
            f"stem's {len(kernels)} convolutions may halve the picture once.",
        )
        layers, stages = list[nn.Module](), list[Stage]()
        for number, kernel in enumerate(kernels):
            layer: Any = GroupConv if number else LiftingConv
            conv = layer(group, width if number else in_chans, width, kernel, bias=False)
            layers.append(Wrapped(conv, kernel) if wrap else conv)
            layers += [MapNorm(group, width, "batch"), nn.ReLU()]
            stages += conv.stages
            if number < halvings:
                layers.append(GroupPool("max", 2))
                stages.append(Stage(2, 2))
        self.layers, self.stages = nn.Sequential(*layers), tuple(stages)

    def forward(self, images: Float[Tensor, "batch channel row col"]) -> Tensor:
        return self.layers(images)


@dataclass(frozen=True)
class Design:
    """What a user may choose.

    attention:   "linear", or "softmax" of the same queries and keys
    features:    of queries and keys, in each head; 0 takes the multiple of 2 |G| from 32 on
    local:       pixels across of the convolution beside the attention; 0 is none
    frequencies: "torus", for pictures of one size and circular shifts, exact for groups of the grid
                 (C8 turns whole numbers of periods into others); or "free" (learned)
    border:      "wrap", or "zero" around the convolutions
    pose_maps:   "group" mixes the poses in every linear map, "pose" in the attention alone
    kernels:     of the stem, odd; the first ones halve the picture until a token has `patch` pixels
    pool:        of the read-out over the poses, "mean", "max" or "both"
    """

    width: int = 128
    depth: int = 4
    heads: int = 2
    features: int = 0
    attention: str = "linear"
    kernel: str = "elu"
    frequencies: str = "torus"
    local: int = 3
    border: str = "wrap"
    pose_maps: str = "group"
    kernels: tuple[int, ...] = (5, 3)
    patch: int = 1
    mlp_ratio: float = 2.0
    pool: str = "both"
    drop_path: float = 0.0
    dropout: float = 0.0

    def __post_init__(self) -> None:
        require_positive(width=self.width, depth=self.depth, heads=self.heads, patch=self.patch)
        require_known(self.border, BORDERS, "border")
        require_known(self.pose_maps, POSE_MAPS, "pose_maps")
        require_known(self.pool, COMBINE, "pool")
        for what, kernels in (("kernels", self.kernels), ("local", (self.local or 1,))):
            odd = all(kernel > 0 and kernel % 2 == 1 for kernel in kernels)
            require(odd, f"{what} = {getattr(self, what)} must be odd, to keep the size.")
        for what in ("drop_path", "dropout"):
            rate = getattr(self, what)
            require(0 <= rate < 1, f"{what} = {rate} must be from 0 to below 1.")

    @property
    def wrap(self) -> bool:
        return self.border == "wrap"


def _blocks(design: Design, group: PlanarGroup, width: int, side: int) -> Iterator[nn.Module]:
    """Blocks whose rate of dropped paths rises with the depth."""
    linear = GroupLinear if design.pose_maps == "group" else _pose_linear
    orbit = 2 * group.order
    for rate in torch.linspace(0, design.drop_path, design.depth, device="cpu").tolist():
        attention = SteeredAttention(
            group, width, design.heads, side, features=design.features or -(-32 // orbit) * orbit,
            attention=design.attention, kernel=design.kernel, frequencies=design.frequencies,
            local=design.local, wrap=design.wrap, linear=linear,
        )  # fmt: skip
        yield GroupTransformerBlock(
            group, width, attention, mlp_ratio=design.mlp_ratio, linear=linear, drop_path=rate,
            dropout=design.dropout,
        )  # fmt: skip


class GroupPerformer(nn.Module):
    """Stem, blocks, norm, read-out; `forward_features` gives a field on the group."""

    def __init__(self, task: Task, design: Design) -> None:
        super().__init__()
        group, poses = task.group, task.group.order
        why = f"it is split over {poses} poses and {design.heads} heads"
        require_divisible(design.width, poses * design.heads, "width", why)
        width = design.width // poses
        self.group, self.pool = group, design.pool
        # waves with whole numbers of periods in one canvas have none in another
        self.canvas = task.image_size if design.frequencies == "torus" else None
        self.preprocess = Normalise(task.in_chans)
        self.stem = PerformerStem(
            group, task.in_chans, width, design.kernels, design.patch, design.wrap
        )
        require_exact_size(task.image_size, self.stem.stages, "this performer's stem")
        side = output_size(task.image_size, self.stem.stages)
        assert side is not None
        self.blocks = nn.ModuleList(_blocks(design, group, width, side))
        self.norm = TokenNorm(width)
        self.head = nn.Linear(pooled_width(width, "mean", design.pool), task.num_classes)
        nn.init.normal_(self.head.weight, std=0.02)  # the first loss is that of a guess
        nn.init.zeros_(self.head.bias)

    def exact_size(self, size: int) -> tuple[int, ...]:
        """`size` if the stem samples it symmetrically, else the nearest sizes that it does.

        With frequencies="torus", the one size that it was made for.
        """
        return (self.canvas,) if self.canvas else exact_sizes(size, self.stem.stages)

    def _require_size(self, rows: int, cols: int) -> None:
        if self.canvas and (rows, cols) != (self.canvas, self.canvas):
            raise InputError(  # not by `require`: a message is not to be traced
                f"with frequencies='torus' this performer takes pictures of {self.canvas} x "
                f"{self.canvas} pixels, got {rows} x {cols}; resample them, or make it for their "
                "size, or with frequencies='free'."
            )
        for size in (rows, cols):
            require_exact_size(size, self.stem.stages, "this performer's stem")

    def forward_features(self, images: Float[Tensor, "batch in_chans rows cols"]) -> Field:
        """A field on the group that turns with the picture."""
        self.preprocess.require_channels(images)
        self._require_size(*images.shape[2:])
        maps = self.stem(images)
        rows, cols = maps.shape[2:]
        tokens = maps_to_tokens(maps, self.group.order)
        for block in self.blocks:
            tokens = block(tokens, rows, cols)
        maps = tokens_to_maps(self.norm(tokens), rows, cols)
        return maps.unflatten(1, (self.group.order, -1)).permute(0, 1, 3, 4, 2)

    def forward_head(self, field: Field) -> Float[Tensor, "batch num_classes"]:
        tokens = field.permute(0, 2, 3, 1, 4).flatten(1, 2)
        return self.head(invariant(tokens, "mean", self.pool))

    def forward(
        self, images: Float[Tensor, "batch channel row col"]
    ) -> Float[Tensor, "batch num_classes"]:
        return self.forward_head(self.forward_features(images))


def group_performer(task: Task, **options: Any) -> GroupPerformer:
    """Performer on the group: steered rotary linear attention, exact under turns and mirrors."""
    chosen: Any = {k: tuple(v) if isinstance(v, list) else v for k, v in options.items()}
    for kernel in chosen.get("kernels", ()):
        require_kind(kernel, int, "kernels")
    return GroupPerformer(task, Design(**chosen))


group_performer.__signature__ = Signature(  # type: ignore[attr-defined]
    [Parameter("task", Parameter.POSITIONAL_OR_KEYWORD)]
    + [Parameter(f.name, Parameter.KEYWORD_ONLY, default=f.default) for f in fields(Design)]
)
register("group_performer")(group_performer)
