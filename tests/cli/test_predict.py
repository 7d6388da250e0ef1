"""Pictures in, labels and probabilities out; and what happens to files that are no pictures."""

import csv
import io

import numpy as np
import pytest
import torch
from PIL import Image

from turnwise.data import load_dataset
from turnwise.data.batches import to_unit
from turnwise.models import create_model, load, save


@pytest.fixture
def pictures(empty_place):
    """Six test digits as files, in and below a folder, beside something that is no picture."""
    images = load_dataset("digits").test.images[::80, 0][:6].numpy()
    folder = empty_place / "pictures"
    (folder / "below").mkdir(parents=True)
    (folder / "notes.txt").write_text("no picture")
    names = ["a.png", "b.PNG", "below/c.tif", "below/d.tiff", "e.png", "f.png"]
    for name, image in zip(names, images, strict=True):
        Image.fromarray(image).save(folder / name)
    return folder, dict(zip(names, images, strict=True))


def table(text):
    return list(csv.DictReader(io.StringIO(text)))


def probabilities(row):
    return [float(row[str(c)]) for c in range(10)]


def test_every_picture_gets_its_row(turnwise, run, pictures):
    folder, images = pictures
    status, said, _ = turnwise("predict", run, folder, "--device", "cpu")
    rows = table(said)
    assert status == 0
    assert said.splitlines()[0] == "picture,label,0,1,2,3,4,5,6,7,8,9"
    assert [row["picture"] for row in rows] == sorted(str(folder / name) for name in images)


def test_probabilities_are_those_of_the_model(turnwise, run, pictures):
    folder, images = pictures
    model = load(run)
    for row in table(turnwise("predict", run, folder)[1]):
        image = images[row["picture"].removeprefix(f"{folder}/")]
        with torch.no_grad():
            seen = model.preprocess(to_unit(torch.from_numpy(image))[None, None])
            expected = model(seen).softmax(-1)[0]
        assert probabilities(row) == pytest.approx(expected.tolist(), abs=1e-4)
        assert sum(probabilities(row)) == pytest.approx(1, abs=1e-3)
        assert row["label"] == str(int(expected.argmax()))


def test_the_label_is_the_largest_probability_by_its_own_name(turnwise, empty_place, pictures):
    """With classes named after animals, and with classes that have no names."""
    model = create_model("vit", num_classes=3, patch=7, width=16, depth=1, heads=2)
    names = ["ant, red", "bee", "cat"]
    save(model, "named", classes=names)
    save(model, "nameless")
    for folder, classes in (("named", names), ("nameless", ["0", "1", "2"])):
        for row in table(turnwise("predict", folder, pictures[0])[1]):
            assert row["label"] == max(classes, key=lambda name: float(row[name]))


def test_a_turned_picture_gets_the_same_label(turnwise, run, pictures, empty_place):
    """The model is an orbit over C4; the two rows of each picture agree to the last figure."""
    folder, images = pictures
    for k in (1, 2, 3):
        (empty_place / "turned").mkdir(exist_ok=True)
        for name, image in images.items():
            stem = name.replace("/", "_").partition(".")[0]
            Image.fromarray(np.rot90(image, k)).save(empty_place / "turned" / f"{stem}.png")
        upright = {row["picture"]: row for row in table(turnwise("predict", run, folder)[1])}
        for name in images:
            stem = name.replace("/", "_").partition(".")[0]
            (row,) = table(turnwise("predict", run, f"turned/{stem}.png")[1])
            other = upright[str(folder / name)]
            assert row["label"] == other["label"]
            assert probabilities(row) == pytest.approx(probabilities(other), abs=1.5e-4)


def test_control_different_digits_get_different_probabilities(turnwise, run, pictures):
    rows = table(turnwise("predict", run, pictures[0])[1])
    assert len({tuple(probabilities(row)) for row in rows}) == len(rows)


def test_a_csv_file_is_written(turnwise, run, pictures, empty_place):
    on_screen = turnwise("predict", run, pictures[0])[1]
    status, said, _ = turnwise("predict", run, pictures[0], "--output", "new/answers.csv")
    assert status == 0
    assert said == "6 pictures classified, written to new/answers.csv\n"
    assert table((empty_place / "new" / "answers.csv").read_text()) == table(on_screen)


def test_pictures_of_any_size_and_colour(turnwise, run, empty_place):
    """Cropped to the central square, resampled to 28 pixels, and made grey."""
    random = np.random.default_rng(0)
    Image.fromarray(random.integers(0, 256, (40, 90, 3), np.uint8)).save("wide.png")
    Image.fromarray(random.integers(0, 256, (9, 9, 4), np.uint8)).save("small.png")
    status, said, _ = turnwise("predict", run, "wide.png", "small.png")
    assert status == 0
    assert [row["picture"] for row in table(said)] == ["wide.png", "small.png"]


def test_many_pictures_are_taken_in_chunks(turnwise, run, pictures, monkeypatch):
    whole = turnwise("predict", run, pictures[0])[1]
    monkeypatch.setattr("turnwise.cli.predict.CHUNK", 4)
    assert [row["label"] for row in table(turnwise("predict", run, pictures[0])[1])] == [
        row["label"] for row in table(whole)
    ]


def test_a_file_that_is_no_picture(refused, run, pictures):
    said = refused("predict", run, pictures[0] / "notes.txt")
    assert "notes.txt cannot be read" in said


def test_a_truncated_picture(refused, run, pictures):
    broken = pictures[0] / "a.png"
    broken.write_bytes(broken.read_bytes()[:70])
    assert "a.png cannot be read" in refused("predict", run, broken)


def test_hidden_files_in_a_folder_are_left_out(turnwise, run, pictures):
    """What macOS leaves beside pictures is called so, too; by its own name it is still read."""
    folder, images = pictures
    (folder / ".cache").mkdir()
    for name in ("._a.png", "below/._c.tif", ".cache/x.png"):
        (folder / name).write_bytes(b"no picture")
    status, said, _ = turnwise("predict", run, folder)
    assert status == 0
    assert [row["picture"] for row in table(said)] == sorted(str(folder / name) for name in images)


def test_a_hidden_file_by_its_own_name(turnwise, refused, run, pictures):
    hidden = pictures[0] / "a.png"
    hidden = hidden.rename(hidden.with_name(".a.png"))
    (row,) = table(turnwise("predict", run, hidden)[1])
    assert row["picture"] == str(hidden)
    hidden.write_bytes(b"no picture")
    assert ".a.png cannot be read" in refused("predict", run, hidden)


def test_a_folder_without_pictures(refused, run, empty_place):
    (empty_place / "bare").mkdir()
    (empty_place / "bare" / "notes.txt").touch()
    said = refused("predict", run, "bare")
    assert "bare holds no pictures (.png, .jpg, .jpeg, .tif, .tiff, .bmp, .webp)." in said


def test_a_file_that_is_missing(refused, run):
    said = refused("predict", run, "nowhere.png")
    assert "nowhere.png does not exist; give a picture or a folder of pictures." in said


def test_nothing_is_written_when_one_picture_is_bad(refused, run, pictures, empty_place):
    folder, _ = pictures
    (folder / "z.png").write_bytes(b"no picture")
    assert "z.png cannot be read" in refused("predict", run, folder, "--output", "answers.csv")
    assert not (empty_place / "answers.csv").exists()


def test_a_folder_that_is_no_model(refused, pictures):
    assert "is not a model or run folder" in refused("predict", pictures[0], pictures[0])


def test_an_output_that_cannot_be_written(refused, run, pictures, empty_place):
    (empty_place / "file").touch()
    said = refused("predict", run, pictures[0], "--output", "file/answers.csv")
    assert "cannot write file/answers.csv" in said
