"""Splits in memory know their length, their parts and their form."""

import pytest
import torch

from turnwise.data.dataset import Dataset, Examples
from turnwise.errors import InputError


def some(count=4, rows=5, cols=5, channels=3):
    images = torch.arange(count, dtype=torch.uint8).view(-1, 1, 1, 1)
    return Examples(images.expand(-1, channels, rows, cols), torch.arange(count))


def dataset(part):
    return Dataset("toy", ("a", "b"), part, part, part, "made here", "none")


def test_taking_keeps_pictures_and_labels_together():
    part = some().take(torch.tensor([3, 1]))
    assert len(part) == 2
    assert part.labels.tolist() == part.images[:, 0, 0, 0].tolist() == [3, 1]


def test_form_of_a_data_set():
    assert (dataset(some()).channels, dataset(some()).image_size) == (3, 5)


def test_a_rectangle_has_no_image_size():
    with pytest.raises(InputError, match=r"toy has pictures of 4×6 pixels.*image_size=4"):
        _ = dataset(some(rows=4, cols=6)).image_size


def test_counts_must_agree():
    with pytest.raises(Exception, match=r"readers check the counts|picture"):
        Examples(torch.zeros(2, 1, 3, 3, dtype=torch.uint8), torch.zeros(3, dtype=torch.int64))
