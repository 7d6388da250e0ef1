"""Inspection finds what training would refuse, and names every file."""

import csv
import shutil

import numpy as np
import pytest
from PIL import Image

from turnwise.data import load_dataset
from turnwise.data.inspection import inspect_source
from turnwise.data.reading import Reading
from turnwise.errors import InputError


@pytest.fixture
def own(tmp_path, rng):
    """Ten patients with images of both classes."""
    for i in range(80):
        folder = tmp_path / "own" / f"p{i // 8}" / ("ill", "well")[i % 2]
        folder.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (8, 8, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{i:02}.png")
    return tmp_path / "own"


def texts(found, must_fix):
    return [finding.text for finding in found.findings if finding.must_fix == must_fix]


def test_a_good_folder(own):
    found = inspect_source(f"folder:{own}")
    assert not found.must_fix and not found.findings
    assert found.files == len(found.small) == 80
    assert {name: len(rows) for name, rows in found.strata.items()} == {"ill": 40, "well": 40}
    data = load_dataset(f"folder:{own}")
    for split, rows in found.splits.items():
        assert {found.small.names[i] for i in rows.tolist()} == set(getattr(data, split).names)
    assert {name: s.value for name, s in found.suggestions.items()} == {
        "image_size": "8", "group": "D4", "fill": "reflect",
    }  # fmt: skip


def test_every_unusable_file_is_named(own):
    broken, odd = own / "p3" / "ill" / "24.png", own / "p4" / "well" / "33.png"
    broken.write_bytes(b"x")
    Image.new("L", (8, 1)).save(odd)
    found = inspect_source(f"folder:{own}")
    assert texts(found, True) == ["2 files that cannot be used"]
    assert [str(f) in d for f, d in zip((broken, odd), found.findings[0].details, strict=True)]
    assert (found.files, len(found.small)) == (80, 78)
    assert found.suggestions["image_size"].value == "8", "not that of the odd file"
    skipping = inspect_source(f"folder:{own}", Reading(on_error="skip"))
    assert not skipping.must_fix and texts(skipping, False) == ["2 files left out"]


def test_mixed_sizes(own):
    for i in range(40):
        path = next(own.glob(f"*/*/{i:02}.png"))
        Image.open(path).resize((12, 10)).save(path)
    found = inspect_source(f"folder:{own}")
    (text,) = texts(found, True)
    assert text.startswith("the images have 8×8 (smallest") and "write image_size=8" in text
    assert not inspect_source(f"folder:{own}", image_size=8).must_fix


def test_copies_and_near_copies(own):
    shutil.copy(own / "p0" / "ill" / "00.png", own / "p1" / "well" / "copy.png")
    flipped = Image.open(own / "p2" / "ill" / "16.png").transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    flipped.save(own / "p5" / "ill" / "flipped.png")
    found = inspect_source(f"folder:{own}")
    assert texts(found, False) == [
        "1 image more than once; equal images stay in one split",
        "1 image more than once, with different labels",
        "1 pair of nearly equal images in different groups or splits, also if rotated or flipped; "
        "if they show one object, give them one group",
    ]
    assert found.findings[2].details == (f"{own}/p2/ill/16.png ~ {own}/p5/ill/flipped.png",)
    assert not found.must_fix


def test_leaks_between_given_splits_must_be_fixed(tmp_path, write_folder):
    for split in ("train", "test"):
        write_folder(tmp_path / "own" / split, {"a": 8, "b": 8})
    shutil.copy(tmp_path / "own/train/a/000.png", tmp_path / "own/test/a/leak.png")
    (text,) = texts(inspect_source(f"folder:{tmp_path / 'own'}"), True)
    assert "are the same image in two splits" in text


def test_too_few_groups_must_be_fixed(own):
    for i in range(2, 10):
        shutil.rmtree(own / f"p{i}")
    found = inspect_source(f"folder:{own}", Reading(layout="group/class"))
    (text,) = texts(found, True)
    assert "class 'ill' is in 2 groups of images and must be in at least 3" in text
    assert found.splits == {}


def test_unequal_classes_and_unknown_groups(tmp_path, write_folder):
    own = write_folder(tmp_path / "own", {"a": 30, "b": 6})
    for number, path in enumerate(sorted(own.rglob("*.png"))):
        path.rename(path.with_name(f"case{number // 6}_{number}.png"))
    (own / "notes.txt").write_text("x")
    found = inspect_source(f"folder:{own}")
    stray, unequal, groups = texts(found, False)
    assert stray == "1 other file in the folder, not read"
    assert unequal.startswith("the classes are unequal: 30 images of 'a', 6 of 'b'")
    assert "file names begin in 6 ways, such as 'case0'" in groups
    pattern = groups.rpartition("group_by=")[2]
    grouped = inspect_source(f"folder:{own}", Reading(group_by=pattern))
    assert grouped.small.group_count == 6


def test_tables_arrays_and_published_sets(tmp_path, rng, own):
    with (tmp_path / "t.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "label", "patient"])
        for i, path in enumerate(sorted(own.rglob("*.png"))):
            writer.writerow([path, i / 7, i // 4])
    found = inspect_source(str(tmp_path / "t.csv"))
    assert (found.target.kind, list(found.strata)) == ("number", ["low", "middle", "high"])
    images = rng.integers(0, 256, (40, 9, 9), np.uint8)
    np.savez(tmp_path / "x.npz", images=images, labels=np.arange(40) % 2)
    found = inspect_source(str(tmp_path / "x.npz"))
    assert (len(found.small), set(found.sizes), found.must_fix) == (40, {(9, 9)}, False)
    found = inspect_source("tiles")
    assert sum(len(rows) for rows in found.splits.values()) == found.files == 2000


def test_what_cannot_be_listed_raises(own):
    with pytest.raises(InputError, match="there is no folder"):
        inspect_source("folder:nowhere")
    for path in own.rglob("*.png"):
        path.write_bytes(b"x")
    with pytest.raises(InputError, match=r"none of the images can be used: the image .* cannot be"):
        inspect_source(f"folder:{own}")
