"""Every kind is drawn by its name, and refuses what it cannot show."""

import pytest
from PIL import Image

from turnwise.cli import show
from turnwise.errors import InputError
from turnwise.reports.gallery import (
    KINDS,
    FigureOptions,
    draw_figure,
    read_metrics,
    require_file,
    runs_table,
)

OF = {"attention": "turnwise_vit_nano", "positions": "gsa_net"}


def test_the_command_knows_every_kind():
    assert tuple(KINDS) == show.KINDS


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "curves"])
def test_every_kind_is_drawn(make_subject, tmp_path, kind):
    subject = make_subject(OF.get(kind, "vit"))
    draw_figure(
        kind, [subject], FigureOptions(pictures=10, angles=4), tmp_path / "new" / "picture.png"
    )
    with Image.open(tmp_path / "new" / "picture.png") as image:
        assert min(image.size) > 300
        assert len(image.convert("RGB").getcolors(1 << 22)) > 10


def test_tables_come_with_pictures(make_subject, tmp_path):
    told = draw_figure(
        "features", [make_subject("vit")], FigureOptions(picture=0), tmp_path / "f.svg"
    )
    assert told.splitlines()[0].startswith("layer") and "turn by 90°" in told
    assert (tmp_path / "f.svg").read_text().startswith("<svg")
    told = draw_figure(
        "attention", [make_subject("vit")], FigureOptions(picture=0), tmp_path / "a.png"
    )
    assert "largest difference to the turned attention: " in told


@pytest.fixture
def run(tmp_path):
    (tmp_path / "run").mkdir()
    text = "epoch,train_loss,val_accuracy\n0,2.0,0.5\n1,1.0,0.75\n"
    (tmp_path / "run" / "metrics.csv").write_text(text)
    return tmp_path / "run"


def test_runs_are_read_and_tabled(run):
    assert [row["val_accuracy"] for row in read_metrics(run)] == ["0.5", "0.75"]
    headers, rows = runs_table({"a": run})
    assert rows == [["a", "2", "75.0 %", "–", "–"]] and len(headers) == 5


def test_curves_need_runs(make_subject, tmp_path):
    with pytest.raises(InputError, match="curves are of trained runs"):
        draw_figure("curves", [make_subject("vit")], FigureOptions(), tmp_path / "c.png")
    with pytest.raises(InputError, match=r"has no metrics\.csv that can be read"):
        read_metrics(tmp_path)


@pytest.mark.parametrize(
    ("kind", "name", "said"),
    [
        ("angles", "a.gif", "angles is written as .png or .svg, got 'a.gif'"),
        ("film", "a.svg", "film is written as .gif or .png or .mp4, got 'a.svg'"),
    ],
)
def test_the_file_says_its_kind(tmp_path, kind, name, said):
    with pytest.raises(InputError) as error:
        require_file(kind, tmp_path / name)
    assert said in str(error.value)


def test_one_at_a_time_and_only_alike(make_subject, tmp_path):
    vit, gsa = make_subject("vit"), make_subject("gsa_net")
    with pytest.raises(InputError, match="features shows one model at a time, got 2"):
        draw_figure("features", [vit, gsa], FigureOptions(), tmp_path / "a.png")
    with pytest.raises(InputError, match="vit and gsa_net differ"):
        draw_figure("angles", [vit, gsa], FigureOptions(), tmp_path / "a.png")
