"""GSA-Net and GE-ViT: group self-attention throughout, in the published sizes.

Paper:    Romero & Cordonnier 2021, "Group Equivariant Stand-Alone Self-Attention for Vision";
          Xu et al. 2023, "E(2)-Equivariant Vision Transformer".
Symbols:  a network is a lifting layer, stages of blocks with pools between them, a linear map to
          the classes, the mean over the pixels, the maximum over the group.
Departs:  variant="exact" corrects the published programs (docs/papers/gsa.md); "gsa-2021" and
          "gevit-2023" are those programs, digit for digit.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from jaxtyping import Float
from torch import Tensor, nn

from turnwise.attention.group import BACKENDS, QUERIES
from turnwise.errors import require
from turnwise.geometry.layouts import regular_to_field
from turnwise.geometry.neighbourhoods import SHAPES, Neighbourhood
from turnwise.geometry.sizes import Stage, nearest_sizes, output_size
from turnwise.groups import PlanarGroup
from turnwise.layers.gsa.attention import AttentionPlan, LiftingSelfAttention
from turnwise.layers.gsa.blocks import (
    ACTIVATIONS,
    NORMS,
    BlockStyle,
    FieldPool,
    GSABlock,
    pool_kernel,
)
from turnwise.layers.gsa.encodings import ENCODINGS, AxisMLP
from turnwise.layers.gsa.published import EXACT, EXACT_GE_VIT, GEVIT_2023, GSA_2021, Convention
from turnwise.layers.normalise import Normalise
from turnwise.models.contract import ImageModel, small_linear
from turnwise.models.registry import Task, register
from turnwise.options import Options, option

Field = Float[Tensor, "batch group row col channel"]


@dataclass(frozen=True)
class Layout:
    """The sizes of a network: the output width and the crop of each block, stage by stage."""

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
        """Which stages end with a pool: all but the last, and the last if `pool_last`."""
        return [True] * (len(self.widths) - 1) + [self.pool_last]

    @property
    def last_width(self) -> int:
        return [self.width, *(width for stage in self.widths for width in stage)][-1]

    def final_side(self, size: int, kernel_of: Callable[[int], int]) -> int | None:
        """Return the final side; None if it runs empty or some step samples it off-centre."""
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


@dataclass(frozen=True)
class AttentionDesign(Options):
    """The options of group self-attention that several families share."""

    heads: int = option(9, "attention heads", at_least=1, at_most=1024)
    queries: str = option(
        "auto", "all: every output sums over all queries (|G|³, as published); own: |G|²; auto: "
        "own, but all in published programs", choices=("auto", *QUERIES), absent="all",
    )  # fmt: skip
    attention_dropout: float = option(
        0.1, "dropout rate of attention weights", at_least=0, below=1, changes_output=False
    )
    value_dropout: float = option(
        0.1, "dropout rate of block outputs", at_least=0, below=1, changes_output=False
    )
    backend: str = option(
        "auto", "implementation of attention", choices=BACKENDS, changes_output=False
    )


@dataclass(frozen=True)
class GSADesign(AttentionDesign):
    """The options of GSA-Net and GE-ViT."""

    data: str = option("rotmnist", "the published layout to use", choices=LAYOUTS)
    window: int = option(
        5, "side of the neighbourhood; the image size or more attends globally",
        at_least=0, at_most=16384,
    )  # fmt: skip
    shape: str = option("square", "shape of the neighbourhood", choices=SHAPES)
    encoding: str = option("mlp", "positional encoding", choices=ENCODINGS)
    variant: str = option("exact", "exact, or a published program", choices=VARIANTS)
    norm: str = option("layer", "norm of the features", choices=NORMS)
    activation: str = option("silu", "activation, silu as published", choices=ACTIVATIONS)
    transposed: bool = option(
        False, "transpose images first: the published programs read rotated MNIST so"
    )
    width: int = option(
        0, "channels of the lifting layer; 0 as published", at_least=0, at_most=16384
    )
    widths: tuple[tuple[int, ...], ...] = option(
        (), "channels of each block, stage by stage; empty as published", at_least=0, at_most=16384
    )
    crops: tuple[tuple[int, ...], ...] = option(
        (), "pixels that each block crops at the border", at_least=0, at_most=1024
    )

    @property
    def chosen_queries(self) -> str:
        """The queries that an output uses: those given, or what "auto" stands for."""
        if self.queries != "auto":
            return self.queries
        return "own" if self.variant == "exact" else "all"

    def layout(self, image_size: int) -> Layout:
        """Return the published layout for `data`, or the sizes given instead of it."""
        layout = LAYOUTS[self.data]
        require(bool(self.widths) or not self.crops, "crops need widths: give both, or neither.")
        if self.widths:
            crops = self.crops or tuple((0,) * len(stage) for stage in self.widths)
            layout = replace(layout, widths=self.widths, crops=crops)
        layout = replace(layout, width=self.width or layout.width)
        smallest = nearest_sizes(1, lambda n: layout.final_side(n, pool_kernel) is not None)[-1]
        require(
            image_size >= smallest,
            f"image_size = {image_size} is too small for this network's crops and pools; "
            f"it must be at least {smallest}.",
        )
        return layout


class PooledLogits(ImageModel):
    """Base of networks that classify every group element and pixel, and pool the logits."""

    sums_pixels = False  # as published; else the mean over the pixels

    def pool(self, features: Field) -> Float[Tensor, "batch channel"]:
        """Return the mean (or sum, as published) over the pixels, then the maximum over G."""
        pixels = features.flatten(2, 3)
        over_pixels = pixels.sum(dim=2) if self.sums_pixels else pixels.mean(dim=2)
        # not amax: its gradient compares with the maximum, which a compiled graph may recompute in
        # another precision, and 0 / 0 is not a number
        return over_pixels.max(dim=1).values

    def forward_head(
        self, features: Field, pre_logits: bool = False
    ) -> Float[Tensor, "batch num_classes"]:
        """Return the pooled logits of all group elements and pixels."""
        return self.pool(features if pre_logits else self.head(features))


class GroupAttentionNetwork(PooledLogits):
    """Lifting, stages of group self-attention, and an invariant pooling of the logits."""

    def __init__(self, task: Task, design: GSADesign, exact: Convention) -> None:
        super().__init__()
        layout = design.layout(task.image_size)
        convention = exact if design.variant == "exact" else VARIANTS[design.variant]
        window = 0 if design.window >= task.image_size else design.window
        plan = AttentionPlan(
            task.group,
            Neighbourhood(window, design.shape),
            heads=design.heads,
            encoding=design.encoding,
            queries=design.chosen_queries,
            dropout=design.attention_dropout,
            convention=convention,
            size=task.image_size,
            backend=design.backend,
        )
        self.group, self.layout, self.convention = task.group, layout, convention
        self.sums_pixels = convention.sums
        self.num_classes, self.num_features = task.num_classes, layout.last_width
        require_transposable(task.group, design.transposed)
        style = BlockStyle(design.norm, design.activation)
        self.preprocess = Normalise(task.in_chans, design.transposed)
        self.input_dropout = nn.Dropout(layout.input_dropout)
        self.lift = LiftingSelfAttention(
            plan.group, task.in_chans, layout.width, head_dim=layout.width // 2, **plan.options
        )
        self.norm, self.activation = (
            style.make_norm(layout.width, convention),
            style.make_activation(),
        )
        self.stages = nn.ModuleList(make_stages(layout, plan, design.value_dropout, style))
        self.head = nn.Identity()
        if task.num_classes:
            self.head = nn.Linear(self.num_features, task.num_classes, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise linear layers as published, except for a small classifier."""
        initialise_linear(self)
        for module in self.modules():
            if isinstance(module, AxisMLP) and self.convention.random_biases:
                nn.init.normal_(module.spread.bias)
        if self.convention.random_biases:  # else the norm keeps only the sign of a grey level
            nn.init.normal_(self.lift.project.to_output.bias)
        if not self.convention.sums and isinstance(self.head, nn.Linear):
            nn.init.normal_(self.head.weight, std=0.02)

    def make_head(self, num_classes: int) -> nn.Module:
        return small_linear(self.num_features, num_classes, bias=False)

    def exact_size(self, size: int) -> tuple[int, ...]:
        kernel_of = (lambda side: 2) if self.convention.even_pools else pool_kernel
        return nearest_sizes(size, lambda n: self.layout.final_side(n, kernel_of) is not None)

    def forward_features(self, images: Float[Tensor, "batch in_chans rows cols"]) -> Field:
        """Return the features on the group, which rotate with the image."""
        self.preprocess.require_channels(images)
        field = regular_to_field(self.lift(self.input_dropout(images)))
        field = self.activation(self.norm(field))
        for stage in self.stages:
            field = stage(field)
        return field


def require_transposable(group: PlanarGroup, transposed: bool) -> None:
    """Raise if transposed images would have another symmetry: D1 flips columns, not rows."""
    require(
        not transposed or group.rotations % 2 == 0 or not group.reflections,
        f"transposed images flip along another axis than those of {group}; use C1, or D2 or D4.",
    )


def initialise_linear(model: nn.Module) -> None:
    """Initialise linear layers with std √(2 / inputs) as published, and their biases with 0."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=math.sqrt(2 / module.in_features))
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def make_stages(
    layout: Layout,
    plan: AttentionPlan,
    dropout: float,
    style: BlockStyle = BlockStyle(),  # noqa: B008 - it is frozen
) -> Iterator[nn.Module]:
    """Yield the stages: blocks, each with a norm after it where the layout says so, and a pool."""
    width = layout.width
    for widths, crops, pooled in zip(layout.widths, layout.crops, layout.pooled, strict=True):
        parts: list[nn.Module] = []
        for out_width, crop in zip(widths, crops, strict=True):
            parts.append(GSABlock(plan, width, out_width, crop, dropout, style))
            if layout.norm_between:
                parts += [style.make_norm(out_width, plan.convention), style.make_activation()]
            width = out_width
        if pooled:
            parts += [FieldPool(plan.convention), nn.Dropout(layout.pool_dropout)]
        yield nn.Sequential(*parts)


@register("gsa_net", GSADesign, "GSA-Net: group self-attention, keys seen from the output's frame.")
def gsa_net(task: Task, design: GSADesign) -> GroupAttentionNetwork:
    return GroupAttentionNetwork(task, design, EXACT)


@register("ge_vit", GSADesign, "GE-ViT: group self-attention, keys related through the queries.")
def ge_vit(task: Task, design: GSADesign) -> GroupAttentionNetwork:
    return GroupAttentionNetwork(task, design, EXACT_GE_VIT)
