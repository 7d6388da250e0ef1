"""The full examination of a classifier: scores, per class, over angles, over the group."""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from turnwise.data import Dataset, Examples
from turnwise.errors import InputError, require
from turnwise.evaluation.metrics import (
    classification_scores,
    per_class_scores,
    scores_by_view,
)
from turnwise.evaluation.rotations import (
    accuracy_by_view,
    agreement,
    by_angle,
    equal_angles,
    predict_over_angles,
    predict_over_group,
)
from turnwise.files import write_json
from turnwise.groups import PlanarGroup
from turnwise.models import load
from turnwise.models.storage import WEIGHTS
from turnwise.runs.train import load_run_data
from turnwise.training.recipe import Recipe, read_recipe

RESULT = "test.json"
FIGURES = {"times_examined", "scores", "classes", "angles", "orbit_agreement", "turn_agreement"}


def evaluate(
    model: nn.Module,
    pictures: Examples,
    classes: tuple[str, ...],
    group: PlanarGroup,
    *,
    angles: int = 24,
    batch_size: int = 256,
    progress: bool = False,
) -> dict[str, Any]:
    """All figures as plain values, ready for JSON.

    scores                upright: accuracy, balanced accuracy, macro F1, AUC, with 95 % intervals
    classes               count, recall, precision and F1 of each class
    angles                accuracy at each of `angles` equal steps of a full turn
    orbit_scores          each score over the exact elements of the group: its mean and its least
    orbit_agreement       share of pictures with one answer over the exact elements of the group
    turn_agreement        share of pictures with one answer over all the angles
    """
    degrees = equal_angles(angles)
    moved = predict_over_group(model, group, pictures, batch_size=batch_size)
    turned = predict_over_angles(
        model, pictures, degrees,
        batch_size=batch_size, progress=progress, known=by_angle(group, moved),
    )  # fmt: skip
    scores = classification_scores(turned[0], pictures.labels, resamples=1000)
    return {
        "pictures": len(pictures),
        "group": group.name,
        "scores": {name: asdict(interval) for name, interval in scores.items()},
        "classes": [asdict(s) for s in per_class_scores(turned[0], pictures.labels, classes)],
        "angles": {
            "degrees": degrees,
            "accuracy": accuracy_by_view(turned, pictures.labels),
        },
        "orbit_accuracy": accuracy_by_view(moved, pictures.labels),
        "orbit_scores": scores_by_view(moved, pictures.labels),
        "orbit_agreement": agreement(moved),
        "turn_agreement": agreement(turned),
    }


def evaluate_run(
    run: str | Path,
    *,
    data_dir: str | Path | None = None,
    device: torch.device | str = "cpu",
    progress: bool = False,
) -> dict[str, Any]:
    """Examine a run's best weights on its test split and keep the figures in the run folder.

    The group is the recipe's: a plain model is held against the same symmetry as its twin.
    `times_evaluated` counts how often the test split was looked at; for a claim it must be 1.
    """
    recipe, looks = read_recipe(Path(run) / "recipe.yaml"), times_evaluated(run)
    model = load(run).to(device)
    dataset = load_run_data(Path(run), recipe, data_dir)
    return evaluate_and_store(model, recipe, dataset, Path(run), looks, progress=progress)


def evaluate_and_store(
    model: nn.Module,
    recipe: Recipe,
    dataset: Dataset,
    folder: Path,
    looks: int,
    *,
    progress: bool = False,
    **more: Any,
) -> dict[str, Any]:
    """Examine as the recipe says, after so many `looks`; figures and `more` go to `folder`."""
    figures = evaluate(
        model, dataset.test, dataset.classes, PlanarGroup.named(recipe.model.group),
        angles=recipe.evaluation.angles, batch_size=recipe.evaluation.batch_size,
        progress=progress,
    )  # fmt: skip
    result = {
        "model": recipe.model.name,
        "data": dataset.name,
        "provenance": dataset.provenance,
        **more,
        "times_examined": looks + 1,
        "weights_sha256": weights_of(folder),
        **figures,
    }
    write_json(folder / RESULT, result)
    return result


def times_evaluated(folder: str | Path) -> int:
    """How often the test split was looked at; to be asked before it is looked at again."""
    before = _kept(folder)
    return before["times_examined"] if before else 0


def read_evaluation(folder: str | Path) -> dict[str, Any] | None:
    """The figures that an earlier examination kept, if there was one, and of these weights.

    A run that was resumed since has others; how often the split was looked at is still known.
    """
    kept = _kept(folder)
    tested = kept.get("weights_sha256") if kept else None
    return kept if tested is None or tested == weights_of(folder) else None


def weights_of(folder: str | Path) -> str | None:
    """The hash of the weights of the run that `folder` is, or belongs to."""
    for run in (Path(folder), *Path(folder).parents[:2]):
        weights = run / "model" / WEIGHTS
        if weights.is_file():
            return hashlib.sha256(weights.read_bytes()).hexdigest()
    return None


def _kept(folder: str | Path) -> dict[str, Any] | None:
    path = Path(folder) / RESULT
    if not path.is_file():
        return None
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path} is damaged ({error}); remove it to test again.") from error
    whole = isinstance(kept, dict) and kept.keys() >= FIGURES
    require(whole, f"{path} is damaged (it lacks figures); remove it to test again.")
    return dict(kept)
