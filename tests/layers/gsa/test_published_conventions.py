"""Relations between orientations and coordinates of offsets: both are equivariant."""

import itertools
import math
from dataclasses import fields

import pytest
import torch

from turnwise.geometry.neighbourhoods import Neighbourhood
from turnwise.groups import PlanarGroup, act_on_points
from turnwise.layers.gsa.published import (
    EXACT,
    EXACT_GE_VIT,
    Convention,
    key_seen_from_output,
    logarithmic_steps,
    query_between_output_and_key,
)

NAMES = ["C1", "C4", "C8", "C12", "C16", "D1", "D2", "D3", "D4", "D8"]
TABLES = [key_seen_from_output, query_between_output_and_key]


@pytest.fixture(params=NAMES)
def group(request):
    return PlanarGroup.named(request.param)


def changed_by_the_group(group, table):
    """Return the share of (h, g, m) with T(Rh, Rg, Rm) ≠ T(h, g, m), for each R ≠ e."""
    rows = [group.product()[R] for R in range(1, group.order)]
    return [float((table[r][:, r][:, :, r] != table).double().mean()) for r in rows]


@pytest.mark.parametrize("table", TABLES)
def test_the_tables_are_invariant_to_the_group(group, table):
    assert not any(changed_by_the_group(group, table(group)))


@pytest.mark.parametrize("table", TABLES)
def test_witness_every_key_has_a_different_relation(group, table):
    """For each output and query, T is a bijection from keys to relations."""
    assert torch.equal(
        table(group).sort(dim=-1).values, group.elements.expand(group.order, group.order, -1)
    )


def test_control_a_table_of_products_is_not_invariant():
    """T = h·m instead of h⁻¹m: with D4 only the rotation by 180°, which commutes, leaves it."""
    group = PlanarGroup.named("D4")
    table = group.product()[:, None, :].expand(-1, 8, -1)
    assert changed_by_the_group(group, table) == [0.5, 0.0, 0.5, 0.5, 0.5, 0.5, 0.5]


def test_definition_of_the_tables():
    """h⁻¹m, and h⁻¹g·m⁻¹g, one by one, on D3, which is not commutative."""
    group = PlanarGroup.named("D3")
    seen, between = key_seen_from_output(group), query_between_output_and_key(group)
    for h, g, m in itertools.product(range(6), repeat=3):
        assert seen[h, g, m] == group.compose(group.invert(h), m)
        to_query = group.compose(group.invert(h), g)
        from_key = group.compose(group.invert(m), g)
        assert between[h, g, m] == group.compose(to_query, from_key)


def test_only_the_second_table_depends_on_the_query():
    group = PlanarGroup.named("D4")
    assert (key_seen_from_output(group).diff(dim=1) == 0).all()
    assert (query_between_output_and_key(group).diff(dim=1) != 0).any()


@pytest.mark.parametrize(
    "neighbourhood", [Neighbourhood(3), Neighbourhood(5, "disc"), Neighbourhood(0)]
)
def test_definition_of_the_coordinates(neighbourhood):
    """±log₂(1 + |step|) of h⁻¹δ, rows and columns, one by one, on a rectangle."""
    group, rows, cols = PlanarGroup.named("D3"), 3, 4
    offsets = neighbourhood.offsets(rows, cols).double()
    found = logarithmic_steps(group, neighbourhood, rows, cols)
    for h, o in itertools.product(range(6), range(len(offsets))):
        x, y = act_on_points(group, group.invert(h), offsets[o]).tolist()
        expected = [math.copysign(math.log2(1 + abs(step)), step) for step in (-y, x)]
        assert found[h, o].tolist() == pytest.approx(expected, abs=1e-12)


def test_equivariance_of_the_coordinates():
    """If g acts on the offsets, element h has the coordinates that g⁻¹h had before, bit for bit."""
    group, window = PlanarGroup.named("D4"), Neighbourhood(5)
    offsets = window.offsets(9, 9)
    number = {tuple(offset): n for n, offset in enumerate(offsets.tolist())}
    seen = logarithmic_steps(group, window, 9, 9)
    for g in range(8):
        transformed = act_on_points(group, g, offsets.double()).long().tolist()
        order = [number[tuple(offset)] for offset in transformed]
        assert torch.equal(seen[:, order], seen[group.product()[group.invert(g)]])


def test_coordinates_do_not_depend_on_the_window():
    """So weights can be used in every window and in images of every size."""
    group = PlanarGroup.named("C8")
    seen = {}
    for neighbourhood in (Neighbourhood(5), Neighbourhood(9), Neighbourhood(0)):
        offsets = [tuple(offset) for offset in neighbourhood.offsets(7, 7).tolist()]
        coordinates = logarithmic_steps(group, neighbourhood, 7, 7)
        chosen = [offsets.index(offset) for offset in [(0, 0), (1, 0), (2, -1)]]
        seen[neighbourhood] = coordinates[:, chosen]
    first, *others = seen.values()
    assert all(torch.equal(first, other) for other in others)


def test_the_two_families_differ_in_the_table_alone():
    differing = [
        field.name
        for field in fields(Convention)
        if getattr(EXACT, field.name) != getattr(EXACT_GE_VIT, field.name)
    ]
    assert differing == ["table"]
