"""Lifting and group self-attention: equivariance, witness, control, definition, gradients.

Letters:  b batch, n head, t token, s source;  h, g, m the orientations of output, query, key.
"""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from turnwise.geometry.grids import pixel_centres
from turnwise.geometry.layouts import action_on, field_to_regular, regular_to_field
from turnwise.geometry.neighbourhoods import Neighbourhood
from turnwise.groups import (
    GRID_GROUPS,
    PlanarGroup,
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


def lifting(plan, channels=4):
    return initialised(
        LiftingSelfAttention(plan.group, 3, channels, head_dim=5, **plan.options)
    ).double()


def on_group(plan, channels=4):
    return initialised(
        GroupSelfAttention(plan.group, 3, channels, head_dim=5, **plan.options)
    ).double()


def initialised(layer):
    """Draw large weights, so that a fault has a large effect."""
    for module in layer.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=math.sqrt(2 / module.in_features))
            nn.init.normal_(module.bias)
    return layer


def image(rows=3, cols=4, batch=2):
    return torch.randn(batch, 3, rows, cols, dtype=torch.float64)


def features(plan, rows=3, cols=4, batch=2):
    """Return regular features."""
    return torch.randn(batch, 3, plan.group.order, rows, cols, dtype=torch.float64)


def lifting_error(function, group, x):
    actions = {"act_in": act_on_image, "act_out": action_on("regular")}
    return max(equivariance_errors(function, group, x, elements=group.grid_elements(), **actions))


def group_error(function, group, x):
    actions = {"act_in": action_on("regular"), "act_out": action_on("regular")}
    return max(equivariance_errors(function, group, x, elements=group.grid_elements(), **actions))


@NEIGHBOURHOODS
@pytest.mark.parametrize("encoding", ["mlp", "table"])
@pytest.mark.parametrize("name", GRID_GROUPS)
def test_equivariance_of_lifting_on_a_rectangle(name, encoding, around):
    plan = plan_for(name, AROUND[around], encoding=encoding)
    assert lifting_error(lifting(plan), plan.group, image()) < 1e-12


@NEIGHBOURHOODS
@pytest.mark.parametrize("encoding", ["mlp", "table"])
@pytest.mark.parametrize("convention", [EXACT, EXACT_GE_VIT], ids=["gsa", "ge-vit"])
@pytest.mark.parametrize("queries", ["all", "own"])
@pytest.mark.parametrize("name", GRID_GROUPS)
def test_equivariance_on_the_group(name, queries, convention, encoding, around):
    options = {"queries": queries, "convention": convention, "encoding": encoding}
    plan = plan_for(name, AROUND[around], **options)
    x = features(plan, batch=1)
    assert group_error(on_group(plan, channels=2), plan.group, x) < 1e-12


@pytest.mark.parametrize("size", [4, 5])
@pytest.mark.parametrize("crop", [0, 1])
def test_equivariance_on_odd_and_even_squares_with_and_without_a_crop(size, crop):
    plan = plan_for("D4", queries="own")
    lift, group_layer = lifting(plan), on_group(plan)
    lift_error = lifting_error(lambda x: lift(x, crop), plan.group, image(size, size))
    assert lift_error < 1e-12
    x = features(plan, size, size)
    assert group_error(lambda x: group_layer(x, crop), plan.group, x) < 1e-12


@NEIGHBOURHOODS
@pytest.mark.parametrize("name", ["C8", "C12", "C16", "D8"])
def test_finer_groups_are_exact_for_the_symmetries_of_the_grid(name, around):
    plan = plan_for(name, AROUND[around], queries="own")
    assert lifting_error(lifting(plan), plan.group, image()) < 1e-11
    assert group_error(on_group(plan), plan.group, features(plan, batch=1)) < 1e-11


@pytest.mark.parametrize("convention", [EXACT, EXACT_GE_VIT], ids=["gsa", "ge-vit"])
@pytest.mark.parametrize("name", ["C8", "D8"])
def test_finer_groups_are_exact_for_the_symmetries_of_the_grid_with_all_queries(name, convention):
    plan = plan_for(name, convention=convention)
    assert group_error(on_group(plan), plan.group, features(plan, batch=1)) < 1e-11


def test_witness_of_lifting():
    """The output depends on the input, and by the positions alone on the orientation."""
    plan = plan_for("D4")
    layer, x = lifting(plan), image()
    out = layer(x)
    assert (layer(image()) - out).abs().max() > 0.1
    assert least_difference_of_orientations(out) > 0.01
    for parameter in layer.place.parameters():
        nn.init.zeros_(parameter)
    assert (layer(x) - out).abs().max() > 0.01
    assert least_difference_of_orientations(layer(x)) < 1e-12


@pytest.mark.parametrize("queries", ["all", "own"])
@pytest.mark.parametrize("part", ["place", "pose"])
def test_witness_on_the_group(queries, part):
    plan = plan_for("D4", queries=queries)
    layer, x = on_group(plan), features(plan)
    out = layer(x)
    assert (layer(features(plan)) - out).abs().max() > 0.1
    assert least_difference_of_orientations(out) > 0.01
    for parameter in [layer.pose] if part == "pose" else layer.place.parameters():
        nn.init.zeros_(parameter)
    assert (layer(x) - out).abs().max() > 0.01


def least_difference_of_orientations(regular):
    gaps = (regular[:, :, :, None] - regular[:, :, None]).abs().amax(dim=(0, 1, 4, 5))
    return gaps[~torch.eye(len(gaps), dtype=torch.bool)].min()


def unrotated(group, neighbourhood, rows, cols):
    return logarithmic_steps(group, neighbourhood, rows, cols)[:1].expand(group.order, -1, -1)


def product_for_relative(group):
    return group.product()[:, None, :].expand(-1, group.order, -1)


WRONG = {
    "table of 2021": ("C4", {"table": table_of_2021}),
    "product for relative": ("D4", {"table": product_for_relative}),
    "unrotated positions": ("C4", {"coordinates": unrotated}),
}


@pytest.mark.parametrize("fault", WRONG)
@pytest.mark.parametrize("queries", ["all", "own"])
def test_control(fault, queries):
    name, change = WRONG[fault]
    plan = plan_for(name, queries=queries, convention=replace(EXACT, **change))
    assert group_error(on_group(plan), plan.group, features(plan)) > 1e-3


def test_control_of_lifting():
    plan = plan_for("C4", convention=replace(EXACT, coordinates=unrotated))
    assert lifting_error(lifting(plan), plan.group, image()) > 1e-3


def test_control_a_permuted_group_axis():
    plan = plan_for("C4")
    lift, group_layer, order = lifting(plan), on_group(plan), [1, 0, 2, 3]
    assert lifting_error(lambda x: lift(x)[:, :, order], plan.group, image()) > 1e-3
    permuted = group_error(lambda x: group_layer(x[:, :, order]), plan.group, features(plan))
    assert permuted > 1e-3


def is_near(neighbourhood, offset):
    """Return whether the neighbourhood contains the offset, by its definition in words."""
    inside_square = offset.abs().max() <= neighbourhood.window // 2
    inside_disc = offset.norm() <= neighbourhood.window / 2
    return neighbourhood.window == 0 or bool(
        inside_square and (inside_disc or neighbourhood.shape == "square")
    )


def encoded_sources(layer, rows, cols):
    """Return [h][t]: the sources around pixel t, as pairs (s, encoding of h⁻¹(s − t))."""
    plan, centre = layer.project.plan, pixel_centres(rows, cols).flatten(0, 1)

    def encoded(h, offset):
        x, y = act_on_points(plan.group, plan.group.invert(h), offset)
        steps = torch.stack([-y, x])
        logarithmic = steps.sign() * torch.log2(1 + steps.abs())
        return layer.place(steps if plan.encoding == "table" else logarithmic).numpy()

    def around(h, t):
        offsets = centre - centre[t]
        near = [s for s in range(len(centre)) if is_near(plan.neighbourhood, offsets[s])]
        return [(s, encoded(h, offsets[s])) for s in near]

    return [[around(h, t) for t in range(len(centre))] for h in range(plan.group.order)]


def projected(linear, field, heads):
    """Return (batch, group, pixel, head, channel) as a numpy array."""
    flat = field.flatten(2, 3) @ linear.weight.T + linear.bias
    return flat.unflatten(-1, (heads, -1)).numpy()


@torch.no_grad()
def by_loops(layer, field, orientation, relation):
    """out_t^h = W mean_g Σ_{s,m} σ((q·k + q·P(h⁻¹(s − t)) + q·E[T(h, g, m)]) / √dim) v, regular"""
    maps, plan, (rows, cols) = layer.project, layer.project.plan, field.shape[2:4]
    linears = (maps.to_query, maps.to_key, maps.to_value)
    query, key, value = (projected(linear, field, plan.heads) for linear in linears)
    around, dim = encoded_sources(layer, rows, cols), query.shape[-1]
    out = np.zeros((len(field), plan.group.order, *query.shape[2:]))
    for b, h, t, n in np.ndindex(*out.shape[:4]):
        lifts = query.shape[1] == 1  # a pixel has no orientation
        of_output = [h] if plan.queries == "own" and not lifts else range(query.shape[1])
        for g in of_output:
            q, weights = query[b, g, t, n], {}
            for (s, position), m in itertools.product(around[h][t], range(key.shape[1])):
                whole = np.concatenate([position, orientation[relation(h, g, m)]])
                weights[s, m] = math.exp(q @ (key[b, m, s, n] + whole) / math.sqrt(dim))
            total = sum(weights.values()) * len(of_output)
            for (s, m), weight in weights.items():
                out[b, h, t, n] += weight / total * value[b, m, s, n]
    mixed = torch.from_numpy(out).flatten(-2) @ maps.to_output.weight.T + maps.to_output.bias
    return field_to_regular(mixed.unflatten(2, (rows, cols)))


def lifted_by_loops(layer, x):
    pixels = x.permute(0, 2, 3, 1)[:, None]  # a field with one group element
    return by_loops(layer, pixels, np.zeros((1, 0)), lambda h, g, m: 0)


def on_group_by_loops(layer, x, relation):
    return by_loops(layer, regular_to_field(x), layer.pose.detach().numpy(), relation)


@NEIGHBOURHOODS
@pytest.mark.parametrize("name", ["D3", "D4"])
def test_definition_of_lifting(name, around):
    """As loops, on groups that are not commutative, and on a rectangle."""
    layer, x = lifting(plan_for(name, AROUND[around])), image()
    assert (layer(x) - lifted_by_loops(layer, x)).abs().max() < 1e-12


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
    layer, x = on_group(plan), features(plan, batch=1)
    mul, rel = group.product().tolist(), group.relative().tolist()
    expected = on_group_by_loops(layer, x, lambda h, g, m: relation(rel, mul, h, g, m))
    assert (layer(x) - expected).abs().max() < 1e-12


@NEIGHBOURHOODS
def test_definition_with_a_table_of_whole_steps(around):
    """On D4: only symmetries of the grid give whole steps, one row of the table each."""
    plan = plan_for("D4", AROUND[around], encoding="table", queries="own")
    lift, x, relative = lifting(plan), image(batch=1), plan.group.relative().tolist()
    assert (lift(x) - lifted_by_loops(lift, x)).abs().max() < 1e-12
    layer, x = on_group(plan), features(plan, batch=1)
    expected = on_group_by_loops(layer, x, lambda h, g, m: relative[h][m])
    assert (layer(x) - expected).abs().max() < 1e-12


@pytest.mark.parametrize("crop", [1, 2])
@NEIGHBOURHOODS
def test_a_crop_gives_the_inner_pixels_of_the_whole_output(around, crop):
    """Cropped pixels remain sources."""
    plan = plan_for("D4", AROUND[around], queries="own")
    lift, x, inner = lifting(plan), image(5, 6), slice(crop, -crop)
    assert (lift(x, crop) - lift(x)[..., inner, inner]).abs().max() < 1e-12
    layer, x = on_group(plan), features(plan, 5, 6)
    assert (layer(x, crop) - layer(x)[..., inner, inner]).abs().max() < 1e-12


@NEIGHBOURHOODS
def test_pixels_outside_the_image_have_no_weight(around):
    """If all values are 1, the output is 1: no zero entered the softmax."""
    plan = plan_for("C4", AROUND[around])
    for layer, x in ((lifting(plan), image()), (on_group(plan), features(plan))):
        maps = layer.project
        nn.init.zeros_(maps.to_value.weight)
        nn.init.ones_(maps.to_value.bias)
        nn.init.constant_(maps.to_output.weight, 1 / maps.to_output.in_features)
        nn.init.zeros_(maps.to_output.bias)
        out = layer(x)
        torch.testing.assert_close(out, torch.ones_like(out), rtol=0, atol=1e-12)


def test_with_one_group_element_both_forms_of_queries_agree():
    plan = plan_for("C1")
    layer, x = on_group(plan), features(plan)
    own = on_group(replace(plan, queries="own"))
    own.load_state_dict(layer.state_dict())
    torch.testing.assert_close(own(x), layer(x), rtol=0, atol=1e-12)


def test_dropout_acts_in_training_only_and_keeps_the_mean():
    plan = plan_for("C2", dropout=0.5)
    layer, x = on_group(plan), features(plan, 2, 2, batch=1)
    expected = layer.eval()(x)
    assert torch.equal(layer(x), expected)
    dropped = layer.train()(x.expand(4000, -1, -1, -1, -1))
    assert (dropped[0] - expected[0]).abs().max() > 0.1
    error = dropped.std(dim=0) / math.sqrt(len(dropped))
    assert ((dropped.mean(dim=0) - expected[0]).abs() < 5 * error).all()


def test_dropout_of_lifting():
    layer, x = lifting(plan_for("C4", dropout=0.5)), image()
    assert (layer.train()(x) - layer.eval()(x)).abs().max() > 0.1
    assert torch.equal(layer(x), layer(x))


WITHOUT_GRADIENT = {"project.to_key.bias", "place.row.mix.bias", "place.col.mix.bias"}


@pytest.mark.parametrize("queries", ["all", "own"])
@pytest.mark.parametrize("encoding", ["mlp", "table"])
def test_gradients_reach_every_parameter(encoding, queries):
    """Except those that add the same to all scores of a query, which cancels in the softmax."""
    plan = plan_for("D4", encoding=encoding, queries=queries)
    for layer, x in ((lifting(plan), image()), (on_group(plan), features(plan))):
        layer(x).square().sum().backward()
        zero = {n for n, p in layer.named_parameters() if p.grad.abs().max() < 1e-10}
        assert zero <= WITHOUT_GRADIENT


@pytest.mark.parametrize("scale_by_input", [True, False])
def test_the_scale_is_that_of_the_convention(scale_by_input):
    """√dim; in the published programs √(input channels)."""
    plan = plan_for("C4", convention=replace(EXACT, scale_by_input=scale_by_input))
    assert lifting(plan).project.scale == 1 / math.sqrt(3 if scale_by_input else 5)


def test_the_published_sum_over_queries_is_the_mean_times_their_number():
    plan = plan_for("C4")
    summing_plan = replace(plan, convention=replace(plan.convention, sums=True))
    layer, summing = on_group(plan), on_group(summing_plan)
    summing.load_state_dict(layer.state_dict())
    nn.init.zeros_(layer.project.to_output.bias)
    nn.init.zeros_(summing.project.to_output.bias)
    x = features(plan)
    torch.testing.assert_close(summing(x), 4 * layer(x))


def test_the_state_dict_has_no_tables_and_is_the_same_in_both_modes():
    layer = on_group(plan_for("C4"))
    assert not any("table" in key for key in layer.state_dict())
    assert layer.train().state_dict().keys() == layer.eval().state_dict().keys()


def test_one_layer_takes_images_of_any_size():
    for around in AROUND.values():
        layer = lifting(plan_for("D4", around))
        for rows, cols in ((3, 4), (6, 2), (3, 4)):
            assert layer(image(rows, cols)).shape == (2, 4, 8, rows, cols)


@pytest.mark.parametrize("kind", [lifting, on_group])
def test_training_after_a_call_in_inference_mode(kind):
    """As Lightning does: a sanity check of the validation first, then training."""
    plan = plan_for("C2", Neighbourhood(7), dropout=0.125)
    layer, x = kind(plan), image(7, 9) if kind is lifting else features(plan, 7, 9)
    with torch.inference_mode():
        layer(x)
    layer(x).sum().backward()
    assert layer.project.to_value.weight.grad.abs().max() > 0
