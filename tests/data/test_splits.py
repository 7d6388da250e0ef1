"""Splits that are disjoint, complete and fixed by the seed."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from turnwise.data.dataset import Examples, Target
from turnwise.data.splits import (
    find_duplicates,
    hold_out,
    sample_per_class,
    split_by_content,
    split_by_group,
    strata_of,
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


CLASSES = Target("class", ("a", "b", "c"))


@st.composite
def grouped(draw):
    """Images in groups, some of them in several classes, and some of them equal."""
    rows = [(label, f"{label}{n}") for label in range(3) for n in range(3)]
    more = st.tuples(st.integers(0, 2), st.integers(0, 12).map(lambda n: f"g{n}"))
    rows += draw(st.lists(more, max_size=60))
    rows = draw(st.permutations(rows))
    pixels = [
        draw(st.integers(0, 3)) if g == "g1" else 4 + i % 252 for i, (_, g) in enumerate(rows)
    ]
    images = torch.tensor(pixels, dtype=torch.uint8).view(-1, 1, 1, 1)
    return images, torch.tensor([label for label, _ in rows]), tuple(group for _, group in rows)


@given(grouped(), st.integers(0, 3))
def test_groups_are_in_one_part(table, seed):
    images, labels, groups = table
    examples = Examples(images, labels, groups=groups)
    parts = split_by_group(examples, CLASSES, (0.7, 0.15, 0.15), seed)
    assert sorted(torch.cat(parts).tolist()) == list(range(len(examples)))
    taken = [examples.take(part) for part in parts]
    for values in ([set(part.groups) for part in taken],
                   [set(part.images.flatten().tolist()) for part in taken]):  # fmt: skip
        assert not values[0] & values[1] and not values[0] & values[2] and not values[1] & values[2]
    assert all(set(part.labels.tolist()) == {0, 1, 2} for part in taken)
    again = split_by_group(examples, CLASSES, (0.7, 0.15, 0.15), seed)
    assert all(map(torch.equal, parts, again))


def patients(count=100, seed=0):
    """Patients with 1 to 40 images each; a third of all images has class 1."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(1, 41, (count,), generator=generator).tolist()
    groups = [f"p{i}" for i, size in enumerate(sizes) for _ in range(size)]
    labels = (torch.rand(len(groups), generator=generator) < 1 / 3).long()
    images = torch.arange(len(groups)).view(-1, 1, 1, 1) // torch.tensor([65536, 256, 1]).view(
        3, 1, 1
    )
    return Examples((images % 256).byte(), labels, groups=tuple(groups))


@pytest.mark.parametrize("seed", range(5))
def test_shares_and_classes_are_kept_with_groups(seed):
    examples, shares = patients(), (0.7, 0.15, 0.15)
    parts = split_by_group(examples, Target("class", ("a", "b")), shares, seed)
    for part, share in zip(parts, shares, strict=True):
        assert len(part) / len(examples) == pytest.approx(share, abs=0.01)
        found = examples.labels[part].double().mean() / examples.labels.double().mean()
        assert found == pytest.approx(1, abs=0.1)


def test_the_seed_chooses_the_groups():
    target, shares = Target("class", ("a", "b")), (0.7, 0.15, 0.15)
    one, two = (split_by_group(patients(), target, shares, seed)[2] for seed in (0, 1))
    assert not torch.equal(one, two)


def test_numbers_and_labels_are_stratified():
    examples = patients(60)
    numbers = torch.linspace(-1, 1, len(examples)).square().unsqueeze(1)
    several = torch.stack([examples.labels.float(), (numbers[:, 0] > 0.5).float()], dim=1)
    for kind, values in (("number", numbers), ("multilabel", several)):
        names = tuple("xy"[: values.shape[1]])
        rows = Examples(examples.images, values, groups=examples.groups)
        parts = split_by_group(rows, Target(kind, names), (0.7, 0.15, 0.15), 0)
        means = torch.stack([values[part].mean(0) for part in parts])
        assert (means - values.mean(0)).abs().max() < 0.06
        strata = strata_of(rows, Target(kind, names))
        assert strata.shape[1] == 3 and (strata.sum(1) >= 1).all()


def test_too_few_groups():
    examples = Examples(
        torch.arange(12, dtype=torch.uint8).view(-1, 1, 1, 1), torch.arange(12) // 6,
        groups=tuple("aaabbbcccddd"),
    )  # fmt: skip
    message = r"class 'x' is in 2 groups of images and must be in at least 3, one for each split"
    with pytest.raises(InputError, match=message):
        split_by_group(examples, Target("class", ("x", "y")), (0.7, 0.15, 0.15), 0)
    parts = split_by_group(examples, Target("class", ("x", "y")), (0.5, 0.5), 0)
    assert [examples.labels[part].unique().tolist() for part in parts] == [[0, 1], [0, 1]]
