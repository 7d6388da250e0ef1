"""Law, witness, control, definition of attention on the group; its borders, dropout, gradients.

Letters:  b batch, n head, t token, s source;  h, g, m the poses of output, query and key.
"""

import itertools
import math

import numpy as np
import pytest
import torch

from turnwise.attention import group as frames
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

HEADS, PLACE, POSE = 2, 3, 2
DIM = PLACE + POSE
SQUARE, DISC, WHOLE = Neighbourhood(3), Neighbourhood(5, "disc"), Neighbourhood(0)


@pytest.fixture(autouse=True, params=["plain", "streaming"])
def backend(request, monkeypatch):
    """Every test of this file holds for the formula and for the one in little memory."""
    monkeypatch.setattr(frames, "_best_backend", lambda query: request.param)


def encode(steps):
    """Some vector of length PLACE for a place (row, col); nothing about it is symmetric."""
    mix = torch.linspace(-1, 2, 2 * PLACE, dtype=torch.float64).view(2, PLACE)
    return torch.sin(steps @ mix + torch.arange(PLACE))


def encodings_for(group, neighbourhood, rows, cols):
    place = encode(rotated_offsets(group, neighbourhood.offsets(rows, cols)))
    pose = torch.randn(
        group.order, POSE, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    return Encodings(place, pose, group.relative()[:, None].expand(-1, group.order, -1))


def attend_field(field, group, neighbourhood, queries="all", change=None, **options):
    """Queries, keys and values side by side in the channels of one field."""
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
def test_law(name, neighbourhood, queries):
    """On a rectangle, which quarter turns lay on its side."""
    group = PlanarGroup.named(name)
    field = field_for(group)
    assert error_of(group, field, neighbourhood=neighbourhood, queries=queries) < 1e-12


@pytest.mark.parametrize("size", [4, 5])
def test_law_on_odd_and_even_squares(size):
    group = PlanarGroup.named("D4")
    field = field_for(group, size, size, batch=1)
    assert error_of(group, field, neighbourhood=SQUARE) < 1e-12


def without_place(group, encodings):
    return encodings._replace(place=torch.zeros_like(encodings.place))


def without_pose(group, encodings):
    return encodings._replace(pose=torch.zeros_like(encodings.pose))


@pytest.mark.parametrize("queries", ["all", "own"])
def test_witness(queries):
    """Outputs follow the input, the place and the pose, and no two poses say the same."""
    group, options = PlanarGroup.named("D4"), {"neighbourhood": SQUARE, "queries": queries}
    field = field_for(group)
    out = attend_field(field, group, **options)
    assert (attend_field(field_for(group), group, **options) - out).abs().max() > 0.1
    assert (attend_field(field, group, change=without_place, **options) - out).abs().max() > 0.1
    assert (attend_field(field, group, change=without_pose, **options) - out).abs().max() > 0.1
    gaps = (out[:, :, None] - out[:, None]).abs().amax(dim=(0, 3, 4, 5))
    assert gaps[~torch.eye(8, dtype=torch.bool)].min() > 0.01


def unturned(group, encodings):
    return encodings._replace(place=encodings.place[:1].expand_as(encodings.place))


def product_for_relative(group, encodings):
    return encodings._replace(table=group.product()[:, None].expand(-1, group.order, -1))


def shifted_output(group, encodings):
    return encodings._replace(place=encodings.place.roll(1, dims=0))


@pytest.mark.parametrize("change", [unturned, product_for_relative, shifted_output])
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
    """Whether the neighbourhood holds the offset, by its definition in words."""
    inside_square = offset.abs().max() <= neighbourhood.window // 2
    inside_disc = offset.norm() <= neighbourhood.window / 2
    return neighbourhood.window == 0 or bool(
        inside_square and (inside_disc or neighbourhood.shape == "square")
    )


def views(group, neighbourhood, rows, cols):
    """[h][t]: what pose h at pixel t has around it, as pairs (s, encoding of h⁻¹(s − t))."""
    centre = pixel_centres(rows, cols).flatten(0, 1)

    def seen(h, offset):
        x, y = act_on_points(group, group.invert(h), offset)
        return encode(torch.stack([-y, x])).numpy()

    def around(h, t):
        offsets = centre - centre[t]
        near = [s for s in range(len(centre)) if is_near(neighbourhood, offsets[s])]
        return [(s, seen(h, offsets[s])) for s in near]

    return [[around(h, t) for t in range(len(centre))] for h in range(group.order)]


def relative(group):
    """(h, g, m) -> h⁻¹m, one by one."""
    poses = range(group.order)
    table = [[group.compose(group.invert(h), m) for m in poses] for h in poses]
    return lambda h, g, m: table[h][m]


def by_hand(query, key, value, pose, relation, around, own=False):
    """out_t^h = mean_g Σ_{s,m} σ(q_t^g·k_s^m + q_t^g·P(h⁻¹(s − t)) + q_t^g·E[T(h, g, m)]) v_s^m"""
    batch, asking, tokens, heads, dim = query.shape
    out = np.zeros((batch, len(around), tokens, heads, dim))
    for b, h, t, n in np.ndindex(*out.shape[:4]):
        of_output = [h] if own else range(asking)
        for g in of_output:
            q, weights = query[b, g, t, n], {}
            for (s, place), m in itertools.product(around[h][t], range(key.shape[1])):
                score = q @ key[b, m, s, n] + q[: len(place)] @ place
                score += q[len(place) :] @ pose[relation(h, g, m)]
                weights[s, m] = math.exp(score)
            total = sum(weights.values()) * len(of_output)
            for (s, m), weight in weights.items():
                out[b, h, t, n] += weight / total * value[b, m, s, n]
    return torch.from_numpy(out)


@pytest.mark.parametrize("queries", ["all", "own"])
@pytest.mark.parametrize("neighbourhood", [SQUARE, DISC, WHOLE], ids=["square", "disc", "whole"])
def test_definition(neighbourhood, queries):
    """As loops, on D3, where left is not right and an element not its inverse; on a rectangle."""
    group, rows, cols = PlanarGroup.named("D3"), 3, 4
    field = field_for(group, rows, cols, batch=1)
    parts = field.flatten(2, 3).unflatten(-1, (3, HEADS, DIM)).unbind(3)
    out = attend_field(field, group, neighbourhood, queries)
    expected = by_hand(
        *(part.numpy() for part in parts),
        encodings_for(group, neighbourhood, rows, cols).pose.numpy(),
        relative(group),
        views(group, neighbourhood, rows, cols),
        own=queries == "own",
    )
    gap = out.flatten(2, 3) - expected.flatten(-2)
    assert gap.abs().max() < 1e-12


def test_definition_for_any_table_of_relations():
    """T may depend on output, query and key, and have more entries than the group."""
    group, rows, cols = PlanarGroup.named("D3"), 2, 3
    table, pose = torch.randint(0, 9, (6, 6, 6)), torch.randn(9, POSE, dtype=torch.float64)
    field = field_for(group, rows, cols)
    parts = field.flatten(2, 3).unflatten(-1, (3, HEADS, DIM)).unbind(3)

    def change(group, encodings):
        return encodings._replace(table=table, pose=pose)

    out = attend_field(field, group, SQUARE, change=change)
    arrays = [part.numpy() for part in parts]
    around = views(group, SQUARE, rows, cols)
    expected = by_hand(*arrays, pose.numpy(), lambda h, g, m: table[h, g, m].item(), around)
    assert (out.flatten(2, 3) - expected.flatten(-2)).abs().max() < 1e-12


def test_definition_of_lifting():
    """One query and one key pose, no relation between poses, six outputs."""
    group, rows, cols = PlanarGroup.named("D3"), 3, 4
    query, key, value = torch.randn(3, 2, 1, rows * cols, HEADS, PLACE, dtype=torch.float64)
    nothing, table = torch.zeros(1, 0).double(), torch.zeros(6, 1, 1, dtype=torch.long)
    encodings = Encodings(encodings_for(group, DISC, rows, cols).place, nothing, table)
    out = attend_from_frames(query, key, value, encodings, find_sources(DISC, rows, cols))
    arrays = [part.numpy() for part in (query, key, value, nothing)]
    expected = by_hand(*arrays, lambda h, g, m: 0, views(group, DISC, rows, cols))
    assert (out - expected).abs().max() < 1e-12


@pytest.mark.parametrize("queries", ["all", "own"])
@pytest.mark.parametrize("neighbourhood", [SQUARE, DISC, WHOLE], ids=["square", "disc", "whole"])
def test_nothing_is_heard_from_outside_the_picture(neighbourhood, queries):
    """Where all that is in the picture says 1, the answer is 1: no zero slipped in."""
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
    spread = dropped.std(dim=0) / math.sqrt(len(many))
    assert ((dropped.mean(dim=0) - plain[0]).abs() < 5 * spread).all()


@pytest.mark.parametrize("queries", ["all", "own"])
def test_gradients_are_those_of_the_formula(queries):
    group = PlanarGroup.named("C2")
    sources = find_sources(SQUARE, 2, 2)
    encodings = encodings_for(group, SQUARE, 2, 2)
    parts = torch.randn(3, 1, 2, 4, 1, DIM, dtype=torch.float64).unbind()
    inputs = [x.clone().requires_grad_() for x in (*parts, encodings.place, encodings.pose)]

    def function(query, key, value, place, pose):
        told = Encodings(place, pose, encodings.table)
        return attend_from_frames(query, key, value, told, sources, queries=queries)

    assert torch.autograd.gradcheck(function, inputs)


def test_unknown_queries_are_refused():
    group = PlanarGroup.named("C2")
    with pytest.raises(InputError, match=r"unknown queries 'one'\. .*Known: all, own"):
        attend_field(field_for(group), group, SQUARE, "one")
