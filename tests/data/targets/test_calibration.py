"""Thresholds reach their rate and no more; the calibration error is its definition."""

import math

import pytest
import torch

from turnwise.data.targets.calibration import (
    COLDEST,
    HOTTEST,
    choose_threshold,
    fit_temperature,
    reliability,
)
from turnwise.errors import InputError


@pytest.mark.parametrize("rate", [0.5, 0.8, 0.95, 1.0])
def test_a_sensitivity_is_reached_with_the_highest_threshold(rate):
    p, positive = torch.rand(100), torch.rand(100) < 0.4
    threshold = choose_threshold(p, positive, sensitivity=rate)
    reached = float((p[positive].double() >= threshold).double().mean())
    above = math.nextafter(threshold, math.inf)
    assert reached >= rate > float((p[positive].double() >= above).double().mean())


@pytest.mark.parametrize("rate", [0.5, 0.8, 0.95, 1.0])
def test_a_specificity_is_reached_with_a_low_threshold(rate):
    p, positive = torch.rand(100), torch.rand(100) < 0.4
    threshold = choose_threshold(p, positive, specificity=rate)
    rejected = p[~positive].double() < threshold
    assert float(rejected.double().mean()) >= rate
    last = p[~positive].double()[rejected].max()
    fewer = float((p[~positive].double() < last).double().mean())
    assert fewer < rate


def test_without_positive_images_there_is_no_sensitivity():
    with pytest.raises(InputError, match="no validation image is positive"):
        choose_threshold(torch.rand(4), torch.zeros(4, dtype=torch.bool), sensitivity=0.9)
    with pytest.raises(InputError, match="no validation image is negative"):
        choose_threshold(torch.rand(4), torch.ones(4, dtype=torch.bool), specificity=0.9)


def test_the_temperature_is_where_the_slope_is_zero():
    assert fit_temperature(lambda inverse: inverse - 0.4) == pytest.approx(2.5)
    assert fit_temperature(lambda inverse: -1.0) == pytest.approx(COLDEST)
    assert fit_temperature(lambda inverse: 1.0) == pytest.approx(HOTTEST)


def test_definition_of_the_calibration_error():
    confidence = torch.tensor([0.55, 0.65, 0.95, 0.95])
    right = torch.tensor([True, False, True, True])
    found = reliability(confidence, right, bins=10)
    assert [b["count"] for b in found["bins"]] == [1, 1, 2]
    assert [b["accuracy"] for b in found["bins"]] == [1.0, 0.0, 1.0]
    expected = (0.45 + 0.65 + 2 * 0.05) / 4
    assert found["ece"] == pytest.approx(expected, abs=1e-6)


def test_the_ends_of_the_scale_have_a_bin():
    found = reliability(torch.tensor([0.0, 1.0]), torch.tensor([False, True]), bins=4)
    assert [b["count"] for b in found["bins"]] == [1, 1]
    assert found["ece"] == 0.0
