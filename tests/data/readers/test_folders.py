"""Folders of images: both layouts, mixed sizes and colours, and every way they can be wrong."""

import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from turnwise.data.readers.own import read_own
from turnwise.data.reading import Reading
from turnwise.errors import InputError

COUNTS = {"cat": 20, "dog": 10, "owl": 7}


def read(folder, image_size=None, channels=None, val_fraction=None, seed=0):
    return read_own(
        f"folder:{folder}", Reading(), image_size=image_size, channels=channels,
        val_fraction=val_fraction, seed=seed,
    )  # fmt: skip


def contents(part):
    return {image.numpy().tobytes() for image in part.images}


def assert_disjoint(data):
    train, val, test = map(contents, (data.train, data.val, data.test))
    assert not train & val and not train & test and not val & test


def test_seventy_fifteen_fifteen_of_each_class(tmp_path, write_folder):
    data = read(write_folder(tmp_path / "own", COUNTS))
    assert data.classes == ("cat", "dog", "owl")
    assert (data.channels, data.image_size) == (1, 12)
    sizes = [part.labels.bincount().tolist() for part in (data.train, data.val, data.test)]
    assert sizes == [[14, 6, 5], [3, 2, 1], [3, 2, 1]]
    assert_disjoint(data)
    assert "37 images in" in data.provenance and "split by seed 0" in data.provenance


def test_the_seed_chooses_and_calls_agree(tmp_path, write_folder):
    write_folder(tmp_path / "own", COUNTS)
    first, again, other = (read(tmp_path / "own", seed=seed) for seed in (0, 0, 1))
    for split in ("train", "val", "test"):
        assert torch.equal(getattr(first, split).images, getattr(again, split).images)
    assert not torch.equal(first.test.images, other.test.images)


def test_val_fraction_is_of_what_is_not_test(tmp_path, write_folder):
    write_folder(tmp_path / "own", {"a": 100, "b": 100})
    data = read(tmp_path / "own", val_fraction=0.4)
    assert [len(data.train), len(data.val), len(data.test)] == [102, 68, 30]


def test_equal_images_stay_in_one_split(tmp_path, write_folder):
    write_folder(tmp_path / "own", COUNTS)
    for path in list((tmp_path / "own" / "cat").iterdir()):
        Image.open(path).save(path.with_name(f"copy{path.stem}.tif"))
    data = read(tmp_path / "own")
    assert len(data.train) + len(data.val) + len(data.test) == 57
    assert_disjoint(data)


def test_nested_files_any_case_and_nothing_hidden(tmp_path, write_folder):
    own = write_folder(tmp_path / "own", {"a": 4, "b": 4})
    (own / "a" / "deep" / "er").mkdir(parents=True)
    shutil.move(own / "a" / "000.png", own / "a" / "deep" / "er" / "X.PNG")
    (own / "a" / ".hidden").mkdir()
    shutil.copy(own / "a" / "001.png", own / "a" / ".hidden" / "1.png")
    (own / "b" / ".001.png").write_text("no image")
    (own / "b" / "notes.txt").write_text("no image")
    (own / ".git").mkdir()
    data = read(own)
    assert len(data.train) + len(data.val) + len(data.test) == 8


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".JPEG", ".tif"])
def test_image_formats(tmp_path, write_folder, suffix):
    data = read(write_folder(tmp_path / "own", {"a": 3, "b": 3}, colour=True, suffix=suffix))
    assert (data.channels, len(data.train)) == (3, 2)


def test_one_coloured_image_makes_all_coloured(tmp_path, write_folder):
    own = write_folder(tmp_path / "own", {"a": 3, "b": 3})
    Image.new("RGB", (12, 12), (9, 8, 7)).save(own / "a" / "red.png")
    assert read(own).channels == 3
    assert read(own, channels=1).channels == 1


def test_mixed_sizes_need_a_size(tmp_path, write_folder):
    own = write_folder(tmp_path / "own", {"a": 3, "b": 3})
    Image.new("L", (40, 30)).save(own / "a" / "large.png")
    message = (
        r"have 12×12 \(smallest, .*/a/000\.png\) to 30×40 \(largest, .*/a/large\.png\) pixels, "
        r"rows × cols, .* image_size=12, and"
    )
    with pytest.raises(InputError, match=message):
        read(own)
    assert read(own, image_size=10).image_size == 10


def test_rectangles_need_a_size(tmp_path, write_folder):
    own = write_folder(tmp_path / "own", {"a": 3, "b": 3}, size=(8, 12))
    with pytest.raises(InputError, match=r"have 8×12 pixels.*write image_size=8"):
        read(own)
    assert read(own, image_size=8).image_size == 8


@pytest.fixture
def divided(tmp_path, write_folder):
    for split, count in (("train", 20), ("val", 4), ("test", 5)):
        write_folder(tmp_path / "own" / split, {"a": count, "b": count})
    return tmp_path / "own"


def test_given_splits(divided):
    data = read(divided)
    assert [len(data.train), len(data.val), len(data.test)] == [40, 8, 10]
    assert data.provenance.endswith("split as given")
    with pytest.raises(
        InputError, match=r"val_fraction = 0\.1 does not apply, because .*own holds"
    ):
        read(divided, val_fraction=0.1)


def test_val_is_cut_from_train_where_it_is_missing(divided):
    shutil.rmtree(divided / "val")
    data = read(divided)
    assert [len(data.train), len(data.val), len(data.test)] == [34, 6, 10]
    assert len(read(divided, val_fraction=0.5).val) == 20
    assert_disjoint(data)


def test_leaks_between_given_splits_are_refused(divided):
    shutil.copy(divided / "train" / "a" / "000.png", divided / "test" / "a" / "leak.png")
    with pytest.raises(InputError, match=r"000\.png and .*leak\.png are the same image in two"):
        read(divided)


def test_given_splits_must_have_the_same_classes(divided):
    shutil.rmtree(divided / "test" / "b")
    shutil.copytree(divided / "test" / "a", divided / "test" / "c")
    with pytest.raises(InputError, match="must have the same classes, but 'b' is in only one"):
        read(divided)


def test_train_without_test(divided):
    shutil.rmtree(divided / "test")
    with pytest.raises(InputError, match="has a folder train but no folder test; add one"):
        read(divided)


def test_a_class_may_be_called_train(tmp_path, write_folder):
    data = read(write_folder(tmp_path / "own", {"bus": 3, "train": 3}))
    assert data.classes == ("bus", "train")


@pytest.mark.parametrize("word", ["test", "Train", "valid", "dev"])
def test_one_word_of_a_split_may_be_a_class(tmp_path, write_folder, word):
    """As `valid` beside `invalid`: only two such words mean a split."""
    data = read(write_folder(tmp_path / "own", {"other": 3, word: 3}))
    assert set(data.classes) == {"other", word}


@pytest.mark.parametrize(
    "names",
    [
        "Train Test", "train Test", "TRAIN test val", "Training Testing", "train test masks",
        "train dev test", "train val masks", "test val", "train valid Test extra", "dev train",
    ],
)  # fmt: skip
def test_folder_names_close_to_splits_are_refused(tmp_path, write_folder, names):
    """As classes, the test images would be trained on."""
    for name in names.split():
        write_folder(tmp_path / "own" / name, {"a": 3, "b": 3})
    with pytest.raises(InputError, match=r"own has '.* and '.*, which is no valid split; name the"):
        read(tmp_path / "own")


def test_the_error_names_the_folder_beside_the_splits(tmp_path, write_folder):
    for name in ("train", "test", "masks"):
        write_folder(tmp_path / "own" / name, {"a": 3, "b": 3})
    with pytest.raises(
        InputError, match=r"'train' and 'test' beside 'masks', .* nothing else there"
    ):
        read(tmp_path / "own")


def test_splits_inside_class_folders_are_refused(tmp_path, write_folder):
    """All of it would be mixed, and the test images trained on."""
    for name in ("cat", "dog"):
        for part in ("train", "test"):
            write_folder(tmp_path / name, {part: 4})
    with pytest.raises(InputError, match=r"cat has 'train' and 'test', which is no valid split"):
        read(tmp_path)


def test_two_folders_of_validation_images(divided, write_folder):
    write_folder(divided / "validation", {"a": 4, "b": 4})
    message = "has 2 folders of validation images, val and validation, and must have one or none"
    with pytest.raises(InputError, match=message):
        read(divided)


def test_an_unknown_home_folder_is_refused():
    message = r"^the folder '~nobody-of-this-name/x' begins with a home .*; write the whole path\.$"
    with pytest.raises(InputError, match=message):
        read("~nobody-of-this-name/x")


def test_missing_empty_and_small_folders_are_refused(tmp_path, write_folder):
    with pytest.raises(InputError, match=r"there is no folder .*own'; write folder: and a folder"):
        read(tmp_path / "own")
    with pytest.raises(InputError, match=r"there is no folder ''; write folder:"):
        read("")
    (tmp_path / "own").mkdir()
    with pytest.raises(
        InputError, match=r"no images in .*own; put PNG, JPEG, TIFF, BMP or WebP files"
    ):
        read(tmp_path / "own")
    write_folder(tmp_path / "own", {"a": 3})
    with pytest.raises(InputError, match=r"has one class only, 'a'; put the images of at least"):
        read(tmp_path / "own")
    (tmp_path / "own" / "b").mkdir()
    with pytest.raises(
        InputError, match=r"the folder .*own/b has no PNG, JPEG, TIFF, BMP or WebP in it"
    ):
        read(tmp_path / "own")
    shutil.rmtree(tmp_path / "own" / "b")
    write_folder(tmp_path / "own", {"b": 2})
    with pytest.raises(InputError, match=r"class 'b' has 2 images and must have at least 3"):
        read(tmp_path / "own")


def test_copies_of_an_image_count_once(tmp_path, write_folder):
    own = write_folder(tmp_path / "own", {"a": 3, "b": 1})
    for number in range(5):
        shutil.copy(own / "b" / "000.png", own / "b" / f"copy{number}.png")
    with pytest.raises(InputError, match="class 'b' has 1 different images and must have"):
        read(own)


def test_an_unreadable_image_is_named(tmp_path, write_folder):
    own = write_folder(tmp_path / "own", {"a": 3, "b": 3})
    (own / "b" / "bad.jpg").write_bytes(b"no image")
    with pytest.raises(InputError, match=r"image .*b/bad\.jpg cannot be read .*remove it or rep"):
        read(own)


def test_pixels_and_labels_belong_together(tmp_path):
    for label, name in enumerate(("a", "b")):
        (tmp_path / name).mkdir()
        for number in range(5):
            pixels = np.full((4, 4), 100 * label + number, np.uint8)
            Image.fromarray(pixels).save(tmp_path / name / f"{number}.png")
    data = read(tmp_path)
    for part in (data.train, data.val, data.test):
        assert torch.equal(part.images[:, 0, 0, 0] // 100, part.labels.byte())
