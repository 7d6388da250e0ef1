"""A run as a row of a table: its recipe, its size and its figures."""

import copy
import csv

import pytest

from turnwise.errors import InputError
from turnwise.evaluation.evaluate import failed_row, run_row, write_run_table
from turnwise.models import create_model
from turnwise.runs import Run
from turnwise.training.recipe import make_recipe

RESULT = {
    "data": "digits",
    "scores": {"accuracy": {"value": 0.5, "low": 0.25, "high": 0.75}},
    "angles": {"accuracy": [0.5, 0.125, 0.5, 0.375]},
    "orbit_agreement": 0.875,
    "times_evaluated": 3,
}
SMALL = {"patch": 7, "width": 16, "depth": 1, "heads": 2}


@pytest.fixture
def run(tmp_path):
    """What training would leave, without training."""
    run = Run(tmp_path / "run")
    run.save_model(create_model("vit", **SMALL), tuple("0123456789"))
    recipe = make_recipe({"model": {"name": "vit", **SMALL}, "data": {"name": "digits"}})
    run.write_recipe(recipe)
    write_metrics(run, "epoch,val_loss,val_accuracy", "0,2.0,0.1", "1,1.5,0.4", "2,1.25,0.3")
    return run


def write_metrics(run, *lines):
    run.training_files().metrics.write_text("\n".join(lines))


def test_a_row_by_hand(run):
    row = run_row(run, RESULT)
    assert row["run_dir"] == str(run.path)
    assert (row["model.name"], row["model.width"], row["data.augment.shift"]) == ("vit", 16, 0.0)
    assert row["n_parameters"] == sum(p.numel() for p in create_model("vit", **SMALL).parameters())
    selected = ("epochs", "best_epoch", "val_loss", "val_accuracy")
    assert [row[key] for key in selected] == [3, 1, 1.5, 0.4]
    interval = ("test_accuracy", "test_accuracy_low", "test_accuracy_high")
    assert [row[key] for key in interval] == [0.5, 0.25, 0.75]
    assert (row["test_accuracy_worst_angle"], row["test_accuracy_mean_angle"]) == (0.125, 0.375)
    assert (row["test_orbit_agreement"], row["times_evaluated"], row["reason"]) == (0.875, 3, "")


def test_rows_with_different_columns_make_one_table(run, tmp_path):
    rows = [failed_row(Run("lost"), 'no "model", sadly'), run_row(run, RESULT)]
    write_run_table(rows, tmp_path / "new" / "table.csv")
    lost, found = csv.DictReader((tmp_path / "new" / "table.csv").read_text().splitlines())
    assert next(iter(lost)) == "run_dir" and list(lost)[-1] == "reason"
    assert (lost["reason"], lost["test_accuracy"]) == ('no "model", sadly', "")
    assert (found["reason"], found["test_accuracy"]) == ("", "0.5")


@pytest.mark.parametrize("lines", [[""], ["epoch", "1"]])
def test_metrics_without_the_selected_epoch(run, lines):
    write_metrics(run, *lines)
    with pytest.raises(InputError, match="do not show the selected epoch"):
        run_row(run, RESULT)


def test_metrics_that_are_no_numbers(run):
    write_metrics(run, "epoch,val_loss,val_accuracy", "0,x,y")
    with pytest.raises(InputError, match=r"metrics\.csv cannot be read as a table of epochs"):
        run_row(run, RESULT)


def test_a_run_that_was_not_trained_has_no_validation_figures(run):
    """An orbit around a run, for example."""
    run.training_files().metrics.unlink()
    row = run_row(run, RESULT)
    assert "val_accuracy" not in row
    assert row["test_accuracy"] == 0.5


@pytest.mark.parametrize("part", ["angles", "scores", "data"])
def test_an_evaluation_without_some_figures(run, part):
    damaged = copy.deepcopy(RESULT)
    del damaged[part]
    with pytest.raises(InputError, match=r"test\.json is damaged"):
        run_row(run, damaged)
