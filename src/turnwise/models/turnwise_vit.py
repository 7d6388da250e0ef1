"""The flagship: an exactly equivariant vision transformer at the price of a plain one.

A stem lifts the picture to the group (convolutions that halve it, or one cut into patches), blocks
of rotary attention on the group mix the tokens, and an invariant read-out names the class.

Paper:    none; the parts are in `layers.group_conv`, `layers.group_rope`, `layers.group_linear`.
Symbols:  `width` counts the channels of all poses together, as a plain transformer counts them; a
          pose has width / |G| of them, and the linear maps |G| times fewer weights.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import partial
from inspect import Parameter, Signature
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from turnwise.errors import require, require_divisible, require_known, require_positive
from turnwise.geometry.sizes import Stage, exact_sizes, output_size, require_exact_size
from turnwise.groups import PlanarGroup
from turnwise.layers.conv.conv import (
    POOLS,
    ConvStem,
    GroupPool,
    PatchLift,
    StemPlan,
    maps_to_tokens,
    tokens_to_maps,
)
from turnwise.layers.heads.pooling import (
    COMBINE,
    OrientationHead,
    Overview,
    invariant,
    pooled_width,
)
from turnwise.layers.normalise import Normalise
from turnwise.layers.transformer.block import GroupTransformerBlock, TokenNorm
from turnwise.layers.transformer.linear import BASES, GroupLinear
from turnwise.layers.transformer.rotary import FRAMES, GroupRotaryAttention
from turnwise.models.registry import Task, register

Field = Float[Tensor, "batch group row col channel"]
STEMS = ("conv", "patch")
READOUTS = ("class", "orientation", "dense")


@dataclass(frozen=True)
class Design:
    """What a user may choose; the four sizes are four of these.

    width:       channels of all poses together; 0 takes 32 √|G|, which keeps the number of weights
                 about the same for every group
    stem:        "conv", convolutions that halve the picture until a token has `patch` pixels, or
                 "patch", one cut into patches
    depths:      blocks of each stage; between two stages the sides are halved
    heads:       of each pose
    frame:       "own" or "cross" (layers.group_rope); kernel "" is softmax, or a linear one
    window:      how far a token looks, in tokens; 0 is everywhere
    basis:       of the linear maps, "regular" or "irreps": the same numbers, another speed
    halve:       how the stem halves the picture, by "max" or "average" (layers.group_conv)
    pool:        of the read-out over the poses, "mean", "max" or "both"
    pool_tokens: of the read-out over the tokens, before that over the poses
    overview:    channels of each pose that see all tokens, and where they stand, in place of that
                 pool (layers.readouts); 0 is none. Then pictures have one size, and shifts count
    readout:     "class" scores, invariant; "orientation", a score for each pose; or "dense", class
                 scores for each token, both of which turn with the picture
    """

    width: int
    depths: tuple[int, ...]
    heads: int
    stem: str = "conv"
    patch: int = 4
    kernels: tuple[int, ...] = (7, 5, 5, 3)
    mlp_ratio: float = 2.0
    frame: str = "own"
    kernel: str = ""
    window: int = 0
    basis: str = "regular"
    halve: str = "max"
    pool: str = "both"
    pool_tokens: str = "mean"
    overview: int = 0
    readout: str = "class"
    drop_path: float = 0.0
    dropout: float = 0.0
    layer_scale: float = 0.0
    qk_norm: bool = False

    def __post_init__(self) -> None:
        require_positive(heads=self.heads, patch=self.patch)
        require(self.width >= 0, f"width = {self.width} must be positive, or 0: by the group.")
        require(
            self.layer_scale >= 0, f"layer_scale = {self.layer_scale} must be 0 (none) or more."
        )
        require(self.window >= 0, f"window = {self.window} must be odd, or 0: the whole picture.")
        require(self.overview >= 0, f"overview = {self.overview} must be 0 or more channels.")
        require_known(self.stem, STEMS, "stem")
        require_known(self.frame, FRAMES, "frame")
        require_known(self.basis, BASES, "basis")
        require_known(self.pool, COMBINE, "pool")
        require_known(self.pool_tokens, COMBINE, "pool_tokens")
        require_known(self.halve, POOLS, "halve")
        require_known(self.readout, READOUTS, "readout")
        require(
            not self.overview or self.readout != "dense",
            f"overview = {self.overview} makes one token of all, and readout = dense scores each "
            "token; take overview = 0.",
        )
        require(
            bool(self.depths) and all(depth > 0 for depth in self.depths),
            f"depths = {self.depths} must list one stage or more, of one block or more.",
        )
        for what in ("drop_path", "dropout"):
            rate = getattr(self, what)
            require(0 <= rate < 1, f"{what} = {rate} must be from 0 to below 1.")


DESIGNS = {
    "nano": Design(width=0, depths=(2,), heads=1),
    "tiny": Design(width=192, depths=(4,), heads=1, mlp_ratio=4.0),
    "small": Design(width=384, depths=(4,), heads=2, mlp_ratio=4.0),
    "base": Design(
        width=768,
        depths=(12,),
        heads=1,
        stem="patch",
        patch=16,
        mlp_ratio=4.0,
        basis="irreps",
        layer_scale=0.1,
    ),
}


class EquivariantVisionTransformer(nn.Module):
    """Stem, stages of blocks, norm, read-out; `forward_features` gives a field on the group."""

    def __init__(self, task: Task, design: Design) -> None:
        super().__init__()
        group, poses = task.group, task.group.order
        whole = design.width or poses * 2 * round(16 / math.sqrt(poses))
        pairs = 2 if design.frame == "own" else 2 * poses
        split = f"{poses} poses of {design.heads} heads of {pairs} channels or more"
        require_divisible(whole, poses * design.heads * pairs, "width", split)
        width = whole // poses
        self.group, self.design = group, design
        self.preprocess = Normalise(task.in_chans)
        self.stem = _stem(design, group, task.in_chans, width)
        halvings = (Stage(2, 2),) * (len(design.depths) - 1)
        self.sampling = (*self.stem.stages, *halvings)
        require_exact_size(task.image_size, self.sampling, "this transformer's stem and stages")
        self.stages = nn.ModuleList(_stages(design, group, width))
        self.halve = GroupPool("average", 2)
        self.norm = TokenNorm(width)
        self.overview, self.image_size = None, task.image_size
        if design.overview:
            side = output_size(task.image_size, self.sampling)
            assert side is not None, "an exact size"
            self.overview = Overview(group, width, design.overview, side)
        self.head = _head(design, design.overview or width, task.num_classes)

    def exact_size(self, size: int) -> tuple[int, ...]:
        """`size` if the network samples it symmetrically, else the nearest sizes that it does."""
        return (self.image_size,) if self.overview else exact_sizes(size, self.sampling)

    def forward_features(self, images: Float[Tensor, "batch in_chans rows cols"]) -> Field:
        """A field on the group that turns with the picture."""
        self.preprocess.require_channels(images)
        for side in images.shape[2:]:
            require_exact_size(side, self.sampling, "this transformer's stem and stages")
        maps = self.stem(images)
        for number, stage in enumerate(self.stages):
            maps = self.halve(maps) if number else maps
            rows, cols = maps.shape[2:]
            tokens = maps_to_tokens(maps, self.group.order)
            # by token, as the blocks read them, and not rounded between blocks by autocast
            tokens = tokens.to(self.norm.weight.dtype).contiguous()
            for block in stage:  # type: ignore[attr-defined]
                tokens = block(tokens, rows, cols)
            maps = tokens_to_maps(tokens, rows, cols)
        tokens = self.norm(maps_to_tokens(maps, self.group.order))
        return tokens.unflatten(1, maps.shape[2:]).permute(0, 3, 1, 2, 4)

    def forward_head(self, field: Field) -> Tensor:
        """(batch, class), or for other read-outs (batch, group), (batch, class, row, col)."""
        if self.design.readout == "dense":
            return self.head(field.mean(dim=1)).permute(0, 3, 1, 2)
        if self.overview:
            tokens = self.overview(field)
        else:
            tokens = field.permute(0, 2, 3, 1, 4).flatten(1, 2)
        if self.design.readout == "orientation":
            return self.head(tokens)
        return self.head(invariant(tokens, self.design.pool_tokens, self.design.pool))

    def forward(self, images: Float[Tensor, "batch channel row col"]) -> Tensor:
        return self.forward_head(self.forward_features(images))


def _stem(design: Design, group: PlanarGroup, in_chans: int, width: int) -> ConvStem | PatchLift:
    if design.stem == "patch":
        return PatchLift(group, in_chans, width, design.patch)
    halvings, steps = design.patch.bit_length() - 1, len(design.kernels)
    require(
        design.patch == 2**halvings and halvings < steps,
        f"patch = {design.patch} must be a power of 2 below 2^{steps}: the stem's {steps} "
        "convolutions halve the picture after each but the first.",
    )
    pooled = {(i + 1) * steps // (halvings + 1) for i in range(halvings)}  # evenly among the steps
    plan = StemPlan(
        widths=(max(1, width // 2), *(width for _ in range(steps - 2)))[: steps - 1],
        kernels=design.kernels,
        strides=(1,) * steps,
        pools=tuple(2 * (step in pooled) for step in range(steps)),
        pool=design.halve,
        dropout=design.dropout,
    )
    return ConvStem(group, in_chans, width, plan)


def _stages(design: Design, group: PlanarGroup, width: int) -> Iterator[nn.ModuleList]:
    """Blocks whose rate of dropped paths rises with the depth."""
    steps = torch.linspace(0, design.drop_path, sum(design.depths), device="cpu")
    rates = iter(steps.tolist())
    linear = partial(GroupLinear, basis=design.basis)
    for depth in design.depths:
        yield nn.ModuleList(
            GroupTransformerBlock(
                group,
                width,
                GroupRotaryAttention(
                    group, width, design.heads, linear=linear, frame=design.frame,
                    kernel=design.kernel or None, window=design.window, qk_norm=design.qk_norm,
                ),
                mlp_ratio=design.mlp_ratio,
                linear=linear,
                drop_path=next(rates),
                dropout=design.dropout,
                layer_scale=design.layer_scale,
            )
            for _ in range(depth)
        )  # fmt: skip


def _head(design: Design, width: int, num_classes: int) -> nn.Module:
    if design.readout == "orientation":
        return OrientationHead(width)
    pooled = width
    if design.readout == "class":
        pooled = pooled_width(width, design.pool_tokens, design.pool)
    head = nn.Linear(pooled, num_classes)
    nn.init.normal_(head.weight, std=0.02)  # the first loss is that of a guess
    nn.init.zeros_(head.bias)
    return head


def _signature(design: Design) -> Signature:
    """A function (task, *, …) whose options are the fields of a design."""
    options = [
        Parameter(field.name, Parameter.KEYWORD_ONLY, default=getattr(design, field.name))
        for field in fields(design)
    ]
    return Signature([Parameter("task", Parameter.POSITIONAL_OR_KEYWORD), *options])


def _family(design: Design, description: str) -> Callable[..., EquivariantVisionTransformer]:
    def build(task: Task, **options: Any) -> EquivariantVisionTransformer:
        chosen: Any = {k: tuple(v) if isinstance(v, list) else v for k, v in options.items()}
        return EquivariantVisionTransformer(task, replace(design, **chosen))

    build.__doc__ = description
    build.__signature__ = _signature(design)  # type: ignore[attr-defined]
    return build


for _size, _what in {
    "nano": "below 100,000 weights",
    "tiny": "for small pictures",
    "small": "for small pictures, the most accurate",
    "base": "of the width and depth of ViT-B, for 224 pixels",
}.items():
    _words = f"Turnwise ViT, {_size}: rotary attention on the group, {_what}."
    register(f"turnwise_vit_{_size}")(_family(DESIGNS[_size], _words))
