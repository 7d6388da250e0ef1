"""Evaluate models and runs on a test split, and write a table of runs.

Paper:    the program of Horn et al. 2021 writes such a table, `test_recursive`.
Departs:  a single run is a table of one row, not of two columns.  A run that cannot be tested has a
          row with the reason; theirs is skipped.  Intervals and rotated tests are added.  The loss
          on the test split is left out, because we do not measure it.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from turnwise.data import Dataset, Examples
from turnwise.data.targets import TargetKind, make_kind, read_kind
from turnwise.errors import InputError, require
from turnwise.evaluation.metrics import (
    Interval,
    group_scores,
    score_intervals,
    scores_by_view,
)
from turnwise.evaluation.segmentation import evaluate_masks
from turnwise.evaluation.transformations import (
    CONTROL_ANGLE,
    accuracy_by_view,
    agreement,
    by_angle,
    corner_control,
    equal_angles,
    predict_over_angles,
    predict_over_group,
)
from turnwise.files import write_atomic
from turnwise.geometry.warps import AUTO, choose_fill
from turnwise.groups import PlanarGroup
from turnwise.inference.predictor import Predictor
from turnwise.runs.run import Run, load_recipe_data
from turnwise.runs.selection import selected_epoch

Row = dict[str, Any]  # of the table of runs


def evaluate(
    model: nn.Module,
    examples: Examples,
    classes: tuple[str, ...],
    group: PlanarGroup,
    *,
    fill: str = AUTO,
    angles: int = 24,
    batch_size: int = 256,
    progress: bool = False,
) -> dict[str, Any]:
    """Return all figures as plain values, ready for JSON.

    target                the kind of target, with what was chosen on validation
    scores                upright, with 95 % intervals; groups are resampled where they are known
    classes               figures of each class, label or column of numbers
    confusion             for classes: images by class (rows) and decision (columns)
    calibration           for probabilities: expected calibration error, reliability diagram
    groups                where groups are known: scores of the mean prediction of each group
    angles                the scores at each of `angles` equal steps over 360°, the name of the main
                          one, and the fill mode of the corners ("auto" is inferred from the images)
    corner_control        the scores with corners filled as by a rotation of 45°, but not rotated:
                          what these lose, the model loses to the corners
    orbit_scores          each score over the exact elements of the group: mean and minimum
    orbit_agreement       share of images with one prediction over the exact group elements
    rotation_agreement    share of images with one prediction over all the angles
    """
    predictor, degrees = Predictor(model, batch_size=batch_size), equal_angles(angles)
    images, targets, kind = examples.images, examples.targets, predictor.kind
    kind = kind.named(tuple(classes))
    fill = choose_fill(fill, images)
    over_group = predict_over_group(predictor, group, images, fill=fill)
    known = by_angle(group, over_group)
    rotated = predict_over_angles(
        predictor, images, degrees, fill=fill, known=known, progress=progress
    )
    control = predictor.predictions(images, corner_control(fill).apply)
    measured = kind.measure(rotated[0], targets)
    scores = score_intervals(kind, measured, examples.groups)
    has_classes = "accuracy" in scores
    over_angles = [kind.point_scores(kind.measure(view, targets)) for view in rotated]
    return {
        "target": kind.plain(),
        "images": len(examples),
        "group": group.name,
        "scores": {name: asdict(interval) for name, interval in scores.items()},
        "classes": kind.details(measured),
        **kind.summaries(measured),
        **_by_group(kind, rotated[0], examples),
        "angles": {
            "degrees": degrees,
            "fill": fill,
            "score": kind.selection,
            **{name: [found[name] for found in over_angles] for name in scores},
        },
        "corner_control": {
            "degrees": CONTROL_ANGLE,
            **kind.point_scores(kind.measure(control, targets)),
        },
        "orbit_scores": scores_by_view(kind, over_group, targets),
        **({"orbit_accuracy": accuracy_by_view(over_group, targets)} if has_classes else {}),
        "orbit_agreement": agreement(over_group, kind),
        "rotation_agreement": agreement(rotated, kind),
    }


def _by_group(kind: TargetKind, predictions: Tensor, examples: Examples) -> dict[str, Any]:
    """Return the scores by group where groups are known."""
    if not examples.groups:
        return {}
    return {"groups": group_scores(kind, predictions, examples.targets, examples.groups)}


def evaluate_run(
    run: str | Path | Run,
    data: str | None = None,
    *,
    data_dir: str | Path | None = None,
    device: torch.device | str = "cpu",
    progress: bool = False,
) -> dict[str, Any]:
    """Evaluate a run's best weights on its test split, or on that of the data set `data`.

    The figures are stored in the run folder.  The group is the symmetry of the images: a plain
    model is measured against the same as an equivariant one.  `times_evaluated` counts how often
    the test split was used; for a claim it must be 1.
    """
    run = Run(run)
    recipe, times = run.recipe, run.times_evaluated(data)
    model = run.model().to(device)
    if data is None:
        dataset, trained_on = run.dataset(data_dir), {}
    else:
        other = replace(recipe, data=replace(recipe.data, name=data))
        dataset = load_recipe_data(other, data_dir)
        trained_on = {"trained_on": require_no_leakage(run, dataset)}
    how: dict[str, Any] = {
        "fill": choose_fill(recipe.data.fill, dataset.train.images),
        "angles": recipe.evaluation.angles,
        "batch_size": recipe.evaluation.batch_size,
        "progress": progress,
    }
    group, test = recipe.symmetry, dataset.test
    if dataset.target.has_masks:
        figures = evaluate_masks(model, test, dataset.target, group, **how)
    else:
        figures = evaluate(model, test, dataset.classes, group, **how)
    result = {
        "model": recipe.model.name,
        "data": dataset.name,
        "provenance": dataset.provenance,
        **trained_on,
        "group_counts": dataset.group_counts(),
        "times_evaluated": times + 1,
        "weights_sha256": run.weights_hash,
        **figures,
    }
    run.write_evaluation(result, data)
    return result


def require_no_leakage(run: Run, dataset: Dataset) -> str:
    """Raise unless the test images of another data set cannot be training images of the run.

    The other set must have the run's own training and validation images, as `mnist_rotated` has
    those of `mnist`.  Rotated MNIST is refused for a run on MNIST, because its test digits are in
    part MNIST's training digits.  Returns the name of the data set that the run was trained on.
    """
    name, classes, digests = run.trained_on()
    require(
        classes == list(dataset.classes),
        f"{dataset.name} has the classes {', '.join(dataset.classes)}, which are not those of "
        f"{name}, which {run.path} was trained on.",
    )
    found = dataset.digests()
    require(
        all(digests[split] == found[split] for split in ("train", "val")),
        f"the training images of {dataset.name} are not those of {name}, which {run.path} was "
        "trained on, so they could be among its test images; test it on a set that shares them, as "
        "mnist_rotated shares those of mnist, or train on the other set.",
    )
    require(
        digests["test"] != found["test"],
        f"{dataset.name} has the test images of {run.path} itself; leave the data set out.",
    )
    return name


def run_row(run: Run, result: Mapping[str, Any]) -> Row:
    """Return the run's recipe, its size, and its figures; `result` is its evaluation."""
    return {
        "run_dir": str(run.path),
        **_flat(run.recipe.plain()),
        "n_parameters": sum(weight.numel() for weight in run.model().parameters()),
        **_selected(run),
        **_tested(run, result),
        "reason": "",
    }


def failed_row(run: Run, reason: str) -> Row:
    """Return the row of a run that could not be tested."""
    return {"run_dir": str(run.path), "reason": reason}


def write_run_table(rows: Sequence[Row], path: str | Path) -> None:
    """Write a CSV file with every column that any row has; missing values are empty."""
    columns = list(dict.fromkeys(key for row in rows for key in row if key != "reason"))
    text = io.StringIO()
    writer = csv.DictWriter(text, [*columns, "reason"], restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomic(Path(path), text.getvalue().encode())


def _tested(run: Run, result: Mapping[str, Any]) -> Row:
    if "main_score" in result:
        return _tested_masks(result)
    try:
        name, rotated = main_score_by_angle(result)
        upright = Interval.from_plain(result["scores"][name])
        worst = max if name in evaluated_kind(result).falling else min
        return {
            "test_data": result["data"],
            f"test_{name}": upright.value,
            f"test_{name}_low": upright.low,
            f"test_{name}_high": upright.high,
            "test_fill": fill_of(result),
            f"test_{name}_worst_angle": worst(rotated),
            f"test_{name}_mean_angle": sum(rotated) / len(rotated),
            "test_orbit_agreement": result["orbit_agreement"],
            "times_evaluated": result["times_evaluated"],
        }
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{run.evaluation_file()} is damaged; remove it to test again.") from error


def _tested_masks(result: Mapping[str, Any]) -> Row:
    rotated = result["angles"][result["main_score"]]
    return {
        "test_data": result["data"],
        **{f"test_{name}": Interval.from_plain(v).value for name, v in result["scores"].items()},
        "test_fill": fill_of(result),
        f"test_{result['main_score']}_worst_angle": min(rotated),
        f"test_{result['main_score']}_mean_angle": sum(rotated) / len(rotated),
        "test_orbit_agreement": result["orbit_agreement"],
        "times_evaluated": result["times_evaluated"],
    }


def fill_of(result: Mapping[str, Any]) -> str:
    """Return the fill mode of an evaluation; before 0.3 it was always "zeros"."""
    return str(result["angles"].get("fill", "zeros"))


def main_score_by_angle(result: Mapping[str, Any]) -> tuple[str, list[float]]:
    """Return the name of the main score of an evaluation, and its value at every angle."""
    angles = result["angles"]
    name = str(angles.get("score", "accuracy"))
    return name, [float(value) for value in angles[name]]


def evaluated_kind(result: Mapping[str, Any]) -> TargetKind:
    """Return the kind of target of an evaluation; before 0.3 it was always one of classes."""
    if "target" in result:
        return read_kind(result["target"])
    return make_kind("class", tuple(row["name"] for row in result.get("classes", ())))


def _flat(values: Mapping[str, Any], before: str = "") -> Row:
    """Return {"model": {"name": …}} as {"model.name": …}."""
    flat: Row = {}
    for key, value in values.items():
        inner = isinstance(value, Mapping)
        flat |= _flat(value, f"{before}{key}.") if inner else {f"{before}{key}": value}
    return flat


def _selected(run: Run) -> Row:
    """Return the validation figures of the selected epoch; none for what was not trained."""
    if not run.has_metrics:
        return {}
    epochs = run.metrics
    try:
        column, best = selected_epoch(run)
        return {
            "epochs": len(epochs),
            "best_epoch": int(best["epoch"]),
            "val_loss": best["val_loss"],
            column: best[column],
        }
    except (ValueError, KeyError) as error:
        raise InputError(f"the metrics of {run.path} do not show the selected epoch.") from error
