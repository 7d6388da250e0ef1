"""The shifted test: which images qualify, how they are shifted, and figures known by hand."""

import csv
import math

import pytest
import torch
from torch import nn

from turnwise.data import Examples, load_dataset
from turnwise.errors import InputError
from turnwise.evaluation.shifts import (
    AXES,
    ShiftTest,
    blank_margins,
    evaluate_shifts,
    predict_shifted,
    qualified,
    select_shiftable,
    shift_figures,
    write_shift_table,
)


class LeftOrRight(nn.Module):
    """The logits are the sums over the left and over the right half."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def preprocess(self, images):
        return images

    def forward(self, images):
        left, right = images.sum(dim=(1, 2)).tensor_split(2, dim=-1)
        return self.weight * torch.stack([left.sum(-1), right.sum(-1)], dim=-1)


class Total(LeftOrRight):
    """The logits depend on the sum over all pixels, which no shift changes."""

    def forward(self, images):
        total = images.sum(dim=(1, 2, 3))
        return torch.stack([total, 2 - total], dim=-1)


def dots(pixels, side=9):
    """Return images with one bright pixel each, at (row, column)."""
    images = torch.zeros(len(pixels), 1, side, side, dtype=torch.uint8)
    for image, (row, col) in zip(images, pixels, strict=True):
        image[0, row, col] = 255
    return images


def test_margins_are_counted_on_both_sides():
    images = dots([(4, 2), (0, 8)])
    assert blank_margins(images, "horizontal").tolist() == [[2, 6], [8, 0]]
    assert blank_margins(images, "vertical").tolist() == [[4, 4], [0, 8]]
    assert blank_margins(torch.zeros_like(images), "vertical").tolist() == [[9, 9], [9, 9]]


def test_one_column_more_than_the_shift_must_be_blank():
    images = dots([(4, 3)])
    assert qualified(images, 2, "horizontal").tolist() == [True]
    assert qualified(images, 3, "horizontal").tolist() == [False]


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("mnist", {6: 961, 7: 855, 8: 854, 9: 725, 10: 530, 11: 268}),
        ("fashionmnist", {6: 917, 7: 791, 8: 791, 9: 164, 10: 8}),
    ],
)
def test_published_numbers_of_images(name, counts, real_data):
    """Of class 1, at 32 pixels."""
    examples = load_dataset(name, data_dir=real_data, image_size=32, download=False).test
    found = {shift: len(select_shiftable(examples, (1,), shift, "horizontal")) for shift in counts}
    assert found == counts


def test_examples_are_selected_by_label_and_margin():
    examples = Examples(dots([(4, 4), (4, 0), (4, 4)]), torch.tensor([1, 1, 2]))
    assert select_shiftable(examples, (1,), 2, "horizontal").labels.tolist() == [1]
    assert select_shiftable(examples, None, 2, "horizontal").labels.tolist() == [1, 2]
    assert len(select_shiftable(examples, (1,), 2, "horizontal", circular=True)) == 2
    assert len(select_shiftable(examples, (1,), 2, "vertical")) == 2


def test_right_and_up_are_positive():
    """On blank margins a circular shift is a shift."""
    seen = []

    class Recording(LeftOrRight):
        def forward(self, images):
            seen.extend(divmod(int(image.argmax()), 9) for image in images)
            return super().forward(images)

    predict_shifted(Recording(), dots([(4, 4)]), (-2, 0, 3), "horizontal")
    predict_shifted(Recording(), dots([(4, 4)]), (-2, 0, 3), "vertical")
    assert seen == [(4, 2), (4, 4), (4, 7), (6, 4), (4, 4), (1, 4)]


def test_figures_by_hand():
    logits = torch.tensor([[[2.0, 0.0], [0.0, 1.0]], [[0.0, 3.0], [0.0, 4.0]]], dtype=torch.float64)
    shifted, upright = shift_figures(
        logits, torch.tensor([0, 1]), (-1, 0), run_dir="here", axis="vertical", name="all"
    )
    assert (shifted.shift, shifted.accuracy_mean, shifted.accuracy_std) == (-1, 1.0, 0.0)
    assert (upright.accuracy_mean, upright.accuracy_std) == (0.5, pytest.approx(math.sqrt(0.5)))
    losses = [math.log(1 + math.exp(-2)), math.log(1 + math.exp(-1))]
    assert shifted.loss_mean == pytest.approx(sum(losses) / 2)
    assert shifted.loss_std == pytest.approx(abs(losses[0] - losses[1]) / math.sqrt(2))
    assert (shifted.agreement, upright.agreement) == (0.5, 1.0)
    assert upright.logit_change == 0
    assert shifted.logit_change == pytest.approx(math.sqrt(4 + 9 + 9) / 5)
    assert (shifted.run_dir, shifted.axis, shifted.labels, shifted.images) == (
        "here", "vertical", "all", 2,
    )  # fmt: skip


def test_a_model_changes_under_shifts_if_it_depends_on_positions():
    examples = Examples(dots([(4, 4), (4, 5)]), torch.tensor([1, 1]))
    how = ShiftTest(min_shift=2, axes=("horizontal", "vertical"))
    dependent = evaluate_shifts(LeftOrRight(), examples, how)
    invariant = evaluate_shifts(Total(), examples, how)
    assert [row.shift for row in dependent] == 2 * [-2, -1, 0, 1, 2]
    sideways = [row.agreement for row in dependent if row.axis == "horizontal"]
    assert min(sideways) < 1
    assert {row.agreement for row in dependent if row.axis == "vertical"} == {1.0}
    assert {row.agreement for row in invariant} == {1.0}
    assert (
        max(row.logit_change for row in invariant)
        < 1e-12
        < max(row.logit_change for row in dependent)
    )


def test_an_axis_without_images_to_shift_is_refused_before_predicting(monkeypatch):
    examples = Examples(dots([(0, 4)]), torch.tensor([1]))  # at the upper border
    monkeypatch.setattr("turnwise.evaluation.shifts.predict_shifted", None)  # a call would fail
    with pytest.raises(InputError, match=r"shifted by 2 pixels \(vertical\)"):
        evaluate_shifts(LeftOrRight(), examples, ShiftTest(min_shift=2, axes=tuple(AXES)))


def test_rows_for_each_class():
    examples = Examples(dots([(4, 4), (4, 5), (4, 4)]), torch.tensor([0, 1, 1]))
    how = ShiftTest(labels=None, min_shift=1, by_class=True)
    rows = evaluate_shifts(LeftOrRight(), examples, how, batch_size=2)
    assert [(row.labels, row.images) for row in rows[::3]] == [("all", 3), ("0", 1), ("1", 2)]
    assert all(row.accuracy_std == 0 for row in rows if row.labels == "0")


def test_a_single_class_has_its_rows_once():
    examples = Examples(dots([(4, 4), (4, 5), (4, 4)]), torch.tensor([0, 1, 1]))
    how = ShiftTest(labels=(1,), min_shift=1, by_class=True)
    rows = evaluate_shifts(LeftOrRight(), examples, how, batch_size=2)
    assert [(row.labels, row.shift) for row in rows] == [("1", -1), ("1", 0), ("1", 1)]


def test_the_model_keeps_its_mode():
    model = LeftOrRight().train()
    predict_shifted(model, dots([(4, 4)]), (0,), "horizontal")
    assert model.training


def test_the_table_has_the_published_columns_first(tmp_path):
    examples = Examples(dots([(4, 4), (4, 5)]), torch.tensor([1, 1]))
    rows = evaluate_shifts(LeftOrRight(), examples, ShiftTest(min_shift=1), run_dir="runs/a, b")
    write_shift_table(rows, tmp_path / "shifted.csv")
    head, *body = csv.reader((tmp_path / "shifted.csv").read_text().splitlines())
    assert head[:7] == [
        "", "run_dir", "shift", "accuracy_mean", "accuracy_std", "loss_mean", "loss_std",
    ]  # fmt: skip
    assert [line[:3] for line in body] == [[str(n), "runs/a, b", str(n - 1)] for n in range(3)]
    assert float(body[0][3]) == rows[0].accuracy_mean


@pytest.mark.parametrize(
    ("labels", "shift", "message"),
    [
        ((3,), 1, r"no image has one of the labels \(3,\)"),
        ((1,), 8, r"no image can be shifted by 8 pixels \(horizontal\) .* try 3 or less"),
        ((1,), 9, "min_shift = 9 must be from 0 to 8"),
        ((1,), -1, "min_shift = -1 must be from 0 to 8"),
    ],
)
def test_a_choice_without_images_is_refused(labels, shift, message):
    with pytest.raises(InputError, match=message):
        select_shiftable(Examples(dots([(4, 4)]), torch.tensor([1])), labels, shift, "horizontal")


def test_images_with_a_background_are_shifted_circularly():
    examples = Examples(torch.full((1, 1, 9, 9), 7, dtype=torch.uint8), torch.tensor([1]))
    with pytest.raises(InputError, match="shift them circularly"):
        select_shiftable(examples, (1,), 0, "horizontal")
    rows = evaluate_shifts(LeftOrRight(), examples, ShiftTest(circular=True, min_shift=3))
    assert len(rows) == 7
