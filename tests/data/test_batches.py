"""Which images are in which batch is a function of (seed, epoch, batch), for any processes."""

import itertools

import pytest
import torch

from turnwise.data import Examples
from turnwise.data.augment import Augmentation
from turnwise.data.batches import (
    EvaluationBatches,
    TrainingBatches,
    balanced_order,
    mix,
    to_device,
    to_unit,
)
from turnwise.errors import InputError
from turnwise.geometry.warps import keep_disc

CPU = torch.device("cpu")
STILL = Augmentation()
WILD = Augmentation(rotation=180.0, shift=1.0, scale=0.2, mirror=True, noise=0.1)


def numbered(count, size=4):
    """Return images that all differ: image i is uniformly grey i and has label i."""
    grey = torch.arange(count, dtype=torch.uint8).view(-1, 1, 1, 1)
    return Examples(grey.expand(count, 1, size, size).contiguous(), torch.arange(count))


def noisy(count, size=5):
    images = torch.randint(256, (count, 1, size, size), dtype=torch.uint8)
    return Examples(images, torch.arange(count))


def training(examples, batch_size, epoch=0, **changes):
    settings = {"augmentation": STILL, "seed": 0, "device": CPU} | changes
    batches = TrainingBatches(examples, batch_size, **settings)
    batches.set_epoch(epoch)
    return batches


def order(batches):
    return torch.cat([labels for _, labels in batches]).tolist()


def test_every_image_is_seen_at_most_once_an_epoch():
    batches = training(numbered(50), 16)
    seen = order(batches)
    assert len(batches) == 3 == len(list(batches))
    assert len(seen) == len(set(seen)) == 48


def test_all_are_seen_where_batches_divide_them():
    assert sorted(order(training(numbered(48), 16))) == list(range(48))


def test_what_is_left_over_differs_between_epochs():
    left = [set(range(50)) - set(order(training(numbered(50), 16, epoch))) for epoch in range(6)]
    assert len({frozenset(rest) for rest in left}) > 1


def test_the_order_is_a_function_of_seed_and_epoch():
    orders = {
        (seed, epoch): order(training(numbered(40), 8, epoch, seed=seed))
        for seed in (0, 1, 2)
        for epoch in (0, 1, 2)
    }
    assert len({tuple(o) for o in orders.values()}) == 9
    torch.manual_seed(99)
    for (seed, epoch), first in orders.items():
        assert order(training(numbered(40), 8, epoch, seed=seed)) == first


def test_images_are_not_in_their_own_order():
    assert order(training(numbered(40), 8)) != list(range(40))


def test_an_epoch_can_be_repeated_exactly():
    """An interrupted run starts its epoch anew: the same images, augmented in the same way."""
    batches = training(noisy(24), 8, epoch=3, augmentation=WILD)
    again = training(batches.examples, 8, epoch=3, augmentation=WILD)
    other = training(batches.examples, 8, epoch=4, augmentation=WILD)
    first, second, third = (torch.cat([x for x, _ in b]) for b in (batches, again, other))
    assert torch.equal(first, second)
    assert not torch.equal(first, third)


def test_batches_of_one_epoch_are_augmented_differently():
    """All images are equal, so that only the augmentation differs."""
    same = Examples(noisy(1).images.repeat(16, 1, 1, 1), torch.zeros(16, dtype=torch.int64))
    one, two = (images for images, _ in training(same, 8, augmentation=WILD))
    assert not torch.equal(one, two)


@pytest.mark.parametrize("world", [2, 3])
def test_processes_together_see_what_one_would_see(world):
    examples = noisy(40)
    whole = list(training(examples, 12, epoch=2, augmentation=WILD))
    parts = [
        list(training(examples, 12, epoch=2, augmentation=WILD, rank=rank, world=world))
        for rank in range(world)
    ]
    assert len(whole) == 3
    for batch, (images, labels) in enumerate(whole):
        slices = [part[batch] for part in parts]
        assert all(len(x) == len(y) == 12 // world for x, y in slices)
        together = torch.stack([x for x, _ in slices], dim=1).flatten(0, 1)
        assert torch.equal(together, images)
        assert torch.equal(torch.stack([y for _, y in slices], dim=1).flatten(), labels)


def test_labels_stay_with_their_images():
    for images, labels in training(numbered(60), 7):
        assert torch.equal(images[:, 0, 0, 0] * 255, labels.float())


def test_bytes_become_numbers_from_0_to_1():
    unit = to_unit(torch.tensor([0, 51, 255], dtype=torch.uint8))
    assert unit.dtype == torch.float32
    assert unit.tolist() == pytest.approx([0.0, 0.2, 1.0])


def test_the_set_itself_is_not_changed():
    examples = noisy(16)
    before = examples.images.clone()
    list(training(examples, 8, augmentation=WILD))
    assert torch.equal(examples.images, before)


def test_lightning_finds_where_to_set_the_epoch():
    batches = training(numbered(16), 4)
    batches.sampler.set_epoch(5)
    assert order(batches) == order(training(numbered(16), 4, epoch=5))


def test_examples_are_copied_to_the_device():
    copied = to_device(noisy(3), torch.device("meta"))
    assert copied.images.device.type == copied.labels.device.type == "meta"


def test_a_batch_larger_than_the_set():
    words = r"batch_size = 64 is more than the 50 training images; try 50\."
    with pytest.raises(InputError, match=words):
        training(numbered(50), 64)
    assert len(training(numbered(50), 50)) == 1


def test_the_batch_that_is_suggested_works_for_all_processes():
    with pytest.raises(InputError, match=r"more than the 50 training images; try 48\."):
        training(numbered(50), 63, world=3)
    assert len(training(numbered(50), 48, world=3)) == 1


def test_a_batch_that_does_not_split_over_the_processes():
    words = r"batch_size = 8 must be a multiple of 3 \(it is split over 3 processes\); try 6 or 9\."
    with pytest.raises(InputError, match=words):
        training(numbered(50), 8, world=3)


@pytest.mark.parametrize("batch_size", [1, 7, 23, 100])
def test_evaluation_sees_every_image_once_and_in_order(batch_size):
    batches = EvaluationBatches(numbered(23), batch_size, device=CPU)
    assert order(batches) == list(range(23))
    assert len(batches) == len(list(batches))
    for images, labels in batches:
        assert images.dtype == torch.float32
        assert torch.equal((images[:, 0, 0, 0] * 255).round().long(), labels)


@pytest.mark.parametrize("world", [2, 3, 5])
def test_processes_share_the_evaluation(world):
    """Rank r takes images r, r + world, …: each once, all of them, in order."""
    shares = [
        order(EvaluationBatches(numbered(23), 4, device=CPU, rank=rank, world=world))
        for rank in range(world)
    ]
    assert shares == [list(range(rank, 23, world)) for rank in range(world)]


def test_different_numbers_give_different_seeds():
    """Small triples of every order, large ones, and lists of other lengths."""
    triples = list(itertools.product(range(24), repeat=3))
    large = [(2**32 + i, 2**40 - i, i) for i in range(1000)]
    short = [(i,) for i in range(100)] + [(i, j) for i in range(10) for j in range(10)]
    seeds = {mix(*numbers) for numbers in triples + large + short}
    assert len(seeds) == len(triples) + len(large) + len(short)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_the_order_of_the_numbers_matters():
    assert len({mix(*triple) for triple in itertools.permutations((1, 2, 3))}) == 6


def test_seeds_stay_what_they_are():
    """A run that was interrupted under an older version continues with the same images."""
    assert mix(0, 0, 0) == 1279368494785126216
    assert mix(1, 2, 3) == 3851293329796251419


def unequal():
    """Return 40 images: 30 of class 0, 8 of class 1 and 2 of class 2."""
    labels = torch.tensor([0] * 30 + [1] * 8 + [2] * 2)
    return Examples(numbered(40).images, labels)


def test_every_class_is_drawn_equally_often():
    examples = unequal()
    drawn = balanced_order(examples.labels, torch.Generator().manual_seed(0))
    counts = torch.bincount(examples.labels[drawn])
    assert len(drawn) == 40 and counts.max() - counts.min() <= 1
    large = drawn[examples.labels[drawn] == 0]
    assert large.unique().numel() == len(large), "no image of a large class is repeated"
    small = torch.bincount(drawn, minlength=40)[38:]
    assert small.min() >= 6, "the images of a small class are used equally often"


def test_other_images_of_large_classes_are_drawn_in_other_epochs():
    examples, used = unequal(), set()
    for epoch in range(12):
        batches = training(examples, 8, epoch, strata=examples.labels)
        used |= {round(float(image[0, 0, 0]) * 255) for images, _ in batches for image in images}
    assert used == set(range(40))


def test_balanced_batches_are_a_function_of_seed_and_epoch():
    """So a resumed run repeats them, and processes share them."""
    examples = unequal()
    first, again, other = (
        [images for images, _ in training(examples, 8, epoch, strata=examples.labels)]
        for epoch in (3, 3, 4)
    )
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))
    parts = [
        [images for images, _ in training(examples, 8, 3, strata=examples.labels, rank=r, world=2)]
        for r in range(2)
    ]
    for whole, *halves in zip(first, *parts, strict=True):
        assert torch.equal(whole[0::2], halves[0]) and torch.equal(whole[1::2], halves[1])


def test_the_disc_is_shown_in_validation_too():
    examples = noisy(4)
    ((images, _),) = EvaluationBatches(examples, 4, device=CPU, fill="disc")
    assert torch.equal(images, keep_disc(to_unit(examples.images)))
    assert not torch.equal(images, to_unit(examples.images))
