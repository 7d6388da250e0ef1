"""turnwise inspect: text and JSON, the exit status, settings, and one-line errors."""

import json

import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def own(empty_folder):
    generator = np.random.default_rng(0)
    for i in range(60):
        folder = empty_folder / "own" / f"p{i // 5:02}" / ("ill", "well")[i % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(generator.integers(0, 256, (8, 8), np.uint8)).save(folder / f"{i:02}.png")
    return empty_folder / "own"


def test_a_good_folder(turnwise, own):
    status, output, error = turnwise("inspect", "folder:own", "--contact-sheet", "sheet.html")
    assert (status, error) == (0, "")
    assert "folder:own: 60 images of 60 files, in own, read as group/class" in output
    assert "groups    12 of 5 to 5 images each; 8 in train, 2 in val, 2 in test" in output
    assert "group       D4" in output and "must be fixed" not in output
    assert (own.parent / "sheet.html").is_file()


def test_what_must_be_fixed(turnwise, own):
    for i in range(12):
        next(own.rglob(f"{i:02}.png")).write_bytes(b"x")
    status, output, _ = turnwise("inspect", "folder:own")
    assert status == 1
    assert "must be fixed before training:\n  12 files that cannot be used\n    the image" in output
    assert "… and 2 more (--json lists all)" in output
    status, output, _ = turnwise("inspect", "folder:own", "--json")
    found = json.loads(output)
    assert status == 1 and found["must_fix"]
    assert len(found["findings"][0]["details"]) == 12
    assert found["sizes"] == [{"rows": 8, "cols": 8, "images": 48}]
    assert sum(count["images"] for count in found["counts"].values()) == 48
    assert found["suggestions"]["image_size"]["value"] == "8"
    status, output, _ = turnwise("inspect", "folder:own", "--on-error", "skip")
    assert status == 0 and "12 files left out" in output


def test_settings_are_those_of_a_recipe(turnwise, own):
    status, output, _ = turnwise(
        "inspect", "folder:own", "data.layout=class/group", "--image-size=6", "--json"
    )
    assert (status, len(json.loads(output)["target"]["names"])) == (1, 12)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["folder:nowhere"], "there is no folder 'nowhere'"),
        (["minst"], "unknown data set 'minst'. Did you mean 'mnist'"),
        (["t.csv"], "there is no table t.csv"),
        (["folder:own", "layuot=class"], "unknown data key 'layuot'. Did you mean 'layout'"),
        (["folder:own", "--contact-sheet", "x.gif"], "a contact sheet is a .png or .html file"),
        (["folder:own", "--group-by", "("], "is no regular expression"),
    ],
)
def test_bad_input_is_one_line(refused, own, words, message):
    assert message in refused("inspect", *words)
