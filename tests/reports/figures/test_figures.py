"""Every registered figure is drawn by its name, and refuses what it cannot show."""

import pytest
from PIL import Image

from turnwise.cli.main import parse
from turnwise.errors import InputError
from turnwise.reports import figures
from turnwise.reports.figures import (
    FigureOptions,
    Plot,
    draw_figure,
    figure,
    figure_kinds,
    require_file,
)
from turnwise.reports.figures.curves import training_curves

ELSEWHERE = {"curves", "segmentation"}  # in tests of their own
MODELS = {"attention": "turnwise_vit_nano", "positions": "gsa_net"}


def test_the_figures_of_all_modules_are_registered():
    assert set(figure_kinds()) >= {
        "angles", "artefact", "attention", "confusion", "curves", "features", "film", "orbit",
        "positions", "shifts", "worst",
    }  # fmt: skip


def test_a_new_figure_needs_only_its_registration(make_model, monkeypatch, tmp_path):
    monkeypatch.setattr(figures, "_KINDS", dict(figures._KINDS))

    @figure("empty", "curves without data", suffixes=(".svg",))
    def empty(models, options):
        return Plot(training_curves({}), f"{models[0].name}: {options.layer}")

    assert parse(["show", "empty", "vit"]).kind == "empty"
    path = tmp_path / "a.svg"
    assert draw_figure("empty", [make_model("vit")], FigureOptions(layer=3), path) == "vit: 3"
    assert path.is_file()
    with pytest.raises(InputError, match="'empty' is registered already"):
        figure("empty", "again")(empty)


@pytest.mark.parametrize("kind", [kind for kind in figure_kinds() if kind not in ELSEWHERE])
def test_every_figure_is_drawn(make_model, tmp_path, kind):
    loaded = make_model(MODELS.get(kind, "vit"))
    path = tmp_path / "new" / "figure.png"
    draw_figure(kind, [loaded], FigureOptions(images=10, angles=4), path)
    with Image.open(path) as image:
        assert min(image.size) > 300
        assert len(image.convert("RGB").getcolors(1 << 22)) > 10


def test_some_figures_come_with_text(make_model, tmp_path):
    vit, options = [make_model("vit")], FigureOptions(image=0)
    text = draw_figure("features", vit, options, tmp_path / "f.svg")
    assert text.splitlines()[0].startswith("layer") and "rotate by 90°" in text
    assert (tmp_path / "f.svg").read_text().startswith("<svg")
    text = draw_figure("attention", vit, options, tmp_path / "a.png")
    assert "largest difference to the transformed attention: " in text


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        ("angles", "a.gif", "angles is written as .png or .svg, got 'a.gif'"),
        ("film", "a.svg", "film is written as .gif or .png or .mp4, got 'a.svg'"),
        ("angels", "a.png", "Did you mean 'angles'"),
    ],
)
def test_a_file_of_another_format_and_an_unknown_figure_are_refused(tmp_path, kind, name, message):
    with pytest.raises(InputError) as error:
        require_file(kind, tmp_path / name)
    assert message in str(error.value)


def test_models_that_cannot_be_compared_are_refused(make_model, tmp_path):
    vit, gsa = make_model("vit"), make_model("gsa_net")
    with pytest.raises(InputError, match="features shows one model at a time, got 2"):
        draw_figure("features", [vit, gsa], FigureOptions(), tmp_path / "a.png")
    with pytest.raises(InputError, match="vit and gsa_net differ"):
        draw_figure("angles", [vit, gsa], FigureOptions(), tmp_path / "a.png")
