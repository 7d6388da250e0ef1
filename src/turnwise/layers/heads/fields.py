"""Heads with one output per pixel: fields that rotate with the image, in value as in position.

    invariant    s(p) = pool_g F(g, p)               a scalar field:  (g s)(p) = s(g⁻¹p)
    "vector"     v(p) = Σ_g ρ₁(g) Σ_c w_c F_c(g, p)  a direction:     (g v)(p) = ρ₁(g) v(g⁻¹p)
    "axis"       a(p) = Σ_g ρ₂(g) Σ_c w_c F_c(g, p)  an undirected axis, as (cos 2φ, sin 2φ)

Letters:  g a group element;  p a pixel;  c a channel;  w_c two learned numbers;  ρ₁(g) the matrix
          of g;  ρ₂(g) the matrix by which g acts on (cos 2φ, sin 2φ), for a line at the
          angle φ.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Float64, Shaped
from torch import Tensor, nn

from turnwise.errors import require_known
from turnwise.geometry.layouts import regular_to_maps
from turnwise.groups import PlanarGroup, act_on_image
from turnwise.layers.conv.conv import require_regular
from turnwise.layers.tables import device_of_buffer, remakes_tables

Regular = Float[Tensor, "batch channel group row col"]
FIELDS = ("vector", "axis")


def field_matrices(group: PlanarGroup | str, kind: str) -> Float64[Tensor, "group 2 2"]:
    """Return ρ₁ ("vector") or ρ₂ ("axis") of every element.

    An axis u is the matrix 2uuᵀ − 1 = cos 2φ A₁ + sin 2φ A₂, on which R acts as R (…) Rᵀ; so
    ρ₂(g)[i, j] = ½ tr(A_i R A_j Rᵀ).
    """
    require_known(kind, FIELDS, "kind of field")
    matrices = PlanarGroup.named(group).matrices()
    if kind == "vector":
        return matrices
    parts = matrices.new_tensor([[[1, 0], [0, -1]], [[0, 1], [1, 0]]])  # A₁ and A₂
    return torch.einsum("iab,gbc,jcd,gad->gij", parts, matrices, parts, matrices) / 2


def act_on_field_of(
    kind: str, group: PlanarGroup | str, g: int, field: Shaped[Tensor, "batch 2 row col"]
) -> Shaped[Tensor, "batch 2 newrow newcol"]:
    """(g v)(p) = ρ(g) v(g⁻¹p), for a field of vectors or axes."""
    matrix = field_matrices(group, kind)[g].to(field)
    return torch.einsum("ij,bjrc->birc", matrix, act_on_image(group, g, field))


@remakes_tables
class FieldHead(nn.Module):
    """A direction or an axis at every pixel, from regular features.

    Args:
        group: the group, by name ("C4", "D4", …) or as a `PlanarGroup`.
        in_channels: channels of each group element of the input.
        kind: "vector" for a direction (x, y), or "axis" for a line, as (cos 2φ, sin 2φ).

    Shape:
        - Input: (batch, in_channels, |G|, row, col), regular features.
        - Output: (batch, 2, row, col), a field.

    >>> FieldHead("D4", 16, "axis")(torch.randn(2, 16, 8, 7, 7)).shape
    torch.Size([2, 2, 7, 7])
    """

    matrices: Tensor

    def __init__(self, group: PlanarGroup | str, in_channels: int, kind: str = "vector") -> None:
        super().__init__()
        require_known(kind, FIELDS, "kind of field")
        self.group, self.in_channels, self.kind = PlanarGroup.named(group), in_channels, kind
        self.weight = nn.Parameter(torch.empty(2, in_channels))
        nn.init.normal_(self.weight, std=(self.group.order * in_channels) ** -0.5)
        self._register_tables()

    def _register_tables(self) -> None:
        device = device_of_buffer(self, "matrices")
        matrices = field_matrices(self.group, self.kind)
        self.register_buffer("matrices", matrices.to(device), persistent=False)

    def forward(self, x: Regular) -> Float[Tensor, "batch 2 row col"]:
        require_regular(x, self.group, self.in_channels)
        filters = torch.einsum("gij,jc->igc", self.matrices.to(self.weight), self.weight)
        return F.conv2d(regular_to_maps(x), filters.flatten(1)[:, :, None, None])

    def extra_repr(self) -> str:
        return f"{self.group}, {self.in_channels}, kind={self.kind}"
