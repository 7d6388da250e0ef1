"""Performers on pixels: absolute, without positions, relative, and clipped relative.

Every pixel is a token, beside one class token; attention is linear in the tokens.  Two variants:
"tep-2021", as published, relative only in expectation; and "exact", whose relative models do not
change when all coordinates move, and whose logits do not change when the picture is shifted
circularly (relative: with frequencies="torus").  They claim nothing about turns: see
`group_performer`.

Paper:    Horn et al. 2021, "Translational Equivariance in Kernelizable Attention".
Symbols:  width, depth, heads are their dim, depth, heads; `kernel` "softmax" their no_projection.
Departs:  pictures are normalised to mean 0 and spread 1, and may have any side; the class token
          stands first in all models, which changes nothing.  content_rel_attn, which the published
          program takes and ignores, is left out.  "exact": see `attention.favor` (stabiliser),
          `layers.performer_positions` (waves), `layers.clipped_attention`; redraws come on time.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from inspect import Parameter, Signature
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from turnwise.attention.linear import KERNELS
from turnwise.errors import require, require_divisible, require_known, require_positive
from turnwise.geometry.sizes import exact_sizes
from turnwise.groups import PlanarGroup
from turnwise.layers.normalise import Normalise
from turnwise.layers.performer.block import (
    VARIANTS,
    ContentAttention,
    PerformerBlock,
    Redraw,
    linear_of,
    make_kernel,
)
from turnwise.layers.performer.clipped import ClippedAttention
from turnwise.layers.performer.positions import LearnedSinusoids, PositionedAttention, WaveAttention
from turnwise.layers.tables import remakes_tables
from turnwise.models.registry import Task, register

Images = Float[Tensor, "batch channel row col"]
Tokens = Float[Tensor, "batch token width"]
EMBEDDINGS = ("linear", "MLP", "lookup")
LEVELS = 256  # of a pixel, for the embedding by lookup


@dataclass(frozen=True)
class Design:
    """What a user may choose; defaults are the published ones.

    kernel:            "favor" (random features), "elu", "relu", "softplus", "exp", or "softmax",
                       which is quadratic; "auto" is elu where positions are exact, else favor
    redraw_interval:   training steps between two draws of the random features; 0 is never
    pos_scales:        frequencies of each axis (relative, as published)
    frequencies:       of the exact relative model, "torus" or "free"
    clipping_distance: how far places are told apart (clipped)
    """

    variant: str = "exact"
    width: int = 128
    depth: int = 4
    heads: int = 4
    embedding: str = "linear"
    kernel: str = "auto"
    attention_dropout: float = 0.1
    ff_dropout: float = 0.1
    redraw_interval: int = 1000
    pos_scales: int = 4
    frequencies: str = "torus"
    clipping_distance: int = 8

    def __post_init__(self) -> None:
        require_known(self.variant, VARIANTS, "variant")
        require_known(self.embedding, EMBEDDINGS, "embedding")
        require_known(self.kernel, ("auto", "favor", *KERNELS, "softmax"), "kernel")
        require_positive(
            width=self.width, depth=self.depth, heads=self.heads, pos_scales=self.pos_scales
        )
        require_divisible(self.width, self.heads, "width", f"it is split over {self.heads} heads")

    @property
    def published(self) -> bool:
        return self.variant == "tep-2021"


class PixelEmbedding(nn.Module):
    """One vector for each pixel: affine, by a perceptron, or looked up channel by channel.

    By lookup the grey levels 0 to 255 of channel c read rows 256 c on of a table; they are found
    again from the normalised picture.
    """

    def __init__(self, kind: str, in_chans: int, width: int) -> None:
        super().__init__()
        self.kind, self.in_chans = kind, in_chans
        if kind == "lookup":
            require_divisible(width, in_chans, "width", f"each of {in_chans} channels has its part")
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
class PixelPerformer(nn.Module):
    """Embedding, class token, blocks, a linear read-out of the class token.

    attention: makes the attention of a block.  absolute: a code of the places that is added to the
    pixels.  shared: a code of the places that all blocks are told; without it, the places.
    """

    places: Tensor

    def __init__(
        self,
        task: Task,
        design: Design,
        attention: Callable[[], nn.Module],
        *,
        absolute: LearnedSinusoids | None = None,
        shared: LearnedSinusoids | None = None,
    ) -> None:
        super().__init__()
        self.group = PlanarGroup.named("C1")  # what it promises about turns: nothing
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
        self.head = nn.Linear(design.width, task.num_classes)
        self._register_tables()
        self.redraw.before(self)

    def _register_tables(self) -> None:
        side = torch.arange(self.image_size, dtype=torch.float32, device=self.class_token.device)
        self.register_buffer("places", torch.cartesian_prod(side, side), persistent=False)

    def exact_size(self, size: int) -> tuple[int, ...]:
        """Every size is sampled symmetrically: a token is a pixel."""
        return exact_sizes(size, ())

    def forward_features(self, images: Images) -> Tokens:
        """The class token, then the pixels, row by row."""
        tokens, context = self._embed(images)
        for block in self.blocks:
            tokens = block(tokens, context)
        return tokens

    def _embed(self, images: Images) -> tuple[Tokens, Tensor]:
        """What the first block is given, and what all blocks are told about places."""
        expected = (self.preprocess.mean.numel(), self.image_size, self.image_size)
        require(
            tuple(images.shape[1:]) == expected,
            f"the model takes pictures of shape {expected} (channel, row, col), "
            f"got {tuple(images.shape[1:])}.",
        )
        pixels = self.embedding(images, self.preprocess)
        if self.absolute is not None:
            pixels = pixels + self.absolute(self.places).flatten(1)
        first = self.class_token.expand(images.shape[0], 1, -1)
        context = self.places
        if self.shared is not None:
            code = self.shared(self.places)
            context = torch.cat([torch.zeros_like(code[:1]), code])
        return torch.cat([first, pixels], dim=1), context

    def forward_head(self, tokens: Tokens) -> Float[Tensor, "batch num_classes"]:
        return self.head(tokens[:, 0])

    def forward(self, images: Images) -> Float[Tensor, "batch num_classes"]:
        """The head of the features, of which the last block makes but what is read.

        The published program makes them all.
        """
        tokens, context = self._embed(images)
        for number, block in enumerate(self.blocks, start=1):
            last = number == len(self.blocks) and not self.design.published
            tokens = block(tokens, context, last)
        return self.forward_head(tokens)


def _content(design: Design) -> Callable[[], nn.Module]:
    name = "favor" if design.kernel == "auto" else design.kernel
    dim = design.width // design.heads

    def attention() -> nn.Module:
        kernel = None if name == "softmax" else make_kernel(name, dim, design.variant)
        return ContentAttention(
            design.width, design.heads, kernel, linear=linear_of(design.variant)
        )

    return attention


def build_absolute(task: Task, design: Design) -> PixelPerformer:
    """Performer with learned absolute sinusoids: it knows where everything is."""
    require_divisible(design.width, 4, "width", "sines and cosines of rows and columns")
    code = LearnedSinusoids(design.width // 4, 1000.0 * task.image_size)
    return PixelPerformer(task, design, _content(design), absolute=code)


def build_without_positions(task: Task, design: Design) -> PixelPerformer:
    """Performer without positions: it sees which pixels there are, not where."""
    return PixelPerformer(task, design, _content(design))


def build_relative(task: Task, design: Design) -> PixelPerformer:
    """Relative Performer: positions turn features after the feature map (exact), or enter it."""
    pairs, dim = 2 * design.pos_scales, design.width // design.heads
    exact = not design.published
    require(
        design.published or design.kernel != "softmax",
        "kernel = 'softmax' is a layer of the published program, which circular shifts change; "
        "set variant='tep-2021' for it, or take another kernel, e.g. 'elu'.",
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


def build_clipped(task: Task, design: Design) -> PixelPerformer:
    """Clipped relative Performer: half the heads look at contents, half at places nearby."""
    auto = "favor" if design.published else "elu"
    if design.published:  # which took the rates, and dropped nothing
        design = replace(design, attention_dropout=0.0, ff_dropout=0.0)

    def attention() -> nn.Module:
        return ClippedAttention(
            design.width, design.heads, task.image_size, design.clipping_distance,
            kernel=auto if design.kernel == "auto" else design.kernel, variant=design.variant,
        )  # fmt: skip

    return PixelPerformer(task, design, attention)


def _family(
    build: Callable[[Task, Design], PixelPerformer], *also: str
) -> Callable[..., PixelPerformer]:
    """A function (task, *, …) whose options are those fields of a design that the model uses."""
    special = {"pos_scales", "frequencies", "clipping_distance"} - set(also)

    def family(task: Task, **options: Any) -> PixelPerformer:
        return build(task, Design(**options))

    family.__doc__ = build.__doc__
    options = [
        Parameter(field.name, Parameter.KEYWORD_ONLY, default=field.default)
        for field in fields(Design)
        if field.name not in special
    ]
    task = Parameter("task", Parameter.POSITIONAL_OR_KEYWORD)
    family.__signature__ = Signature([task, *options])  # type: ignore[attr-defined]
    return family


register("performer")(_family(build_absolute))
register("nopos_performer")(_family(build_without_positions))
register("relative_performer")(_family(build_relative, "pos_scales", "frequencies"))
register("clipped_relative_performer")(_family(build_clipped, "clipping_distance"))
