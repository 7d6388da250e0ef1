"""Law, witness, control, definition of the read-outs: tokens on the group to answers."""

import itertools

import pytest
import torch

from turnwise.errors import InputError
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
    OrientationHead,
    Overview,
    invariant,
    orientation,
    pooled_width,
)

NAMES = ["C1", "D1", "C2", "C4", "D2", "D4", "C8", "D8"]
WAYS = list(itertools.product(COMBINE, COMBINE))


def field_for(name, rows=3, cols=4, width=5):
    order = PlanarGroup.named(name).order
    return torch.randn(2, order, rows, cols, width, dtype=torch.float64)


def tokens_of(field):
    return field.permute(0, 2, 3, 1, 4).flatten(1, 2)


def error_of(function, name, act_out, field=None):
    """The law, of a function of tokens; on a rectangle, which quarter turns lay on its side."""
    group = PlanarGroup.named(name)
    field = field_for(name) if field is None else field
    errors = equivariance_errors(
        lambda x: function(tokens_of(x)),
        group,
        field,
        act_in=act_on_field,
        act_out=act_out,
        elements=group.grid_elements(),
    )
    return max(errors)


# One answer for the picture.


@pytest.mark.parametrize(("over_tokens", "over_group"), WAYS)
@pytest.mark.parametrize("name", NAMES)
def test_law_of_the_invariant(name, over_tokens, over_group):
    error = error_of(lambda x: invariant(x, over_tokens, over_group), name, leave_fixed)
    assert error < 1e-12


@pytest.mark.parametrize(("over_tokens", "over_group"), WAYS)
def test_witness_of_the_invariant(over_tokens, over_group):
    """Other pictures have other answers."""
    first, second = invariant(tokens_of(field_for("D4")), over_tokens, over_group)
    assert (first - second).abs().min() > 1e-4


def test_control_of_the_invariant():
    """The first pose alone, and the first token alone, turn with the picture."""
    assert error_of(lambda x: x[:, :, 0].mean(1), "D4", leave_fixed) > 0.1
    assert error_of(lambda x: invariant(x[:, :1]), "D4", leave_fixed) > 0.1


@pytest.mark.parametrize(("over_tokens", "over_group"), WAYS)
def test_definition_of_the_invariant(over_tokens, over_group):
    """Over the tokens first, then over the poses, number by number; "both" is mean, then max."""
    tokens = tokens_of(field_for("D3"))

    def combined(numbers, how):
        mean = [sum(numbers) / len(numbers)]
        return {"mean": mean, "max": [max(numbers)], "both": [*mean, max(numbers)]}[how]

    pooled = invariant(tokens, over_tokens, over_group)
    assert pooled.shape == (2, pooled_width(5, over_tokens, over_group))
    for b, c in itertools.product(range(2), range(5)):
        poses = [combined(tokens[b, :, g, c].tolist(), over_tokens) for g in range(6)]
        answers = [combined(list(kind), over_group) for kind in zip(*poses, strict=True)]
        expected = [number for kind in zip(*answers, strict=True) for number in kind]
        assert pooled[b, c::5].tolist() == pytest.approx(expected, abs=1e-12)


def test_unknown_ways_are_refused():
    with pytest.raises(InputError, match="unknown way to combine 'men'"):
        invariant(torch.zeros(1, 2, 4, 3), "men")


# One look at the whole field.


def overview_for(name, side=4):
    torch.manual_seed(0)
    layer = Overview(name, 5, 3, side).double()
    layer.norm.norm.running_mean.normal_()  # a trained one, so that relu is no identity
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
def test_law_of_the_overview(name):
    """A function on the group, whose poses turn with the picture; in training too."""
    layer = overview_for(name)
    assert overview_error(layer, name) < 1e-12
    assert overview_error(layer.train(), name) < 1e-12


def test_witness_and_control_of_the_overview():
    """Its answer turns, and with a filter for each pose of its own it turns otherwise."""
    layer = overview_for("D4")
    assert overview_error(layer, "D4", leave_fixed) > 0.1
    layer.look.filters.source_by_pose = layer.look.filters.source_by_pose.roll(1)
    assert overview_error(layer, "D4") > 0.1


def test_definition_of_the_overview():
    """Every pose's own sum over all poses and tokens, with filters turned by the group."""
    group, layer, field = PlanarGroup.named("D4"), overview_for("D4"), field_for("D4", 4, 4)
    norm, weight = layer.norm.norm, layer.look.weight.unflatten(-1, (4, 4))
    spread = (norm.running_var + norm.eps).sqrt()
    for g in range(8):
        # K(g⁻¹p) against f(p) is K(p) against f(gp): the field, turned back
        back = act_on_field(group, group.invert(g), field)
        looked = torch.einsum("oinrc,bnrci->bo", weight, back)
        expected = ((looked - norm.running_mean) / spread).relu()
        torch.testing.assert_close(layer(field)[:, 0, g], expected)
    assert (layer(field) == 0).any() and (layer(field) > 0).any()


def test_the_overview_refuses_other_fields():
    with pytest.raises(InputError, match="looks at 4 x 4 tokens, got 3 x 4"):
        overview_for("C4")(field_for("C4"))


# One answer for each pose.


@pytest.mark.parametrize("name", NAMES)
def test_law_of_the_orientation(name):
    assert error_of(orientation, name, act_on_regular) < 1e-12
    assert error_of(OrientationHead(5).double(), name, act_on_regular) < 1e-12


def test_the_largest_score_tells_the_turn():
    """From h to g·h; in D4, where g·h and h·g differ.  The witness: every turn tells another."""
    group, field, head = PlanarGroup.named("D4"), field_for("D4"), OrientationHead(5).double()
    first = head(tokens_of(field)).argmax(1).tolist()
    told = set()
    for g in range(8):
        turned = head(tokens_of(act_on_field(group, g, field))).argmax(1).tolist()
        assert turned == [group.compose(g, h) for h in first]
        told.add(turned[0])
    assert told == set(range(8))


def test_control_of_the_orientation():
    """Scores with weights of their own for each pose tell nothing."""
    own = torch.randn(8, 5, dtype=torch.float64)
    assert error_of(lambda x: (orientation(x) * own).sum(-1), "D4", act_on_regular) > 0.1


def test_definition_of_the_orientation():
    tokens, head = tokens_of(field_for("D3")), OrientationHead(5).double()
    scores = head(tokens)
    for b, g in itertools.product(range(2), range(6)):
        mean = sum(tokens[b, t, g] for t in range(12)) / 12
        torch.testing.assert_close(orientation(tokens)[b, g], mean)
        torch.testing.assert_close(scores[b, g], head.score.weight[0] @ mean)


# One answer for each pose and pixel.


def dense_head():
    return DenseHead(5, 3).double()


@pytest.mark.parametrize("name", NAMES)
def test_law_of_the_dense_head(name):
    head, group, field = dense_head(), PlanarGroup.named(name), field_for(name)
    errors = equivariance_errors(
        lambda x: head(tokens_of(x), *x.shape[2:4]),
        group,
        field,
        act_in=act_on_field,
        act_out=act_on_field,
        elements=group.grid_elements(),
    )
    assert max(errors) < 1e-12


def test_definition_and_witness_of_the_dense_head():
    head, field = dense_head(), field_for("D3")
    out = head(tokens_of(field), 3, 4)
    assert out.shape == (2, 6, 3, 4, 3)
    assert out.std(dim=(1, 2, 3)).min() > 1e-2
    for g, r, c in itertools.product(range(6), range(3), range(4)):
        expected = field[:, g, r, c] @ head.project.weight.T + head.project.bias
        torch.testing.assert_close(out[:, g, r, c], expected)


def test_control_of_the_dense_head():
    """Tokens read column by column: the pixels of a rectangle come out elsewhere."""
    head = dense_head()
    wrong = equivariance_errors(
        lambda x: head(tokens_of(x), *x.shape[3:1:-1]),
        "D4",
        field_for("D4"),
        act_in=act_on_field,
        act_out=act_on_field,
        elements=[4],  # a mirror, which keeps the rectangle's sides
    )
    assert wrong[0] > 0.1


def test_tokens_and_pixels_must_be_as_many():
    with pytest.raises(InputError, match="3 x 3 pixels are 9 tokens, got 12"):
        dense_head()(tokens_of(field_for("C4")), 3, 3)
