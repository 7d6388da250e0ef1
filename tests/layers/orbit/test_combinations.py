"""Combinations see a set; each is its formula; extreme logits are no trouble."""

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
    orbit_readout,
    takes_features,
)

GROUP = PlanarGroup.named("D4")


def answers(batch=5, classes=8):
    return 3 * torch.randn(batch, GROUP.order, classes, dtype=torch.float64)


def shaken(readout):
    """The same readout with weights as after training: none is zero."""
    for parameter in readout.parameters():
        nn.init.normal_(parameter, std=0.5)
    return readout.double()


@pytest.fixture(params=COMBINATIONS)
def readout(request):
    return shaken(orbit_readout(request.param, width=8))


def test_law(readout):
    z = answers()
    for g in range(GROUP.order):
        torch.testing.assert_close(
            readout(act_on_regular(GROUP, g, z)), readout(z), rtol=1e-12, atol=1e-12
        )


def test_witness(readout):
    """Every view counts somewhere: none can be dropped without anybody noticing."""
    z = answers(batch=200)
    for h in range(GROUP.order):
        other = z.clone()
        other[:, h] += torch.randn(8, dtype=torch.float64)
        assert (readout(other) - readout(z)).abs().max() > 1e-3


def test_control_a_combination_with_positions_is_seen():
    """Weights that belong to places in the list: the measure of the law must condemn them."""
    z, weight = answers(), torch.rand(GROUP.order, 1, dtype=torch.float64)

    def by_place(x):
        return (x * weight).sum(dim=1)

    moved = by_place(act_on_regular(GROUP, 1, z))
    assert (moved - by_place(z)).abs().max() > 0.01


def test_control_learned_attention_with_positions():
    """A vector added to each place breaks the set, and the law with it."""
    attention, z = shaken(LearnedAttention(8)), answers()
    place = torch.randn(GROUP.order, 8, dtype=torch.float64)
    gap = attention(act_on_regular(GROUP, 1, z) + place) - attention(z + place)
    assert gap.abs().max() > 0.01


@pytest.mark.parametrize("combine", OF_LOGITS)
def test_definition(combine):
    z = answers(batch=3, classes=4)
    got = orbit_readout(combine)(z)
    for b in range(3):
        rows = [z[b, h] for h in range(GROUP.order)]
        odds = [row.softmax(0) for row in rows]
        if combine == "mean":
            wanted = sum(rows) / len(rows)
        elif combine == "sum":
            wanted = sum(rows)
        elif combine == "max":
            wanted = torch.stack([max(row[c] for row in rows) for c in range(4)])
        elif combine == "mean_probability":
            wanted = (sum(odds) / len(odds)).log()
        elif combine == "most_likely":
            product = torch.ones(4).double()
            for p in odds:
                product = product * p
            wanted = (product / product.sum()).log()
        else:
            wanted = rows[max(range(len(rows)), key=lambda h: float(odds[h].max()))]
        torch.testing.assert_close(got[b], wanted)


@pytest.mark.parametrize("combine", OF_LOGITS)
def test_maps_are_combined_pixel_by_pixel(combine):
    z = torch.randn(2, 4, 3, 2, 5, dtype=torch.float64)
    whole = orbit_readout(combine)(z)
    for row, col in itertools.product(range(2), range(5)):
        alone = orbit_readout(combine)(z[..., row, col])
        torch.testing.assert_close(whole[..., row, col], alone)


def test_the_product_decides_as_the_mean():
    """A theorem: Σ log p_h = Σ z_h − const; where tables differ, a product had become zero."""
    z = answers(batch=500)
    assert torch.equal(combine_most_likely(z).argmax(1), combine_mean(z).argmax(1))


def test_the_product_does_not_underflow():
    """16 views that are sure of different classes: outside log space 0 / 0 in float32."""
    z = 60.0 * torch.eye(4).repeat(4, 1)[None]
    z[0, :, 2] += 1.0
    outside = torch.softmax(z, dim=2).prod(dim=1)
    assert outside.max() == 0.0
    combined = combine_most_likely(z)
    assert combined.isfinite().all() and combined.argmax() == 2
    assert combine_mean_probability(z).isfinite().all()


def test_certainty_is_told_apart_where_probabilities_round_to_one():
    z = torch.tensor([[[50.0, 0.0], [0.0, 80.0], [60.0, 0.0]]])
    assert (z.softmax(2).max(2).values == 1).all()
    for order in itertools.permutations(range(3)):
        assert torch.equal(combine_most_certain(z[:, list(order)]), torch.tensor([[0.0, 80.0]]))


def test_a_tie_of_certainty_is_shared():
    z = torch.tensor([[[5.0, 0.0], [0.0, 5.0], [1.0, 0.0]]])
    assert torch.equal(combine_most_certain(z), torch.tensor([[2.5, 2.5]]))
    assert torch.equal(combine_most_certain(z.flip(1)), torch.tensor([[2.5, 2.5]]))


def test_what_is_not_a_number_stays_so():
    z = answers(batch=1)
    z[0, 3, 2] = torch.nan
    for combine in OF_LOGITS:
        assert orbit_readout(combine)(z).isnan().any()


def test_learned_weights_are_positive_and_sum_to_one():
    layer, e = shaken(LearnedWeights(8)), answers()
    weights = layer.weights(e)
    assert weights.min() > 0
    torch.testing.assert_close(weights.sum(1), torch.ones(5).double())
    for b in range(5):
        scores = torch.stack([layer.score(e[b, h])[0] for h in range(GROUP.order)])
        by_hand = sum(w * e[b, h] for h, w in enumerate(scores.softmax(0)))
        torch.testing.assert_close(layer(e)[b], by_hand)


def test_learned_attention_is_its_formula():
    layer, e = shaken(LearnedAttention(8)), answers(batch=1)
    tokens = torch.cat([layer.token[None], e[0]])[None]
    for block in layer.blocks:
        tokens = block(tokens)
    wanted = e[0].mean(0) + layer.correct(layer.norm(tokens[0, 0]))
    torch.testing.assert_close(layer(e)[0], wanted)


@pytest.mark.parametrize("make", [LearnedWeights, LearnedAttention])
def test_before_training_the_learned_ones_are_the_mean(make):
    e = torch.randn(3, 4, 8)
    torch.testing.assert_close(make(8)(e), e.mean(dim=1))


def test_gradients_reach_every_parameter():
    for combine in ("learned_weights", "learned_attention"):
        layer = shaken(orbit_readout(combine, 8))
        layer(answers()).square().sum().backward()
        assert all(p.grad.abs().max() > 0 for p in layer.parameters())


def test_names():
    assert [c for c in COMBINATIONS if not takes_features(c)] == list(OF_LOGITS)
    with pytest.raises(InputError, match=r"unknown combination 'median'\. Did you mean 'mean'\?"):
        orbit_readout("median")
    with pytest.raises(InputError, match=r"width = 10 must be a multiple of 4"):
        LearnedAttention(10)
    assert orbit_readout("learned_attention", 10).blocks[0].attention.heads == 2
