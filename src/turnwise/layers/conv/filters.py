"""Filters that the group rotates: from free parameters to the weights of an ordinary convolution.

    lifting:     K_g[o, i](x)    = K[o, i](g⁻¹x)              out channel (g, o), in channel i
    group_conv:  K_gm[o, i](x)   = K[o, i, g⁻¹m](g⁻¹x)        out channel (g, o), in channel (m, i)

Letters:  g, m group elements of output and input, n = g⁻¹m;  o, i their channels;  x a tap of a
          filter, as a point of the plane around the filter's centre;  b a function of the basis.
A convolution owns the free parameters (`weight`); the classes of this module rotate them.
Paper:    Cohen & Welling 2016, "Group Equivariant Convolutional Networks" (pixels); Weiler & Cesa
          2019, "General E(2)-Equivariant Steerable CNNs" (rings and harmonics).
"""

import math

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor, nn

from turnwise.errors import require_known, require_positive
from turnwise.geometry.grids import offset_to_steps, pixel_centres
from turnwise.groups import PlanarGroup, require_grid_group
from turnwise.layers.tables import device_of_buffer, remakes_tables

FILTERS = ("auto", "pixel", "continuous")
RING_STD = 0.6  # of a Gaussian ring, in pixels: neighbours, 1 pixel apart, overlap without gaps

LiftingWeight = Float[Tensor, "width in_width free"]
GroupWeight = Float[Tensor, "width in_width group free"]
LiftingFilters = Float[Tensor, "out_maps in_width kernel kernel"]
GroupFilters = Float[Tensor, "out_maps in_maps kernel kernel"]


@remakes_tables
class PixelFilters(nn.Module):
    """Every tap is a free parameter, and the group permutes the taps: for groups of the grid only.

    `free` = kernel² parameters for each pair of channels (and each n), row by row.
    """

    kind = "pixel"
    source: Tensor
    source_by_element: Tensor

    def __init__(self, group: PlanarGroup | str, kernel: int) -> None:
        super().__init__()
        group = PlanarGroup.named(group)
        require_positive(kernel=kernel)
        require_grid_group(group)
        self.group, self.order, self.kernel, self.free = group, group.order, kernel, kernel**2
        self._register_tables()

    def _register_tables(self) -> None:
        device = device_of_buffer(self, "source")
        source = _tap_index(rotated_taps(self.group, self.kernel), self.kernel)  # (g, x): g⁻¹x
        relative = self.group.relative()[:, :, None]
        by_element = relative * self.free + source[:, None]  # (g, m, x): in (n, x)
        self.register_buffer("source", source.flatten().to(device), persistent=False)
        self.register_buffer("source_by_element", by_element.flatten().to(device), persistent=False)

    def lifting(self, weight: LiftingWeight) -> LiftingFilters:
        """Return K[o, i](g⁻¹x), from an image to the group."""
        rotated = weight.index_select(2, self.source).unflatten(2, (self.order, -1))  # (o, i, g, x)
        return self._squares(rotated.permute(2, 0, 1, 3).flatten(0, 1))

    def group_conv(self, weight: GroupWeight) -> GroupFilters:
        """Return K[o, i, g⁻¹m](g⁻¹x), from the group to the group."""
        rotated = weight.flatten(2).index_select(2, self.source_by_element)
        rotated = rotated.unflatten(2, (self.order, self.order, -1))  # (o, i, g, m, x)
        return self._squares(rotated.permute(2, 0, 3, 1, 4).flatten(2, 3).flatten(0, 1))

    def _squares(self, taps: Float[Tensor, "out in tap"]) -> Float[Tensor, "out in row col"]:
        return taps.unflatten(-1, (self.kernel, self.kernel))


@remakes_tables
class ContinuousFilters(nn.Module):
    """K(x) = Σ_b c_b B_b(x), evaluated at g⁻¹x: for every group, without interpolation.

    B is a Gaussian ring times a circular harmonic, on the disc of radius kernel / 2.  Each B_b has
    norm 1 on the taps (in the mean square over the group; for groups of the grid all are equal).
    `free` = the number of functions: 6 for 3 × 3 taps, 15 for 5 × 5.
    """

    kind = "continuous"
    basis: Tensor
    relative: Tensor

    def __init__(self, group: PlanarGroup | str, kernel: int) -> None:
        super().__init__()
        group = PlanarGroup.named(group)
        require_positive(kernel=kernel)
        self.group, self.order, self.kernel = group, group.order, kernel
        self._register_tables()
        self.free = self.basis.shape[1]

    def _register_tables(self) -> None:
        """Register float64 tables; in float32, K(h⁻¹g⁻¹x) and K((gh)⁻¹x) would differ."""
        device = device_of_buffer(self, "relative")
        basis, relative = ring_harmonics(self.group, self.kernel), self.group.relative()
        self.register_buffer("basis", basis.to(device), persistent=False)
        self.register_buffer("relative", relative.flatten().to(device), persistent=False)

    def lifting(self, weight: LiftingWeight) -> LiftingFilters:
        """Return K[o, i](g⁻¹x), from an image to the group."""
        return torch.einsum("oib,gbrc->goirc", weight, self.basis.to(weight.dtype)).flatten(0, 1)

    def group_conv(self, weight: GroupWeight) -> GroupFilters:
        """Return K[o, i, g⁻¹m](g⁻¹x), from the group to the group."""
        # elements are sorted before the sum over the basis, where there are fewer values to copy
        sorted_ = weight.index_select(2, self.relative).unflatten(2, (self.order, self.order))
        filters = torch.einsum("oigmb,gbrc->gomirc", sorted_, self.basis.to(weight.dtype))
        return filters.flatten(2, 3).flatten(0, 1)


Filters = PixelFilters | ContinuousFilters


def filters_for(kind: str, group: PlanarGroup | str, kernel: int) -> Filters:
    """Return filters by name; "auto" is "pixel" if the group maps pixels to pixels."""
    chosen = PixelFilters if _by_pixel(kind, group) else ContinuousFilters
    return chosen(group, kernel)


def _by_pixel(kind: str, group: PlanarGroup | str) -> bool:
    require_known(kind, FILTERS, "filters")
    group = PlanarGroup.named(group)
    return kind == "pixel" or (kind == "auto" and group.exact_subgroup() == group)


def covering_overlap(kind: str, group: PlanarGroup | str, patch: int) -> int:
    """Return how many pixels a filter must reach beyond a patch on every side to cover it.

    0 for pixel filters; a disc of radius kernel / 2 must reach the corners of the patch.
    """
    return 0 if _by_pixel(kind, group) else math.ceil((math.sqrt(2) * (patch - 1) - patch) / 2)


def initialise_weight(weight: Tensor) -> None:
    """Initialise with He's variance: 2 / (number of free parameters in one output).

    The basis functions have norm 1 for both kinds of filters, so one rule serves both: for white
    noise an output has twice the variance of the input, which a ReLU halves again.

    Paper:    He et al. 2015, "Delving Deep into Rectifiers".
    """
    nn.init.normal_(weight, std=math.sqrt(2 / weight[0].numel()))


def rotated_taps(group: PlanarGroup, kernel: int) -> Float64[Tensor, "group tap 2"]:
    """Return g⁻¹x for every tap x, row by row; g is orthogonal: its transpose is its inverse."""
    taps = pixel_centres(kernel, kernel).flatten(0, 1)
    return torch.einsum("gji,tj->gti", group.matrices(), taps)


def _tap_index(points: Float64[Tensor, "group tap 2"], kernel: int) -> Int64[Tensor, "group tap"]:
    """Return the index of the tap at each point."""
    row, col = (offset_to_steps(points) + (kernel - 1) / 2).long().unbind(-1)
    return row * kernel + col


def ring_harmonics(
    group: PlanarGroup, kernel: int
) -> Float64[Tensor, "group basis {kernel} {kernel}"]:
    """Return B_b(g⁻¹x): rings one pixel apart, each with the harmonics that its pixels resolve.

    A ring of radius ρ has about 2πρ pixels, enough for frequencies up to πρ; we stop at 2ρ.
    """
    points = rotated_taps(group, kernel)  # (g, t, 2)
    radius = pixel_centres(kernel, kernel).flatten(0, 1).norm(dim=-1)  # the same for every element
    angle = torch.atan2(points[..., 1], points[..., 0])
    functions = []
    for ring in range((kernel + 1) // 2):
        centre = (kernel - 1) / 2 - ring
        profile = (-((radius - centre) ** 2) / (2 * RING_STD**2)).exp() * (radius <= kernel / 2)
        functions.append(profile.expand_as(angle))
        for frequency in range(1, int(2 * centre) + 1):
            wave = profile * (radius > 0)  # the centre has no angle
            functions += [wave * (frequency * angle).cos(), wave * (frequency * angle).sin()]
    basis = torch.stack(functions, dim=1)  # (g, b, t)
    norm = basis.square().sum(-1).mean(0).sqrt()
    return (basis / norm[:, None]).unflatten(-1, (kernel, kernel))
