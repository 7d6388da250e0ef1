"""Runs as rows of one table: what each was told, what it came to on validation and on the test.

Paper:    the program of Horn et al. 2021 writes such a table, `test_recursive`.
Departs:  one run is a table of one row, not of two columns; a run that cannot be tested has a row
          with the reason, where theirs is skipped; intervals and turned tests are added, and the
          loss on the test split, which we do not measure, is left out.
"""

import csv
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from turnwise.errors import InputError, require
from turnwise.evaluation.metrics import Interval
from turnwise.files import write_atomic
from turnwise.models import load
from turnwise.training.recipe import read_recipe

Row = dict[str, Any]


def runs_below(folder: str | Path) -> list[Path]:
    """Every run folder in `folder`, at any depth, in the order of their names; at least one.

    Links are followed; what several lead to is one run, under its own name where that is below.
    """
    require(Path(folder).is_dir(), f"{folder} is not a folder; give one that holds runs.")
    runs, seen = list[Path](), set[Path]()
    for place, inside, files in os.walk(folder, followlinks=True):
        real, here = Path(place).resolve(), Path(place)
        if real in seen:
            inside.clear()  # a second way there, or a circle
            continue
        seen.add(real)
        if "recipe.yaml" in files:
            runs.append(here)
        inside.sort(key=lambda name: ((here / name).is_symlink(), name))
    runs.sort()
    require(bool(runs), f"there is no run below {folder}: no folder in it has a recipe.yaml.")
    return runs


def run_row(run: str | Path, result: Mapping[str, Any]) -> Row:
    """The run's whole recipe, its size, and its figures; `result` is its examination."""
    run = Path(run)
    return {
        "run_dir": str(run),
        **_flat(read_recipe(run / "recipe.yaml").plain()),
        "n_parameters": sum(weight.numel() for weight in load(run).parameters()),
        **_selected(run / "metrics.csv"),
        **_tested(run, result),
        "reason": "",
    }


def _tested(run: Path, result: Mapping[str, Any]) -> Row:
    """The figures of the examination in one line."""
    try:
        turned = [float(share) for share in result["angles"]["accuracy"]]
        accuracy = Interval.kept(result["scores"]["accuracy"])
        return {
            "test_data": result["data"],
            "test_accuracy": accuracy.value,
            "test_accuracy_low": accuracy.low,
            "test_accuracy_high": accuracy.high,
            "test_accuracy_worst_angle": min(turned),
            "test_accuracy_mean_angle": sum(turned) / len(turned),
            "test_orbit_agreement": result["orbit_agreement"],
            "times_examined": result["times_examined"],
        }
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{run}/test.json is damaged; remove it to test again.") from error


def failed_row(run: str | Path, reason: str) -> Row:
    """A run that could not be tested."""
    return {"run_dir": str(run), "reason": reason}


def write_run_table(rows: Sequence[Row], path: str | Path) -> None:
    """CSV with every column that any row has; what a row lacks is empty."""
    columns = list(dict.fromkeys(key for row in rows for key in row if key != "reason"))
    text = io.StringIO()
    writer = csv.DictWriter(text, [*columns, "reason"], restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomic(Path(path), text.getvalue().encode())


def _flat(values: Mapping[str, Any], before: str = "") -> Row:
    """{"model": {"name": …}} as {"model.name": …}."""
    flat: Row = {}
    for key, value in values.items():
        inner = isinstance(value, Mapping)
        flat |= _flat(value, f"{before}{key}.") if inner else {f"{before}{key}": value}
    return flat


def _selected(table: Path) -> Row:
    """The validation figures of the epoch whose weights were kept; none of what was not trained."""
    if not table.exists():
        return {}
    try:
        epochs = list(csv.DictReader(table.read_text(encoding="utf-8").splitlines()))
        best = max(epochs, key=lambda epoch: float(epoch["val_accuracy"]))
        return {
            "epochs": len(epochs),
            "best_epoch": int(best["epoch"]),
            "val_loss": float(best["val_loss"]),
            "val_accuracy": float(best["val_accuracy"]),
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{table} does not tell how the run was selected.") from error
