"""Law, witness, control, definition of lifting and of group self-attention.

Letters:  b batch, n head, t token, s source;  h, g, m the poses of output, query and key.
"""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from turnwise.errors import InputError
from turnwise.geometry.grids import pixel_centres
from turnwise.geometry.neighbourhoods import Neighbourhood
from turnwise.groups import (
    GRID_GROUPS,
    PlanarGroup,
    act_on_field,
    act_on_image,
    act_on_points,
    equivariance_errors,
)
from turnwise.layers.gsa.attention import AttentionPlan, GroupSelfAttention, LiftingSelfAttention
from turnwise.layers.gsa.published import (
    EXACT,
    EXACT_GE_VIT,
    key_seen_from_output,
    logarithmic_steps,
    query_between_output_and_key,
    table_of_2021,
)

SQUARE, DISC, WHOLE = Neighbourhood(3), Neighbourhood(5, "disc"), Neighbourhood(0)
AROUND = {"square": SQUARE, "disc": DISC, "whole": WHOLE}
NEIGHBOURHOODS = pytest.mark.parametrize("around", AROUND)


def plan_for(name, neighbourhood=SQUARE, **options):
    return AttentionPlan(PlanarGroup.named(name), neighbourhood, heads=2, size=5, **options)


def lifting(plan, width=4):
    return started(LiftingSelfAttention(plan, 3, width, 5)).double()


def on_the_group(plan, width=4):
    return started(GroupSelfAttention(plan, 3, width, 5)).double()


def started(layer):
    """Large weights, so that what is wrong shows."""
    for module in layer.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=math.sqrt(2 / module.in_features))
            nn.init.normal_(module.bias)
    return layer


def picture(rows=3, cols=4, batch=2):
    return torch.randn(batch, rows, cols, 3, dtype=torch.float64)


def field_for(plan, rows=3, cols=4, batch=2):
    return torch.randn(batch, plan.group.order, rows, cols, 3, dtype=torch.float64)


def act_on_picture(group, g, x):
    """Channels come last."""
    return act_on_image(group, g, x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


def lifting_error(function, group, x):
    actions = {"act_in": act_on_picture, "act_out": act_on_field}
    return max(equivariance_errors(function, group, x, elements=group.grid_elements(), **actions))


def group_error(function, group, x):
    actions = {"act_in": act_on_field, "act_out": act_on_field}
    return max(equivariance_errors(function, group, x, elements=group.grid_elements(), **actions))


@NEIGHBOURHOODS
@pytest.mark.parametrize("encoding", ["mlp", "table"])
@pytest.mark.parametrize("name", GRID_GROUPS)
def test_law_of_lifting(name, encoding, around):
    """On a rectangle, which quarter turns lay on its side."""
    plan = plan_for(name, AROUND[around], encoding=encoding)
    assert lifting_error(lifting(plan), plan.group, picture()) < 1e-12


@NEIGHBOURHOODS
@pytest.mark.parametrize("encoding", ["mlp", "table"])
@pytest.mark.parametrize("convention", [EXACT, EXACT_GE_VIT], ids=["gsa", "ge-vit"])
@pytest.mark.parametrize("queries", ["all", "own"])
@pytest.mark.parametrize("name", GRID_GROUPS)
def test_law_on_the_group(name, queries, convention, encoding, around):
    options = {"queries": queries, "convention": convention, "encoding": encoding}
    plan = plan_for(name, AROUND[around], **options)
    field = field_for(plan, batch=1)
    assert group_error(on_the_group(plan, width=2), plan.group, field) < 1e-12


@pytest.mark.parametrize("size", [4, 5])
@pytest.mark.parametrize("crop", [0, 1])
def test_law_on_odd_and_even_squares_whole_and_cropped(size, crop):
    plan = plan_for("D4", queries="own")
    lift, group_layer = lifting(plan), on_the_group(plan)
    lift_error = lifting_error(lambda x: lift(x, crop), plan.group, picture(size, size))
    assert lift_error < 1e-12
    field = field_for(plan, size, size)
    assert group_error(lambda x: group_layer(x, crop), plan.group, field) < 1e-12


@NEIGHBOURHOODS
@pytest.mark.parametrize("name", ["C8", "C12", "C16", "D8"])
def test_law_of_the_turns_that_the_grid_has(name, around):
    """Of the finer groups the quarter turns and mirrors stay exact, for all that the rest costs."""
    plan = plan_for(name, AROUND[around], queries="own")
    assert lifting_error(lifting(plan), plan.group, picture()) < 1e-11
    assert group_error(on_the_group(plan), plan.group, field_for(plan, batch=1)) < 1e-11


@pytest.mark.parametrize("convention", [EXACT, EXACT_GE_VIT], ids=["gsa", "ge-vit"])
@pytest.mark.parametrize("name", ["C8", "D8"])
def test_law_of_the_turns_that_the_grid_has_for_all_queries(name, convention):
    plan = plan_for(name, convention=convention)
    assert group_error(on_the_group(plan), plan.group, field_for(plan, batch=1)) < 1e-11


def test_witness_of_lifting():
    """The output follows the input and the place, and no two poses say the same."""
    plan = plan_for("D4")
    layer, x = lifting(plan), picture()
    out = layer(x)
    assert (layer(picture()) - out).abs().max() > 0.1
    assert poses_apart(out) > 0.01
    for parameter in layer.place.parameters():
        nn.init.zeros_(parameter)
    assert (layer(x) - out).abs().max() > 0.01
    assert poses_apart(layer(x)) < 1e-12  # only the place tells them from each other


@pytest.mark.parametrize("queries", ["all", "own"])
@pytest.mark.parametrize("part", ["place", "pose"])
def test_witness_on_the_group(queries, part):
    plan = plan_for("D4", queries=queries)
    layer, field = on_the_group(plan), field_for(plan)
    out = layer(field)
    assert (layer(field_for(plan)) - out).abs().max() > 0.1
    assert poses_apart(out) > 0.01
    for parameter in [layer.pose] if part == "pose" else layer.place.parameters():
        nn.init.zeros_(parameter)
    assert (layer(field) - out).abs().max() > 0.01


def poses_apart(field):
    """How much the two most similar poses differ."""
    gaps = (field[:, :, None] - field[:, None]).abs().amax(dim=(0, 3, 4, 5))
    return gaps[~torch.eye(len(gaps), dtype=torch.bool)].min()


def unturned(group, neighbourhood, rows, cols):
    return logarithmic_steps(group, neighbourhood, rows, cols)[:1].expand(group.order, -1, -1)


def product_for_relative(group):
    return group.product()[:, None, :].expand(-1, group.order, -1)


WRONG = {
    "table of 2021": ("C4", {"table": table_of_2021}),
    "product for relative": ("D4", {"table": product_for_relative}),
    "unturned place": ("C4", {"coordinates": unturned}),
}


@pytest.mark.parametrize("fault", WRONG)
@pytest.mark.parametrize("queries", ["all", "own"])
def test_control(fault, queries):
    name, change = WRONG[fault]
    plan = plan_for(name, queries=queries, convention=replace(EXACT, **change))
    assert group_error(on_the_group(plan), plan.group, field_for(plan)) > 1e-3


def test_control_of_lifting():
    plan = plan_for("C4", convention=replace(EXACT, coordinates=unturned))
    assert lifting_error(lifting(plan), plan.group, picture()) > 1e-3


def test_control_a_permuted_group_axis():
    plan = plan_for("C4")
    lift, group_layer, order = lifting(plan), on_the_group(plan), [1, 0, 2, 3]
    assert lifting_error(lambda x: lift(x)[:, order], plan.group, picture()) > 1e-3
    permuted = group_error(lambda x: group_layer(x[:, order]), plan.group, field_for(plan))
    assert permuted > 1e-3


def is_near(neighbourhood, offset):
    """Whether the neighbourhood holds the offset, by its definition in words."""
    inside_square = offset.abs().max() <= neighbourhood.window // 2
    inside_disc = offset.norm() <= neighbourhood.window / 2
    return neighbourhood.window == 0 or bool(
        inside_square and (inside_disc or neighbourhood.shape == "square")
    )


def views(layer, rows, cols):
    """[h][t]: what pose h at pixel t has around it, as pairs (s, encoding of h⁻¹(s − t))."""
    plan, centre = layer.project.plan, pixel_centres(rows, cols).flatten(0, 1)

    def seen(h, offset):
        x, y = act_on_points(plan.group, plan.group.invert(h), offset)
        steps = torch.stack([-y, x])
        logarithmic = steps.sign() * torch.log2(1 + steps.abs())
        return layer.place(steps if plan.encoding == "table" else logarithmic).numpy()

    def around(h, t):
        offsets = centre - centre[t]
        near = [s for s in range(len(centre)) if is_near(plan.neighbourhood, offsets[s])]
        return [(s, seen(h, offsets[s])) for s in near]

    return [[around(h, t) for t in range(len(centre))] for h in range(plan.group.order)]


def projected(linear, field, heads):
    """(batch, pose, pixel, head, channel), as numbers."""
    flat = field.flatten(2, 3) @ linear.weight.T + linear.bias
    return flat.unflatten(-1, (heads, -1)).numpy()


@torch.no_grad()
def by_hand(layer, field, pose, relation):
    """out_t^h = W mean_g Σ_{s,m} σ((q·k + q·P(h⁻¹(s − t)) + q·E[T(h, g, m)]) / √dim) v"""
    maps, plan, (rows, cols) = layer.project, layer.project.plan, field.shape[2:4]
    linears = (maps.to_query, maps.to_key, maps.to_value)
    query, key, value = (projected(linear, field, plan.heads) for linear in linears)
    around, dim = views(layer, rows, cols), query.shape[-1]
    out = np.zeros((len(field), plan.group.order, *query.shape[2:]))
    for b, h, t, n in np.ndindex(*out.shape[:4]):
        lifts = query.shape[1] == 1  # a pixel has no pose of its own
        of_output = [h] if plan.queries == "own" and not lifts else range(query.shape[1])
        for g in of_output:
            q, weights = query[b, g, t, n], {}
            for (s, place), m in itertools.product(around[h][t], range(key.shape[1])):
                whole = np.concatenate([place, pose[relation(h, g, m)]])
                weights[s, m] = math.exp(q @ (key[b, m, s, n] + whole) / math.sqrt(dim))
            total = sum(weights.values()) * len(of_output)
            for (s, m), weight in weights.items():
                out[b, h, t, n] += weight / total * value[b, m, s, n]
    mixed = torch.from_numpy(out).flatten(-2) @ maps.to_output.weight.T + maps.to_output.bias
    return mixed.unflatten(2, (rows, cols))


@NEIGHBOURHOODS
@pytest.mark.parametrize("name", ["D3", "D4"])
def test_definition_of_lifting(name, around):
    """As loops, on groups in which left is not right, and on a rectangle."""
    layer, x = lifting(plan_for(name, AROUND[around])), picture()
    expected = by_hand(layer, x[:, None], np.zeros((1, 0)), lambda h, g, m: 0)
    assert (layer(x) - expected).abs().max() < 1e-12


RELATIONS = {  # h⁻¹m and h⁻¹g·m⁻¹g
    "gsa": (key_seen_from_output, lambda rel, mul, h, g, m: rel[h][m]),
    "ge-vit": (query_between_output_and_key, lambda rel, mul, h, g, m: mul[rel[h][g]][rel[m][g]]),
}


@pytest.mark.parametrize("queries", ["all", "own"])
@pytest.mark.parametrize(
    ("formula", "around"), [*itertools.product(["gsa"], AROUND), ("ge-vit", "square")]
)
def test_definition_on_the_group(formula, around, queries):
    """On D3: the published form with a mean over the queries, and the form of cost |G|²."""
    group, (table, relation) = PlanarGroup.named("D3"), RELATIONS[formula]
    convention = replace(EXACT, table=table)
    plan = plan_for("D3", AROUND[around], queries=queries, convention=convention)
    layer, field = on_the_group(plan), field_for(plan, batch=1)
    mul, rel = group.product().tolist(), group.relative().tolist()
    pose = layer.pose.detach().numpy()
    expected = by_hand(layer, field, pose, lambda h, g, m: relation(rel, mul, h, g, m))
    assert (layer(field) - expected).abs().max() < 1e-12


@NEIGHBOURHOODS
def test_definition_with_a_table_of_whole_steps(around):
    """On D4, for only the symmetries of the grid give whole steps; a row of the table for each."""
    plan = plan_for("D4", AROUND[around], encoding="table", queries="own")
    lift, x, relative = lifting(plan), picture(batch=1), plan.group.relative().tolist()
    expected = by_hand(lift, x[:, None], np.zeros((1, 0)), lambda h, g, m: 0)
    assert (lift(x) - expected).abs().max() < 1e-12
    layer, field = on_the_group(plan), field_for(plan, batch=1)
    pose = layer.pose.detach().numpy()
    expected = by_hand(layer, field, pose, lambda h, g, m: relative[h][m])
    assert (layer(field) - expected).abs().max() < 1e-12


@pytest.mark.parametrize("crop", [1, 2])
@NEIGHBOURHOODS
def test_cropped_tokens_still_hear_what_was_cropped(around, crop):
    """Cropping before attention changes nothing but the cost."""
    plan = plan_for("D4", AROUND[around], queries="own")
    lift, x, inner = lifting(plan), picture(5, 6), slice(crop, -crop)
    assert (lift(x, crop) - lift(x)[:, :, inner, inner]).abs().max() < 1e-12
    layer, field = on_the_group(plan), field_for(plan, 5, 6)
    assert (layer(field, crop) - layer(field)[:, :, inner, inner]).abs().max() < 1e-12


@NEIGHBOURHOODS
def test_nothing_is_heard_from_outside_the_picture(around):
    """Where all that is in the picture says 1, the answer is 1: no zero slipped in."""
    plan = plan_for("C4", AROUND[around])
    for layer, x in ((lifting(plan), picture()), (on_the_group(plan), field_for(plan))):
        maps = layer.project
        nn.init.zeros_(maps.to_value.weight)
        nn.init.ones_(maps.to_value.bias)
        nn.init.constant_(maps.to_output.weight, 1 / maps.to_output.in_features)
        nn.init.zeros_(maps.to_output.bias)
        out = layer(x)
        torch.testing.assert_close(out, torch.ones_like(out), rtol=0, atol=1e-12)


def test_a_field_with_one_pose_is_plain_relative_attention():
    """With C1 the two forms of queries agree, for there is only one."""
    plan = plan_for("C1")
    layer, field = on_the_group(plan), field_for(plan)
    own = on_the_group(replace(plan, queries="own"))
    own.load_state_dict(layer.state_dict())
    torch.testing.assert_close(own(field), layer(field), rtol=0, atol=1e-12)


def test_dropout_acts_in_training_alone_and_keeps_the_mean():
    plan = plan_for("C2", dropout=0.5)
    layer, field = on_the_group(plan), field_for(plan, 2, 2, batch=1)
    expected = layer.eval()(field)
    assert torch.equal(layer(field), expected)
    dropped = layer.train()(field.expand(4000, -1, -1, -1, -1))
    assert (dropped[0] - expected[0]).abs().max() > 0.1
    spread = dropped.std(dim=0) / math.sqrt(len(dropped))
    assert ((dropped.mean(dim=0) - expected[0]).abs() < 5 * spread).all()


def test_dropout_of_lifting():
    layer, x = lifting(plan_for("C4", dropout=0.5)), picture()
    assert (layer.train()(x) - layer.eval()(x)).abs().max() > 0.1
    assert torch.equal(layer(x), layer(x))


FORGOTTEN = {"project.to_key.bias", "place.row.mix.bias", "place.col.mix.bias"}


@pytest.mark.parametrize("queries", ["all", "own"])
@pytest.mark.parametrize("encoding", ["mlp", "table"])
def test_gradients_reach_every_parameter(encoding, queries):
    """But for what adds the same to all scores of a query, which softmax forgets."""
    plan = plan_for("D4", encoding=encoding, queries=queries)
    for layer, x in ((lifting(plan), picture()), (on_the_group(plan), field_for(plan))):
        layer(x).square().sum().backward()
        dead = {n for n, p in layer.named_parameters() if p.grad.abs().max() < 1e-10}
        assert dead <= FORGOTTEN


@pytest.mark.parametrize("scale_by_input", [True, False])
def test_the_scale_is_that_of_the_convention(scale_by_input):
    """√dim; in the published programs √(input channels)."""
    plan = plan_for("C4", convention=replace(EXACT, scale_by_input=scale_by_input))
    assert lifting(plan).project.scale == 1 / math.sqrt(3 if scale_by_input else 5)


def test_the_published_sum_over_queries_is_the_mean_times_their_number():
    plan = plan_for("C4")
    layer, summing = on_the_group(plan), on_the_group(replace_convention(plan, sums=True))
    summing.load_state_dict(layer.state_dict())
    nn.init.zeros_(layer.project.to_output.bias)
    nn.init.zeros_(summing.project.to_output.bias)
    field = field_for(plan)
    torch.testing.assert_close(summing(field), 4 * layer(field))


def replace_convention(plan, **change):
    return replace(plan, convention=replace(plan.convention, **change))


def test_tables_are_no_weights():
    """They follow from the group, so they are not saved; modes do not change what is."""
    layer = on_the_group(plan_for("C4"))
    assert not any("table" in key for key in layer.state_dict())
    assert layer.train().state_dict().keys() == layer.eval().state_dict().keys()


def test_one_layer_takes_pictures_of_every_size():
    """The same weights, whatever the layer saw before."""
    for around in AROUND.values():
        layer = lifting(plan_for("D4", around))
        for rows, cols in ((3, 4), (6, 2), (3, 4)):
            assert layer(picture(rows, cols)).shape == (2, 8, rows, cols, 4)


@pytest.mark.parametrize("kind", [lifting, on_the_group])
def test_training_after_looking_in_inference_mode(kind):
    """As Lightning does: a sanity check of the validation first, then training."""
    layer = kind(plan_for("C2", Neighbourhood(7), dropout=0.125))
    x = torch.randn(1, *([] if kind is lifting else [2]), 7, 9, 3, dtype=torch.float64)
    with torch.inference_mode():
        layer(x)
    layer(x).sum().backward()
    assert layer.project.to_value.weight.grad.abs().max() > 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"heads": 0}, "heads = 0 must be at least 1"),
        ({"dropout": 1.0}, r"dropout = 1\.0 must be from 0 to below 1"),
        ({"dropout": -0.1}, r"dropout = -0\.1 must be from 0 to below 1"),
        ({"queries": "one"}, r"unknown queries 'one'\. .*Known: all, own"),
        ({"backend": "tritan"}, r"unknown backend 'tritan'\. Did you mean 'triton'\?"),
        ({"encoding": "mpl"}, r"unknown encoding 'mpl'\. Did you mean 'mlp'\?"),
        ({"group": PlanarGroup(8), "encoding": "table"}, "C8 does not map pixels to pixels; use"),
    ],
)
def test_a_plan_that_cannot_work_is_refused(options, words):
    given = {"group": PlanarGroup(4), "neighbourhood": SQUARE} | options
    with pytest.raises(InputError, match=words):
        LiftingSelfAttention(AttentionPlan(**given), 3, 4, 6)


def test_an_even_window_is_refused():
    with pytest.raises(InputError, match=r"window = 4 must be odd and positive, .*try 3 or 5"):
        AttentionPlan(PlanarGroup(4), Neighbourhood(4))


@pytest.mark.parametrize(
    ("layer", "sizes", "words"),
    [
        (LiftingSelfAttention, (3, 4, 1), "dim = 1 must be at least 2: one channel for rows"),
        (GroupSelfAttention, (3, 4, 2), "dim = 2 must be at least 3: rows, columns and poses"),
        (GroupSelfAttention, (0, 4, 3), "in_width = 0 must be at least 1"),
        (LiftingSelfAttention, (3, 0, 3), "width = 0 must be at least 1"),
    ],
)
def test_sizes_that_cannot_work_are_refused(layer, sizes, words):
    with pytest.raises(InputError, match=words):
        layer(plan_for("C4"), *sizes)


def test_a_crop_must_leave_something():
    with pytest.raises(InputError, match="3 x 4 pixels has none left 2 pixels from its border"):
        lifting(plan_for("C4"))(picture(), crop=2)
