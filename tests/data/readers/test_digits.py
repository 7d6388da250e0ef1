"""The digits that ship: fixed splits, disjoint, and exactly what digits.md says of them."""

import hashlib
import re

import torch

from turnwise.data.readers.arrays import read_arrays
from turnwise.data.readers.digits import PATH, read_digits


def contents(images):
    return {image.numpy().tobytes() for image in images}


def test_sizes_and_balance():
    parts = read_digits()
    assert {split: len(part) for split, part in parts.items()} == {
        "train": 4000,
        "val": 500,
        "test": 500,
    }
    for part in parts.values():
        assert part.labels.bincount().tolist() == [len(part) // 10] * 10


def test_no_picture_is_in_two_splits():
    together = [contents(part.images) for part in read_digits().values()]
    assert sum(map(len, together)) == len(set.union(*together)) == 5000


def test_the_splits_never_change():
    first, second = read_digits(), read_digits()
    assert all(torch.equal(first[s].images, second[s].images) for s in first)
    digest = hashlib.sha256(first["test"].images.numpy().tobytes()).hexdigest()
    assert digest == "153a7b0354bd9e6fabe2ebea5af17fd9b76cd4507cddc483ea15b5ddd28ad4ae"


def test_the_notes_name_this_very_file():
    noted = re.search(r"`([0-9a-f]{64})`", PATH.with_suffix(".md").read_text())[1]
    assert noted == hashlib.sha256(PATH.read_bytes()).hexdigest()


def test_all_are_training_pictures_of_mnist_and_none_is_a_test_picture(real_data):
    mnist, digits = read_arrays(real_data / "mnist" / "mnist.npz"), read_arrays(PATH)
    known = {
        image.tobytes(): label
        for image, label in zip(mnist["train_images"], mnist["train_labels"], strict=True)
    }
    labels = [known.get(image.tobytes()) for image in digits["images"]]
    assert labels == digits["labels"].tolist()
    tests = {image.tobytes() for image in mnist["test_images"]}
    assert not any(image.tobytes() in tests for image in digits["images"])
