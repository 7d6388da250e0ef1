"""Nearly equal images are found in every orientation; different ones and empty ones are not."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from turnwise.data import near_duplicates as module
from turnwise.data.near_duplicates import find_near_duplicates
from turnwise.groups import PlanarGroup, act_on_image

D4 = PlanarGroup.named("D4")


def blobs(count, seed=0):
    """Different smooth images."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(count, 3, 5, 5, generator=generator)
    smooth = F.interpolate(coarse, (32, 32), mode="bicubic").clamp(0, 1)
    return (255 * smooth).byte()


def changed(images):
    """Noise, less contrast and more light, as when an image is saved again."""
    noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(7))
    return (0.8 * images.float() + 30 + 4 * noise).clamp(0, 255).byte()


@pytest.mark.parametrize("g", range(8))
def test_every_orientation(g):
    images = blobs(20)
    again = changed(act_on_image(D4, g, images[7:8]))
    (pair,) = find_near_duplicates(torch.cat([images, again]))
    assert (pair.first, pair.second) == (7, 20) and pair.correlation > module.ALIKE


def test_different_images_are_not_alike():
    assert find_near_duplicates(blobs(200)) == []


def test_empty_images_are_not_compared():
    flat = (
        torch.full((5, 3, 32, 32), 200, dtype=torch.uint8)
        + torch.arange(5).view(-1, 1, 1, 1).byte()
    )
    assert find_near_duplicates(torch.cat([flat, blobs(3)])) == []


def test_blocks_do_not_change_the_pairs(monkeypatch):
    images = torch.cat([blobs(30), changed(blobs(30))])
    whole = find_near_duplicates(images)
    assert [(p.first, p.second) for p in whole] == [(i, 30 + i) for i in range(30)]
    monkeypatch.setattr(module, "_BLOCK", 7)
    parts = find_near_duplicates(images)
    assert [p[:2] for p in parts] == [p[:2] for p in whole]
    assert np.allclose([p[2] for p in parts], [p[2] for p in whole], atol=1e-5)


def test_pairs_are_limited(monkeypatch):
    monkeypatch.setattr(module, "MOST", 10)
    assert len(find_near_duplicates(changed(blobs(1)).repeat(20, 1, 1, 1))) == 10
