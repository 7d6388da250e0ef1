"""Performers on pixels: absolute, without positions, relative, and clipped relative.

Every pixel is a token, beside one class token, and the cost of attention is linear in the tokens.
There are two variants.  "tep-2021" is the published program, whose attention is relative only in
expectation.  In "exact" the attention of the relative models depends on offsets alone, and circular
shifts of the image do not change the logits (relative: with frequencies="torus").  None of them is
exact under rotations; `group_performer` is.

Paper:    Horn et al. 2021, "Translational Equivariance in Kernelizable Attention".
Symbols:  width, depth, heads are their dim, depth, heads; `kernel` "softmax" their no_projection.
Departs:  images are normalised to mean 0 and standard deviation 1, and may have any side; the
          class token is the first token in all models, which changes nothing.  content_rel_attn,
          which the published program takes and ignores, is left out.  "exact": see
          `attention.favor` (stabiliser), `layers.performer.positions` (waves) and
          `layers.performer.clipped`; redraws come on time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from turnwise.attention.linear import KERNELS
from turnwise.errors import require, require_divisible
from turnwise.geometry.sizes import exact_sizes
from turnwise.layers.normalise import Normalise
from turnwise.layers.performer.block import (
    VARIANTS,
    ContentAttention,
    PerformerBlock,
    Redraw,
    make_kernel,
)
from turnwise.layers.performer.clipped import ClippedAttention
from turnwise.layers.performer.positions import LearnedSinusoids, PositionedAttention, WaveAttention
from turnwise.layers.tables import remakes_tables
from turnwise.models.contract import ImageModel, chosen_indices
from turnwise.models.registry import Task, register
from turnwise.options import Options, option

Images = Float[Tensor, "batch channel row col"]
Tokens = Float[Tensor, "batch token width"]
EMBEDDINGS = ("linear", "MLP", "lookup")
LEVELS = 256  # of a pixel, for the embedding by lookup


@dataclass(frozen=True)
class PerformerDesign(Options):
    """The options of the pixel Performers; the defaults are the published ones."""

    variant: str = option("exact", "exact, or tep-2021, the published program", choices=VARIANTS)
    width: int = option(128, "channels of a token", at_least=1, at_most=16384)
    depth: int = option(4, "number of blocks", at_least=1, at_most=256)
    heads: int = option(4, "attention heads", at_least=1, at_most=1024)
    embedding: str = option("linear", "embedding of the pixels", choices=EMBEDDINGS)
    kernel: str = option(
        "auto", "feature map: favor (random features), elu, relu, softplus, exp, or softmax, which "
        "is quadratic; auto is elu where positions are exact, else favor",
        choices=("auto", "favor", *KERNELS, "softmax"),
    )  # fmt: skip
    attention_dropout: float = option(
        0.1, "dropout rate of attention outputs", at_least=0, below=1, changes_output=False
    )
    ff_dropout: float = option(
        0.1, "dropout rate of MLPs", at_least=0, below=1, changes_output=False
    )
    redraw_interval: int = option(
        1000, "training steps between two draws of the random features; 0 is never",
        at_least=0, changes_output=False,
    )  # fmt: skip

    def validate(self) -> None:
        require_divisible(self.width, self.heads, "width", f"it is split over {self.heads} heads")

    @property
    def published(self) -> bool:
        return self.variant == "tep-2021"


@dataclass(frozen=True)
class RelativeDesign(PerformerDesign):
    """The options of the relative Performer."""

    pos_scales: int = option(
        4, "frequencies per axis of the published variant", at_least=1, at_most=1024
    )
    frequencies: str = option(
        "torus", "of the exact variant: torus (whole periods, for circular shifts) or free",
        choices=("torus", "free"),
    )  # fmt: skip


@dataclass(frozen=True)
class ClippedDesign(PerformerDesign):
    """The options of the clipped relative Performer."""

    clipping_distance: int = option(
        8, "offsets beyond this distance share one vector", at_least=0, at_most=1024
    )


class PixelEmbedding(nn.Module):
    """One vector per pixel: a linear map, an MLP, or a table lookup channel by channel.

    The lookup recovers the grey levels 0 to 255 from the normalised image; level l of channel c
    reads row 256 c + l of the table.
    """

    def __init__(self, kind: str, in_chans: int, width: int) -> None:
        super().__init__()
        self.kind, self.in_chans = kind, in_chans
        if kind == "lookup":
            require_divisible(width, in_chans, "width", f"it is split over {in_chans} channels")
            self.table = nn.Embedding(LEVELS * in_chans, width // in_chans)
        elif kind == "MLP":
            self.map = nn.Sequential(
                nn.Linear(in_chans, 4 * width), nn.ReLU(), nn.Linear(4 * width, width)
            )
        else:
            self.map = nn.Sequential(nn.Linear(in_chans, width))

    def forward(self, images: Images, preprocess: Normalise) -> Tokens:
        pixels = images.flatten(2).mT  # (batch, pixel, channel)
        if self.kind != "lookup":
            return self.map(pixels)
        unit = pixels * preprocess.spread + preprocess.mean
        level = (unit * (LEVELS - 1)).round().clamp(0, LEVELS - 1).long()
        first = LEVELS * torch.arange(self.in_chans, device=images.device)
        return self.table(level + first).flatten(2)


@remakes_tables
class PixelPerformer(ImageModel):
    """Embedding, class token, blocks, a linear classifier of the class token.

    attention: makes the attention layer of a block.
    absolute: an encoding of the positions that is added to the pixels.
    shared: an encoding of the positions that all blocks take; without it they take the positions.
    """

    positions: Tensor

    def __init__(
        self,
        task: Task,
        design: PerformerDesign,
        attention: Callable[[], nn.Module],
        *,
        absolute: LearnedSinusoids | None = None,
        shared: LearnedSinusoids | None = None,
    ) -> None:
        super().__init__()
        self.num_classes, self.num_features = task.num_classes, design.width
        self.design, self.image_size = design, task.image_size
        self.preprocess = Normalise(task.in_chans)
        self.embedding = PixelEmbedding(design.embedding, task.in_chans, design.width)
        self.absolute, self.shared = absolute, shared
        self.class_token = nn.Parameter(torch.randn(design.width))
        self.redraw = Redraw(design.redraw_interval, design.variant)
        self.blocks = nn.ModuleList(
            PerformerBlock(
                design.width,
                attention(),
                attention_dropout=design.attention_dropout,
                ff_dropout=design.ff_dropout,
                variant=design.variant,
            )
            for _ in range(design.depth)
        )
        self.head = self.make_head(task.num_classes)
        self._register_tables()
        self.redraw.before(self)

    def _register_tables(self) -> None:
        side = torch.arange(self.image_size, dtype=torch.float32, device=self.class_token.device)
        self.register_buffer("positions", torch.cartesian_prod(side, side), persistent=False)

    def exact_size(self, size: int) -> tuple[int, ...]:
        """Return `size`: every size is exact, because a token is a pixel."""
        return exact_sizes(size, ())

    def forward_features(self, images: Images) -> Tokens:
        """Return the class token, then the pixels, row by row."""
        tokens, context = self._embed(images)
        for block in self.blocks:
            tokens = block(tokens, context)
        return tokens

    def _embed(self, images: Images) -> tuple[Tokens, Tensor]:
        """Return the tokens for the first block, and the context that all blocks take."""
        self.require_shape(images, self.image_size)
        pixels = self.embedding(images, self.preprocess)
        if self.absolute is not None:
            pixels = pixels + self.absolute(self.positions).flatten(1)
        first = self.class_token.expand(images.shape[0], 1, -1)
        context = self.positions
        if self.shared is not None:
            encoding = self.shared(self.positions)
            context = torch.cat([torch.zeros_like(encoding[:1]), encoding])
        return torch.cat([first, pixels], dim=1), context

    def forward_intermediates(
        self, images: Images, indices: int | Sequence[int] | None = None
    ) -> tuple[Tensor, list[Tensor]]:
        """Return the final tokens, and the output of each block as maps without the class token."""
        tokens, context = self._embed(images)
        maps = list[Tensor]()
        for block in self.blocks:
            tokens = block(tokens, context)
            maps.append(tokens[:, 1:].mT.unflatten(2, images.shape[2:]))
        return tokens, [maps[i] for i in chosen_indices(indices, len(maps))]

    def make_head(self, num_classes: int) -> nn.Module:
        return nn.Linear(self.num_features, num_classes) if num_classes else nn.Identity()

    def pool(self, features: Tokens) -> Float[Tensor, "batch width"]:
        """Return the class token."""
        return features[:, 0]

    def forward(self, images: Images) -> Float[Tensor, "batch num_classes"]:
        """Return the logits; the last block computes the class token alone, if not as published."""
        tokens, context = self._embed(images)
        for number, block in enumerate(self.blocks, start=1):
            last = number == len(self.blocks) and not self.design.published
            tokens = block(tokens, context, last)
        return self.forward_head(tokens)


def _content(design: PerformerDesign) -> Callable[[], nn.Module]:
    name = "favor" if design.kernel == "auto" else design.kernel
    dim = design.width // design.heads

    def attention() -> nn.Module:
        kernel = None if name == "softmax" else make_kernel(name, dim, design.variant)
        return ContentAttention(design.width, design.heads, kernel)

    return attention


@register("performer", PerformerDesign, "Performer with learned absolute sinusoids.")
def build_absolute(task: Task, design: PerformerDesign) -> PixelPerformer:
    require_divisible(design.width, 4, "width", "sines and cosines of rows and columns")
    encoding = LearnedSinusoids(design.width // 4, 1000.0 * task.image_size)
    return PixelPerformer(task, design, _content(design), absolute=encoding)


@register("nopos_performer", PerformerDesign, "Performer without positions.")
def build_without_positions(task: Task, design: PerformerDesign) -> PixelPerformer:
    return PixelPerformer(task, design, _content(design))


@register("relative_performer", RelativeDesign, "Relative Performer: rotary linear attention.")
def build_relative(task: Task, design: RelativeDesign) -> PixelPerformer:
    """Build attention that rotates features after the feature map (exact), or before it."""
    pairs, dim = 2 * design.pos_scales, design.width // design.heads
    exact = not design.published
    require(
        design.published or design.kernel != "softmax",
        "kernel = 'softmax' exists in the published program only, which is not exact under shifts; "
        "set variant='tep-2021', or use another kernel, e.g. 'elu'.",
    )

    def attention() -> nn.Module:
        if exact:
            kernel = make_kernel("elu" if design.kernel == "auto" else design.kernel, dim)
            return WaveAttention(
                design.width, design.heads, task.image_size, kernel, frequencies=design.frequencies
            )
        name = "favor" if design.kernel == "auto" else design.kernel
        widened = None if name == "softmax" else make_kernel(name, dim + 2 * pairs, design.variant)
        return PositionedAttention(design.width, design.heads, pairs, widened)

    shared = None if exact else LearnedSinusoids(design.pos_scales, 2.0 * task.image_size)
    return PixelPerformer(task, design, attention, shared=shared)


@register(
    "clipped_relative_performer",
    ClippedDesign,
    "Clipped relative Performer: half the heads attend by content, half by nearby position.",
)
def build_clipped(task: Task, design: ClippedDesign) -> PixelPerformer:
    auto = "favor" if design.published else "elu"
    if design.published:  # it takes the rates, but drops nothing
        design = replace(design, attention_dropout=0.0, ff_dropout=0.0)

    def attention() -> nn.Module:
        return ClippedAttention(
            design.width, design.heads, task.image_size, design.clipping_distance,
            kernel=auto if design.kernel == "auto" else design.kernel, variant=design.variant,
        )  # fmt: skip

    return PixelPerformer(task, design, attention)
