"""Filters that the group rotates: equivariance, witness, negative control, definition as loops.

A set of rotated filters is itself a field on the group that no element changes:
K_hg(hx) = K_g(x), and K_hg,hm(hx) = K_g,m(x).  That is why their convolution is equivariant.
"""

import itertools
import math

import pytest
import torch

from turnwise.errors import InputError
from turnwise.geometry.grids import pixel_centres
from turnwise.groups import GRID_GROUPS, PlanarGroup, act_on_field, act_on_points, act_on_regular
from turnwise.layers.conv.filters import (
    RING_STD,
    ContinuousFilters,
    PixelFilters,
    covering_overlap,
    filters_for,
    initialise_weight,
    ring_harmonics,
)

KERNELS = [1, 2, 3, 4, 5]
KINDS = [(kind, name) for kind in (PixelFilters, ContinuousFilters) for name in GRID_GROUPS]
FINER = [(ContinuousFilters, name) for name in ("C8", "D8", "C12")]
CHANNELS, IN_CHANNELS = 3, 2


def weights_for(filters, on_group):
    group_axis = (filters.order,) if on_group else ()
    return torch.randn(CHANNELS, IN_CHANNELS, *group_axis, filters.free, dtype=torch.float64)


def lifted(filters, weight):
    """Return a field, (out channel, group, row, col, in channel); its batch is the out channel."""
    taps = filters.lifting(weight).unflatten(0, (filters.order, -1))
    return taps.permute(1, 0, 3, 4, 2)


def on_group(filters, weight):
    """Return filters of two group axes, (out channel, g, row, col, m, in channel)."""
    taps = filters.group_conv(weight).unflatten(1, (filters.order, -1))
    return taps.unflatten(0, (filters.order, -1)).permute(1, 0, 4, 5, 2, 3)


def act_on_both(group, g, taps):
    """Act on the group elements of outputs and inputs, and on the positions of the taps."""
    acted = act_on_field(group, g, taps.flatten(4)).unflatten(4, taps.shape[4:])
    return act_on_regular(group, g, acted.movedim(4, 1)).movedim(1, 4)


def change(function, group, taps):
    """Return the largest change by an element of the grid; none of them should change anything."""
    return max(float((function(group, g, taps) - taps).abs().max()) for g in group.grid_elements())


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("kind", "name"), KINDS + FINER)
def test_the_set_of_rotated_filters_is_invariant(kind, name, kernel):
    group, filters = PlanarGroup.named(name), kind(name, kernel)
    assert change(act_on_field, group, lifted(filters, weights_for(filters, False))) < 1e-12
    assert change(act_on_both, group, on_group(filters, weights_for(filters, True))) < 1e-12


@pytest.mark.parametrize("kind", [PixelFilters, ContinuousFilters])
def test_witness_filters_differ_between_elements_and_every_parameter_counts(kind):
    filters = kind("D4", 3)
    weight = weights_for(filters, True).requires_grad_()
    taps = on_group(filters, weight)
    for g, h in itertools.combinations(range(8), 2):
        assert (taps[:, g] - taps[:, h]).abs().max() > 0.1
    (taps * torch.randn_like(taps)).sum().backward()
    assert weight.grad.abs().min() > 0


@pytest.mark.parametrize("kind", [PixelFilters, ContinuousFilters])
def test_control_absolute_group_elements_and_flipped_filters_are_detected(kind):
    """K[o, i, m] in place of K[o, i, g⁻¹m]."""
    group, filters = PlanarGroup.named("D4"), kind("D4", 3)
    weight = weights_for(filters, True)
    absolute = torch.stack(
        [lifted(filters, part) for part in weight.unbind(2)], dim=4
    )  # K[o, i, m](g⁻¹x)
    assert change(act_on_both, group, absolute) > 0.1
    assert change(act_on_field, group, lifted(filters, weight[:, :, 0]).flip(3)) > 0.1


def test_definition_of_pixel_filters_as_loops():
    """K[o, i, g⁻¹m](g⁻¹x), tap by tap."""
    group, filters = PlanarGroup.named("D4"), PixelFilters("D4", 3)
    weight = weights_for(filters, True)
    taps = {tuple(p): t for t, p in enumerate(pixel_centres(3, 3).flatten(0, 1).tolist())}
    lifting, both = filters.lifting(weight[:, :, 0]), filters.group_conv(weight)
    assert both.shape == (8 * CHANNELS, 8 * IN_CHANNELS, 3, 3)
    for g, point in itertools.product(range(8), taps):
        back = act_on_points(group, group.invert(g), torch.tensor(point).double())
        source, (row, col) = taps[tuple(back.tolist())], divmod(taps[point], 3)
        for o, i in itertools.product(range(CHANNELS), range(IN_CHANNELS)):
            assert lifting[g * CHANNELS + o, i, row, col] == weight[o, i, 0, source]
            for m in range(8):
                n = group.compose(group.invert(g), m)
                expected = weight[o, i, n, source]
                assert both[g * CHANNELS + o, m * IN_CHANNELS + i, row, col] == expected


def rings_by_formula(x, y, kernel):
    """Return the functions at one point, before they are scaled."""
    radius, angle = math.hypot(x, y), math.atan2(y, x)
    values = []
    for ring in range((kernel + 1) // 2):
        centre = (kernel - 1) / 2 - ring
        height = math.exp(-((radius - centre) ** 2) / (2 * RING_STD**2))
        values.append(height)
        for frequency in range(1, math.floor(2 * centre) + 1):
            wave = height if radius > 1e-9 else 0.0
            values += [wave * math.cos(frequency * angle), wave * math.sin(frequency * angle)]
    return values


@pytest.mark.parametrize("kernel", [3, 4])
def test_definition_of_continuous_filters_as_loops(kernel):
    """Σ_b c[o, i, g⁻¹m, b] B_b(g⁻¹x) / norm, on D3, whose rotations do not preserve the grid."""
    group, filters = PlanarGroup.named("D3"), ContinuousFilters("D3", kernel)
    weight = weights_for(filters, True)
    points = pixel_centres(kernel, kernel).flatten(0, 1)
    values = torch.zeros(6, kernel**2, filters.free, dtype=torch.float64)
    for g, (t, point) in itertools.product(range(6), enumerate(points)):
        if point.norm() <= kernel / 2:
            x, y = act_on_points(group, group.invert(g), point).tolist()
            values[g, t] = torch.tensor(rings_by_formula(x, y, kernel), dtype=torch.float64)
    values = values / values.square().sum(1).mean(0).sqrt()
    lifting, both = lifted(filters, weight[:, :, 0]), on_group(filters, weight)
    for g, t in itertools.product(range(6), range(kernel**2)):
        row, col = divmod(t, kernel)
        expected = weight[:, :, 0] @ values[g, t]
        torch.testing.assert_close(lifting[:, g, row, col], expected, rtol=0, atol=1e-12)
        for m in range(6):
            expected = weight[:, :, group.compose(group.invert(g), m)] @ values[g, t]
            torch.testing.assert_close(both[:, g, row, col, m], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kernel", range(1, 10))
@pytest.mark.parametrize("name", ["D4", "C8"])
def test_the_functions_are_independent_and_of_norm_one(name, kernel):
    """Norms are 1 on average over the group; for a group of the grid, for each element."""
    basis = ring_harmonics(PlanarGroup.named(name), kernel).flatten(2)
    assert torch.linalg.svdvals(basis[0]).min() > 0.3
    norms = basis.norm(dim=-1)
    torch.testing.assert_close(norms.square().mean(0), torch.ones_like(norms[0]))
    assert (norms - 1).abs().max() < (1e-12 if name == "D4" else 0.15)


def test_functions_vanish_outside_the_disc():
    basis = ring_harmonics(PlanarGroup.named("C8"), 5)
    corners = basis[:, :, ::4, ::4]
    assert corners.abs().max() == 0
    assert basis[:, :, 0, 1].abs().max() > 0
    assert [ContinuousFilters("C8", k).free for k in (1, 3, 5)] == [1, 6, 15]


@pytest.mark.parametrize("kind", [PixelFilters, ContinuousFilters])
def test_initial_weights_have_the_variance_of_he(kind):
    """Σ K² = 2 over the inputs of one output, which doubles the variance of white noise."""
    filters = kind("D4", 5)
    weight = torch.empty(64, 16, 8, filters.free)
    initialise_weight(weight)
    energy = filters.group_conv(weight).flatten(1).square().sum(1)
    assert energy.mean() == pytest.approx(2, rel=0.02)


def test_half_precision_filters_are_exact_permutations():
    """On the grid, rotated filters are equal to the last bit in any precision."""
    filters = ContinuousFilters("D4", 3)
    taps = lifted(filters, weights_for(filters, False).bfloat16())
    assert taps.dtype == torch.bfloat16
    assert change(act_on_field, PlanarGroup.named("D4"), taps) == 0


def test_tables_are_not_in_the_state_dict():
    assert not PixelFilters("D4", 3).state_dict()
    assert not ContinuousFilters("D8", 3).state_dict()


def test_filters_are_chosen_by_name():
    assert isinstance(filters_for("auto", "D4", 3), PixelFilters)
    assert isinstance(filters_for("auto", "C8", 3), ContinuousFilters)
    assert isinstance(filters_for("continuous", "C4", 3), ContinuousFilters)
    with pytest.raises(InputError, match="C8 does not map pixels to pixels; use C1"):
        filters_for("pixel", "C8", 3)
    with pytest.raises(InputError, match="unknown filters 'pixels'"):
        filters_for("pixels", "C4", 3)
    with pytest.raises(InputError, match="kernel = 0 must be at least 1"):
        filters_for("auto", "C8", 0)


@pytest.mark.parametrize("patch", range(1, 12))
def test_overlap_is_the_smallest_that_covers_a_patch(patch):
    corner = pixel_centres(patch, patch)[0, 0].norm()
    overlap = covering_overlap("auto", "C8", patch)
    assert corner <= patch / 2 + overlap
    assert overlap == 0 or corner > patch / 2 + overlap - 1
    assert covering_overlap("auto", "D4", patch) == 0
