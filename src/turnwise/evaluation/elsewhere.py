"""A run examined on the test split of another data set, where that is sound.

Sound means that the other set has the run's own training and validation pictures, and so none of
them is in its test split: `mnist_rotated` for a run on `mnist`, upright in training and turned in
the test.  Rotated MNIST is refused for such a run, for its test digits are in part those of MNIST's
training, turned.
"""

import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from turnwise.data import Dataset, entry
from turnwise.data.storage import expand_home
from turnwise.errors import InputError, require
from turnwise.evaluation.evaluate import evaluate_and_store, times_evaluated
from turnwise.models import load
from turnwise.runs.train import load_recipe_data
from turnwise.training.recipe import read_recipe

FOLDER = "elsewhere"


def result_folder(run: str | Path, data: str) -> Path:
    """Where the figures of a run on the data set `data` are kept, for `read_evaluation`."""
    if not data.startswith("folder:"):
        entry(data)  # an unknown name is answered with the nearest one
        return Path(run) / FOLDER / data
    path = expand_home(data.removeprefix("folder:"), data).resolve()
    mark = hashlib.sha256(os.fsencode(path)).hexdigest()[:12]  # for another folder of that name
    return Path(run) / FOLDER / f"folder_{path.name}_{mark}"


def evaluate_elsewhere(
    run: str | Path,
    data: str,
    *,
    data_dir: str | Path | None = None,
    device: torch.device | str = "cpu",
    progress: bool = False,
) -> dict[str, Any]:
    """As `evaluate_run`, on the test split of the data set `data`; looks there are counted, too."""
    run = Path(run)
    recipe = read_recipe(run / "recipe.yaml")
    folder = result_folder(run, data)
    looks = times_evaluated(folder)
    model = load(run).to(device)
    dataset = load_recipe_data(replace(recipe, data=replace(recipe.data, name=data)), data_dir)
    trained_on = require_sound(run, dataset)
    return evaluate_and_store(
        model, recipe, dataset, folder, looks, progress=progress, trained_on=trained_on
    )


def require_sound(run: Path, dataset: Dataset) -> str:
    """Raise unless the set has the run's classes, training and validation; returns their name."""
    path = run / "environment.json"
    try:
        started = json.loads(path.read_text(encoding="utf-8"))["data"]
        name, classes, digests = str(started["name"]), started["classes"], started["sha256"]
        same = {split: digests[split] == dataset.digests()[split] for split in ("train", "val")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} does not tell the run's data set.") from error
    require(
        classes == list(dataset.classes),
        f"{dataset.name} has the classes {', '.join(dataset.classes)}, which are not those of "
        f"{name}, which {run} was trained on.",
    )
    require(
        all(same.values()),
        f"the training pictures of {dataset.name} are not those of {name}, which {run} was trained "
        "on, so that they could be among its test pictures; test it on a set that shares them, as "
        "mnist_rotated shares those of mnist, or train on the other set.",
    )
    require(
        digests.get("test") != dataset.digests()["test"],
        f"{dataset.name} has the test pictures of {run} itself; leave --data out.",
    )
    return name
