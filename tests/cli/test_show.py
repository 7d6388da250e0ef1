"""`turnwise show` writes a figure, `turnwise report` one page that needs nothing else."""

import shutil

import pytest
from PIL import Image

from turnwise.reports.figures import figure_kinds

OPTIONS = ("patch=7", "width=16", "depth=1", "heads=2")


@pytest.mark.parametrize("kind", ["angles", "features", "confusion", "curves"])
def test_a_figure_of_a_run(turnwise, run, empty_folder, kind):
    words = ("--output", "p.png", "--images", 10, "--angles", 4)
    status, output, _ = turnwise("show", kind, run, *words)
    assert status == 0
    assert f"written to p.png; open it: {empty_folder.resolve() / 'p.png'}" in output
    with Image.open("p.png") as image:
        assert image.format == "PNG"


def test_a_film_of_a_run(turnwise, run):
    status, output, _ = turnwise("show", "film", run, "--angles", 3)
    assert status == 0 and "written to film.gif" in output
    with Image.open("film.gif") as image:
        assert image.n_frames == 3


def test_a_registered_model_takes_options_before_and_after_flags(turnwise, empty_folder):
    words = ("vit", *OPTIONS[:2], "--output", "a.svg", *OPTIONS[2:])
    assert turnwise("show", "positions", *words)[0] == 0
    assert (empty_folder / "a.svg").read_text().startswith("<svg")


def test_the_query_pixel_of_attention_is_chosen(turnwise):
    words = ("vit", *OPTIONS, "--pixel", 3, 0, "--head", 1)
    status, output, _ = turnwise("show", "attention", *words)
    assert status == 0 and "largest difference to the transformed attention" in output


def test_curves_are_printed_as_a_table_too(turnwise, run):
    output = turnwise("show", "curves", run)[1]
    assert output.splitlines()[0].split()[:2] == ["run", "epochs"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["angles", "nowhere/run"], "nowhere/run is neither a folder nor a model"),
        (["angles", "vit", "--output", "a.gif"], "angles is written as .png or .svg"),
        (["film", "vit", "--output", "a.txt"], "film is written as .gif or .png or .mp4"),
        (["angles", "vit", "--angles", "0"], "--angles 0 must be at least 1"),
        (["attention", "vit", *OPTIONS, "--head", "7"], "heads 0 to 1"),
        (["attention", "vit", *OPTIONS, "--head", "-1"], "--head -1 must not be negative"),
        (["features", "vit", *OPTIONS, "--image", "900"], "there is no image 900"),
        (["attention", "orbit_vit", *OPTIONS], "show the attention of the model inside"),
        (["curves", "vit", *OPTIONS], "curves are of trained runs"),
        (["angles", "vit", "wdith=3"], "option of vit"),
        (["positions", "vit", *OPTIONS, "--output", "file/a.png"], "cannot write file/a.png"),
    ],
)
def test_a_wrong_request_leaves_no_files(refused, empty_folder, words, message):
    (empty_folder / "file").touch()
    assert message in refused("show", *words)
    assert [p.name for p in empty_folder.iterdir()] == ["file"]


def test_an_unknown_figure_suggests_the_nearest_or_the_list(turnwise, capsys):
    for name, words in (("flim", "Did you mean film?"), ("zzzqq", "`turnwise show --help` lists")):
        with pytest.raises(SystemExit) as stop:
            turnwise("show", name, "vit")
        assert stop.value.code == 2 and words in capsys.readouterr().err
    with pytest.raises(SystemExit):
        turnwise("show", "--help")
    shown = capsys.readouterr().out
    assert all(kind in shown for kind in figure_kinds())


def test_a_report_is_one_page(turnwise, run, empty_folder):
    shutil.copytree(run, empty_folder / "other")
    status, output, _ = turnwise("report", run, "other", "-o", "new/page.html", "--images", 2)
    assert status == 0
    assert f"open it in a browser: {empty_folder.resolve() / 'new' / 'page.html'}" in output
    page = (empty_folder / "new" / "page.html").read_text()
    assert "Turnwise report: run, other" in page
    assert "name: orbit_vit" in page  # the recipe
    assert "has no certificate yet; make one: turnwise certify" in page
    assert "turnwise report" in page and "--output new/page.html" in page
    assert "http://" not in page and "https://" not in page
    assert len(page.encode()) < 5_000_000


def test_a_report_shows_certificate_and_test_result(turnwise, run, empty_folder):
    assert turnwise("certify", run, "--images", 4, "--angles", 4)[0] == 0
    assert turnwise("test", run)[0] == 0
    assert turnwise("report", run, "--images", 1)[0] == 0
    page = (empty_folder / "report.html").read_text()
    assert "INVARIANT under C4" in page and "Scores on the test images" in page


def test_a_page_that_is_too_large_is_not_written(refused, run, empty_folder, monkeypatch):
    monkeypatch.setattr("turnwise.cli.show.MAX_PAGE", 1000)
    assert "show fewer --images" in refused("report", run, "--images", 1)
    assert not (empty_folder / "report.html").exists()


def test_a_wrong_report_is_refused(refused, run):
    assert "is neither a folder nor a model" in refused("report", "nowhere/run")
    assert "a page is written as .html, got 'a.pdf'" in refused("report", run, "-o", "a.pdf")
    assert "--images 0 must be at least 1" in refused("report", run, "--images", 0)


def test_without_onnxruntime_web_a_live_report_names_the_command(turnwise, run, empty_folder):
    status, _, notes = turnwise("report", run, "--live", "--images", 1)
    assert status == 0 and f"turnwise report {run} --live --download" in notes
    html = (empty_folder / "report.html").read_text()
    assert "explorer-data" in html and "live-data" not in html and "wasm" not in html


def test_download_alone_is_refused(refused, run):
    assert "--download fetches what --live needs" in refused("report", run, "--download")
