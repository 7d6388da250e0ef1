"""Image files are classified by `turnwise predict`."""

import csv
import io

import numpy as np
import pytest
import torch
from PIL import Image

from turnwise.data import load_dataset
from turnwise.data.batches import to_unit
from turnwise.data.targets import kind_of
from turnwise.geometry.warps import inscribed_disc
from turnwise.models import create_model, load, save


@pytest.fixture
def images(empty_folder):
    """Write six test digits at several depths of a folder, beside a file that is no image."""
    digits = load_dataset("digits").test.images[::80, 0][:6].numpy()
    folder = empty_folder / "images"
    (folder / "below").mkdir(parents=True)
    (folder / "notes.txt").write_text("no image")
    names = ["a.png", "b.PNG", "below/c.tif", "below/d.tiff", "e.png", "f.png"]
    for name, image in zip(names, digits, strict=True):
        Image.fromarray(image).save(folder / name)
    return folder, dict(zip(names, digits, strict=True))


def table(text):
    return list(csv.DictReader(io.StringIO(text)))


def probabilities(row):
    return [float(row[str(c)]) for c in range(10)]


def test_every_image_has_a_row(turnwise, run, images):
    folder, digits = images
    status, output, _ = turnwise("predict", run, folder, "--device", "cpu")
    rows = table(output)
    assert status == 0
    assert output.splitlines()[0] == "image,label,0,1,2,3,4,5,6,7,8,9"
    assert [row["image"] for row in rows] == sorted(str(folder / name) for name in digits)


def test_probabilities_are_those_of_the_model(turnwise, run, images):
    folder, digits = images
    model = load(run)
    for row in table(turnwise("predict", run, folder)[1]):
        image = digits[row["image"].removeprefix(f"{folder}/")]
        with torch.no_grad():
            seen = model.preprocess(to_unit(torch.from_numpy(image))[None, None])
            expected = kind_of(model).predict(model(seen))[0]  # calibrated on validation
        assert probabilities(row) == pytest.approx(expected.tolist(), abs=1e-4)
        assert sum(probabilities(row)) == pytest.approx(1, abs=1e-3)
        assert row["label"] == str(int(expected.argmax()))


def test_the_label_is_the_class_of_the_largest_probability(turnwise, empty_folder, images):
    """With and without names of the classes."""
    model = create_model("vit", num_classes=3, patch=7, width=16, depth=1, heads=2)
    names = ["ant, red", "bee", "cat"]
    save(model, "named", classes=names)
    save(model, "nameless")
    for folder, classes in (("named", names), ("nameless", ["0", "1", "2"])):
        for row in table(turnwise("predict", folder, images[0])[1]):
            assert row["label"] == max(classes, key=lambda name: float(row[name]))


def test_a_rotated_image_gets_the_same_label(turnwise, run, images, empty_folder):
    """The model is an orbit over C4; the probabilities agree to the last printed digit."""
    folder, digits = images
    for k in (1, 2, 3):
        (empty_folder / "rotated").mkdir(exist_ok=True)
        for name, image in digits.items():
            stem = name.replace("/", "_").partition(".")[0]
            Image.fromarray(np.rot90(image, k)).save(empty_folder / "rotated" / f"{stem}.png")
        upright = {row["image"]: row for row in table(turnwise("predict", run, folder)[1])}
        for name in digits:
            stem = name.replace("/", "_").partition(".")[0]
            (row,) = table(turnwise("predict", run, f"rotated/{stem}.png")[1])
            other = upright[str(folder / name)]
            assert row["label"] == other["label"]
            assert probabilities(row) == pytest.approx(probabilities(other), abs=1.5e-4)


def test_control_different_digits_get_different_probabilities(turnwise, run, images):
    rows = table(turnwise("predict", run, images[0])[1])
    assert len({tuple(probabilities(row)) for row in rows}) == len(rows)


@pytest.mark.parametrize("fill", ["disc", "zeros"])
def test_a_model_of_discs_does_not_see_the_corners(turnwise, empty_folder, fill):
    """The fill mode is a part of the model, so that any command follows it."""
    model = create_model("vit", width=16, depth=1, heads=2, num_classes=3, image_size=8)
    model.fill = fill
    save(model, empty_folder / fill, classes=["a", "b", "c"])
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8), np.uint8)
    for name, level in (("black.png", 0), ("white.png", 255)):
        Image.fromarray(np.where(inscribed_disc(8, 8).numpy(), pixels, np.uint8(level))).save(name)
    for words in (["predict", fill], ["embed", "--backbone", fill]):
        output = empty_folder / f"{words[0]}.csv"
        turnwise(*words, "black.png", "white.png", "--output", output)
        one, other = table(output.read_text())
        assert one.pop("image") != other.pop("image")
        assert (one == other) == (fill == "disc"), words


def test_a_csv_file_is_written(turnwise, run, images, empty_folder):
    printed = turnwise("predict", run, images[0])[1]
    status, output, _ = turnwise("predict", run, images[0], "--output", "new/predictions.csv")
    assert status == 0
    assert output == "predictions for 6 images, written to new/predictions.csv\n"
    assert table((empty_folder / "new" / "predictions.csv").read_text()) == table(printed)


def test_images_of_any_size_and_colour(turnwise, run, empty_folder):
    """They are cropped to the central square, resampled to 28 pixels, and converted to grey."""
    random = np.random.default_rng(0)
    Image.fromarray(random.integers(0, 256, (40, 90, 3), np.uint8)).save("wide.png")
    Image.fromarray(random.integers(0, 256, (9, 9, 4), np.uint8)).save("small.png")
    status, output, _ = turnwise("predict", run, "wide.png", "small.png")
    assert status == 0
    assert [row["image"] for row in table(output)] == ["wide.png", "small.png"]


def test_many_images_are_predicted_in_batches_and_parts(turnwise, run, images):
    whole = turnwise("predict", run, images[0])[1]
    parts = turnwise("predict", run, images[0], "--batch-size", 2, "--part-size", 4)[1]
    assert [row["label"] for row in table(parts)] == [row["label"] for row in table(whole)]


def test_a_file_that_is_no_image_is_refused(refused, run, images):
    error = refused("predict", run, images[0] / "notes.txt")
    assert "notes.txt cannot be read" in error


def test_a_truncated_image_is_refused(refused, run, images):
    broken = images[0] / "a.png"
    broken.write_bytes(broken.read_bytes()[:70])
    assert "a.png cannot be read" in refused("predict", run, broken)


def test_hidden_files_in_a_folder_are_skipped(turnwise, run, images):
    """Such as those that macOS writes beside images."""
    folder, digits = images
    (folder / ".cache").mkdir()
    for name in ("._a.png", "below/._c.tif", ".cache/x.png"):
        (folder / name).write_bytes(b"no image")
    status, output, _ = turnwise("predict", run, folder)
    assert status == 0
    assert [row["image"] for row in table(output)] == sorted(str(folder / name) for name in digits)


def test_a_hidden_file_is_read_if_it_is_named(turnwise, refused, run, images):
    hidden = images[0] / "a.png"
    hidden = hidden.rename(hidden.with_name(".a.png"))
    (row,) = table(turnwise("predict", run, hidden)[1])
    assert row["image"] == str(hidden)
    hidden.write_bytes(b"no image")
    assert ".a.png cannot be read" in refused("predict", run, hidden)


def test_a_folder_without_images_is_refused(refused, run, empty_folder):
    (empty_folder / "bare").mkdir()
    (empty_folder / "bare" / "notes.txt").touch()
    error = refused("predict", run, "bare")
    assert "bare holds no images (.png, .jpg, .jpeg, .tif, .tiff, .bmp, .webp)." in error


def test_a_missing_file_is_refused(refused, run):
    error = refused("predict", run, "nowhere.png")
    assert "nowhere.png does not exist; give an image or a folder of images." in error


def test_an_image_that_cannot_be_read_is_skipped_and_listed(turnwise, run, images, empty_folder):
    folder, digits = images
    (folder / "b0.png").write_bytes(b"no image")
    status, _, error = turnwise("predict", run, folder, "--output", "predictions.csv")
    assert status == 0
    assert "skipped: the image" in error and "b0.png cannot be read" in error
    assert len(table((empty_folder / "predictions.csv").read_text())) == len(digits)
    (broken,) = table((empty_folder / "predictions.broken.csv").read_text())
    assert broken["input"] == str(folder / "b0.png") and "cannot be read" in broken["reason"]


def test_nothing_is_written_if_every_image_is_bad(refused, run, empty_folder):
    (empty_folder / "bad").mkdir()
    (empty_folder / "bad" / "z.png").write_bytes(b"no image")
    assert "z.png cannot be read" in refused("predict", run, "bad", "--output", "predictions.csv")
    assert not (empty_folder / "predictions.csv").exists()


def test_a_folder_that_is_no_model_is_refused(refused, images):
    assert "is not a model or run folder" in refused("predict", images[0], images[0])


def test_an_output_that_cannot_be_written_is_refused(refused, run, images, empty_folder):
    (empty_folder / "file").touch()
    error = refused("predict", run, images[0], "--output", "file/predictions.csv")
    assert "cannot write file/predictions.csv" in error
