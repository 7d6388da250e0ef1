"""Masks of one's own: pairs of files and tables, numbers, two levels, palettes and colours."""

import numpy as np
import pytest
import torch
from PIL import Image

from turnwise.data import load_dataset
from turnwise.data.masks import INSTANCE_CLASSES
from turnwise.data.reading import Columns, Reading
from turnwise.errors import InputError

SIDE, COUNT = 8, 12


def image_of(rng, number):
    return rng.integers(0, 256, (SIDE, SIDE, 3), np.uint8)


@pytest.fixture
def write(tmp_path, rng):
    """Write images, and masks as `mask(i)` returns them, a Pillow image or an array."""

    def write(mask, *, split=None, names="masks", suffix=".png"):
        home = tmp_path / "cells"
        for i in range(COUNT):
            below = home if split is None else home / split(i)
            for part in ("images", names):
                (below / part).mkdir(parents=True, exist_ok=True)
            Image.fromarray(image_of(rng, i)).save(below / "images" / f"{i:02}{suffix}")
            made = mask(i)
            made = made if isinstance(made, Image.Image) else Image.fromarray(made)
            made.save(below / names / f"{i:02}.png")
        return home

    return write


def halves(i, low=0, high=255, dtype=np.uint8):
    mask = np.full((SIDE, SIDE), low, dtype)
    mask[:, : 1 + i % 4] = high
    return mask


def whole(data):
    parts = (data.train, data.val, data.test)
    order = np.argsort([name for part in parts for name in part.names])
    return torch.cat([part.targets for part in parts])[torch.from_numpy(order)]


def test_two_levels_are_background_and_foreground(write):
    data = load_dataset(f"folder:{write(halves, suffix='.jpg')}")
    assert data.target.kind == "mask" and data.classes == ("background", "foreground")
    assert sum(len(part) for part in (data.train, data.val, data.test)) == COUNT
    expected = torch.stack([torch.from_numpy(halves(i, 0, 1)) for i in range(COUNT)])
    assert torch.equal(whole(data), expected)


def test_a_mask_belongs_to_the_image_of_its_name(write):
    """The image is its own mask, so that a mix-up would show."""
    home = write(halves)
    for i in range(COUNT):
        Image.fromarray(halves(i) // 2).save(home / "images" / f"{i:02}.png")
        Image.fromarray((halves(i) // 2 + 60 * (i // 4)).astype(np.uint8)).save(
            home / "images" / f"{i:02}.png"
        )
    data = load_dataset(f"folder:{home}")
    for part in (data.train, data.val, data.test):
        for image, target in zip(part.images[:, 0], part.targets, strict=True):
            assert torch.equal(image > image.min(), target.bool())


def test_splits_are_kept(write):
    home = write(halves, split=lambda i: ("train", "train", "test", "val")[i % 4], names="labels")
    data = load_dataset(f"folder:{home}")
    assert [len(part) for part in (data.train, data.val, data.test)] == [6, 3, 3]
    assert all("/val/" in name for name in data.val.names)


def test_colours_are_classes_in_ascending_order(write):
    colours = np.array([[0, 0, 0], [0, 0, 128], [128, 0, 0]], np.uint8)
    home = write(lambda i: colours[(np.arange(SIDE)[:, None] + np.arange(SIDE) + i) % 3])
    data = load_dataset(f"folder:{home}")
    assert data.classes == ("#000000", "#000080", "#800000")
    expected = (torch.arange(SIDE)[:, None] + torch.arange(SIDE)) % 3
    assert torch.equal(whole(data)[0].long(), expected)
    reading = Reading(classes=("sky", "road"), ignore="#800000")
    data = load_dataset(f"folder:{home}", reading=reading)
    assert data.classes == ("sky", "road")
    assert torch.equal(whole(data)[0].long(), torch.where(expected == 2, 255, expected))


def test_palettes_are_read_by_index(write):
    def paletted(i):
        image = Image.fromarray(np.minimum(halves(i, 1, 7), 7)).convert("P")
        made = Image.new("P", (SIDE, SIDE))
        made.putdata(list(np.asarray(image).flatten().tolist()))
        made.putpalette([c for k in range(256) for c in (k, 255 - k, 3)])
        return made

    data = load_dataset(f"folder:{write(paletted)}")
    expected = torch.stack([torch.from_numpy(halves(i, 0, 1)) for i in range(COUNT)])
    assert torch.equal(whole(data), expected)


def test_numbers_are_instances_or_classes_as_stated(write):
    def numbered(i):
        mask = np.zeros((SIDE, SIDE), np.uint16)
        mask[:3, :3], mask[5:, 5:], mask[0, 7] = 500, 40_000, 9
        return mask

    home = write(numbered)
    with pytest.raises(InputError, match="have 4 values; set target=mask if each is a class, or"):
        load_dataset(f"folder:{home}")
    data = load_dataset(f"folder:{home}", reading=Reading(target="instances", ignore="9"))
    assert data.target.kind == "instances" and data.classes == INSTANCE_CLASSES
    found = whole(data)[0]
    assert found.dtype == torch.int16
    assert found[1, 1] == 1 and found[6, 6] == 2 and found[0, 7] == -1 and found[4, 4] == 0
    data = load_dataset(f"folder:{home}", reading=Reading(target="mask"))
    assert data.classes == ("0", "9", "500", "40000")
    assert whole(data)[0][6, 6] == 3


def test_a_table_with_masks(write, tmp_path):
    home = write(halves)
    rows = [f"cells/images/{i:02}.png,cells/masks/{i:02}.png,p{i // 2}" for i in range(COUNT)]
    table = tmp_path / "t.csv"
    table.write_text("\n".join(["path,mask,patient", *rows]))
    data = load_dataset(str(table))
    assert data.target.kind == "mask" and data.group_counts()["train"] > 0
    assert torch.equal(whole(data), whole(load_dataset(f"folder:{home}")))
    table.write_text("\n".join(["path,truth", *(row.rpartition(",")[0] for row in rows)]))
    reading = Reading(columns=Columns(mask="truth"))
    assert load_dataset(str(table), reading=reading).target.has_masks


def test_masks_are_cropped_and_resampled_as_their_images(write, tmp_path, rng):
    """A bright block in a wide image, at another size."""
    home = tmp_path / "wide"
    for part in ("images", "masks"):
        (home / part).mkdir(parents=True)
    for i in range(6):
        image = rng.integers(0, 40, (16, 24), np.uint8)
        image[4:12, 8 + i : 16 + i] += 200
        Image.fromarray(image).save(home / "images" / f"{i}.png")
        Image.fromarray((image > 100).astype(np.uint8)).save(home / "masks" / f"{i}.png")
    data = load_dataset(f"folder:{home}", image_size=8)
    bright = data.train.images[:, 0] > 160
    assert (bright == data.train.targets.bool()).double().mean() > 0.9


def test_what_is_refused(write):
    home = write(halves)
    (home / "masks" / "03.png").unlink()
    with pytest.raises(InputError, match=r"the image .*03.png has no mask in .*masks; add one"):
        load_dataset(f"folder:{home}")
    Image.fromarray(np.zeros((SIDE, SIDE + 1), np.uint8)).save(home / "masks" / "03.png")
    with pytest.raises(InputError, match=r"03.png has 8×9 pixels and its image 8×8; they must"):
        load_dataset(f"folder:{home}")
    data = load_dataset(f"folder:{home}", reading=Reading(on_error="skip"))
    assert len(data.skipped) == 1 and "03.png" in data.skipped[0].file
    with pytest.raises(InputError, match=r"must name the 2 values of the masks .* 0, 255"):
        load_dataset(f"folder:{home}", reading=Reading(on_error="skip", classes=("a", "b", "c")))
    with pytest.raises(InputError, match="ignore = 'x' must be a value of the masks"):
        load_dataset(f"folder:{home}", reading=Reading(on_error="skip", ignore="x"))


def test_masks_need_their_folders(tmp_path):
    (tmp_path / "a").mkdir()
    with pytest.raises(InputError, match=r"target = instances needs .*images with images and"):
        load_dataset(f"folder:{tmp_path}", reading=Reading(target="instances"))
