"""GE-ViT on fewer tokens: patches, or a small convolutional network, before group self-attention.

Paper:    WouterBant/GEVit-DL2-Project, "modern equivariant ViT" (patches) and "hybrid" (G-CNN).
Symbols:  a stem maps the image to features on the group at a fraction of its size; stages of group
          self-attention follow; then a linear map, the mean over the pixels and the maximum over
          the group.
Departs:  keep="poses" is ours: the features keep their group axis.  keep="mean" or "max" does as
          published: the group axis is pooled and the result is lifted again.  The mean over the
          group of a linear patch embedding is a linear map of the mean patch (18 of 108 numbers for
          6 × 6 patches of three channels under D4), and after either pooling no token has an
          orientation.  queries="own" costs |G|², as published "all" |G|³.
          The published G-CNN is not equivariant (wrong group table); its 64 pixels are pooled to 6,
          ours halve them with each pool.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from turnwise.errors import require
from turnwise.geometry.layouts import regular_to_field
from turnwise.geometry.neighbourhoods import Neighbourhood
from turnwise.geometry.sizes import InexactSizeError, advise_sizes, nearest_sizes, output_size
from turnwise.layers.conv.stem import ConvStem, PatchLift, StemPlan
from turnwise.layers.gsa.attention import AttentionPlan, LiftingSelfAttention
from turnwise.layers.gsa.blocks import FieldNorm, pool_kernel
from turnwise.layers.gsa.encodings import AxisMLP
from turnwise.layers.gsa.published import EXACT_GE_VIT
from turnwise.layers.normalise import Normalise
from turnwise.models.gsa import (
    AttentionDesign,
    Layout,
    PooledLogits,
    initialise_linear,
    make_stages,
)
from turnwise.models.registry import Task, register
from turnwise.options import option

Field = Float[Tensor, "batch group row col channel"]
KEEP = ("poses", "mean", "max")
WHAT = "this network's stem, crops and pools"


@dataclass(frozen=True)
class StemmedDesign(AttentionDesign):
    """The options of group self-attention behind a stem."""

    queries: str = option(
        "own", "own: |G|²; all: every output sums over all queries (|G|³, as published)",
        choices=("all", "own"),
    )  # fmt: skip
    keep: str = option(
        "poses", "what the stem passes on: all group elements, or their mean or maximum",
        choices=KEEP,
    )  # fmt: skip
    width: int = option(20, "channels per group element", at_least=6, at_most=16384)
    blocks: tuple[int, ...] = option((2, 3), "blocks of each stage", at_least=1, at_most=256)
    crop: int = option(0, "pixels that the first block crops", at_least=0, at_most=1024)
    window: int = option(5, "side of the neighbourhood", at_least=0, at_most=16384)

    def validate(self) -> None:
        require(bool(self.blocks), "blocks must list one stage or more, of one block or more.")

    def layout(self) -> Layout:
        crops = [[0] * count for count in self.blocks]
        crops[0][0] = self.crop
        widths = tuple((self.width,) * count for count in self.blocks)
        return Layout(self.width, widths, tuple(map(tuple, crops)), norm_between=True)

    def attention(self, task: Task) -> AttentionPlan:
        return AttentionPlan(
            task.group, Neighbourhood(self.window), heads=self.heads, queries=self.queries,
            dropout=self.attention_dropout, convention=EXACT_GE_VIT, size=task.image_size,
            backend=self.backend,
        )  # fmt: skip


@dataclass(frozen=True)
class PatchDesign(StemmedDesign):
    """The options of the patch GE-ViT."""

    patch: int = option(2, "side of a patch in pixels", at_least=1, at_most=1024)
    embedding: int = option(64, "channels of the patch embedding", at_least=1, at_most=16384)
    crop: int = option(1, "pixels that the first block crops", at_least=0, at_most=1024)
    window: int = option(3, "side of the neighbourhood", at_least=0, at_most=16384)


@dataclass(frozen=True)
class HybridDesign(StemmedDesign):
    """The options of the hybrid GE-ViT."""

    kernels: tuple[int, ...] = option(
        (5, 5, 5, 5), "kernels of the stem's convolutions", at_least=1, at_most=255
    )
    pools: tuple[int, ...] = option(
        (0, 2, 0, 2), "pool after each convolution; 0 is none", at_least=0, at_most=255
    )
    stem_width: int = option(
        10, "channels per group element in the stem", at_least=1, at_most=16384
    )


class PoolPosesAndLift(nn.Module):
    """Pool the group axis by the mean or the maximum, and lift to the group again.

    F(h, p) -> pool_h F(h, p) -> norm -> lifting self-attention
    """

    def __init__(self, plan: AttentionPlan, in_width: int, width: int, by_maximum: bool) -> None:
        super().__init__()
        self.by_maximum = by_maximum
        self.norm = FieldNorm(in_width, plan.convention)
        self.lift = LiftingSelfAttention(
            plan.group, in_width, width, head_dim=width // 2, **plan.options
        )

    def forward(self, field: Field) -> Float[Tensor, "batch group row col width"]:
        pooled = field.max(dim=1).values if self.by_maximum else field.mean(dim=1)
        normed = self.norm(pooled[:, None]).squeeze(1)  # (batch, row, col, channel)
        return regular_to_field(self.lift(normed.permute(0, 3, 1, 2)))


class StemmedGroupAttention(PooledLogits):
    """A stem, stages of group self-attention, and an invariant pooling of the logits."""

    def __init__(
        self, task: Task, design: StemmedDesign, make_stem: Callable[[], Any], stem_width: int
    ) -> None:
        super().__init__()
        layout, plan = design.layout(), design.attention(task)
        self.group, self.layout = task.group, layout
        self.num_classes, self.num_features = task.num_classes, layout.width
        self.preprocess = Normalise(task.in_chans)
        self.stem = make_stem()
        self.enter: nn.Linear | PoolPosesAndLift = (
            nn.Linear(stem_width, layout.width)
            if design.keep == "poses"
            else PoolPosesAndLift(plan, stem_width, layout.width, design.keep == "max")
        )
        self.norm = FieldNorm(layout.width, plan.convention)
        self.stages = nn.ModuleList(make_stages(layout, plan, design.value_dropout))
        self.head = nn.Linear(layout.width, task.num_classes) if task.num_classes else nn.Identity()
        self.reset_parameters()
        if task.image_size not in (nearest := self.exact_size(task.image_size)):
            size, advice = task.image_size, advise_sizes(nearest)
            raise InexactSizeError(f"image_size = {size} cannot be exact in {WHAT}; {advice}.")

    def reset_parameters(self) -> None:
        """Initialise as GSA-Net and GE-ViT, with a small classifier."""
        initialise_linear(self)
        for module in self.modules():
            if isinstance(module, AxisMLP):
                nn.init.normal_(module.spread.bias)  # else offsets of one sign look alike
        if isinstance(self.head, nn.Linear):
            nn.init.normal_(self.head.weight, std=0.02)
        # without a bias, the norm that follows keeps only the sign of a grey level
        if isinstance(self.stem, PatchLift):
            nn.init.normal_(self.stem.lift.bias)  # type: ignore[arg-type]
        last = (
            self.enter if isinstance(self.enter, nn.Linear) else self.enter.lift.project.to_output
        )
        nn.init.normal_(last.bias)

    def exact_size(self, size: int) -> tuple[int, ...]:
        def exact(side: int) -> bool:
            tokens = output_size(side, self.stem.stages)
            return tokens is not None and self.layout.final_side(tokens, pool_kernel) is not None

        return nearest_sizes(size, exact)

    def forward_features(self, images: Float[Tensor, "batch in_chans rows cols"]) -> Field:
        """Return the features on the group, which rotate with the image."""
        self.require_images(images, WHAT)
        field = self.enter(regular_to_field(self.stem(images)))
        field = F.silu(self.norm(field))
        for stage in self.stages:
            field = stage(field)
        return field


@register("patch_ge_vit", PatchDesign, "Patch GE-ViT: equivariant patches, then group attention.")
def patch_ge_vit(task: Task, design: PatchDesign) -> StemmedGroupAttention:
    def stem() -> nn.Module:
        return PatchLift(task.group, task.in_chans, design.embedding, design.patch)

    return StemmedGroupAttention(task, design, stem, design.embedding)


@register("hybrid_ge_vit", HybridDesign, "Hybrid GE-ViT: a small G-CNN, then group attention.")
def hybrid_ge_vit(task: Task, design: HybridDesign) -> StemmedGroupAttention:
    def stem() -> nn.Module:
        count = len(design.kernels)
        widths = (design.stem_width,) * (count - 1)
        plan = StemPlan(widths, design.kernels, (1,) * count, design.pools, norm="batch")
        return ConvStem(task.group, task.in_chans, design.stem_width, plan)

    return StemmedGroupAttention(task, design, stem, design.stem_width)
