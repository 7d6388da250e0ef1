"""The table of examples: columns that stay together, kinds of targets, and data sets."""

import pytest
import torch

from turnwise.data.dataset import Dataset, Examples, Target, concatenate
from turnwise.data.targets import known_kinds
from turnwise.errors import InputError


def some(count=4, rows=5, cols=5, channels=3):
    images = torch.arange(count, dtype=torch.uint8).view(-1, 1, 1, 1)
    return Examples(images.expand(-1, channels, rows, cols), torch.arange(count))


def dataset(part):
    return Dataset("toy", Target("class", ("a", "b")), part, part, part, "made here", "none")


def test_taking_keeps_images_and_labels_together():
    part = some().take(torch.tensor([3, 1]))
    assert len(part) == 2
    assert part.labels.tolist() == part.images[:, 0, 0, 0].tolist() == [3, 1]


def test_form_of_a_data_set():
    assert (dataset(some()).channels, dataset(some()).image_size) == (3, 5)


def test_a_rectangle_has_no_image_size():
    with pytest.raises(InputError, match=r"toy has images of 4×6 pixels.*image_size=4"):
        _ = dataset(some(rows=4, cols=6)).image_size


def test_counts_must_agree():
    with pytest.raises(Exception, match=r"readers check the counts|image"):
        Examples(torch.zeros(2, 1, 3, 3, dtype=torch.uint8), torch.zeros(3, dtype=torch.int64))


def named(count=4):
    part = some(count)
    names, groups = [f"{i}.png" for i in range(count)], [f"p{i // 2}" for i in range(count)]
    return Examples(part.images, part.targets, tuple(names), tuple(groups))


def test_taking_keeps_names_and_groups():
    part = named().take(torch.tensor([3, 1]))
    assert (part.names, part.groups) == (("3.png", "1.png"), ("p1", "p0"))
    assert (named().group_count, part.group_count, some().group_count) == (2, 2, 0)
    assert named().move(torch.clone).names == named().names


def test_joining_keeps_names_where_all_parts_have_them():
    both = concatenate([named(), named()])
    assert both.names == named().names * 2 and both.groups == named().groups * 2
    assert concatenate([named(), some()]).names == ()
    assert len(concatenate([named(), some()])) == 8


@pytest.mark.parametrize("column", ["names", "groups"])
def test_every_image_has_a_name_and_a_group_or_none_has(column):
    part = some()
    with pytest.raises(AssertionError):
        Examples(part.images, part.targets, **{column: ("a",)})


def test_names_do_not_change_the_digest_and_targets_do():
    assert named().digest() == some().digest()
    assert Examples(some().images, some().targets.flip(0)).digest() != some().digest()


TARGETS_OF = {
    "class": torch.zeros(4, dtype=torch.int64),
    "ordinal": torch.zeros(4, dtype=torch.int64),
    "multilabel": torch.zeros(4, 2),
    "number": torch.ones(4, 2),
    "mask": torch.zeros(4, 5, 5, dtype=torch.uint8),
    "instances": torch.zeros(4, 5, 5, dtype=torch.int16),
}


@pytest.mark.parametrize("kind", known_kinds())
def test_every_kind_of_target(kind):
    part = Examples(some().images, TARGETS_OF[kind])
    data = Dataset("toy", Target(kind, ("a", "b")), part, part, part, "made here", "none")
    assert data.classes == ("a", "b")
    accepting = [k for k in known_kinds() if Target(k, ("a", "b")).accepts(TARGETS_OF[kind])]
    same_form = [{"class", "ordinal"}, {"multilabel", "number"}, {"mask"}, {"instances"}]
    assert set(accepting) == next(form for form in same_form if kind in form)
    if data.target.has_classes:
        assert part.labels is part.targets
    else:
        with pytest.raises(InputError, match="several labels, numbers or masks, and not one class"):
            _ = part.labels


def test_columns_and_names_must_agree():
    assert not Target("number", ("a", "b", "c")).accepts(torch.ones(4, 2))


def test_unknown_kinds_are_refused():
    with pytest.raises(InputError, match=r"unknown kind of target 'clas'\. Did you mean 'class'"):
        Target("clas", ("a", "b"))


def test_notebooks_show_the_images_of_each_class():
    shown = dataset(some(count=4))._repr_html_()
    assert "<tr><td>train</td><td>4</td><td>3×5×5</td>" in shown
    assert shown.count("<tr>") == 4
