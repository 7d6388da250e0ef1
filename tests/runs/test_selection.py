"""The best epoch is that of the score that selected it."""

import json

import pytest

from turnwise.data.targets import make_kind
from turnwise.runs.run import Run
from turnwise.runs.selection import selected_epoch, selecting_score, target_kind

ROWS = "epoch,val_loss,val_accuracy,val_auc,val_mae\n0,2.0,0.5,0.9,3\n1,1.0,0.75,0.6,4\n"


@pytest.fixture
def run(tmp_path):
    (tmp_path / "metrics.csv").write_text(ROWS)
    return Run(tmp_path)


def write(run, recipe, target=None):
    run.recipe_file.write_text(f"model: {{name: vit}}\ndata: {{name: digits}}\n{recipe}")
    if target is not None:
        names = list(target["names"])
        config = {"format": 1, "name": "vit", "options": {"num_classes": len(names)},
                  "classes": names, "sha256": "", "target": target}  # fmt: skip
        run.model_folder.mkdir()
        (run.model_folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(("select", "epoch"), [("accuracy", 1), ("auc", 0), ("loss", 1)])
def test_the_recipe_names_the_score(run, select, epoch):
    write(run, f"trainer: {{select: {select}}}")
    column, best = selected_epoch(run)
    assert (column, best["epoch"]) == (f"val_{select}", epoch)


def test_runs_of_earlier_versions_were_selected_by_accuracy(run):
    write(run, "")
    assert selecting_score(run) == "accuracy" and target_kind(run) == make_kind("class")


def test_errors_are_better_if_they_are_lower(run):
    number = make_kind("number", ("size",), "mm")
    write(run, "trainer: {select: mae}", number.plain())
    assert target_kind(run) == number
    assert selected_epoch(run)[1]["epoch"] == 0


def test_a_table_without_the_score_has_no_best_epoch(run):
    write(run, "trainer: {select: macro_f1}")
    with pytest.raises(ValueError, match="empty"):
        selected_epoch(run)
