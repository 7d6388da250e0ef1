"""Chunks, precisions and padding change no answer; differences are measured as defined."""

import math

import pytest
import torch
from torch import nn

from turnwise.errors import InputError
from turnwise.evaluation.certificate.scores import (
    Answerer,
    answerer,
    compare_decisions,
    hash_images,
    hash_weights,
    leads,
    probabilities,
    relative_change,
)
from turnwise.geometry.warps import rotate_image


class Sums(nn.Module):
    """Scores that depend on the picture alone; it counts how many it was given at a time."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, -2.0, 0.5]))
        self.given = []

    def preprocess(self, images):
        return images - 0.5

    def forward(self, images):
        self.given.append(len(images))
        return images.flatten(1).sum(1, keepdim=True) * self.weight


@pytest.mark.parametrize("chunk", [1, 2, 5, 64])
def test_chunks_bound_the_batch_and_change_nothing(chunk, digits_like):
    answer = Answerer(Sums().double(), torch.float64, chunk)
    expected = (digits_like.double() - 0.5).flatten(1).sum(1)
    assert torch.allclose(answer(digits_like)[:, 0], expected, rtol=0, atol=1e-12)
    assert max(answer.model.given) == min(chunk, 5)


def test_each_chunk_is_moved(digits_like):
    answer = Answerer(Sums().double(), torch.float64, 2)
    assert torch.equal(answer(digits_like, lambda x: x + 1), answer(digits_like.double() + 1))


class Mirror(nn.Module):
    """Says what it sees."""

    def forward(self, images):
        return images.flatten(1)


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_pictures_are_moved_before_they_are_rounded(precision, digits_like):
    """Between its pixels no picture can be sampled in bfloat16."""
    seen = Answerer(Mirror(), getattr(torch, precision), 2)(
        digits_like, lambda images: rotate_image(images, 45.0)
    )
    right = rotate_image(digits_like.float(), 45.0).to(getattr(torch, precision))
    assert torch.equal(seen, right.flatten(1).double())


@pytest.mark.parametrize("precision", ["float64", "float32", "bfloat16"])
def test_the_copy_has_its_precision_and_the_model_keeps_its_own(precision, digits_like):
    model = Sums().train()
    answer = answerer(model, precision, 64)
    assert answer.model.weight.dtype == getattr(torch, precision)
    assert not answer.model.training
    assert model.weight.dtype == torch.float32
    assert model.training
    assert answer(digits_like).dtype == torch.float64


@pytest.mark.parametrize("answers", [lambda x: x, lambda x: (x, x), lambda x: x.mean((1, 2, 3))])
def test_what_is_no_row_of_scores_is_refused(answers, digits_like):
    class Odd(nn.Module):
        def forward(self, images):
            return answers(images)

    with pytest.raises(InputError, match="one row of scores for each picture"):
        Answerer(Odd(), torch.float32, 64)(digits_like)


@pytest.mark.parametrize(
    ("before", "after", "change"),
    [
        ([2.0, -4.0], [2.0, -3.0], 0.25),
        ([1.0], [1.0], 0.0),
        ([0.0], [0.0], 0.0),
        ([0.0], [1.0], math.inf),
        ([math.nan], [1.0], math.inf),
        ([1.0], [math.inf], math.inf),
    ],
)
def test_the_change_is_relative_to_the_largest_score(before, after, change):
    assert relative_change(torch.tensor(before), torch.tensor(after)) == change


def test_decisions_by_plain_loops():
    before, after = torch.randn(20, 4).double(), torch.randn(20, 4).double()
    p, q = before.softmax(-1).tolist(), after.softmax(-1).tolist()
    chosen = [max(range(4), key=row.__getitem__) for row in p]
    now = [max(range(4), key=row.__getitem__) for row in q]
    moved = [max(abs(a - b) for a, b in zip(*rows, strict=True)) for rows in zip(p, q, strict=True)]
    lead = [
        row[c] - max(v for i, v in enumerate(row) if i != c)
        for row, c in zip(q, chosen, strict=True)
    ]
    found = compare_decisions(before, after)
    assert found.agreement == sum(a == b for a, b in zip(chosen, now, strict=True)) / 20
    assert found.probability == pytest.approx(max(moved))
    assert found.worst == moved.index(max(moved))
    assert found.margin == pytest.approx(min(lead))


def test_a_margin_is_negative_exactly_where_a_decision_changed():
    p, q = torch.rand(50, 3), torch.rand(50, 3)
    assert torch.equal(leads(p, q) > 0, p.argmax(-1) == q.argmax(-1))


def test_one_score_is_yes_or_no():
    assert torch.allclose(
        probabilities(torch.tensor([[0.0], [100.0]])), torch.tensor([[0.5, 0.5], [0.0, 1.0]])
    )


def test_hashes_tell_weights_and_pictures_apart(digits_like):
    model, other = Sums(), Sums()
    assert hash_weights(model) == hash_weights(other)
    with torch.no_grad():
        other.weight[0] += 1e-6
    assert hash_weights(model) != hash_weights(other)
    assert hash_images(digits_like) == hash_images(digits_like.clone())
    assert hash_images(digits_like) != hash_images(digits_like.view(5, 1, 4, 16))
