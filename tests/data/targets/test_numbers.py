"""Numbers: scaled back to their unit, scored as torchmetrics does."""

import pytest
import torch
import torchmetrics.functional.regression as reference

from turnwise.data.targets import make_kind
from turnwise.errors import InputError


def sample(images=40):
    targets = torch.tensor([5.0, -20.0]) + torch.tensor([2.0, 30.0]) * torch.randn(images, 2)
    return targets, make_kind("number", ("width", "angle"), "mm").fit(targets)


def test_outputs_are_standardised_numbers():
    targets, kind = sample()
    mean, std = targets.mean(0), targets.std(0, unbiased=False)
    torch.testing.assert_close(kind.predict(torch.zeros(3, 2)), mean.expand(3, 2))
    torch.testing.assert_close(kind.predict(torch.ones(3, 2)), (mean + std).expand(3, 2))
    standardised = (targets - mean) / std
    assert float(kind.make_loss()(standardised, targets)) == pytest.approx(0.0, abs=1e-10)
    assert float(kind.make_loss()(standardised + 2, targets)) == pytest.approx(4.0, rel=1e-5)


def test_scores_are_those_of_torchmetrics():
    targets, kind = sample()
    predictions = targets + torch.randn_like(targets)
    found = kind.point_scores(kind.measure(predictions, targets))
    rmse = reference.mean_squared_error(predictions, targets, squared=False, num_outputs=2)
    assert found["mae"] == pytest.approx(float(reference.mean_absolute_error(predictions, targets)))
    assert found["rmse"] == pytest.approx(float(rmse.mean()), rel=1e-5)
    assert found["r2"] == pytest.approx(float(reference.r2_score(predictions, targets)), abs=1e-5)
    width, angle = kind.details(kind.measure(predictions, targets))
    assert (width["mae"] + angle["mae"]) / 2 == pytest.approx(found["mae"])


def test_a_constant_column_is_predicted_as_it_is():
    kind = make_kind("number", ("size",)).fit(torch.full((4, 1), 7.0))
    assert kind.std == (1.0,)
    assert float(kind.predict(torch.zeros(1, 1))) == 7.0


def test_numbers_that_differ_by_less_than_a_hundredth_are_the_same():
    _, kind = sample()
    before = torch.zeros(2, 2)
    change = kind.compare(before, torch.tensor([[0.005, 0.0], [0.02, 0.0]]))
    assert change.same.tolist() == [True, False]
    assert change.size.tolist() == pytest.approx([0.005, 0.02])


def test_numbers_in_words():
    assert make_kind("number", ("a", "b"), "mm").describe(torch.tensor([1.23456, -2])) == (
        "1.235, -2 mm"
    )
    assert make_kind("number", ("a",)).describe(torch.tensor([3.0])) == "3"


def test_what_numbers_do_not_have_is_refused():
    targets, kind = sample()
    for call in (
        lambda: kind.strata(targets),
        lambda: kind.balanced_weights(targets),
        lambda: kind.make_loss(weights=(1.0, 2.0)),
        lambda: kind.make_loss(smoothing=0.1),
    ):
        with pytest.raises(InputError, match="numbers"):
            call()
    with pytest.raises(InputError, match="not a finite number"):
        kind.fit(torch.tensor([[1.0, float("nan")]]))
