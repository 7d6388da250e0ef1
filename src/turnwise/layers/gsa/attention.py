"""Where a source stands, as a vector that a query can meet: one encoder for rows, one for columns.

Both see the offset as the observer sees it (h⁻¹δ, in steps), so any function of it is equivariant.

Self-attention from pictures to fields on the group, and from fields to fields.

Paper:    Romero & Cordonnier 2021, "Group Equivariant Stand-Alone Self-Attention for Vision"
          (GSA-Nets); Xu et al. 2023, "E(2)-Equivariant Vision Transformer" (GE-ViT).
Symbols:  |G| poses, `heads` heads of `dim` channels; place and pose share a query's channels.
Departs:  see `layers.conventions`, choice by choice.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from turnwise.attention.group import BACKENDS, QUERIES, Encodings, attend_from_frames
from turnwise.errors import require, require_known, require_positive
from turnwise.geometry.neighbourhoods import Neighbourhood, Sources, find_sources, rotated_offsets
from turnwise.groups import PlanarGroup, require_grid_group
from turnwise.layers.gsa.published import EXACT, Convention

ENCODINGS = ("mlp", "table")
HIDDEN = 16


class AxisMLP(nn.Module):
    """A small perceptron of one real coordinate, so turns finer than 90° need no interpolation.

    Paper:    Romero & Cordonnier 2021 (GSA-Nets), appendix on positional encodings.
    Departs:  biases start at random and the norm has an ordinary epsilon.  With zero bias the norm
              cancels the magnitude, and the encoding tells left from right but not near from far.
    """

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.spread = nn.Linear(1, HIDDEN)
        self.norm = nn.LayerNorm(HIDDEN, eps=eps)
        self.mix = nn.Linear(HIDDEN, width)

    def forward(self, place: Float[Tensor, " *many"]) -> Float[Tensor, "*many width"]:
        hidden = self.norm(self.spread(place[..., None].to(self.spread.weight)))
        return self.mix(nn.functional.silu(hidden))


class AxisTable(nn.Module):
    """One learned vector per whole step, up to `reach` steps; farther ones count as the farthest.

    Paper:    Ramachandran et al. 2019, "Stand-Alone Self-Attention in Vision Models".
    """

    def __init__(self, width: int, reach: int) -> None:
        super().__init__()
        self.reach = reach
        self.vector = nn.Embedding(2 * reach + 1, width)

    def forward(self, place: Float[Tensor, " *many"]) -> Float[Tensor, "*many width"]:
        steps = place.round().long().clamp(-self.reach, self.reach)
        return self.vector(steps + self.reach)


class PositionEncoding(nn.Module):
    """[rows | columns]: the encodings of the two coordinates, side by side."""

    def __init__(self, row: nn.Module, col: nn.Module) -> None:
        super().__init__()
        self.row, self.col = row, col

    def forward(self, place: Float[Tensor, "*many 2"]) -> Float[Tensor, "*many width"]:
        row, col = place.unbind(-1)
        return torch.cat([self.row(row), self.col(col)], dim=-1)


def position_encoding(
    kind: str, row_width: int, col_width: int, *, eps: float, reach: int
) -> PositionEncoding:
    """An encoding by name: "mlp", or "table" (for whole steps, up to `reach`)."""
    require_known(kind, ENCODINGS, "encoding")
    if kind == "mlp":
        return PositionEncoding(AxisMLP(row_width, eps), AxisMLP(col_width, eps))
    return PositionEncoding(AxisTable(row_width, reach), AxisTable(col_width, reach))


Field = Float[Tensor, "batch group row col channel"]
NewField = Float[Tensor, "batch newgroup newrow newcol newchannel"]


@dataclass(frozen=True)
class AttentionPlan:
    """What the attention layers of one network have in common."""

    group: PlanarGroup
    neighbourhood: Neighbourhood
    heads: int = 9
    encoding: str = "mlp"
    queries: str = "all"
    dropout: float = 0.0
    convention: Convention = EXACT
    size: int = 0  # the longest side of a picture; needed for tables over the whole picture
    backend: str = "auto"

    def __post_init__(self) -> None:
        require_positive(heads=self.heads)
        require_known(self.queries, QUERIES, "queries")
        require_known(self.backend, BACKENDS, "backend")
        require_known(self.encoding, ENCODINGS, "encoding")
        require(0 <= self.dropout < 1, f"dropout = {self.dropout} must be from 0 to below 1.")
        if self.encoding == "table":
            require_grid_group(self.group)  # a table has no entry between two steps
            require(
                self.neighbourhood.window > 0 or self.size > 0,
                "a table over the whole picture needs the size of the picture.",
            )


class LiftingSelfAttention(nn.Module):
    """From a picture to a field on the group: every pose looks at the same pixels, turned.

    out^h = softmax(q·k + q·P(h⁻¹δ)) v;  with the group C1 this is plain relative self-attention.
    """

    def __init__(self, plan: AttentionPlan, in_width: int, width: int, dim: int) -> None:
        super().__init__()
        require(dim >= 2, f"dim = {dim} must be at least 2: one channel for rows, one for columns.")
        self.project = Projections(plan, in_width, width, dim)
        self.place = _place_encoding(plan, dim // 2, dim - dim // 2)
        self.table = torch.zeros(plan.group.order, 1, 1, dtype=torch.long, device="cpu")

    def forward(self, picture: Float[Tensor, "batch row col channel"], crop: int = 0) -> NewField:
        nothing = picture.new_zeros(1, 0)  # pixels have no pose
        return self.project(picture[:, None], self.place, nothing, self.table, crop)


class GroupSelfAttention(nn.Module):
    """From fields to fields on the group: every pose looks at all poses, from its own frame."""

    def __init__(self, plan: AttentionPlan, in_width: int, width: int, dim: int) -> None:
        super().__init__()
        require(dim >= 3, f"dim = {dim} must be at least 3: rows, columns and poses share it.")
        self.project = Projections(plan, in_width, width, dim)
        self.place = _place_encoding(plan, dim // 3, dim // 3)
        self.pose = nn.Parameter(torch.randn(plan.group.order, dim - 2 * (dim // 3)))
        with torch.device("cpu"):  # whose weights may be made without memory
            self.table = plan.convention.table(plan.group).contiguous()

    def forward(self, field: Field, crop: int = 0) -> NewField:
        poses = self.project.plan.group.order
        require(field.shape[1] == poses, f"the layer takes {poses} poses, got {field.shape[1]}.")
        return self.project(field, self.place, self.pose, self.table, crop)


class Projections(nn.Module):
    """The four linear maps, alike for every pose and pixel, and the attention between them."""

    def __init__(self, plan: AttentionPlan, in_width: int, width: int, dim: int) -> None:
        super().__init__()
        require_positive(in_width=in_width, width=width)
        self.plan, self.observe = plan, _observer(plan)
        self.scale = 1 / math.sqrt(in_width if plan.convention.scale_by_input else dim)
        self.to_query = nn.Linear(in_width, plan.heads * dim)
        self.to_key = nn.Linear(in_width, plan.heads * dim)
        self.to_value = nn.Linear(in_width, plan.heads * dim)
        self.to_output = nn.Linear(plan.heads * dim, width)

    def forward(
        self, field: Field, place: nn.Module, pose: Tensor, table: Tensor, crop: int
    ) -> NewField:
        rows, cols = _fixed(field.shape[2]), _fixed(field.shape[3])
        inner = field[:, :, crop : rows - crop, crop : cols - crop]
        coordinates, sources = self.observe(rows, cols, crop, field.device)
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

    def __getstate__(self) -> dict[str, Any]:
        """Without the function that is made of the plan, which cannot be pickled."""
        return {name: part for name, part in self.__dict__.items() if name != "observe"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.observe = _observer(self.plan)

    def _split(self, x: Field) -> Float[Tensor, "batch group pixel head dim"]:
        """One list of pixels, and the channels by head."""
        return x.flatten(2, 3).unflatten(-1, (self.plan.heads, -1))


def _place_encoding(plan: AttentionPlan, row_width: int, col_width: int) -> nn.Module:
    reach = plan.neighbourhood.reach(plan.size, plan.size)
    eps = plan.convention.encoder_eps
    return position_encoding(plan.encoding, row_width, col_width, eps=eps, reach=reach)


def _fixed(size: int) -> int:
    """The same number, which a traced graph may not leave open; it is made anew for others."""
    return len(range(size))


def _observer(plan: AttentionPlan) -> Callable[..., tuple[Tensor, Sources]]:
    """A function that tells what every token of a picture sees around it."""

    @torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
    def observe(rows: int, cols: int, crop: int, device: torch.device) -> tuple[Tensor, Sources]:
        """Found once for each size of picture and device; a compiled graph holds it as a constant.

        Not kept from an export, whose tensors hold no numbers, nor made in inference mode, whose
        tensors are of no use in training.
        """
        if torch.compiler.is_compiling():
            return _find_surroundings(plan, rows, cols, crop, device)
        with torch.inference_mode(False):
            return _kept_surroundings(plan, rows, cols, crop, device)

    return observe


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


_kept_surroundings = cache(_find_surroundings)
