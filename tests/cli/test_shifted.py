"""turnwise test-shifted: the table, the plot, the summary, refusals in one line."""

import csv
import shutil

import pytest


def table(path):
    return list(csv.DictReader(path.read_text().splitlines()))


def test_the_table_is_written_and_summed_up(run, turnwise, empty_place):
    status, said, _ = turnwise("test-shifted", run, "--min-shift", 4, "--output", "shifted.csv")
    assert status == 0
    rows = table(empty_place / "shifted.csv")
    assert [int(row["shift"]) for row in rows] == list(range(-4, 5))
    assert {row["run_dir"] for row in rows} == {str(run)}
    still = next(row for row in rows if row["shift"] == "0")
    assert (float(still["agreement"]), float(still["logit_change"])) == (1.0, 0.0)
    assert int(still["pictures"]) > 10
    assert f"{100 * float(still['accuracy_mean']):.2f}" in said
    assert said.endswith("written to shifted.csv\n")


def test_several_runs_axes_and_classes(run, turnwise, empty_place):
    words = ("--labels", "all", "--min-shift", 2, "--axis", "both", "--by-class", "--circular")
    other = shutil.copytree(run, empty_place / "other")
    status, said, _ = turnwise("test-shifted", run, other, *words, "--output", "a/b.csv")
    assert status == 0
    rows = table(empty_place / "a" / "b.csv")
    assert len(rows) == 2 * 2 * 5 * 11
    assert {row["axis"] for row in rows} == {"horizontal", "vertical"}
    assert {row["labels"] for row in rows} == {"all", *map(str, range(10))}
    assert {row["pictures"] for row in rows if row["labels"] == "all"} == {"500"}
    assert said.count("vertical") == 2 * 11


@pytest.mark.parametrize("name", ["plot.svg", "plot.png"])
def test_a_plot(run, turnwise, empty_place, name):
    words = ("--min-shift", 1, "--split", "val", "--output", "s.csv", "--plot", name)
    status, said, _ = turnwise("test-shifted", run, *words)
    assert status == 0
    assert said.endswith(f"drawn in {name}\n")
    assert (empty_place / name).stat().st_size > 1000


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--labels", "one"], "--labels one must be a number of a class, or all"),
        (["--labels", "all", "1"], "--labels all 1: all stands alone; leave the rest out"),
        (["--labels", "10"], "--labels 10: digits has the classes 0 to 9"),
        (["--min-shift", "20"], "no picture can be moved by 20 pixels (horizontal)"),
        (["--min-shift", "-1"], "min_shift = -1 must be from 0 to 27"),
        (["--batch-size", "0"], "--batch-size 0 must be at least 1"),
        (["--plot", "plot.gif"], "--plot plot.gif must end in .png or .svg"),
        (["--plot", "a.svg", "--axis", "both"], "--plot draws one axis"),
        (["--device", "abacus"], "device 'abacus' cannot be used here"),
    ],
)
def test_refusals_leave_nothing(run, refused, empty_place, words, said):
    assert said in refused("test-shifted", run, "--output", "s.csv", *words)
    assert not (empty_place / "s.csv").exists()


def test_a_plot_of_too_many_curves_is_refused_before_the_work(
    run, refused, empty_place, monkeypatch
):
    monkeypatch.setattr("turnwise.evaluation.shifts.predict_shifted", None)  # a call would fail
    shutil.copytree(run, empty_place / "other")
    words = ("--labels", "all", "--min-shift", 1, "--by-class", "--output", "s.csv")
    said = refused("test-shifted", "run", "other", *words, "--plot", "p.svg")
    assert "22 curves are too many for one plot, which shows 12; give fewer runs or labels" in said
    assert not (empty_place / "s.csv").exists()


def link(run):
    (run.parent / "link").symlink_to(run)
    return "link"


@pytest.mark.parametrize(
    ("second", "words", "said"),
    [
        ("nowhere", [], "cannot read the recipe nowhere/recipe.yaml"),
        (None, ["--output", "file/s.csv"], "cannot write file/s.csv: file exists; choose "
         "another place with --output"),
        (None, ["--plot", "file/p.png"], "cannot write file/p.png: file exists; choose "
         "another place with --plot"),
        (None, ["--output", "d.png", "--plot", "./d.png"], "--plot ./d.png would replace the "
         "table of --output; give the two different names"),
        (None, ["--axis", "both"], "no picture can be moved by 8 pixels (vertical)"),
        (".//run", [], ".//run is run, which is given twice, and would count twice"),
        ("run", [], "run is given twice, and would count twice; leave one out"),
        (link, [], "link is run, which is given twice"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_before_the_work(
    run, refused, empty_place, monkeypatch, second, words, said
):
    monkeypatch.setattr("turnwise.evaluation.shifts.predict_shifted", None)  # a call would fail
    (empty_place / "file").touch()
    other = [] if second is None else [second(run) if callable(second) else second]
    assert said in refused("test-shifted", "run", *other, "--output", "new/s.csv", *words)
    assert not (empty_place / "new").exists()
    assert not (empty_place / "d.png").exists()


def test_a_run_that_is_not_there(refused):
    said = refused("test-shifted", "nowhere", "--output", "s.csv")
    assert "cannot read the recipe nowhere/recipe.yaml" in said


def test_table_and_plot_are_written_though_nobody_reads_the_answer(run, unread, empty_place):
    words = ("--min-shift", 1, "--output", "s.csv", "--plot", "p.svg")
    assert unread("test-shifted", run, *words) == 141
    assert len(table(empty_place / "s.csv")) == 3
    assert (empty_place / "p.svg").stat().st_size > 1000
