"""Heads on the group: equivariance, witness, negative control, definition as loops."""

import itertools

import pytest
import torch

from turnwise.errors import InputError
from turnwise.geometry.layouts import action_on, field_to_regular, field_to_tokens
from turnwise.groups import (
    PlanarGroup,
    act_on_field,
    act_on_regular,
    equivariance_errors,
    leave_fixed,
)
from turnwise.layers.heads.pooling import (
    COMBINE,
    DenseHead,
    InvariantPool,
    OrientationHead,
    Overview,
    invariant,
    orientation,
    pooled_width,
)

NAMES = ["C1", "D1", "C2", "C4", "D2", "D4", "C8", "D8"]
WAYS = list(itertools.product(COMBINE, COMBINE))


def field_for(name, rows=3, cols=4, channels=5):
    order = PlanarGroup.named(name).order
    return torch.randn(2, order, rows, cols, channels, dtype=torch.float64)


def error_of(function, name, act_out):
    """Return the largest error of a function of tokens, on a rectangle."""
    group = PlanarGroup.named(name)
    errors = equivariance_errors(
        lambda x: function(field_to_tokens(x)),
        group,
        field_for(name),
        act_in=act_on_field,
        act_out=act_out,
        elements=group.grid_elements(),
    )
    return max(errors)


# InvariantPool, and `invariant` for tokens.


@pytest.mark.parametrize(("over_pixels", "over_group"), WAYS)
@pytest.mark.parametrize("name", NAMES)
def test_invariant_pooling_is_invariant_on_rectangles(name, over_pixels, over_group):
    assert error_of(lambda x: invariant(x, over_pixels, over_group), name, leave_fixed) < 1e-12
    group, pool = PlanarGroup.named(name), InvariantPool(name, over_pixels, over_group)
    errors = equivariance_errors(
        pool,
        group,
        field_to_regular(field_for(name)),
        act_in=action_on("regular"),
        elements=group.grid_elements(),
    )
    assert max(errors) < 1e-12


@pytest.mark.parametrize(("over_pixels", "over_group"), WAYS)
def test_witness_invariant_pooling_depends_on_every_channel(over_pixels, over_group):
    x = field_to_regular(field_for("D4")).requires_grad_()
    pooled = InvariantPool("D4", over_pixels, over_group)(x)
    first, second = pooled
    assert (first - second).abs().min() > 1e-4
    pooled.sum().backward()
    assert (x.grad.abs().amax(dim=(2, 3, 4)) > 0).all()


def test_control_one_group_element_or_one_pixel_is_not_invariant():
    assert error_of(lambda x: x[:, :, 0].mean(1), "D4", leave_fixed) > 0.1
    assert error_of(lambda x: invariant(x[:, :1]), "D4", leave_fixed) > 0.1


@pytest.mark.parametrize(("over_pixels", "over_group"), WAYS)
def test_definition_of_invariant_pooling_as_loops(over_pixels, over_group):
    """Over the pixels first, then over the group; "both" is the mean, then the maximum."""
    field = field_for("D3")
    tokens = field_to_tokens(field)

    def combine(values, how):
        mean = [sum(values) / len(values)]
        return {"mean": mean, "max": [max(values)], "both": [*mean, max(values)]}[how]

    pooled = invariant(tokens, over_pixels, over_group)
    assert pooled.shape == (2, pooled_width(5, over_pixels, over_group))
    for b, c in itertools.product(range(2), range(5)):
        elements = [combine(tokens[b, :, g, c].tolist(), over_pixels) for g in range(6)]
        results = [combine(list(kind), over_group) for kind in zip(*elements, strict=True)]
        expected = [value for kind in zip(*results, strict=True) for value in kind]
        assert pooled[b, c::5].tolist() == pytest.approx(expected, abs=1e-12)
    layer = InvariantPool("D3", over_pixels, over_group)
    torch.testing.assert_close(layer(field_to_regular(field)), pooled)


def test_impossible_pooling_raises_an_error():
    with pytest.raises(InputError, match="unknown way to combine 'men'"):
        invariant(torch.zeros(1, 2, 4, 3), "men")
    with pytest.raises(InputError, match=r"unknown over_pixels 'men'\. Did you mean 'mean'"):
        InvariantPool("C4", "men")
    with pytest.raises(InputError, match="unknown over_group 'maximum'"):
        InvariantPool("C4", over_group="maximum")
    with pytest.raises(InputError, match="4 group elements"):
        InvariantPool("C4")(torch.zeros(1, 3, 8, 2, 2))


# Overview.


def overview_for(name, side=4):
    torch.manual_seed(0)
    layer = Overview(name, 5, 3, side).double()
    layer.norm.norm.running_mean.normal_()  # as after training, so that ReLU changes some values
    return layer.eval()


def overview_error(layer, name, act_out=act_on_regular):
    group = PlanarGroup.named(name)
    errors = equivariance_errors(
        lambda x: layer(x)[:, 0],
        group,
        field_for(name, 4, 4),
        act_in=act_on_field,
        act_out=act_out,
        elements=group.grid_elements(),
    )
    return max(errors)


@pytest.mark.parametrize("name", NAMES)
def test_the_overview_is_equivariant(name):
    """Its output is a function on the group; also in training."""
    layer = overview_for(name)
    assert overview_error(layer, name) < 1e-12
    assert overview_error(layer.train(), name) < 1e-12


def test_witness_and_control_of_the_overview():
    """The output is not invariant; with filters that are permuted wrongly it is not equivariant."""
    layer = overview_for("D4")
    assert overview_error(layer, "D4", leave_fixed) > 0.1
    layer = overview_for("D4")  # the filters of the other are expanded already
    layer.look.filters.source_by_element = layer.look.filters.source_by_element.roll(1)
    assert overview_error(layer, "D4") > 0.1


def test_definition_of_the_overview():
    """For each group element, a sum over all elements and tokens with rotated filters."""
    group, layer, field = PlanarGroup.named("D4"), overview_for("D4"), field_for("D4", 4, 4)
    norm, weight = layer.norm.norm, layer.look.weight.unflatten(-1, (4, 4))
    std = (norm.running_var + norm.eps).sqrt()
    for g in range(8):
        # Σ K(g⁻¹p) f(p) = Σ K(p) f(gp): the field, rotated back
        back = act_on_field(group, group.invert(g), field)
        sums = torch.einsum("oinrc,bnrci->bo", weight, back)
        expected = ((sums - norm.running_mean) / std).relu()
        torch.testing.assert_close(layer(field)[:, 0, g], expected)
    assert (layer(field) == 0).any() and (layer(field) > 0).any()


def test_the_overview_raises_an_error_for_other_sizes():
    with pytest.raises(InputError, match="takes 4 x 4 tokens, got 3 x 4"):
        overview_for("C4")(field_for("C4"))


# OrientationHead: one score for each group element.


@pytest.mark.parametrize("name", NAMES)
def test_the_orientation_is_equivariant(name):
    assert error_of(orientation, name, act_on_regular) < 1e-12
    assert error_of(OrientationHead(5).double(), name, act_on_regular) < 1e-12


def test_the_largest_score_gives_the_rotation():
    """Element g maps h to g·h, which is not h·g in D4.  Witness: all rotations differ."""
    group, field, head = PlanarGroup.named("D4"), field_for("D4"), OrientationHead(5).double()
    first = head(field_to_tokens(field)).argmax(1).tolist()
    found = set()
    for g in range(8):
        rotated = head(field_to_tokens(act_on_field(group, g, field))).argmax(1).tolist()
        assert rotated == [group.compose(g, h) for h in first]
        found.add(rotated[0])
    assert found == set(range(8))


def test_control_weights_for_each_group_element_are_not_equivariant():
    own = torch.randn(8, 5, dtype=torch.float64)
    assert error_of(lambda x: (orientation(x) * own).sum(-1), "D4", act_on_regular) > 0.1


def test_definition_of_the_orientation():
    tokens, head = field_to_tokens(field_for("D3")), OrientationHead(5).double()
    scores = head(tokens)
    for b, g in itertools.product(range(2), range(6)):
        mean = sum(tokens[b, t, g] for t in range(12)) / 12
        torch.testing.assert_close(orientation(tokens)[b, g], mean)
        torch.testing.assert_close(scores[b, g], head.score.weight[0] @ mean)


# DenseHead: one vector for each group element and pixel.


def dense_head():
    return DenseHead(5, 3).double()


@pytest.mark.parametrize("name", NAMES)
def test_the_dense_head_is_equivariant(name):
    head, group, field = dense_head(), PlanarGroup.named(name), field_for(name)
    errors = equivariance_errors(
        lambda x: head(field_to_tokens(x), *x.shape[2:4]),
        group,
        field,
        act_in=act_on_field,
        act_out=act_on_field,
        elements=group.grid_elements(),
    )
    assert max(errors) < 1e-12


def test_definition_and_witness_of_the_dense_head():
    head, field = dense_head(), field_for("D3")
    out = head(field_to_tokens(field), 3, 4)
    assert out.shape == (2, 6, 3, 4, 3)
    assert out.std(dim=(1, 2, 3)).min() > 1e-2
    for g, r, c in itertools.product(range(6), range(3), range(4)):
        expected = field[:, g, r, c] @ head.project.weight.T + head.project.bias
        torch.testing.assert_close(out[:, g, r, c], expected)


def test_control_tokens_in_the_wrong_order_are_not_equivariant():
    """Tokens of a rectangle read column by column."""
    head = dense_head()
    wrong = equivariance_errors(
        lambda x: head(field_to_tokens(x), *x.shape[3:1:-1]),
        "D4",
        field_for("D4"),
        act_in=act_on_field,
        act_out=act_on_field,
        elements=[4],  # a reflection, which keeps the sides of the rectangle
    )
    assert wrong[0] > 0.1


def test_another_number_of_tokens_raises_an_error():
    with pytest.raises(InputError, match="3 x 3 pixels are 9 tokens, got 12"):
        dense_head()(field_to_tokens(field_for("C4")), 3, 3)
