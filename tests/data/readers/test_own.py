"""From tables to data sets: given and drawn splits, groups in one split, and what was skipped."""

import csv
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from turnwise.data import load_dataset
from turnwise.data.readers.own import read_own
from turnwise.data.reading import Columns, Reading
from turnwise.errors import InputError

SPLITS = ("train", "val", "test")


@pytest.fixture
def write_table(tmp_path, rng):
    """Random images and a table; `row(i)` gives the further cells of image i."""

    def write(count, header, row, name="t.csv"):
        (tmp_path / "images").mkdir(exist_ok=True)
        with (tmp_path / name).open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["path", *header])
            for i in range(count):
                path = tmp_path / "images" / f"{i:04}.png"
                Image.fromarray(rng.integers(0, 256, (6, 6), np.uint8)).save(path)
                writer.writerow([f"images/{i:04}.png", *row(i)])
        return str(tmp_path / name)

    return write


def groups_by_split(data):
    return [set(getattr(data, split).groups) for split in SPLITS]


def assert_disjoint(sets):
    assert all(sets) and not sets[0] & sets[1] and not sets[0] & sets[2] and not sets[1] & sets[2]


def test_patients_of_a_table_are_in_one_split(write_table):
    name = write_table(120, ["label", "patient"], lambda i: ["ab"[i % 2], f"p{i // 5}"])
    data = load_dataset(name)
    assert_disjoint(groups_by_split(data))
    assert data.group_counts() == {"train": 17, "val": 4, "test": 3}
    assert data.classes == ("a", "b")
    assert data.provenance.endswith(
        "t.csv, 24 groups, split by seed 0, groups and equal images together"
    )
    assert data.digests() == load_dataset(name).digests()


def test_splits_of_a_table(write_table):
    name = write_table(60, ["label", "split"], lambda i: ["ab"[i % 2], SPLITS[i % 3]])
    data = load_dataset(name)
    assert [len(getattr(data, split)) for split in SPLITS] == [20, 20, 20]
    assert data.test.names[0].endswith("0002.png")
    with pytest.raises(
        InputError, match=r"val_fraction = 0\.2 does not apply, because .*t\.csv ho"
    ):
        load_dataset(name, val_fraction=0.2)


def test_val_is_held_out_by_group(write_table):
    name = write_table(
        80, ["label", "split", "group"],
        lambda i: ["ab"[i % 2], "test" if i >= 60 else "train", f"p{i // 4}"],
    )  # fmt: skip
    data = load_dataset(name, val_fraction=0.2)
    assert [len(getattr(data, split)) for split in SPLITS] == [48, 12, 20]
    assert_disjoint(groups_by_split(data))


def test_a_group_in_two_given_splits_is_refused(write_table):
    name = write_table(
        40, ["label", "split", "group"], lambda i: ["ab"[i % 2], SPLITS[i % 2 * 2], f"p{i // 4}"]
    )
    message = r"group 'p0' has images in train and in test, so the model would be tested on what"
    with pytest.raises(InputError, match=message):
        load_dataset(name)


def test_every_class_is_trained_on(write_table):
    name = write_table(30, ["label", "split"], lambda i: ["ab"[i < 15], ["test", "train"][i < 15]])
    with pytest.raises(InputError, match=r"class 'a' has no training image; add some, or remove"):
        load_dataset(name)


@pytest.mark.parametrize(
    ("row", "kind", "shape"),
    [
        (lambda i: [i / 7, i], "number", (2,)),
        (lambda i: [i % 2, i // 2 % 2], "multilabel", (2,)),
    ],
)
def test_other_kinds_of_targets(write_table, row, kind, shape):
    name = write_table(60, ["one", "two"], row)
    reading = Reading(columns=Columns(label=("one", "two")))
    data = load_dataset(name, reading=reading, fraction=0.5)
    assert data.target.kind == kind and data.train.targets.shape[1:] == shape
    assert len(data.train) == round(len(load_dataset(name, reading=reading).train) / 2)


def test_broken_files_are_listed(write_table, tmp_path):
    name = write_table(60, ["label"], lambda i: ["ab"[i % 2]])
    (tmp_path / "images" / "0007.png").write_bytes(b"no image")
    (tmp_path / "images" / "0011.png").unlink()
    with pytest.raises(InputError, match=r"0007\.png cannot be read .* 1 more cannot be used"):
        load_dataset(name)
    data = load_dataset(name, reading=Reading(on_error="skip"))
    assert [s.file[-8:] for s in data.skipped] == ["0007.png", "0011.png"]
    assert "58 images listed in" in data.provenance and "2 files skipped" in data.provenance


NESTED = {"group/class": "{group}/{label}", "class/group": "{label}/{group}"}


@pytest.fixture
def nested(tmp_path, rng):
    """Ten groups with images of two classes, nested in either order."""

    def write(layout, groups=10, split=""):
        for group in range(groups):
            for label in ("ill", "well"):
                folder = tmp_path / "own" / split / layout.format(group=f"p{group}", label=label)
                folder.mkdir(parents=True)
                for i in range(2):
                    pixels = rng.integers(0, 256, (6, 6), np.uint8)
                    Image.fromarray(pixels).save(folder / f"{i}.png")
        return f"folder:{tmp_path / 'own'}"

    return write


@pytest.mark.parametrize("layout", NESTED)
def test_nested_folders_are_recognised(nested, layout):
    data = load_dataset(nested(NESTED[layout]))
    assert data.classes == ("ill", "well")
    assert_disjoint(groups_by_split(data))
    assert f"read as {layout}, 10 groups" in data.provenance
    stated = load_dataset(data.name, reading=Reading(layout=layout))
    assert stated.digests() == data.digests()


def test_groups_of_one_class_each(nested, tmp_path):
    nested(NESTED["class/group"])
    for i in range(0, 10, 2):
        shutil.rmtree(tmp_path / "own" / "ill" / f"p{i}")
        shutil.rmtree(tmp_path / "own" / "well" / f"p{i + 1}")
    data = load_dataset(f"folder:{tmp_path / 'own'}")
    assert data.classes == ("ill", "well") and sum(data.group_counts().values()) == 10


def test_two_readings_are_explained(nested):
    name = nested(NESTED["group/class"], groups=3)
    message = (
        r"own has the folders p0, p1, p2, and in them ill, well: set layout=group/class if 'ill' "
        r"is a class and 'p0' a group, such as a patient, class/group if 'p0' is a class and 'ill' "
        r"a group, or class if 'p0' is a class and the folders in it mean nothing\.$"
    )
    with pytest.raises(InputError, match=message):
        load_dataset(name)
    data = load_dataset(name, reading=Reading(layout="group/class"))
    assert (data.classes, data.group_counts()) == (("ill", "well"), dict.fromkeys(SPLITS, 1))
    assert load_dataset(name, reading=Reading(layout="class")).classes == ("p0", "p1", "p2")


def test_nested_folders_in_given_splits(nested):
    for split in ("train", "test"):
        name = nested(NESTED["group/class"], split=split)
    with pytest.raises(InputError, match="group 'p0' has images in train and in test"):
        load_dataset(name)


def test_files_outside_the_layout_are_named(nested, tmp_path):
    name = nested(NESTED["group/class"])
    shutil.copy(tmp_path / "own" / "p1" / "ill" / "0.png", tmp_path / "own" / "p1" / "stray.png")
    with pytest.raises(InputError, match=r"own has the folders p0, p1, p2 … \(10\), and in them"):
        load_dataset(name)
    with pytest.raises(InputError, match=r"p1/stray\.png does not lie in folders of the layout gr"):
        load_dataset(name, reading=Reading(layout="group/class"))


def test_groups_from_file_names(tmp_path, write_folder):
    own = write_folder(tmp_path / "own", {"a": 40, "b": 40})
    data = load_dataset(f"folder:{own}", reading=Reading(group_by="^0(.)"))
    assert set.union(*groups_by_split(data)) == {"0", "1", "2", "3"}
    assert_disjoint(groups_by_split(data))


def test_ordered_classes(tmp_path, write_folder):
    own = f"folder:{write_folder(tmp_path / 'own', {'10': 6, '9': 6})}"
    assert load_dataset(own).classes == ("10", "9")
    data = load_dataset(own, reading=Reading(target="ordinal"))
    assert (data.target.kind, data.classes) == ("ordinal", ("9", "10"))
    data = load_dataset(own, reading=Reading(classes=("9", "10")))
    assert (data.target.kind, data.classes) == ("class", ("9", "10"))
    with pytest.raises(InputError, match=r"target = number needs a table: folders give each image"):
        load_dataset(own, reading=Reading(target="number"))


def test_arrays_of_own(tmp_path, rng):
    images = rng.integers(0, 256, (40, 6, 6), np.uint8)
    np.savez(tmp_path / "x.npz", images=images, labels=np.arange(40) % 2, groups=np.arange(40) // 4)
    data = read_own(str(tmp_path / "x.npz"), Reading(), image_size=3, channels=3)
    assert (data.image_size, data.channels, data.classes) == (3, 3, ("0", "1"))
    assert_disjoint(groups_by_split(data))


def test_settings_of_own_images_do_not_apply_to_published_ones():
    with pytest.raises(InputError, match="digits is read as it is published; leave out the sett"):
        load_dataset("digits", reading=Reading(group_by="x"))
    assert len(load_dataset("digits", reading=Reading(on_error="skip")).test) == 500


def test_pixels_are_those_of_the_files(write_table):
    name = write_table(30, ["label"], lambda i: ["ab"[i % 2]])
    data = load_dataset(name)
    for i in (0, 5):
        pixels = np.asarray(Image.open(data.train.names[i]))
        assert torch.equal(data.train.images[i, 0], torch.from_numpy(pixels.copy()))
