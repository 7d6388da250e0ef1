"""Weighted scores: a weight of two is an image drawn twice."""

import math

import pytest
import torch
import torchmetrics.functional.classification as reference

from turnwise.data.targets.scores import (
    Ranking,
    count_classes,
    weighted_auc,
    weighted_average_precision,
    weighted_kappa,
    weighted_r2,
)


@pytest.fixture
def draws():
    """Real resamples of 60 images, and the weights that say the same."""
    drawn = torch.randint(60, (20, 60))
    weights = torch.stack([torch.bincount(draw, minlength=60) for draw in drawn]).double()
    return drawn, weights


@pytest.mark.parametrize("digits", [1, 7])
def test_rankings_of_a_real_resample(draws, digits):
    """Rounded to one digit there are ties; torchmetrics on the drawn images agrees."""
    drawn, weights = draws
    values, positive = torch.rand(60).round(decimals=digits), torch.rand(60) < 0.4
    areas = weighted_auc(weights, Ranking.of(values, positive))
    precisions = weighted_average_precision(weights, values, positive)
    for draw, area, precision in zip(drawn, areas, precisions, strict=True):
        given = values[draw], positive[draw].long()
        assert float(area) == pytest.approx(float(reference.binary_auroc(*given)), abs=1e-6)
        expected = float(reference.binary_average_precision(*given))
        assert float(precision) == pytest.approx(expected, abs=1e-6)


def test_counts_of_classes_by_hand():
    weights = torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.float64)
    counts = count_classes(weights, torch.tensor([0, 1, 1]), torch.tensor([0, 0, 1]), 2)
    assert counts.label.tolist() == [[3.0, 3.0]]
    assert counts.decided.tolist() == [[1.0, 5.0]]
    assert counts.right.tolist() == [[1.0, 3.0]]
    assert counts.recall.tolist() == [[1 / 3, 1.0]]


def test_undefined_scores_are_nan():
    ones, values = torch.ones(1, 4).double(), torch.rand(4)
    nothing = torch.zeros(4, dtype=torch.bool)
    assert math.isnan(float(weighted_auc(ones, Ranking.of(values, nothing))))
    assert math.isnan(float(weighted_average_precision(ones, values, nothing)))
    assert math.isnan(float(weighted_r2(ones, values, torch.ones(4))))
    assert math.isnan(float(weighted_kappa(torch.tensor([[[4.0, 0.0], [0.0, 0.0]]]).double())))
