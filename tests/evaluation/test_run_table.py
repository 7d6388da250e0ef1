"""A run as a row: its recipe, its size, its figures, by hand from what the folder holds."""

import csv
import json

import pytest

from turnwise.errors import InputError
from turnwise.evaluation.run_table import failed_row, run_row, runs_below, write_run_table
from turnwise.models import create_model, save
from turnwise.training.recipe import make_recipe

RESULT = {
    "data": "digits",
    "scores": {"accuracy": {"value": 0.5, "low": 0.25, "high": 0.75}},
    "angles": {"accuracy": [0.5, 0.125, 0.5, 0.375]},
    "orbit_agreement": 0.875,
    "times_examined": 3,
}
SMALL = {"patch": 7, "width": 16, "depth": 1, "heads": 2}


@pytest.fixture
def run(tmp_path):
    """What training would leave, without training."""
    folder = tmp_path / "deep" / "run"
    model = create_model("vit", **SMALL)
    save(model, folder / "model", classes=tuple("0123456789"))
    recipe = make_recipe({"model": {"name": "vit", **SMALL}, "data": {"name": "digits"}})
    (folder / "recipe.yaml").write_text(recipe.yaml())
    epochs = ["epoch,val_loss,val_accuracy", "0,2.0,0.1", "1,1.5,0.4", "2,1.25,0.3"]
    (folder / "metrics.csv").write_text("\n".join(epochs))
    return folder


def test_a_row_by_hand(run):
    row = run_row(run, RESULT)
    assert row["run_dir"] == str(run)
    assert (row["model.name"], row["model.width"], row["data.augment.shift"]) == ("vit", 16, 0.0)
    assert row["n_parameters"] == sum(p.numel() for p in create_model("vit", **SMALL).parameters())
    selected = ("epochs", "best_epoch", "val_loss", "val_accuracy")
    assert [row[key] for key in selected] == [3, 1, 1.5, 0.4]
    interval = ("test_accuracy", "test_accuracy_low", "test_accuracy_high")
    assert [row[key] for key in interval] == [0.5, 0.25, 0.75]
    assert (row["test_accuracy_worst_angle"], row["test_accuracy_mean_angle"]) == (0.125, 0.375)
    assert (row["test_orbit_agreement"], row["times_examined"], row["reason"]) == (0.875, 3, "")


def test_runs_are_found_at_any_depth_in_order(run, tmp_path):
    (tmp_path / "also").mkdir()
    (tmp_path / "also" / "recipe.yaml").write_text("")
    assert runs_below(tmp_path) == [tmp_path / "also", run]
    assert runs_below(run) == [run]


def test_links_are_followed_and_no_run_counts_twice(run, tmp_path):
    logs = tmp_path / "logs"
    (logs / "b" / "version_0").mkdir(parents=True)
    (logs / "b" / "version_0" / "recipe.yaml").touch()
    (logs / "a").symlink_to(run.parent)  # somewhere else
    (logs / "latest").symlink_to(logs / "b" / "version_0")
    (logs / "b" / "circle").symlink_to(logs)
    (logs / "gone").symlink_to(tmp_path / "nowhere")
    assert runs_below(logs) == [logs / "a" / "run", logs / "b" / "version_0"]
    assert runs_below(logs / "latest") == [logs / "latest"]


def test_no_runs(tmp_path):
    with pytest.raises(InputError, match="there is no run below"):
        runs_below(tmp_path)
    with pytest.raises(InputError, match="is not a folder"):
        runs_below(tmp_path / "nowhere")


def test_rows_with_different_columns_make_one_table(run, tmp_path):
    rows = [failed_row("lost", 'no "model", sadly'), run_row(run, RESULT)]
    write_run_table(rows, tmp_path / "new" / "table.csv")
    lost, found = csv.DictReader((tmp_path / "new" / "table.csv").read_text().splitlines())
    assert next(iter(lost)) == "run_dir" and list(lost)[-1] == "reason"
    assert (lost["reason"], lost["test_accuracy"]) == ('no "model", sadly', "")
    assert (found["reason"], found["test_accuracy"]) == ("", "0.5")


@pytest.mark.parametrize("content", ["", "epoch\n1", "epoch,val_loss,val_accuracy\n0,x,y"])
def test_metrics_that_tell_nothing(run, content):
    (run / "metrics.csv").write_text(content)
    with pytest.raises(InputError, match=r"metrics\.csv does not tell how the run was selected"):
        run_row(run, RESULT)


def test_what_was_not_trained_has_no_figures_of_validation(run):
    """As an orbit around a run."""
    (run / "metrics.csv").unlink()
    row = run_row(run, RESULT)
    assert "val_accuracy" not in row
    assert row["test_accuracy"] == 0.5


@pytest.mark.parametrize("part", ["angles", "scores", "data"])
def test_a_result_that_lacks_figures(run, part):
    damaged = json.loads(json.dumps(RESULT))
    del damaged[part]
    with pytest.raises(InputError, match=r"test\.json is damaged"):
        run_row(run, damaged)
