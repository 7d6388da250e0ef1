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


def test_the_command_that_it_prints_trains_as_suggested(turnwise, own):
    """On any machine; the settings that were given are kept."""
    words = ("inspect", "folder:own", "columns.path=x", "--on-error", "skip", "--json")
    found = json.loads(turnwise(*words)[1])
    suggested = {name: s["value"] for name, s in found["suggestions"].items()}
    assert suggested["recipe"] in ("own_images_cpu", "own_images_gpu")
    assert "exactly invariant under D4" in found["suggestions"]["recipe"]["reason"]
    command = found["command"].split()
    assert command[:4] == ["turnwise", "train", suggested["recipe"], "folder:own"]
    assert command[4:] == ["data.columns.path=x", "data.on_error=skip", "model.group=D4"]
    tiny = ["model.widths=[8,8]", "model.depths=[1,1]", "model.oriented=1", "trainer.max_epochs=1"]
    cpu = ["trainer.accelerator=cpu", "optimisation.batch_size=8", "trainer.precision=32-true"]
    assert turnwise(*command[1:], *tiny, *cpu, "--output", "run")[0] == 0
    assert f"train with:\n  {found['command']}\n" in turnwise(*words[:-1])[1]


def test_unequal_classes_and_mixed_sizes_change_the_command(turnwise, own):
    for i in range(60):
        path = next(own.rglob(f"{i:02}.png"))
        if i % 2 and i > 20:
            path.unlink()
        else:
            Image.open(path).resize((12, 10 + i % 2)).save(path)
    status, output, _ = turnwise("inspect", "folder:own")
    assert status == 1 and "train with" not in output  # sizes must be fixed, or one be given
    output = turnwise("inspect", "folder:own", "--image-size", "8")[1]
    settings = output.split("train with:\n")[1].split()[4:]
    assert settings[:2] == ["data.image_size=8", "model.group=D4"]
    assert set(settings[2:]) == {
        "optimisation.class_weights=balanced", "trainer.select=balanced_accuracy",
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["number", "multilabel"])
def test_the_recipe_suits_the_kind_of_target(turnwise, own, kind):
    names = {"number": "size", "multilabel": "cyst,stone"}[kind]
    rows = [
        f"{path},{i / 7:.2f}" if kind == "number" else f"{path},{i % 2},{i % 3 % 2}"
        for i, path in enumerate(sorted(own.rglob("*.png")))
    ]
    (own.parent / "table.csv").write_text("\n".join([f"path,{names}", *rows]))
    words = ("table.csv", f"data.columns.label=[{names}]", "--target", kind)
    command = json.loads(turnwise("inspect", *words, "--json")[1])["command"]
    assert command.endswith("optimisation.label_smoothing=0 optimisation.mixup=0")


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
