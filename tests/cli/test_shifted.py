"""`turnwise test-shifted` writes a table and a plot, and prints a summary."""

import csv
import shutil

import pytest


def table(path):
    return list(csv.DictReader(path.read_text().splitlines()))


def test_the_table_is_written_and_summarised(run, turnwise, empty_folder):
    status, output, _ = turnwise("test-shifted", run, "--min-shift", 4, "--output", "shifted.csv")
    assert status == 0
    rows = table(empty_folder / "shifted.csv")
    assert [int(row["shift"]) for row in rows] == list(range(-4, 5))
    assert {row["run_dir"] for row in rows} == {str(run)}
    unshifted = next(row for row in rows if row["shift"] == "0")
    assert (float(unshifted["agreement"]), float(unshifted["logit_change"])) == (1.0, 0.0)
    assert int(unshifted["images"]) > 10
    assert f"{100 * float(unshifted['accuracy_mean']):.2f}" in output
    assert output.endswith("written to shifted.csv\n")


def test_several_runs_axes_and_classes(run, turnwise, empty_folder):
    words = ("--labels", "all", "--min-shift", 2, "--axis", "both", "--by-class", "--circular")
    other = shutil.copytree(run, empty_folder / "other")
    status, output, _ = turnwise("test-shifted", run, other, *words, "--output", "a/b.csv")
    assert status == 0
    rows = table(empty_folder / "a" / "b.csv")
    assert len(rows) == 2 * 2 * 5 * 11
    assert {row["axis"] for row in rows} == {"horizontal", "vertical"}
    assert {row["labels"] for row in rows} == {"all", *map(str, range(10))}
    assert {row["images"] for row in rows if row["labels"] == "all"} == {"500"}
    assert output.count("vertical") == 2 * 11


@pytest.mark.parametrize("name", ["plot.svg", "plot.png"])
def test_a_plot_is_written(run, turnwise, empty_folder, name):
    words = ("--min-shift", 1, "--split", "val", "--output", "s.csv", "--plot", name)
    status, output, _ = turnwise("test-shifted", run, *words)
    assert status == 0
    assert output.endswith(f"plotted in {name}\n")
    assert (empty_folder / name).stat().st_size > 1000


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--labels", "one"], "--labels one must be the number of a class, or all"),
        (["--labels", "all", "1"], "--labels all 1: give all, or numbers, not both"),
        (["--labels", "10"], "--labels 10: digits has the classes 0 to 9"),
        (["--min-shift", "20"], "no image can be shifted by 20 pixels (horizontal)"),
        (["--min-shift", "-1"], "min_shift = -1 must be from 0 to 27"),
        (["--batch-size", "0"], "--batch-size 0 must be at least 1"),
        (["--plot", "plot.gif"], "--plot plot.gif must end in .png or .svg"),
        (["--plot", "a.svg", "--axis", "both"], "--plot shows one axis"),
        (["--device", "abacus"], "device 'abacus' cannot be used here"),
    ],
)
def test_a_wrong_request_leaves_no_files(run, refused, empty_folder, words, message):
    assert message in refused("test-shifted", run, "--output", "s.csv", *words)
    assert not (empty_folder / "s.csv").exists()


def test_a_plot_of_too_many_curves_is_refused_in_advance(run, refused, empty_folder, monkeypatch):
    monkeypatch.setattr("turnwise.evaluation.shifts.predict_shifted", None)  # a call would fail
    shutil.copytree(run, empty_folder / "other")
    words = ("--labels", "all", "--min-shift", 1, "--by-class", "--output", "s.csv")
    error = refused("test-shifted", "run", "other", *words, "--plot", "p.svg")
    assert "22 curves are too many for one plot, which shows 12" in error
    assert not (empty_folder / "s.csv").exists()


def link(run):
    (run.parent / "link").symlink_to(run)
    return "link"


@pytest.mark.parametrize(
    ("second", "words", "message"),
    [
        ("nowhere", [], "cannot read the recipe nowhere/recipe.yaml"),
        (None, ["--output", "file/s.csv"], "cannot write file/s.csv: file exists; choose "
         "another --output"),
        (None, ["--plot", "file/p.png"], "cannot write file/p.png: file exists; choose "
         "another --plot"),
        (None, ["--output", "d.png", "--plot", "./d.png"], "--plot ./d.png would replace the "
         "table of --output; give the two different names"),
        (None, ["--axis", "both"], "no image can be shifted by 8 pixels (vertical)"),
        (".//run", [], ".//run is run, which is given twice, and would count twice"),
        ("run", [], "run is given twice, and would count twice; leave one out"),
        (link, [], "link is run, which is given twice"),
    ],
)  # fmt: skip
def test_a_wrong_request_is_refused_in_advance(
    run, refused, empty_folder, monkeypatch, second, words, message
):
    monkeypatch.setattr("turnwise.evaluation.shifts.predict_shifted", None)  # a call would fail
    (empty_folder / "file").touch()
    other = [] if second is None else [second(run) if callable(second) else second]
    assert message in refused("test-shifted", "run", *other, "--output", "new/s.csv", *words)
    assert not (empty_folder / "new").exists()
    assert not (empty_folder / "d.png").exists()


def test_a_missing_run_is_refused(refused):
    error = refused("test-shifted", "nowhere", "--output", "s.csv")
    assert "cannot read the recipe nowhere/recipe.yaml" in error


def test_table_and_plot_are_written_even_if_nobody_reads_the_output(run, unread, empty_folder):
    words = ("--min-shift", 1, "--output", "s.csv", "--plot", "p.svg")
    assert unread("test-shifted", run, *words) == 141
    assert len(table(empty_folder / "s.csv")) == 3
    assert (empty_folder / "p.svg").stat().st_size > 1000
