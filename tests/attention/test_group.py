"""Attention on the group: equivariance, witness, control, definition; borders, dropout, gradients.

Letters:  b batch, n head, t token, s source;  h, g, m the orientations of output, query, key.
"""

import itertools
import math

import numpy as np
import pytest
import torch

from turnwise.attention import group as group_attention
from turnwise.attention.group import Encodings, attend_from_frames
from turnwise.errors import InputError
from turnwise.geometry.grids import pixel_centres
from turnwise.geometry.neighbourhoods import Neighbourhood, find_sources, rotated_offsets
from turnwise.groups import (
    GRID_GROUPS,
    PlanarGroup,
    act_on_field,
    act_on_points,
    equivariance_error,
)

HEADS, POSITION, ORIENTATION = 2, 3, 2
DIM = POSITION + ORIENTATION
SQUARE, DISC, WHOLE = Neighbourhood(3), Neighbourhood(5, "disc"), Neighbourhood(0)


@pytest.fixture(autouse=True, params=["plain", "streaming"])
def backend(request, monkeypatch):
    """Run every test of this file with both backends for CPUs."""
    monkeypatch.setattr(group_attention, "_best_backend", lambda query: request.param)


def encode(steps):
    """Return a vector of length POSITION for an offset (row, col), without any symmetry."""
    mix = torch.linspace(-1, 2, 2 * POSITION, dtype=torch.float64).view(2, POSITION)
    return torch.sin(steps @ mix + torch.arange(POSITION))


def encodings_for(group, neighbourhood, rows, cols):
    position = encode(rotated_offsets(group, neighbourhood.offsets(rows, cols)))
    generator = torch.Generator().manual_seed(1)
    orientation = torch.randn(group.order, ORIENTATION, generator=generator, dtype=torch.float64)
    return Encodings(position, orientation, group.relative()[:, None].expand(-1, group.order, -1))


def attend_field(field, group, neighbourhood, queries="all", change=None, **options):
    """Attend with the queries, keys and values in the channels of one field."""
    rows, cols = field.shape[2:4]
    encodings = encodings_for(group, neighbourhood, rows, cols)
    parts = field.flatten(2, 3).unflatten(-1, (3, HEADS, DIM)).unbind(3)
    sources = find_sources(neighbourhood, rows, cols)
    if change is not None:
        encodings = change(group, encodings)
    out = attend_from_frames(*parts, encodings, sources, queries=queries, **options)
    return out.flatten(-2).unflatten(2, (rows, cols))


def field_for(group, rows=3, cols=4, batch=2):
    return torch.randn(batch, group.order, rows, cols, 3 * HEADS * DIM, dtype=torch.float64)


def error_of(group, field, **options):
    return equivariance_error(
        lambda x: attend_field(x, group, **options),
        group,
        field,
        act_in=act_on_field,
        act_out=act_on_field,
    )


@pytest.mark.parametrize("queries", ["all", "own"])
@pytest.mark.parametrize("neighbourhood", [SQUARE, DISC, WHOLE], ids=["square", "disc", "whole"])
@pytest.mark.parametrize("name", GRID_GROUPS)
def test_equivariance_on_a_rectangle(name, neighbourhood, queries):
    group = PlanarGroup.named(name)
    field = field_for(group)
    assert error_of(group, field, neighbourhood=neighbourhood, queries=queries) < 1e-12


@pytest.mark.parametrize("size", [4, 5])
def test_equivariance_on_odd_and_even_squares(size):
    group = PlanarGroup.named("D4")
    field = field_for(group, size, size, batch=1)
    assert error_of(group, field, neighbourhood=SQUARE) < 1e-12


def without_position(group, encodings):
    return encodings._replace(position=torch.zeros_like(encodings.position))


def without_orientation(group, encodings):
    return encodings._replace(orientation=torch.zeros_like(encodings.orientation))


@pytest.mark.parametrize("queries", ["all", "own"])
def test_witness(queries):
    """Outputs depend on the input, on positions and orientations, and differ by orientation."""
    group, options = PlanarGroup.named("D4"), {"neighbourhood": SQUARE, "queries": queries}
    field = field_for(group)
    out = attend_field(field, group, **options)
    assert (attend_field(field_for(group), group, **options) - out).abs().max() > 0.1
    for change in (without_position, without_orientation):
        assert (attend_field(field, group, change=change, **options) - out).abs().max() > 0.1
    gaps = (out[:, :, None] - out[:, None]).abs().amax(dim=(0, 3, 4, 5))
    assert gaps[~torch.eye(8, dtype=torch.bool)].min() > 0.01


def unrotated(group, encodings):
    return encodings._replace(position=encodings.position[:1].expand_as(encodings.position))


def product_for_relative(group, encodings):
    return encodings._replace(table=group.product()[:, None].expand(-1, group.order, -1))


def shifted_output(group, encodings):
    return encodings._replace(position=encodings.position.roll(1, dims=0))


@pytest.mark.parametrize("change", [unrotated, product_for_relative, shifted_output])
@pytest.mark.parametrize("queries", ["all", "own"])
def test_control(change, queries):
    group = PlanarGroup.named("D4")
    field = field_for(group)
    options = {"neighbourhood": SQUARE, "queries": queries}
    assert error_of(group, field, change=change, **options) > 0.01


def test_control_a_permuted_group_axis():
    group = PlanarGroup.named("C4")

    def permuted(x):
        return attend_field(x, group, SQUARE)[:, [1, 0, 2, 3]]

    actions = {"act_in": act_on_field, "act_out": act_on_field}
    assert equivariance_error(permuted, group, field_for(group), **actions) > 0.01


def is_near(neighbourhood, offset):
    """Return whether the neighbourhood contains the offset, by its definition in words."""
    inside_square = offset.abs().max() <= neighbourhood.window // 2
    inside_disc = offset.norm() <= neighbourhood.window / 2
    return neighbourhood.window == 0 or bool(
        inside_square and (inside_disc or neighbourhood.shape == "square")
    )


def encoded_sources(group, neighbourhood, rows, cols):
    """Return [h][t]: the sources around pixel t, as pairs (s, encoding of h⁻¹(s − t))."""
    centre = pixel_centres(rows, cols).flatten(0, 1)

    def encoded(h, offset):
        x, y = act_on_points(group, group.invert(h), offset)
        return encode(torch.stack([-y, x])).numpy()

    def around(h, t):
        offsets = centre - centre[t]
        near = [s for s in range(len(centre)) if is_near(neighbourhood, offsets[s])]
        return [(s, encoded(h, offsets[s])) for s in near]

    return [[around(h, t) for t in range(len(centre))] for h in range(group.order)]


def relative(group):
    """(h, g, m) -> h⁻¹m, one by one."""
    elements = range(group.order)
    table = [[group.compose(group.invert(h), m) for m in elements] for h in elements]
    return lambda h, g, m: table[h][m]


def by_loops(query, key, value, orientation, relation, around, own=False):
    """out_t^h = mean_g Σ_{s,m} σ(q_t^g·k_s^m + q_t^g·P(h⁻¹(s − t)) + q_t^g·E[T(h, g, m)]) v_s^m"""
    batch, query_elements, tokens, heads, dim = query.shape
    out = np.zeros((batch, len(around), tokens, heads, dim))
    for b, h, t, n in np.ndindex(*out.shape[:4]):
        of_output = [h] if own else range(query_elements)
        for g in of_output:
            q, weights = query[b, g, t, n], {}
            for (s, position), m in itertools.product(around[h][t], range(key.shape[1])):
                score = q @ key[b, m, s, n] + q[: len(position)] @ position
                score += q[len(position) :] @ orientation[relation(h, g, m)]
                weights[s, m] = math.exp(score)
            total = sum(weights.values()) * len(of_output)
            for (s, m), weight in weights.items():
                out[b, h, t, n] += weight / total * value[b, m, s, n]
    return torch.from_numpy(out)


@pytest.mark.parametrize("queries", ["all", "own"])
@pytest.mark.parametrize("neighbourhood", [SQUARE, DISC, WHOLE], ids=["square", "disc", "whole"])
def test_definition(neighbourhood, queries):
    """As loops, on D3, which is not commutative and where elements differ from their inverses."""
    group, rows, cols = PlanarGroup.named("D3"), 3, 4
    field = field_for(group, rows, cols, batch=1)
    parts = field.flatten(2, 3).unflatten(-1, (3, HEADS, DIM)).unbind(3)
    out = attend_field(field, group, neighbourhood, queries)
    expected = by_loops(
        *(part.numpy() for part in parts),
        encodings_for(group, neighbourhood, rows, cols).orientation.numpy(),
        relative(group),
        encoded_sources(group, neighbourhood, rows, cols),
        own=queries == "own",
    )
    gap = out.flatten(2, 3) - expected.flatten(-2)
    assert gap.abs().max() < 1e-12


def test_definition_for_any_table_of_relations():
    """T may depend on output, query and key, and have more entries than the group."""
    group, rows, cols = PlanarGroup.named("D3"), 2, 3
    table = torch.randint(0, 9, (6, 6, 6))
    orientation = torch.randn(9, ORIENTATION, dtype=torch.float64)
    field = field_for(group, rows, cols)
    parts = field.flatten(2, 3).unflatten(-1, (3, HEADS, DIM)).unbind(3)

    def change(group, encodings):
        return encodings._replace(table=table, orientation=orientation)

    out = attend_field(field, group, SQUARE, change=change)
    arrays = [part.numpy() for part in parts]
    around = encoded_sources(group, SQUARE, rows, cols)
    relation = lambda h, g, m: table[h, g, m].item()  # noqa: E731
    expected = by_loops(*arrays, orientation.numpy(), relation, around)
    assert (out.flatten(2, 3) - expected.flatten(-2)).abs().max() < 1e-12


def test_definition_of_lifting():
    """One query and one key orientation, no relation between orientations, six outputs."""
    group, rows, cols = PlanarGroup.named("D3"), 3, 4
    query, key, value = torch.randn(3, 2, 1, rows * cols, HEADS, POSITION, dtype=torch.float64)
    nothing, table = torch.zeros(1, 0).double(), torch.zeros(6, 1, 1, dtype=torch.long)
    encodings = Encodings(encodings_for(group, DISC, rows, cols).position, nothing, table)
    out = attend_from_frames(query, key, value, encodings, find_sources(DISC, rows, cols))
    arrays = [part.numpy() for part in (query, key, value, nothing)]
    around = encoded_sources(group, DISC, rows, cols)
    expected = by_loops(*arrays, lambda h, g, m: 0, around)
    assert (out - expected).abs().max() < 1e-12


@pytest.mark.parametrize("queries", ["all", "own"])
@pytest.mark.parametrize("neighbourhood", [SQUARE, DISC, WHOLE], ids=["square", "disc", "whole"])
def test_pixels_outside_the_image_have_no_weight(neighbourhood, queries):
    """If all values are 1, the output is 1: no zero entered the softmax."""
    group = PlanarGroup.named("C4")
    field = field_for(group)
    field[..., -HEADS * DIM :] = 1.0
    out = attend_field(field, group, neighbourhood, queries)
    torch.testing.assert_close(out, torch.ones_like(out), rtol=0, atol=1e-12)


def test_dropout_keeps_the_mean():
    group = PlanarGroup.named("C2")
    field = field_for(group, 2, 2, batch=1)
    plain = attend_field(field, group, SQUARE)
    assert torch.equal(attend_field(field, group, SQUARE), plain)
    many = field.expand(4000, -1, -1, -1, -1)
    dropped = attend_field(many, group, SQUARE, dropout=0.5)
    assert (dropped[0] - plain[0]).abs().max() > 0.1
    error = dropped.std(dim=0) / math.sqrt(len(many))
    assert ((dropped.mean(dim=0) - plain[0]).abs() < 5 * error).all()


@pytest.mark.parametrize("queries", ["all", "own"])
def test_gradients_match_finite_differences(queries):
    group = PlanarGroup.named("C2")
    sources = find_sources(SQUARE, 2, 2)
    encodings = encodings_for(group, SQUARE, 2, 2)
    parts = torch.randn(3, 1, 2, 4, 1, DIM, dtype=torch.float64).unbind()
    given = (*parts, encodings.position, encodings.orientation)
    inputs = [x.clone().requires_grad_() for x in given]

    def function(query, key, value, position, orientation):
        encoded = Encodings(position, orientation, encodings.table)
        return attend_from_frames(query, key, value, encoded, sources, queries=queries)

    assert torch.autograd.gradcheck(function, inputs)


def test_unknown_queries_raise_an_error():
    group = PlanarGroup.named("C2")
    with pytest.raises(InputError, match=r"unknown queries 'one'\. .*Known: all, own"):
        attend_field(field_for(group), group, SQUARE, "one")
