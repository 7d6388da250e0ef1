"""The flagship: an exactly equivariant vision transformer at the cost of a plain one.

A stem lifts the image to the group (convolutions with pooling, or one patch embedding), blocks of
rotary attention on the group mix the tokens, and an invariant pooling precedes the classifier.

Paper:    none; the layers are in `layers.conv`, `layers.transformer` and `layers.heads`.
Symbols:  `width` counts the channels of all group elements together, as a plain transformer counts
          them; each element has width / |G| of them, and linear maps have |G| times fewer weights.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn

from turnwise.attention.linear import KERNELS
from turnwise.errors import require, require_divisible
from turnwise.geometry.layouts import (
    field_to_tokens,
    regular_to_tokens,
    tokens_to_field,
    tokens_to_regular,
)
from turnwise.geometry.sizes import Stage, exact_sizes, output_size, require_exact_size
from turnwise.groups import PlanarGroup
from turnwise.layers.conv.stem import POOLS, ConvStem, GroupPool2d, PatchLift, StemPlan
from turnwise.layers.heads.pooling import (
    COMBINE,
    OrientationHead,
    Overview,
    invariant,
    pooled_width,
)
from turnwise.layers.normalise import Normalise
from turnwise.layers.transformer.block import GroupTokenBlock, TokenNorm
from turnwise.layers.transformer.linear import BASES, GroupLinear
from turnwise.layers.transformer.rotary import FRAMES, GroupRotaryAttention
from turnwise.models.contract import ImageModel, small_linear
from turnwise.models.registry import Task, register
from turnwise.options import Options, option

Field = Float[Tensor, "batch group row col channel"]
STEMS = ("conv", "patch")
READOUTS = ("class", "orientation", "dense")
WHAT = "this transformer's stem and stages"


@dataclass(frozen=True)
class TurnwiseViTDesign(Options):
    """The options of the flagship; its sizes are instances of this class."""

    width: int = option(
        0, "channels of all group elements together; 0 takes 32 √|G|, which keeps the number of "
        "parameters about the same for every group", at_least=0, at_most=16384,
    )  # fmt: skip
    depths: tuple[int, ...] = option(
        (2,), "blocks of each stage; the sides are halved between stages", at_least=1, at_most=256
    )
    heads: int = option(1, "attention heads of each group element", at_least=1, at_most=1024)
    stem: str = option(
        "conv", "conv: convolutions with pools until a token covers `patch` pixels; patch: one "
        "patch embedding", choices=STEMS,
    )  # fmt: skip
    patch: int = option(4, "side of a token in pixels", at_least=1, at_most=1024)
    kernels: tuple[int, ...] = option(
        (7, 5, 5, 3), "kernels of the stem's convolutions", at_least=1, at_most=255
    )
    mlp_ratio: float = option(
        2.0, "hidden width of the MLP relative to the width", above=0, at_most=64
    )
    frame: str = option(
        "own", "own: attention within each group element; cross: across all of them", choices=FRAMES
    )
    kernel: str = option(
        "", "feature map of linear attention; empty is softmax", choices=("", *KERNELS)
    )
    window: int = option(
        0, "side of the attention window in tokens, odd; 0 is global", at_least=0, at_most=16383
    )
    basis: str = option(
        "regular", "basis of the linear maps: the same outputs, at another speed", choices=BASES
    )
    halve: str = option("max", "pooling inside the stem", choices=POOLS)
    pool: str = option("both", "pooling over the group", choices=COMBINE)
    pool_tokens: str = option("mean", "pooling over the tokens, before the group", choices=COMBINE)
    overview: int = option(
        0, "channels per group element of one group convolution over all tokens, instead of "
        "pooling them; the image size is then fixed", at_least=0, at_most=16384,
    )  # fmt: skip
    readout: str = option(
        "class", "class: invariant logits; orientation: a score per group element; dense: logits "
        "per token", choices=READOUTS,
    )  # fmt: skip
    drop_path: float = option(
        0.0, "highest drop-path rate, reached in the last block", at_least=0, below=1,
        changes_output=False,
    )  # fmt: skip
    dropout: float = option(
        0.0, "dropout rate in stem and MLPs", at_least=0, below=1, changes_output=False
    )
    layer_scale: float = option(0.0, "initial layer scale; 0 is none", at_least=0, at_most=1e6)
    qk_norm: bool = option(
        True, "normalise queries and keys (RMSNorm), which keeps training in bfloat16 stable",
        absent=False,
    )  # fmt: skip

    def validate(self) -> None:
        require(bool(self.depths), "depths must list one stage or more.")
        require(
            not self.overview or self.readout != "dense",
            f"overview = {self.overview} makes one token of all, and readout = dense needs each "
            "token; set overview to 0.",
        )


SIZES = {
    "nano": (TurnwiseViTDesign(), "below 100,000 parameters"),
    "tiny": (TurnwiseViTDesign(width=192, depths=(4,), mlp_ratio=4.0), "for small images"),
    "small": (
        TurnwiseViTDesign(width=384, depths=(4,), heads=2, mlp_ratio=4.0),
        "for small images, the most accurate",
    ),
    "base": (
        TurnwiseViTDesign(
            width=768, depths=(12,), stem="patch", patch=16, mlp_ratio=4.0, basis="irreps",
            layer_scale=0.1,
        ),
        "of the width and depth of ViT-B, for 224 pixels",
    ),
}  # fmt: skip


class EquivariantVisionTransformer(ImageModel):
    """Stem, stages of blocks, norm, pooling, classifier."""

    def __init__(self, task: Task, design: TurnwiseViTDesign) -> None:
        super().__init__()
        group, order = task.group, task.group.order
        total = design.width or order * 2 * round(16 / math.sqrt(order))
        pairs = 2 if design.frame == "own" else 2 * order
        split = f"{order} group elements with {design.heads} heads of {pairs} channels or more"
        require_divisible(total, order * design.heads * pairs, "width", split)
        width = total // order
        self.group, self.design, self.num_classes = group, design, task.num_classes
        self.preprocess = Normalise(task.in_chans)
        self.stem = _stem(design, group, task.in_chans, width)
        halvings = (Stage(2, 2),) * (len(design.depths) - 1)
        self.sampling = (*self.stem.stages, *halvings)
        require_exact_size(task.image_size, self.sampling, WHAT)
        self.stages = nn.ModuleList(_stages(design, group, width))
        self.halve = GroupPool2d(group, 2, "average")
        self.norm = TokenNorm(width)
        self.overview, self.image_size = None, task.image_size
        if design.overview:
            side = output_size(task.image_size, self.sampling)
            assert side is not None, "an exact size"
            self.overview = Overview(group, width, design.overview, side)
        self.num_features = design.overview or width
        if design.readout == "class":
            self.num_features = pooled_width(self.num_features, design.pool_tokens, design.pool)
        self.head = self.make_head(task.num_classes)

    def make_head(self, num_classes: int) -> nn.Module:
        if self.design.readout == "orientation" and num_classes:
            return OrientationHead(self.num_features)
        return small_linear(self.num_features, num_classes)

    def reset_classifier(self, num_classes: int) -> None:
        require(
            self.design.readout != "orientation" or num_classes == 0,
            "this model predicts an orientation and has no classes, so it takes no "
            f"num_classes = {num_classes}; leave it out.",
        )
        super().reset_classifier(num_classes)

    def exact_size(self, size: int) -> tuple[int, ...]:
        return (self.image_size,) if self.overview else exact_sizes(size, self.sampling)

    def forward_features(self, images: Float[Tensor, "batch in_chans rows cols"]) -> Field:
        """Return the features on the group, which rotate with the image."""
        self.preprocess.require_channels(images)
        for side in images.shape[2:]:
            require_exact_size(side, self.sampling, WHAT)
        regular = self.stem(images)
        for number, stage in enumerate(self.stages):
            regular = self.halve(regular) if number else regular
            rows, cols = regular.shape[3:]
            # tokens contiguous, as the blocks read them, and not rounded by autocast between them
            tokens = regular_to_tokens(regular).to(self.norm.weight.dtype).contiguous()
            for block in stage:  # type: ignore[attr-defined]
                tokens = block(tokens, rows, cols)
            regular = tokens_to_regular(tokens, rows, cols)
        return tokens_to_field(self.norm(regular_to_tokens(regular)), *regular.shape[3:])

    def pool(self, features: Field) -> Tensor:
        """Return what the classifier takes.

        For readout "class" a vector per image; for "orientation" (batch, token, group, channel);
        for "dense" (batch, row, col, channel).
        """
        if self.design.readout == "dense":
            return features.mean(dim=1)
        tokens = self.overview(features) if self.overview else field_to_tokens(features)
        if self.design.readout == "orientation":
            return tokens
        return invariant(tokens, self.design.pool_tokens, self.design.pool)

    def forward_head(self, features: Field, pre_logits: bool = False) -> Tensor:
        """Return (batch, class), (batch, group) or (batch, class, row, col), by `readout`."""
        output = super().forward_head(features, pre_logits)
        return output.permute(0, 3, 1, 2) if self.design.readout == "dense" else output


def _stem(
    design: TurnwiseViTDesign, group: PlanarGroup, in_chans: int, width: int
) -> ConvStem | PatchLift:
    if design.stem == "patch":
        return PatchLift(group, in_chans, width, design.patch)
    halvings, steps = design.patch.bit_length() - 1, len(design.kernels)
    require(
        design.patch == 2**halvings and halvings < steps,
        f"patch = {design.patch} must be a power of 2 below 2^{steps}: the stem's {steps} "
        "convolutions can be pooled after each but the first.",
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


def _stages(design: TurnwiseViTDesign, group: PlanarGroup, width: int) -> Iterator[nn.ModuleList]:
    """Yield the stages; the drop-path rate rises with the depth."""
    steps = torch.linspace(0, design.drop_path, sum(design.depths), device="cpu")
    rates = iter(steps.tolist())
    linear = partial(GroupLinear, basis=design.basis)
    for depth in design.depths:
        yield nn.ModuleList(
            GroupTokenBlock(
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


for _size, (_design, _what) in SIZES.items():
    _words = f"Turnwise ViT, {_size}: rotary attention on the group, {_what}."
    register(f"turnwise_vit_{_size}", _design, _words)(EquivariantVisionTransformer)
