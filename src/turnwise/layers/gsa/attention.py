"""Self-attention from images to the group, and on the group, with relative positional encodings.

Paper:    Romero & Cordonnier 2021, "Group Equivariant Stand-Alone Self-Attention for Vision"
          (GSA-Nets); Xu et al. 2023, "E(2)-Equivariant Vision Transformer" (GE-ViT).
Symbols:  `heads` heads of `dim` channels; position and orientation share a query's channels.
Departs:  see `layers.gsa.published`, choice by choice.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from turnwise.attention.group import BACKENDS, QUERIES, Encodings, attend_from_frames
from turnwise.errors import require, require_known, require_positive
from turnwise.geometry.layouts import field_to_regular, regular_to_field
from turnwise.geometry.neighbourhoods import Neighbourhood, Sources, find_sources, rotated_offsets
from turnwise.groups import PlanarGroup, require_grid_group
from turnwise.layers.conv.conv import require_image, require_regular
from turnwise.layers.declarations import AttentionTaps
from turnwise.layers.gsa.encodings import ENCODINGS, position_encoding
from turnwise.layers.gsa.published import EXACT, Convention

MAX_MAPS = 6  # channels in `position_maps`
MAP_SIDE = 8  # of the image in `position_maps`, if neither window nor image size is known

Image = Float[Tensor, "batch in_channels row col"]
Field = Float[Tensor, "batch group row col channel"]
NewField = Float[Tensor, "batch newgroup newrow newcol newchannel"]
Regular = Float[Tensor, "batch in_channels group row col"]
NewRegular = Float[Tensor, "batch out_channels group new_row new_col"]


@dataclass(frozen=True)
class AttentionPlan:
    """The options that all attention layers of a network share."""

    group: PlanarGroup
    neighbourhood: Neighbourhood
    heads: int = 9
    encoding: str = "mlp"
    queries: str = "all"
    dropout: float = 0.0
    convention: Convention = EXACT
    size: int = 0  # the longest side of an image; needed for tables over the whole image
    backend: str = "auto"

    @property
    def options(self) -> dict[str, Any]:
        """The options as the layers take them, beside the group and the channels."""
        around = self.neighbourhood
        return {
            "window": around.window, "shape": around.shape, "num_heads": self.heads,
            "encoding": self.encoding, "queries": self.queries, "dropout": self.dropout,
            "convention": self.convention, "image_size": self.size, "backend": self.backend,
        }  # fmt: skip

    def __post_init__(self) -> None:
        require_positive(num_heads=self.heads)
        require_known(self.queries, QUERIES, "queries")
        require_known(self.backend, BACKENDS, "backend")
        require_known(self.encoding, ENCODINGS, "encoding")
        require(0 <= self.dropout < 1, f"dropout = {self.dropout} must be from 0 to below 1.")
        if self.encoding == "table":
            require_grid_group(self.group)  # a table has no entry between two steps
            require(
                self.neighbourhood.window > 0 or self.size > 0,
                "a table over the whole image needs image_size, the side of the image.",
            )


class _RelativeAttention(nn.Module, ABC):
    """What both layers share: the constructor, the projections and the maps of positions."""

    feature_layout = "regular"

    def __init__(  # noqa: PLR0913 - all but three have a default
        self,
        group: PlanarGroup | str,
        in_channels: int,
        out_channels: int,
        window: int = 5,
        *,
        num_heads: int = 4,
        head_dim: int = 8,
        queries: str = "own",
        shape: str = "square",
        encoding: str = "mlp",
        dropout: float = 0.0,
        image_size: int = 0,
        convention: Convention = EXACT,
        backend: str = "auto",
    ) -> None:
        super().__init__()
        plan = AttentionPlan(
            PlanarGroup.named(group), Neighbourhood(window, shape), num_heads, encoding, queries,
            dropout, convention, image_size, backend,
        )  # fmt: skip
        self.group, self.in_channels, self.out_channels = plan.group, in_channels, out_channels
        self.project = Projections(plan, in_channels, out_channels, head_dim)
        self._make_positions(head_dim)

    @abstractmethod
    def _make_positions(self, head_dim: int) -> None:
        """Make the positional encodings, which share the `head_dim` channels of a query."""

    def attention_taps(self) -> AttentionTaps:
        return self.project.attention_taps()

    def position_maps(self) -> dict[str, Float[Tensor, "group row col"]]:
        return self.project.position_maps(self.place)  # type: ignore[arg-type]

    def extra_repr(self) -> str:
        plan = self.project.plan
        dim = self.project.to_query.out_features // plan.heads
        return (
            f"{self.group}, {self.in_channels}, {self.out_channels}, "
            f"window={plan.neighbourhood.window or 'all'}, num_heads={plan.heads}, head_dim={dim}"
        )


class LiftingSelfAttention(_RelativeAttention):
    """Self-attention from an image to the group: out^h = softmax(q·k + q·P(h⁻¹δ)) v.

    With the group C1 this is plain local self-attention with relative positions.

    Args:
        group: the group, by name ("C4", "D4", …) or as a `PlanarGroup`.
        in_channels: channels of the image.
        out_channels: channels of each group element of the output.
        window: side of the neighbourhood in pixels, odd; 0 is the whole image.
        num_heads: attention heads.
        head_dim: channels of a head's queries, keys and values, at least 2.
        shape: shape of the neighbourhood, "square" or "disc".
        encoding: positional encoding, "mlp" or "table" (groups of the grid only).
        dropout: dropout rate of the attention weights.
        image_size: side of the image; needed for encoding="table" with window=0.
        convention: `EXACT`, or the choices of a published program (`layers.gsa.published`).
        backend: implementation of attention, "auto", "plain", "streaming" or "triton".
        queries: has no effect here, as pixels have one query.

    Shape:
        - Input: (batch, in_channels, row, col), an image.
        - Output: (batch, out_channels, |G|, row, col), regular features; with `crop` pixels cut at
          every side, fewer rows and columns.

    >>> LiftingSelfAttention("D4", 3, 16)(torch.randn(2, 3, 9, 9)).shape
    torch.Size([2, 16, 8, 9, 9])
    """

    def _make_positions(self, head_dim: int) -> None:
        enough = head_dim >= 2
        require(enough, f"head_dim = {head_dim} must be at least 2: rows and columns share it.")
        half = head_dim // 2
        self.place = self.project.position_encoding(half, head_dim - half)
        self.table = torch.zeros(self.group.order, 1, 1, dtype=torch.long, device="cpu")

    def forward(self, image: Image, crop: int = 0) -> NewRegular:
        require_image(image, self.in_channels)
        pixels = image.permute(0, 2, 3, 1)[:, None]  # a field with one group element
        no_orientation = image.new_zeros(1, 0)
        field = self.project(pixels, self.place, no_orientation, self.table, crop)
        return field_to_regular(field)


class GroupSelfAttention(_RelativeAttention):
    """Self-attention on the group, with relative positions and orientations.

    out^h = softmax over (δ, m) of (q^h·k^m + q^h·P(h⁻¹δ) + q^h·E[h⁻¹m]) v^m

    Args:
        group: the group, by name ("C4", "D4", …) or as a `PlanarGroup`.
        in_channels: channels of each group element of the input.
        out_channels: channels of each group element of the output.
        window: side of the neighbourhood in pixels, odd; 0 is the whole image.
        num_heads: attention heads.
        head_dim: channels of a head's queries, keys and values, at least 3.
        queries: "own", at a cost of |G|², or "all", the published form: every output averages the
            attention of the queries of all group elements, at a cost of |G|³.
        shape, encoding, dropout, image_size, convention, backend: as for `LiftingSelfAttention`.

    Shape:
        - Input: (batch, in_channels, |G|, row, col), regular features.
        - Output: (batch, out_channels, |G|, row, col), regular features; with `crop` pixels cut at
          every side, fewer rows and columns.

    >>> GroupSelfAttention("C4", 16, 16, window=3)(torch.randn(2, 16, 4, 9, 9)).shape
    torch.Size([2, 16, 4, 9, 9])
    """

    no_weight_decay = ("pose",)

    def _make_positions(self, head_dim: int) -> None:
        third, what = head_dim // 3, "rows, columns and orientations"
        require(third >= 1, f"head_dim = {head_dim} must be at least 3: {what} share it.")
        self.place = self.project.position_encoding(third, third)
        self.pose = nn.Parameter(torch.randn(self.group.order, head_dim - 2 * third))
        with torch.device("cpu"):  # a table of integers, whatever device is in use
            self.table = self.project.plan.convention.table(self.group).contiguous()

    def forward(self, x: Regular, crop: int = 0) -> NewRegular:
        require_regular(x, self.group, self.in_channels)
        field = self.project(regular_to_field(x), self.place, self.pose, self.table, crop)
        return field_to_regular(field)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, queries={self.project.plan.queries}"


class Projections(nn.Module):
    """Query, key, value and output maps, shared by all poses, and the attention between them."""

    def __init__(self, plan: AttentionPlan, in_width: int, width: int, dim: int) -> None:
        super().__init__()
        require_positive(in_channels=in_width, out_channels=width)
        self.plan, self.find = plan, _surroundings_finder(plan)
        self.scale = 1 / math.sqrt(in_width if plan.convention.scale_by_input else dim)
        self.to_query = nn.Linear(in_width, plan.heads * dim)
        self.to_key = nn.Linear(in_width, plan.heads * dim)
        self.to_value = nn.Linear(in_width, plan.heads * dim)
        self.to_output = nn.Linear(plan.heads * dim, width)

    def forward(
        self, field: Field, place: nn.Module, pose: Tensor, table: Tensor, crop: int
    ) -> NewField:
        rows, cols = _constant(field.shape[2]), _constant(field.shape[3])
        inner = field[:, :, crop : rows - crop, crop : cols - crop]
        coordinates, sources = self.find(rows, cols, crop, field.device)
        mixed = attend_from_frames(
            self._split(self.to_query(inner) * self.scale),
            self._split(self.to_key(field)),
            self._split(self.to_value(field)),
            Encodings(place(coordinates), pose, table),
            sources,
            queries=self.plan.queries if field.shape[1] == len(table) else "all",
            dropout=self.plan.dropout if self.training else 0.0,
            backend=self.plan.backend,
        )
        if self.plan.convention.sums and self.plan.queries == "all":
            mixed = mixed * field.shape[1]
        return self.to_output(mixed.flatten(-2).unflatten(2, inner.shape[2:4]))

    def attention_taps(self) -> AttentionTaps:
        return AttentionTaps(self.to_value, 0, self.to_output, self.plan.heads, "field")

    @torch.no_grad()
    def position_maps(self, encode: nn.Module) -> dict[str, Float[Tensor, "group row col"]]:
        """Return some channels of P(h⁻¹δ) as images over the offset δ."""
        side = self.plan.neighbourhood.window or self.plan.size or MAP_SIDE
        coordinates, sources = self.find(side, side, 0, self.to_query.weight.device)
        encoded, steps = encode(coordinates).cpu(), sources.steps.cpu().long()
        reach = int(steps.abs().max())
        maps = encoded.new_zeros(encoded.shape[-1], len(encoded), 2 * reach + 1, 2 * reach + 1)
        maps[:, :, steps[:, 0] + reach, steps[:, 1] + reach] = encoded.permute(2, 0, 1)
        chosen = torch.linspace(0, len(maps) - 1, min(MAX_MAPS, len(maps))).round().long().tolist()
        return {f"channel {c}": maps[c] for c in chosen}

    def position_encoding(self, row_width: int, col_width: int) -> nn.Module:
        """Make the encoding of the offsets that the plan describes."""
        plan = self.plan
        reach, eps = plan.neighbourhood.reach(plan.size, plan.size), plan.convention.encoder_eps
        return position_encoding(plan.encoding, row_width, col_width, eps=eps, reach=reach)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the function made from the plan, which cannot be pickled."""
        return {name: part for name, part in self.__dict__.items() if name != "find"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.find = _surroundings_finder(self.plan)

    def _split(self, x: Field) -> Float[Tensor, "batch group pixel head dim"]:
        """Flatten the pixels and split the channels by head."""
        return x.flatten(2, 3).unflatten(-1, (self.plan.heads, -1))


def _constant(size: int) -> int:
    """Return the same number as a constant of a traced graph, which is recompiled for others."""
    return len(range(size))


def _surroundings_finder(plan: AttentionPlan) -> Callable[..., tuple[Tensor, Sources]]:
    """Return a function that finds the coordinates and the sources of every token."""

    @torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
    def find(rows: int, cols: int, crop: int, device: torch.device) -> tuple[Tensor, Sources]:
        """Find them once for each image size and device; a compiled graph holds constants.

        The cache is not used in an export, whose tensors hold no values, and not filled in
        inference mode, whose tensors cannot be used in training.
        """
        if torch.compiler.is_compiling():
            return _find_surroundings(plan, rows, cols, crop, device)
        with torch.inference_mode(False):
            return _cached_surroundings(plan, rows, cols, crop, device)

    return find


def _find_surroundings(
    plan: AttentionPlan, rows: int, cols: int, crop: int, device: torch.device
) -> tuple[Tensor, Sources]:
    if plan.encoding == "table":
        offsets = plan.neighbourhood.offsets(rows, cols)
        coordinates = rotated_offsets(plan.group, offsets)
    else:
        convention = plan.convention
        coordinates = convention.coordinates(plan.group, plan.neighbourhood, rows, cols)
    sources = find_sources(plan.neighbourhood, rows, cols, crop)
    return coordinates.to(device), sources.to(device)


_cached_surroundings = cache(_find_surroundings)
