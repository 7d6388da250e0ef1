"""GE-ViT on fewer tokens: patches, or a small convolutional network, before group self-attention.

Paper:    WouterBant/GEVit-DL2-Project, "modern equivariant ViT" (patches) and "hybrid" (G-CNN).
Symbols:  a stem turns the picture into a field on the group at a fraction of its size; stages of
          group self-attention mix it; a linear map, the mean over the pixels, the maximum over the
          poses.
Departs:  keep="poses", ours: the field goes on as it is.  keep="mean" or "max" does as published:
          the poses are pooled into a picture, which is lifted again.  The mean of linear maps over
          the poses is a linear map of the mean patch (18 of 108 numbers, for 6 × 6 patches of three
          channels under D4), and after either pool no token knows how it was turned.
          queries="own" costs |G|², as published "all" |G|³.
          The published G-CNN is not equivariant (wrong group table); its 64 pixels are pooled to 6,
          ours halve them with each pool.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from turnwise.errors import require, require_kind, require_known
from turnwise.geometry.neighbourhoods import Neighbourhood
from turnwise.geometry.sizes import nearest_sizes, output_size
from turnwise.layers.conv.conv import ConvStem, PatchLift, StemPlan, maps_to_field
from turnwise.layers.gsa.attention import AttentionPlan, AxisMLP, LiftingSelfAttention
from turnwise.layers.gsa.blocks import FieldNorm, FieldPool, GroupBlock, pool_kernel
from turnwise.layers.gsa.published import EXACT_GE_VIT
from turnwise.layers.normalise import Normalise
from turnwise.models.gsa import Layout
from turnwise.models.registry import Task, register

Field = Float[Tensor, "batch group row col channel"]
Counts = Sequence[Any]  # of whole numbers
KEEP = ("poses", "mean", "max")


class PoolPosesAndLift(nn.Module):
    """From a field to a picture, by the mean or the maximum over the poses, and to a field again.

    F(h, p) -> pool_h F(h, p) -> norm -> lifting self-attention
    """

    def __init__(self, plan: AttentionPlan, in_width: int, width: int, by_maximum: bool) -> None:
        super().__init__()
        self.by_maximum = by_maximum
        self.norm = FieldNorm(in_width, plan.convention)
        self.lift = LiftingSelfAttention(plan, in_width, width, width // 2)

    def forward(self, field: Field) -> Float[Tensor, "batch group row col width"]:
        pooled = field.max(dim=1).values if self.by_maximum else field.mean(dim=1)
        return self.lift(self.norm(pooled[:, None]).squeeze(1))


Entry = nn.Linear | PoolPosesAndLift


class StemmedGroupAttention(nn.Module):
    """A stem, stages of group self-attention on its field, and an invariant read-out."""

    def __init__(
        self,
        task: Task,
        stem: nn.Module,
        enter: Entry,
        layout: Layout,
        plan: AttentionPlan,
        dropout: float,
    ) -> None:
        super().__init__()
        self.group, self.layout = task.group, layout
        self.preprocess = Normalise(task.in_chans)
        self.stem, self.enter = stem, enter
        self.norm = FieldNorm(layout.width, plan.convention)
        self.stages = nn.ModuleList(_stages(layout, plan, dropout))
        self.head = nn.Linear(layout.width, task.num_classes)
        self.reset_parameters()
        self._require_exact(task.image_size)

    def reset_parameters(self) -> None:
        """As GSA-Net and GE-ViT; a small head: the first loss is that of a guess."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=math.sqrt(2 / module.in_features))
                nn.init.zeros_(module.bias)
        for module in self.modules():
            if isinstance(module, AxisMLP):
                nn.init.normal_(module.spread.bias)  # else offsets of one sign look alike
        nn.init.normal_(self.head.weight, std=0.02)
        # without a bias, the norm that follows leaves of a grey level only its sign
        if isinstance(self.stem, PatchLift):
            nn.init.normal_(self.stem.lift.bias)  # type: ignore[arg-type]
        last = (
            self.enter if isinstance(self.enter, nn.Linear) else self.enter.lift.project.to_output
        )
        nn.init.normal_(last.bias)

    def exact_size(self, size: int) -> tuple[int, ...]:
        """`size` if the network samples it symmetrically, else the nearest sizes that it does."""

        def exact(side: int) -> bool:
            tokens = output_size(side, self.stem.stages)  # type: ignore[arg-type]
            return tokens is not None and self.layout.final_side(tokens, pool_kernel) is not None

        return nearest_sizes(size, exact)

    def forward_features(self, images: Float[Tensor, "batch in_chans rows cols"]) -> Field:
        """A field on the group that turns with the picture."""
        self.preprocess.require_channels(images)
        for side in images.shape[2:]:
            self._require_exact(side)
        field = self.enter(maps_to_field(self.stem(images), self.group.order))
        field = F.silu(self.norm(field))
        for stage in self.stages:
            field = stage(field)
        return field

    def forward_head(self, field: Field) -> Float[Tensor, "batch num_classes"]:
        """A score for each pose and pixel; over the pixels the mean, over the poses the maximum."""
        scores = self.head(field).mean(dim=(2, 3))
        # not amax: its gradient compares with the maximum, which a compiled graph may compute again
        # in another precision, and 0 / 0 is not a number
        return scores.max(dim=1).values

    def forward(
        self, images: Float[Tensor, "batch channel row col"]
    ) -> Float[Tensor, "batch num_classes"]:
        return self.forward_head(self.forward_features(images))

    def _require_exact(self, side: int) -> None:
        nearest = self.exact_size(side)
        require(
            side in nearest,
            f"image_size = {side} cannot be exact in this network's stem, crops and pools; "
            f"try {' or '.join(map(str, nearest))}.",
        )


def _stages(layout: Layout, plan: AttentionPlan, dropout: float) -> Iterator[nn.Module]:
    """Blocks with a norm after each, and a pool after each stage that has one."""
    for widths, crops, pooled in zip(layout.widths, layout.crops, layout.pooled, strict=True):
        parts: list[nn.Module] = []
        for width, crop in zip(widths, crops, strict=True):
            parts += [
                GroupBlock(plan, layout.width, width, crop, dropout),
                FieldNorm(width, plan.convention),
                nn.SiLU(),
            ]
        yield nn.Sequential(*parts, FieldPool(plan.convention)) if pooled else nn.Sequential(*parts)


def _attention(task: Task, window: int, **chosen: Any) -> AttentionPlan:
    return AttentionPlan(
        task.group,
        Neighbourhood(window),
        convention=EXACT_GE_VIT,
        size=task.image_size,
        **chosen,
    )


def _enter(
    keep: str, plan: AttentionPlan, in_width: int, width: int
) -> nn.Linear | PoolPosesAndLift:
    """From the stem's field to the first stage's."""
    require_known(keep, KEEP, "way to keep the poses")
    if keep == "poses":
        return nn.Linear(in_width, width)
    return PoolPosesAndLift(plan, in_width, width, by_maximum=keep == "max")


def _layout(width: int, blocks: Counts, crop: int, pool_last: bool) -> Layout:
    """Stages of so many blocks, of which the first crops."""
    for count in blocks:
        require_kind(count, int, "a number of blocks")
    require(
        bool(blocks) and min(blocks) > 0,
        f"blocks = {tuple(blocks)} must list one stage or more, of one block or more.",
    )
    require(width >= 6, f"width = {width} must be at least 6: half of it is split over encodings.")
    require(crop >= 0, f"crop = {crop} must be a number of pixels.")
    crops = [[0] * count for count in blocks]
    crops[0][0] = crop
    widths = tuple((width,) * count for count in blocks)
    return Layout(width, widths, tuple(map(tuple, crops)), pool_last=pool_last)


@register("patch_ge_vit")
def patch_ge_vit(  # noqa: PLR0913 - what a user may choose
    task: Task,
    *,
    patch: int = 2,
    embedding: int = 64,
    keep: str = "poses",
    width: int = 20,
    blocks: Counts = (2, 3),
    crop: int = 1,
    window: int = 3,
    heads: int = 9,
    queries: str = "own",
    attention_dropout: float = 0.1,
    value_dropout: float = 0.1,
    backend: str = "auto",
) -> StemmedGroupAttention:
    """Patch GE-ViT: equivariant patch embedding, then group self-attention on the patches."""
    _require_rate("value_dropout", value_dropout)
    layout = _layout(width, blocks, crop, pool_last=False)
    plan = _attention(
        task, window, heads=heads, queries=queries, dropout=attention_dropout, backend=backend
    )
    stem = PatchLift(task.group, task.in_chans, embedding, patch)
    enter = _enter(keep, plan, embedding, width)
    return StemmedGroupAttention(task, stem, enter, layout, plan, value_dropout)


@register("hybrid_ge_vit")
def hybrid_ge_vit(  # noqa: PLR0913 - what a user may choose
    task: Task,
    *,
    kernels: Counts = (5, 5, 5, 5),
    pools: Counts = (0, 2, 0, 2),
    stem_width: int = 10,
    keep: str = "poses",
    width: int = 20,
    blocks: Counts = (2, 3),
    crop: int = 0,
    window: int = 5,
    heads: int = 9,
    queries: str = "own",
    attention_dropout: float = 0.1,
    value_dropout: float = 0.1,
    backend: str = "auto",
) -> StemmedGroupAttention:
    """Hybrid GE-ViT: a small G-CNN, then group self-attention at low resolution."""
    _require_rate("value_dropout", value_dropout)
    layout = _layout(width, blocks, crop, pool_last=False)
    plan = _attention(
        task, window, heads=heads, queries=queries, dropout=attention_dropout, backend=backend
    )
    for value in (*kernels, *pools):
        require_kind(value, int, "a kernel or pool")
    count = len(kernels)
    design = StemPlan(
        (stem_width,) * (count - 1), tuple(kernels), (1,) * count, tuple(pools), norm="batch"
    )
    stem = ConvStem(task.group, task.in_chans, stem_width, design)
    enter = _enter(keep, plan, stem_width, width)
    return StemmedGroupAttention(task, stem, enter, layout, plan, value_dropout)


def _require_rate(what: str, rate: float) -> None:
    require(0 <= rate < 1, f"{what} = {rate} must be from 0 to below 1.")
