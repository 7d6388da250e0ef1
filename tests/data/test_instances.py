"""Instances: components against a search, growth, equivariance, matches counted by hand."""

import pytest
import torch

from turnwise.data.instances import (
    SMALLEST,
    THRESHOLDS,
    connected_components,
    group_instances,
    match_instances,
    overlaps,
    score_instances,
)
from turnwise.data.masks import boundaries, pixel_classes
from turnwise.groups import act_on_image


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def search(mask):
    """Return the set of components, each a frozen set of pixels, by depth-first search."""
    left = {tuple(p) for p in mask.nonzero().tolist()}
    found = set()
    while left:
        stack, part = [left.pop()], set()
        while stack:
            r, c = stack.pop()
            part.add((r, c))
            near = {(r + i, c + j) for i in (-1, 0, 1) for j in (-1, 0, 1)} & left
            left -= near
            stack += near
        found.add(frozenset(part))
    return found


def parts_of(labels):
    """Return the set of regions of equal labels above 0."""
    return {
        frozenset(map(tuple, (labels == n).nonzero().tolist()))
        for n in labels.unique().tolist() if n > 0
    }  # fmt: skip


def blobs(count=2, size=40, seed=0):
    """Return probabilities of touching blobs: smooth noise."""
    noise = torch.rand(count, 3, size // 4, size // 4, generator=seeded(seed))
    smooth = torch.nn.functional.interpolate(noise, size=(size, size), mode="bicubic")
    return (8 * smooth + torch.tensor([0.0, 1.0, -1.0])[:, None, None]).softmax(dim=1)


@pytest.mark.parametrize("density", [0.3, 0.5, 0.7])
def test_components_are_those_of_a_search(density):
    mask = torch.rand(2, 15, 20, generator=seeded()) < density
    found = connected_components(mask)
    for image, labels in zip(mask, found, strict=True):
        assert parts_of(labels) == search(image)


def test_a_long_winding_component_is_one():
    mask = torch.zeros(1, 21, 21, dtype=torch.bool)
    mask[0, ::2] = True
    mask[0, 1::4, -1], mask[0, 3::4, 0] = True, True
    assert len(parts_of(connected_components(mask)[0])) == 1


def test_borders_separate_instances_and_belong_to_them():
    """Two squares that touch: their borders keep the insides apart."""
    classes = torch.zeros(1, 12, 20, dtype=torch.long)
    classes[0, 2:10, 2:18] = 2
    classes[0, 3:9, 3:9], classes[0, 3:9, 11:17] = 1, 1
    probabilities = torch.nn.functional.one_hot(classes, 3).movedim(-1, 1).float()
    labels = group_instances(probabilities)[0]
    assert labels.max() == 2 and (labels > 0).sum() == 8 * 16
    assert len({int(labels[5, c]) for c in range(2, 10)}) == 1
    assert labels[5, 5] != labels[5, 14]


def test_instances_without_an_inside_are_found_and_specks_are_not():
    probabilities = torch.zeros(1, 3, 20, 20)
    probabilities[:, 0] = 1
    probabilities[0, :, 3:5, 3:12] = torch.tensor([0.0, 0.2, 0.8])[:, None, None]  # 18 pixels
    probabilities[0, :, 15, 15:18] = torch.tensor([0.0, 0.8, 0.2])[:, None]  # 3 pixels
    labels = group_instances(probabilities)[0]
    assert labels.max() == 1 and (labels == 1).sum() == 18 >= SMALLEST


def test_the_label_map_of_the_rotated_image_is_the_rotated_label_map():
    """The regions for all images; the numbers, too, where no two areas are equal."""
    probabilities = blobs()
    labels = group_instances(probabilities)
    assert labels.amax((1, 2)).min() >= 4
    for g in range(8):
        found = group_instances(act_on_image("D4", g, probabilities))
        expected = act_on_image("D4", g, labels)
        for one, other in zip(found, expected, strict=True):
            assert parts_of(one) == parts_of(other)
            areas = other.unique(return_counts=True)[1]
            if len(areas.unique()) == len(areas):
                assert torch.equal(one, other)


def test_instances_are_numbered_by_area():
    labels = group_instances(blobs())[0]
    areas = labels.unique(return_counts=True)[1][1:]
    assert torch.equal(areas, areas.sort().values)


def test_overlaps_are_ratios_of_counted_pixels():
    generator = seeded()
    predicted, true = (torch.randint(0, 4, (9, 9), generator=generator) for _ in range(2))
    true[:2] = -1
    found = overlaps(predicted, true)
    for i in range(3):
        for j in range(3):
            a, b = (predicted == i + 1) & (true >= 0), true == j + 1
            assert found[i, j] == pytest.approx(float((a & b).sum() / (a | b).sum()))


def test_scores_counted_by_hand():
    """Of three true instances one is found exactly, one with an IoU of 0.6, one not; one is
    invented."""
    true, predicted = torch.zeros(1, 10, 40), torch.zeros(1, 10, 40)
    true[0, 0:5, 0:10], predicted[0, 0:5, 0:10] = 1, 7
    true[0, 0:5, 15:25], predicted[0, 0:3, 15:25] = 2, 3
    true[0, 0:5, 30:40], predicted[0, 7:9, 0:9] = 3, 4
    found = match_instances(predicted, true)
    expected = [2 / 4 if t < 0.6 else 1 / 5 for t in THRESHOLDS]
    assert found["ap"][0].tolist() == pytest.approx(expected)
    assert found["pq"].tolist() == pytest.approx([(1 + 0.6) / (2 + 0.5 + 0.5)])
    assert (found["found"].item(), found["true"].item()) == (3, 3)


def test_nothing_to_find():
    empty, one = torch.zeros(1, 6, 6), torch.ones(1, 6, 6)
    assert match_instances(empty, empty)["ap"].isnan().all()
    assert match_instances(empty, empty)["pq"].isnan().all()
    for a, b in ((empty, one), (one, empty)):
        assert match_instances(a, b)["ap"].tolist() == [[0] * len(THRESHOLDS)]
        assert match_instances(a, b)["pq"].tolist() == [0]


def test_perfect_pixels_give_perfect_instances():
    """Touching discs of different sizes, from their own three classes."""
    labels = torch.zeros(1, 64, 64, dtype=torch.int16)
    rows, cols = torch.meshgrid(torch.arange(64), torch.arange(64), indexing="ij")
    for number, (row, col, radius) in enumerate(
        ((14, 14, 9), (14, 33, 10), (30, 20, 8), (45, 45, 14), (48, 27, 5)), start=1
    ):
        labels[0, (rows - row) ** 2 + (cols - col) ** 2 <= radius**2] = number
    probabilities = torch.nn.functional.one_hot(pixel_classes(labels), 3).movedim(-1, 1).float()
    scores = {name: value.item() for name, value in score_instances(probabilities, labels).items()}
    assert (boundaries(labels) & (labels > 0)).any() and scores["ap50"] == 1
    assert match_instances(group_instances(probabilities), labels)["ap"][0, :9].tolist() == [1] * 9
    assert min(scores.values()) > 0.97 and scores["dice"] == 1
