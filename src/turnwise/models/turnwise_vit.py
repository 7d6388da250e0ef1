"""The flagship: an exactly equivariant vision transformer at the cost of a plain one.

A stem lifts the image to the group (convolutions with pooling, or one patch embedding), blocks of
rotary attention on the group mix the tokens, and an invariant pooling precedes the classifier.

Paper:    none; the layers are in `layers.conv`, `layers.transformer` and `layers.heads`.
Symbols:  `width` counts the channels of all group elements together, as a plain transformer counts
          them; each element has width / |G| of them, and linear maps have |G| times fewer weights.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from turnwise.attention.linear import KERNELS
from turnwise.errors import require, require_divisible
from turnwise.geometry.layouts import (
    field_to_tokens,
    for_convolutions,
    regular_to_tokens,
    tokens_to_field,
    tokens_to_regular,
)
from turnwise.geometry.sizes import (
    LARGEST_SIZE,
    Stage,
    exact_sizes,
    output_size,
    require_exact_size,
)
from turnwise.groups import PlanarGroup
from turnwise.layers.conv.residual import ResidualStem
from turnwise.layers.conv.stem import POOLS, ConvStem, GroupPool2d, PatchLift, StemPlan
from turnwise.layers.heads.pooling import (
    COMBINE,
    OrientationHead,
    Overview,
    invariant,
    pooled_width,
)
from turnwise.layers.normalise import Normalise
from turnwise.layers.transformer.block import NORMS, GroupTokenBlock, TokenNorm
from turnwise.layers.transformer.linear import BASES, GroupLinear
from turnwise.layers.transformer.rotary import FRAMES, GroupRotaryAttention
from turnwise.models.contract import ImageModel, small_linear
from turnwise.models.registry import Task, register
from turnwise.options import Options, option

Field = Float[Tensor, "batch group row col channel"]
STEMS = ("conv", "residual", "patch")
SizeTable = tuple[tuple[int, int], ...]  # (below this image size, value)
PATCHES: SizeTable = ((56, 4), (112, 8), (LARGEST_SIZE + 1, 16))
STRIDES: SizeTable = ((128, 1), (192, 2), (LARGEST_SIZE + 1, 4))
READOUTS = ("class", "orientation", "dense")
FINAL_NORMS = ("tokens", "pooled")
WHAT = "this transformer's stem and stages"


@dataclass(frozen=True)
class TurnwiseViTDesign(Options):
    """The options of the flagship; its sizes are instances of this class."""

    width: int = option(
        0, "channels of all group elements together; 0 takes 32 √|G|, which keeps the number of "
        "parameters about the same for every group", at_least=0, at_most=16384,
    )  # fmt: skip
    depths: tuple[int, ...] = option(
        (2,), "blocks of attention in each stage; the sides are halved between stages", at_least=0,
        at_most=256,
    )  # fmt: skip
    heads: int = option(1, "attention heads of each group element", at_least=1, at_most=1024)
    stem: str = option(
        "conv", "conv: convolutions with pools until a token covers `patch` pixels; residual: "
        "stages of residual convolutions; patch: one patch embedding", choices=STEMS,
    )  # fmt: skip
    patch: int = option(
        4, "side of a token in pixels; 0 takes 4, 8 or 16, by the image size", at_least=0,
        at_most=1024,
    )  # fmt: skip
    stem_width: int = option(
        0, "channels of all group elements together in the first stage of a residual stem; they "
        "double from stage to stage, up to `width`; 0 takes width / 4", at_least=0, at_most=16384,
    )  # fmt: skip
    stem_depth: int = option(2, "blocks in each stage of a residual stem", at_least=1, at_most=256)
    stem_stride: int = option(
        0, "stride of the first convolution of a residual stem; 0 takes 1, 2 or 4, by the image "
        "size", at_least=0, at_most=64,
    )  # fmt: skip
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
    norm: str = option(
        "auto", "norm in the blocks: token, of each token by itself; image, over all tokens, so "
        "that empty background stays small; auto: image after a residual stem, else token",
        choices=("auto", *NORMS),
    )  # fmt: skip
    final_norm: str = option(
        "auto", "tokens: normalise every token before pooling; pooled: normalise after it, so "
        "that empty background counts little; auto: pooled after a residual stem, else tokens",
        choices=("auto", *FINAL_NORMS),
    )  # fmt: skip
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
    head_dropout: float = option(
        0.0, "dropout rate before the classifier", at_least=0, below=1, changes_output=False
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

    def resolved(self) -> "TurnwiseViTDesign":
        """Return the design with the norms that "auto" stands for."""
        residual = self.stem == "residual"
        norm, final_norm = ("image", "pooled") if residual else ("token", "tokens")
        return replace(
            self,
            norm=norm if self.norm == "auto" else self.norm,
            final_norm=final_norm if self.final_norm == "auto" else self.final_norm,
        )


ON_RESIDUAL_STEM: dict[str, Any] = {
    "stem": "residual", "patch": 0, "mlp_ratio": 4.0, "layer_scale": 0.1, "drop_path": 0.1,
}  # fmt: skip
SIZES = {
    "nano": (TurnwiseViTDesign(), "below 100,000 parameters"),
    "tiny": (TurnwiseViTDesign(width=192, depths=(1,), **ON_RESIDUAL_STEM), "for a laptop"),
    "small": (
        TurnwiseViTDesign(width=384, depths=(2,), heads=2, **ON_RESIDUAL_STEM),
        "the most accurate up to 224 pixels",
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
        design = design.resolved()
        group, order = task.group, task.group.order
        total = design.width or order * 2 * round(16 / math.sqrt(order))
        pairs = 2 if design.frame == "own" else 2 * order
        split = f"{order} group elements with {design.heads} heads of {pairs} channels or more"
        require_divisible(total, order * design.heads * pairs, "width", split)
        width = total // order
        self.group, self.design, self.num_classes = group, design, task.num_classes
        self.preprocess = Normalise(task.in_chans)
        self.stem = _stem(design, task, width)
        halvings = (Stage(2, 2),) * (len(design.depths) - 1)
        self.sampling = (*self.stem.stages, *halvings)
        require_exact_size(task.image_size, self.sampling, WHAT)
        self.stages = nn.ModuleList(_stages(design, group, width))
        self.halve = GroupPool2d(group, 2, "average")
        self.norm = TokenNorm(width) if design.final_norm == "tokens" else nn.Identity()
        self.overview, self.image_size = None, task.image_size
        if design.overview:
            side = output_size(task.image_size, self.sampling)
            assert side is not None, "an exact size"
            self.overview = Overview(group, width, design.overview, side)
        self.num_features = design.overview or width
        if design.readout == "class":
            self.num_features = pooled_width(self.num_features, design.pool_tokens, design.pool)
        is_vector = design.readout == "class" and design.final_norm == "pooled"
        self.norm_pooled = nn.LayerNorm(self.num_features) if is_vector else nn.Identity()
        self.dropout = nn.Dropout(design.head_dropout)
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

    @property
    def precision(self) -> torch.dtype:
        """That of the parameters, in which the blocks add."""
        return next(self.stem.parameters()).dtype

    def exact_size(self, size: int) -> tuple[int, ...]:
        return (self.image_size,) if self.overview else exact_sizes(size, self.sampling)

    def forward_features(self, images: Float[Tensor, "batch in_chans rows cols"]) -> Field:
        """Return the features on the group, which rotate with the image."""
        self.preprocess.require_channels(images)
        for side in images.shape[2:]:
            require_exact_size(side, self.sampling, WHAT)
        regular = self.stem(for_convolutions(images, self.training))
        for number, stage in enumerate(self.stages):
            regular = self.halve(regular) if number else regular
            rows, cols = regular.shape[3:]
            # tokens contiguous, as the blocks read them, and not rounded by autocast between them
            tokens = regular_to_tokens(regular).to(self.precision).contiguous()
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
        pooled = invariant(tokens, self.design.pool_tokens, self.design.pool)
        return self.dropout(self.norm_pooled(pooled))

    def forward_head(self, features: Field, pre_logits: bool = False) -> Tensor:
        """Return (batch, class), (batch, group) or (batch, class, row, col), by `readout`."""
        output = super().forward_head(features, pre_logits)
        return output.permute(0, 3, 1, 2) if self.design.readout == "dense" else output


def _stem(design: TurnwiseViTDesign, task: Task, width: int) -> Any:
    """Return a layer from images to regular features; `stages` says how it samples."""
    patch = design.patch or _by_size(task.image_size, PATCHES)
    if design.stem == "patch":
        return PatchLift(task.group, task.in_chans, width, patch)
    if design.stem == "residual":
        return _residual_stem(design, task, width, patch)
    halvings, steps = patch.bit_length() - 1, len(design.kernels)
    require(
        patch == 2**halvings and halvings < steps,
        f"patch = {patch} must be a power of 2 below 2^{steps}: the stem's {steps} "
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
    return ConvStem(task.group, task.in_chans, width, plan)


def _residual_stem(design: TurnwiseViTDesign, task: Task, width: int, patch: int) -> ResidualStem:
    """Return stages until a token covers `patch` pixels, each twice as wide as the last."""
    stride = design.stem_stride or min(_by_size(task.image_size, STRIDES), max(1, patch // 2))
    halvings = (patch // stride).bit_length() - 1
    require(
        patch == stride * 2**halvings,
        f"patch = {patch} must be stem_stride = {stride} times 1, 2, 4, …; leave both at 0.",
    )
    first = design.stem_width // task.group.order or max(1, width // 4)
    widths = (*(min(first * 2**stage, width) for stage in range(halvings)), width)
    return ResidualStem(task.group, task.in_chans, widths, design.stem_depth, stride)


def _by_size(image_size: int, table: SizeTable) -> int:
    return next(value for limit, value in table if image_size < limit)


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
                norm=design.norm,
            )
            for _ in range(depth)
        )  # fmt: skip


for _size, (_design, _what) in SIZES.items():
    _words = f"Turnwise ViT, {_size}: rotary attention on the group, {_what}."
    register(f"turnwise_vit_{_size}", _design, _words)(EquivariantVisionTransformer)
