"""Splits that are disjoint, complete and fixed by the seed."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from turnwise.data.dataset import Examples
from turnwise.data.splits import (
    find_duplicates,
    hold_out,
    sample_per_class,
    split_by_content,
    split_per_class,
    val_count,
)
from turnwise.errors import InputError


@given(st.integers(2, 300), st.data())
def test_a_held_out_part_is_disjoint_and_complete(count, data):
    held_out = data.draw(st.integers(1, count - 1))
    train, val = hold_out(count, held_out, seed=data.draw(st.integers(0, 5)))
    assert len(val) == held_out
    assert sorted([*train.tolist(), *val.tolist()]) == list(range(count))


def test_the_seed_chooses_what_is_held_out():
    assert torch.equal(hold_out(100, 20, 3)[1], hold_out(100, 20, 3)[1])
    assert not torch.equal(hold_out(100, 20, 3)[1], hold_out(100, 20, 4)[1])


def test_one_image_cannot_be_split():
    with pytest.raises(InputError, match="1 training image cannot be split; at least 2"):
        hold_out(1, 1, 0)


def test_how_many_are_held_out():
    assert val_count(60_000, 5_000, None) == 5_000
    assert val_count(60_000, 5_000, 0.25) == 15_000
    assert val_count(40, 5_000, None) == 4
    assert val_count(2, 5_000, 0.99) == 1


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, 7.0, float("nan")])
def test_fraction_must_lie_between_0_and_1(fraction):
    with pytest.raises(InputError, match=r"must lie between 0 and 1; 0\.1 holds out a tenth"):
        val_count(100, 10, fraction)


def test_each_class_gives_its_share():
    labels = torch.arange(3).repeat(10)
    parts = split_per_class(labels, (6, 3, 1), seed=0)
    assert [labels[part].bincount().tolist() for part in parts] == [[6] * 3, [3] * 3, [1] * 3]
    assert torch.cat(parts).sort().values.tolist() == list(range(30))


@st.composite
def images_with_copies(draw):
    """Three classes of at least three different images, with copies, in any order."""
    values = [value for value in range(9) for _ in range(draw(st.integers(1, 5)))]
    values = draw(st.permutations(values))
    images = torch.tensor(values, dtype=torch.uint8).view(-1, 1, 1, 1)
    return images, torch.tensor(values) % 3


@given(images_with_copies(), st.integers(0, 3))
def test_equal_images_stay_together(table, seed):
    images, labels = table
    parts = split_by_content(Examples(images, labels), "abc", (0.7, 0.15, 0.15), seed)
    assert sorted(torch.cat(parts).tolist()) == list(range(len(images)))
    contents = [set(images[part].flatten().tolist()) for part in parts]
    assert not contents[0] & contents[1] and not contents[0] & contents[2]
    assert not contents[1] & contents[2]
    assert all(set(labels[part].tolist()) == {0, 1, 2} for part in parts)


def test_shares_are_kept():
    images = torch.arange(200, dtype=torch.uint8).view(-1, 1, 1, 1)
    parts = split_by_content(Examples(images, torch.arange(200) % 2), "ab", (0.7, 0.15, 0.15), 0)
    assert [len(part) for part in parts] == [140, 30, 30]


def test_too_few_different_images():
    images = torch.tensor([1, 1, 1, 2, 3, 4], dtype=torch.uint8).view(-1, 1, 1, 1)
    labels = torch.tensor([0, 0, 0, 1, 1, 1])
    with pytest.raises(InputError, match=r"class 'cat' has 1 different images .* at least 3"):
        split_by_content(Examples(images, labels), ("cat", "dog"), (0.7, 0.15, 0.15), 0)


def test_grouping_by_content():
    images = torch.tensor([5, 6, 5, 7], dtype=torch.uint8).view(-1, 1, 1, 1)
    assert find_duplicates(images) == [[0, 2], [1], [3]]


@pytest.mark.parametrize("shares", [(0.01, 0.84, 0.15), (0.1, 0.45, 0.45), (0.7, 0.15, 0.15)])
@pytest.mark.parametrize("count", [3, 4, 9])
def test_every_part_gets_an_image_of_every_class(shares, count):
    images = torch.arange(2 * count, dtype=torch.uint8).view(-1, 1, 1, 1)
    labels = torch.arange(2).repeat(count)
    parts = split_by_content(Examples(images, labels), ["a", "b"], shares, seed=0)
    assert all(labels[part].unique().tolist() == [0, 1] for part in parts)
    assert sorted(torch.cat(parts).tolist()) == list(range(2 * count))


@given(st.lists(st.integers(0, 4), min_size=5, max_size=200), st.floats(0.01, 1.0))
def test_a_sample_has_every_class_in_proportion(labels, fraction):
    labels = torch.tensor(labels)
    part = sample_per_class(labels, fraction, seed=3)
    classes, counts = labels.unique(return_counts=True)
    chosen = labels[part].bincount(minlength=5)[classes]
    assert ((chosen - fraction * counts).abs() < 1 + 1e-9).all() and (chosen >= 1).all()
    assert part.tolist() == sorted(set(part.tolist()))
    if (fraction * counts >= 1).all():
        assert len(part) == round(fraction * len(labels))


def test_samples_are_nested_and_the_seed_chooses_them():
    labels = torch.arange(300) % 3
    tenth, half = (set(sample_per_class(labels, f, seed=0).tolist()) for f in (0.1, 0.5))
    assert tenth < half and len(tenth) == 30
    assert tenth != set(sample_per_class(labels, 0.1, seed=1).tolist())
    assert sample_per_class(labels, 1.0, seed=0).tolist() == list(range(300))


@pytest.mark.parametrize("fraction", [0.0, -0.5, 1.5, float("nan")])
def test_the_size_of_a_sample_must_be_a_fraction(fraction):
    with pytest.raises(InputError, match=r"must be above 0 and at most 1; try 0\.1"):
        sample_per_class(torch.zeros(4, dtype=torch.int64), fraction, seed=0)
