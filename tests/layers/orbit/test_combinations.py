"""Combinations of views: invariance, witness, negative control, definition, extreme logits."""

import itertools

import pytest
import torch
from torch import nn

from turnwise.errors import InputError
from turnwise.groups import PlanarGroup, act_on_regular
from turnwise.layers.orbit.combinations import (
    COMBINATIONS,
    OF_LOGITS,
    LearnedAttention,
    LearnedWeights,
    combine_mean,
    combine_mean_probability,
    combine_most_certain,
    combine_most_likely,
    make_combination,
    takes_features,
)

GROUP = PlanarGroup.named("D4")


def random_logits(batch=5, classes=8):
    return 3 * torch.randn(batch, GROUP.order, classes, dtype=torch.float64)


def randomise(layer):
    """Draw all parameters at random, so that none is zero; convert to float64."""
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    return layer.double()


@pytest.fixture(params=COMBINATIONS)
def combination(request):
    return randomise(make_combination(request.param, width=8))


def test_combinations_are_invariant(combination):
    z = random_logits()
    for g in range(GROUP.order):
        permuted = combination(act_on_regular(GROUP, g, z))
        torch.testing.assert_close(permuted, combination(z), rtol=1e-12, atol=1e-12)


def test_witness_every_view_counts_for_some_image(combination):
    z = random_logits(batch=200)
    for h in range(GROUP.order):
        other = z.clone()
        other[:, h] += torch.randn(8, dtype=torch.float64)
        assert (combination(other) - combination(z)).abs().max() > 1e-3


def test_control_weights_of_each_view_are_not_invariant():
    z, weight = random_logits(), torch.rand(GROUP.order, 1, dtype=torch.float64)

    def weighted_sum(x):
        return (x * weight).sum(dim=1)

    gap = weighted_sum(act_on_regular(GROUP, 1, z)) - weighted_sum(z)
    assert gap.abs().max() > 0.01


def test_control_attention_with_positions_is_not_invariant():
    attention, z = randomise(LearnedAttention(8)), random_logits()
    position = torch.randn(GROUP.order, 8, dtype=torch.float64)
    gap = attention(act_on_regular(GROUP, 1, z) + position) - attention(z + position)
    assert gap.abs().max() > 0.01


@pytest.mark.parametrize("combine", OF_LOGITS)
def test_definition_as_loops(combine):
    z = random_logits(batch=3, classes=4)
    combined = make_combination(combine)(z)
    for b in range(3):
        rows = [z[b, h] for h in range(GROUP.order)]
        probabilities = [row.softmax(0) for row in rows]
        if combine == "mean":
            expected = sum(rows) / len(rows)
        elif combine == "sum":
            expected = sum(rows)
        elif combine == "max":
            expected = torch.stack([max(row[c] for row in rows) for c in range(4)])
        elif combine == "mean_probability":
            expected = (sum(probabilities) / len(probabilities)).log()
        elif combine == "most_likely":
            product = torch.ones(4).double()
            for p in probabilities:
                product = product * p
            expected = (product / product.sum()).log()
        else:
            expected = rows[max(range(len(rows)), key=lambda h: float(probabilities[h].max()))]
        torch.testing.assert_close(combined[b], expected)


@pytest.mark.parametrize("combine", OF_LOGITS)
def test_maps_are_combined_pixel_by_pixel(combine):
    z = torch.randn(2, 4, 3, 2, 5, dtype=torch.float64)
    whole = make_combination(combine)(z)
    for row, col in itertools.product(range(2), range(5)):
        alone = make_combination(combine)(z[..., row, col])
        torch.testing.assert_close(whole[..., row, col], alone)


def test_the_most_likely_class_is_that_of_the_mean():
    """Σ log p_h = Σ z_h − const."""
    z = random_logits(batch=500)
    assert torch.equal(combine_most_likely(z).argmax(1), combine_mean(z).argmax(1))


def test_the_product_does_not_underflow():
    """16 views that are certain of different classes: outside log space, 0 / 0 in float32."""
    z = 60.0 * torch.eye(4).repeat(4, 1)[None]
    z[0, :, 2] += 1.0
    outside = torch.softmax(z, dim=2).prod(dim=1)
    assert outside.max() == 0.0
    combined = combine_most_likely(z)
    assert combined.isfinite().all() and combined.argmax() == 2
    assert combine_mean_probability(z).isfinite().all()


def test_certainties_differ_where_probabilities_round_to_one():
    z = torch.tensor([[[50.0, 0.0], [0.0, 80.0], [60.0, 0.0]]])
    assert (z.softmax(2).max(2).values == 1).all()
    for order in itertools.permutations(range(3)):
        assert torch.equal(combine_most_certain(z[:, list(order)]), torch.tensor([[0.0, 80.0]]))


def test_equally_certain_views_are_averaged():
    z = torch.tensor([[[5.0, 0.0], [0.0, 5.0], [1.0, 0.0]]])
    assert torch.equal(combine_most_certain(z), torch.tensor([[2.5, 2.5]]))
    assert torch.equal(combine_most_certain(z.flip(1)), torch.tensor([[2.5, 2.5]]))


def test_nan_is_propagated():
    z = random_logits(batch=1)
    z[0, 3, 2] = torch.nan
    for combine in OF_LOGITS:
        assert make_combination(combine)(z).isnan().any()


def test_definition_of_learned_weights_which_are_positive_and_sum_to_one():
    layer, e = randomise(LearnedWeights(8)), random_logits()
    weights = layer.weights(e)
    assert weights.min() > 0
    torch.testing.assert_close(weights.sum(1), torch.ones(5).double())
    for b in range(5):
        scores = torch.stack([layer.score(e[b, h])[0] for h in range(GROUP.order)])
        expected = sum(w * e[b, h] for h, w in enumerate(scores.softmax(0)))
        torch.testing.assert_close(layer(e)[b], expected)


def test_definition_of_learned_attention():
    layer, e = randomise(LearnedAttention(8)), random_logits(batch=1)
    tokens = torch.cat([layer.token[None], e[0]])[None]
    for block in layer.blocks:
        tokens = block(tokens)
    expected = e[0].mean(0) + layer.correct(layer.norm(tokens[0, 0]))
    torch.testing.assert_close(layer(e)[0], expected)


@pytest.mark.parametrize("make", [LearnedWeights, LearnedAttention])
def test_before_training_learned_combinations_are_the_mean(make):
    e = torch.randn(3, 4, 8)
    torch.testing.assert_close(make(8)(e), e.mean(dim=1))


def test_gradients_reach_every_parameter():
    for combine in ("learned_weights", "learned_attention"):
        layer = randomise(make_combination(combine, 8))
        layer(random_logits()).square().sum().backward()
        assert all(p.grad.abs().max() > 0 for p in layer.parameters())


def test_combinations_are_made_by_name():
    assert [c for c in COMBINATIONS if not takes_features(c)] == list(OF_LOGITS)
    with pytest.raises(InputError, match=r"unknown combination 'median'\. Did you mean 'mean'\?"):
        make_combination("median")
    with pytest.raises(InputError, match=r"width = 10 must be a multiple of 4"):
        LearnedAttention(10)
    assert make_combination("learned_attention", 10).blocks[0].attention.heads == 2
