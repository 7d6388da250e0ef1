"""Overlaps and boundaries, counted pixel by pixel."""

import pytest
import torch

from turnwise.data.masks import boundaries
from turnwise.data.pixel_scores import TOLERANCE, boundary_f1, class_overlaps


def maps(seed=0, scale=3):
    generator = torch.Generator().manual_seed(seed)
    small = torch.randint(0, 3, (2, 5, 4), generator=generator)
    return small.repeat_interleave(scale, 1).repeat_interleave(scale, 2)


def test_overlaps_are_those_of_sets():
    predicted, true = maps(0), maps(1)
    true[0, :3] = -1
    found = class_overlaps(predicted, true, 4)
    for image in range(2):
        for c in range(4):
            a = {tuple(p) for p in ((predicted == c) & (true >= 0))[image].nonzero().tolist()}
            b = {tuple(p) for p in (true == c)[image].nonzero().tolist()}
            dice, iou = (found[key][image, c].item() for key in ("dice", "iou"))
            if a | b:
                assert dice == pytest.approx(2 * len(a & b) / (len(a) + len(b)))
                assert iou == pytest.approx(len(a & b) / len(a | b))
            else:
                assert dice != dice and iou != iou, "a class in neither map has no score"


def test_boundary_f1_by_distances():
    predicted, true = maps(0), maps(1)
    for image in range(2):
        a, b = (boundaries(x)[image].nonzero().double() for x in (predicted, true))
        distance = (a[:, None] - b[None]).abs().amax(-1)
        precision = (distance.amin(1) <= TOLERANCE).double().mean()
        recall = (distance.amin(0) <= TOLERANCE).double().mean()
        expected = 2 * precision * recall / (precision + recall)
        assert boundary_f1(predicted, true)[image].item() == pytest.approx(expected.item())


def test_boundary_f1_of_equal_shifted_and_flat_maps():
    true = maps(scale=6)
    assert boundary_f1(true, true).tolist() == [1, 1]
    assert boundary_f1(true.roll(TOLERANCE, 2), true).min() > 0.8
    assert boundary_f1(true.roll(3 * TOLERANCE, 2), true).max() < 1
    flat = torch.zeros(1, 6, 6)
    assert boundary_f1(flat, flat).isnan().all()
