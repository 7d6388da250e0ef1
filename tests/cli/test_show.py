"""turnwise show: the picture is where it was asked for, and what is wrong is said in one line."""

import pytest
from PIL import Image

from turnwise.cli.show import KINDS

OPTIONS = ("patch=7", "width=16", "depth=1", "heads=2")


@pytest.mark.parametrize("kind", ["angles", "features", "confusion", "curves"])
def test_a_picture_of_a_run(turnwise, run, empty_place, kind):
    status, said, _ = turnwise("show", kind, run, "--output", "p.png", "--pictures", 10,
                               "--angles", 4)  # fmt: skip
    assert status == 0
    assert f"written to p.png; open it: {empty_place.resolve() / 'p.png'}" in said
    with Image.open("p.png") as image:
        assert image.format == "PNG"


def test_a_film_of_a_run_and_a_named_model(turnwise, run):
    status, said, _ = turnwise("show", "film", run, "--angles", 3)
    assert status == 0 and "written to film.gif" in said
    with Image.open("film.gif") as image:
        assert image.n_frames == 3


def test_a_named_model_takes_options_before_and_after_flags(turnwise, empty_place):
    words = ("vit", *OPTIONS[:2], "--output", "a.svg", *OPTIONS[2:])
    assert turnwise("show", "positions", *words)[0] == 0
    assert (empty_place / "a.svg").read_text().startswith("<svg")


def test_the_pixel_of_attention_is_chosen(turnwise):
    words = ("vit", *OPTIONS, "--pixel", 3, 0, "--head", 1)
    status, said, _ = turnwise("show", "attention", *words)
    assert status == 0 and "largest difference to the turned attention" in said


def test_curves_come_with_a_table(turnwise, run):
    said = turnwise("show", "curves", run)[1]
    assert said.splitlines()[0].split()[:2] == ["run", "epochs"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["angles", "nowhere/run"], "nowhere/run is neither a folder nor a model"),
        (["angles", "vit", "--output", "a.gif"], "angles is written as .png or .svg"),
        (["film", "vit", "--output", "a.txt"], "film is written as .gif or .png or .mp4"),
        (["angles", "vit", "--angles", "0"], "--angles 0 must be at least 1"),
        (["attention", "vit", *OPTIONS, "--head", "7"], "heads 0 to 1"),
        (["attention", "vit", *OPTIONS, "--head", "-1"], "--head -1 must not be negative"),
        (["features", "vit", *OPTIONS, "--picture", "900"], "there is no picture 900"),
        (["attention", "orbit_vit", *OPTIONS], "show the attention of that model"),
        (["curves", "vit", *OPTIONS], "curves are of trained runs"),
        (["angles", "vit", "wdith=3"], "option of vit"),
        (["positions", "vit", *OPTIONS, "--output", "file/a.png"], "cannot write file/a.png"),
    ],
)
def test_what_cannot_be_shown(refused, empty_place, words, said):
    (empty_place / "file").touch()
    assert said in refused("show", *words)
    assert [p.name for p in empty_place.iterdir()] == ["file"]


def test_an_unknown_kind_is_told_the_known_ones(turnwise, capsys):
    with pytest.raises(SystemExit) as stop:
        turnwise("show", "flim", "vit")
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert all(kind in said for kind in KINDS)
