"""GSA-Net and GE-ViT: group self-attention throughout, in the published sizes.

Paper:    Romero & Cordonnier 2021, "Group Equivariant Stand-Alone Self-Attention for Vision";
          Xu et al. 2023, "E(2)-Equivariant Vision Transformer".
Symbols:  a network is a lifting layer, stages of blocks with pools between them, a linear map to
          the classes, the mean over the pixels, the maximum over the group.
Departs:  variant="exact" corrects the published programs (docs/gsa.md); variant="gsa-2021" and
          variant="gevit-2023" are those programs, to the digit.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from turnwise.errors import require, require_kind, require_known
from turnwise.geometry.neighbourhoods import Neighbourhood
from turnwise.geometry.sizes import Stage, nearest_sizes, output_size
from turnwise.layers.gsa.attention import AttentionPlan, AxisMLP, LiftingSelfAttention
from turnwise.layers.gsa.blocks import FieldNorm, FieldPool, GroupBlock, pool_kernel
from turnwise.layers.gsa.published import EXACT, EXACT_GE_VIT, GEVIT_2023, GSA_2021, Convention
from turnwise.layers.normalise import Normalise
from turnwise.models.registry import Task, register

Field = Float[Tensor, "batch group row col channel"]
Stages = Sequence[Any]  # of lists of whole numbers


@dataclass(frozen=True)
class Layout:
    """The sizes of a network: the width of each block's output and its crop, stage by stage."""

    width: int  # of the lifting layer
    widths: tuple[tuple[int, ...], ...]
    crops: tuple[tuple[int, ...], ...]
    pool_last: bool = False
    norm_between: bool = False
    input_dropout: float = 0.0
    pool_dropout: float = 0.0

    def __post_init__(self) -> None:
        counts = [len(stage) for stage in self.widths]
        require(
            bool(counts) and counts == [len(stage) for stage in self.crops],
            f"widths = {self.widths} and crops = {self.crops} must list as many stages, and in "
            "each stage as many blocks; such as [[20, 20], [20]] and [[2, 0], [1]].",
        )

    @property
    def pooled(self) -> list[bool]:
        """Which stages end with a pool: all, and the last one if it is said."""
        return [True] * (len(self.widths) - 1) + [self.pool_last]

    def final_side(self, size: int, kernel_of: Callable[[int], int]) -> int | None:
        """The side in the end; None if it runs empty or some step samples it off-centre."""
        for crops, pooled in zip(self.crops, self.pooled, strict=True):
            cut = output_size(size, [Stage(2 * crop + 1, 1) for crop in crops])
            if cut is not None and pooled:
                cut = output_size(cut, [Stage(kernel_of(cut), 2)])
            if cut is None:
                return None
            size = cut
        return size


LAYOUTS = {
    "rotmnist": Layout(20, ((20, 20), (20, 20, 20)), ((2, 0), (2, 1, 1))),
    "cifar10": Layout(
        96,
        ((96, 96), (192, 192), (192, 192)),
        ((0, 0), (0, 0), (0, 0)),
        norm_between=True,
        input_dropout=0.2,
        pool_dropout=0.3,
    ),
    "pcam": Layout(
        12,
        ((), (24,), (48, 48), (96,)),
        ((), (0,), (2, 1), (1,)),
        pool_last=True,
        norm_between=True,
    ),
}

VARIANTS = {"exact": EXACT, "gsa-2021": GSA_2021, "gevit-2023": GEVIT_2023}


class GroupAttentionNetwork(nn.Module):
    """Lifting, stages of group self-attention, and an invariant read-out."""

    def __init__(self, task: Task, layout: Layout, plan: AttentionPlan, dropout: float) -> None:
        super().__init__()
        self.group, self.layout, self.convention = task.group, layout, plan.convention
        self.preprocess = Normalise(task.in_chans)
        self.input_dropout = nn.Dropout(layout.input_dropout)
        self.lift = LiftingSelfAttention(plan, task.in_chans, layout.width, layout.width // 2)
        self.norm = FieldNorm(layout.width, plan.convention)
        self.stages = nn.ModuleList(_stages(layout, plan, dropout))
        self.head = nn.Linear(_last_width(layout), task.num_classes, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Spread √(2 / inputs) as published; a small head: the first loss is that of a guess."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=math.sqrt(2 / module.in_features))
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        for module in self.modules():
            if isinstance(module, AxisMLP) and self.convention.random_biases:
                nn.init.normal_(module.spread.bias)
        if self.convention.random_biases:  # else the norm leaves of a grey level only its sign
            nn.init.normal_(self.lift.project.to_output.bias)
        if not self.convention.sums:
            nn.init.normal_(self.head.weight, std=0.02)

    def exact_size(self, size: int) -> tuple[int, ...]:
        """`size` if the network samples it symmetrically, else the nearest sizes that it does."""
        kernel_of = (lambda side: 2) if self.convention.even_pools else pool_kernel
        return nearest_sizes(size, lambda n: self.layout.final_side(n, kernel_of) is not None)

    def forward_features(self, images: Float[Tensor, "batch in_chans rows cols"]) -> Field:
        """A field on the group that turns with the picture."""
        self.preprocess.require_channels(images)
        field = self.lift(self.input_dropout(images).permute(0, 2, 3, 1))
        field = F.silu(self.norm(field))
        for stage in self.stages:
            field = stage(field)
        return field

    def forward_head(self, field: Field) -> Float[Tensor, "batch num_classes"]:
        """A score for each pose and pixel; over the pixels the mean, over the poses the maximum."""
        scores = self.head(field).flatten(2, 3)  # (batch, group, pixel, class)
        over_pixels = scores.sum(dim=2) if self.convention.sums else scores.mean(dim=2)
        # not amax: its gradient compares with the maximum, which a compiled graph may compute again
        # in another precision, and 0 / 0 is not a number
        return over_pixels.max(dim=1).values

    def forward(
        self, images: Float[Tensor, "batch channel row col"]
    ) -> Float[Tensor, "batch num_classes"]:
        return self.forward_head(self.forward_features(images))


def _stages(layout: Layout, plan: AttentionPlan, dropout: float) -> Iterator[nn.Module]:
    """Blocks, and after each stage a pool."""
    width = layout.width
    for widths, crops, pooled in zip(layout.widths, layout.crops, layout.pooled, strict=True):
        parts: list[nn.Module] = []
        for out_width, crop in zip(widths, crops, strict=True):
            parts.append(GroupBlock(plan, width, out_width, crop, dropout))
            if layout.norm_between:
                parts += [FieldNorm(out_width, plan.convention), nn.SiLU()]
            width = out_width
        if pooled:
            parts += [FieldPool(plan.convention), nn.Dropout(layout.pool_dropout)]
        yield nn.Sequential(*parts)


def _last_width(layout: Layout) -> int:
    return [layout.width, *(width for stage in layout.widths for width in stage)][-1]


def _chosen_layout(task: Task, data: str, width: int, widths: Stages, crops: Stages) -> Layout:
    """The published layout for `data`, or the sizes given instead of it."""
    require_known(data, LAYOUTS, "data")
    layout = LAYOUTS[data]
    if widths:
        nested = _nested(widths)
        given = _nested(crops) if crops else tuple((0,) * len(stage) for stage in nested)
        layout = replace(layout, widths=nested, crops=given)
    else:
        require(not crops, "crops go with widths: give both, or neither.")
    layout = replace(layout, width=width or layout.width)
    smallest = nearest_sizes(1, lambda n: layout.final_side(n, pool_kernel) is not None)[-1]
    require(
        task.image_size >= smallest,
        f"image_size = {task.image_size} is too small for this network's crops and pools; "
        f"it must be at least {smallest}.",
    )
    return layout


def _nested(stages: Stages) -> tuple[tuple[int, ...], ...]:
    for stage in stages:
        require_kind(stage, tuple, "a stage of widths or crops")
        for count in stage:
            require_kind(count, int, "a width or crop")
            require(count >= 0, f"a width or crop cannot be {count}.")
    return tuple(tuple(stage) for stage in stages)


def _family(exact: Convention, description: str) -> Callable[..., GroupAttentionNetwork]:
    """One of the two published families: they differ in how poses are related."""

    def build(  # noqa: PLR0913 - what a user may choose
        task: Task,
        *,
        data: str = "rotmnist",
        window: int = 5,
        shape: str = "square",
        encoding: str = "mlp",
        queries: str = "all",
        variant: str = "exact",
        heads: int = 9,
        width: int = 0,
        widths: Stages = (),
        crops: Stages = (),
        attention_dropout: float = 0.1,
        value_dropout: float = 0.1,
        backend: str = "auto",
    ) -> GroupAttentionNetwork:
        require_known(variant, VARIANTS, "variant")
        require(
            0 <= value_dropout < 1, f"value_dropout = {value_dropout} must be from 0 to below 1."
        )
        layout = _chosen_layout(task, data, width, widths, crops)
        plan = AttentionPlan(
            task.group,
            Neighbourhood(0 if window >= task.image_size else window, shape),
            heads=heads,
            encoding=encoding,
            queries=queries,
            dropout=attention_dropout,
            convention=exact if variant == "exact" else VARIANTS[variant],
            size=task.image_size,
            backend=backend,
        )
        return GroupAttentionNetwork(task, layout, plan, value_dropout)

    build.__doc__ = description
    return build


register("gsa_net")(_family(EXACT, "GSA-Net: group self-attention, key poses seen from outputs."))
register("ge_vit")(_family(EXACT_GE_VIT, "GE-ViT: group self-attention, poses related by queries."))
