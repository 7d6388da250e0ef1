"""Differences of logits and decisions are measured as defined."""

import math

import pytest
import torch
from torch import nn

from turnwise.data.targets.classes import lead_of
from turnwise.errors import InputError
from turnwise.evaluation.certificate.comparison import (
    compare_decisions,
    hash_images,
    hash_weights,
    logit_change,
    predict_logits,
    usable_precisions,
    with_noise,
)
from turnwise.inference.predictor import Predictor


@pytest.mark.parametrize("output", [lambda x: x, lambda x: x.mean((1, 2, 3))])
def test_a_classifier_returns_one_row_of_logits_for_each_image(output, digits_like):
    class Odd(nn.Module):
        def forward(self, images):
            return output(images)

    with pytest.raises(InputError, match=r"one row of logits for each image, \(image, class\)"):
        predict_logits(Predictor(Odd()), digits_like)


def test_precisions_are_sorted_from_the_finest():
    assert usable_precisions(nn.Tanh(), ("bfloat16", "float64")) == ("float64", "bfloat16")


@pytest.mark.parametrize(
    ("before", "after", "change"),
    [
        ([[2.0, -2.0]], [[2.0, -1.5]], 0.25),
        ([[102.0, 98.0]], [[102.0, 98.5]], 0.25),  # what all classes share does not count
        ([[1.0]], [[1.5]], 0.5),
        ([[1.0]], [[1.0]], 0.0),
        ([[0.0]], [[0.0]], 0.0),
        ([[0.0]], [[1.0]], math.inf),
        ([[math.nan]], [[1.0]], math.inf),
        ([[1.0]], [[math.inf]], math.inf),
    ],
)
def test_the_change_is_relative_to_the_differences_between_classes(before, after, change):
    assert logit_change(torch.tensor(before), torch.tensor(after)) == change


def test_decisions_by_plain_loops():
    before, after = torch.randn(20, 4).double(), torch.randn(20, 4).double()
    p, q = before.softmax(-1).tolist(), after.softmax(-1).tolist()
    old = [max(range(4), key=row.__getitem__) for row in p]
    new = [max(range(4), key=row.__getitem__) for row in q]
    changes = [
        max(abs(a - b) for a, b in zip(*rows, strict=True)) for rows in zip(p, q, strict=True)
    ]
    leads = [
        row[c] - max(v for i, v in enumerate(row) if i != c) for row, c in zip(q, old, strict=True)
    ]
    found = compare_decisions(before, after)
    assert found.agreement == sum(a == b for a, b in zip(old, new, strict=True)) / 20
    assert found.probability == pytest.approx(max(changes))
    assert found.worst == changes.index(max(changes))
    assert found.margin == pytest.approx(min(leads))


def test_a_margin_is_negative_exactly_where_a_decision_changed():
    p, q = torch.rand(50, 3), torch.rand(50, 3)
    assert torch.equal(lead_of(p.argmax(-1), q) > 0, p.argmax(-1) == q.argmax(-1))


def test_noise_leaves_no_region_blank_and_stays_in_range():
    images = torch.zeros(3, 1, 6, 6)
    images[:, :, 2:4] = 1
    noisy = with_noise(images)
    assert 0 <= noisy.min() < noisy.max() <= 1
    assert noisy[0, 0, 0].std() > 0.01
    assert torch.equal(noisy, with_noise(images)), "the noise is always the same"


def test_hashes_differ_between_weights_and_between_images(digits_like):
    model, other = nn.Linear(2, 2), nn.Linear(2, 2)
    other.load_state_dict(model.state_dict())
    assert hash_weights(model) == hash_weights(other)
    with torch.no_grad():
        other.bias[0] += 1e-6
    assert hash_weights(model) != hash_weights(other)
    assert hash_images(digits_like) == hash_images(digits_like.clone())
    assert hash_images(digits_like) != hash_images(digits_like.view(5, 1, 4, 16))
