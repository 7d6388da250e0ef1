"""Choose a model, its size, the epochs and the augmentation for given images and a given time.

The candidates are the rows of training/choices.yaml.  Each is timed for a few steps on the images;
the last one that trains for enough epochs in the time is chosen.
"""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

import torch

from turnwise.data import Dataset, entry, load_dataset
from turnwise.data.load import fit_examples
from turnwise.data.readers.image_files import describe
from turnwise.data.readers.own import list_own
from turnwise.data.readers.table import Table
from turnwise.data.sources import own_reader
from turnwise.errors import InputError, require
from turnwise.groups import PlanarGroup
from turnwise.runs.train import build_model
from turnwise.training.choices import UNEQUAL, Choice, largest_side, read_choices
from turnwise.training.probe import seconds_per_step
from turnwise.training.recipe import DataPart, Recipe, make_data_part

SPARE = 0.85  # of the time is planned; steps may take longer later
MOST_EPOCHS = 200
EPOCH_COST = 0.3  # seconds per epoch beside the steps: checkpoints and metrics
EVALUATION = 0.4  # of the time of training steps, for as many images of validation
FINISH = 2.0  # seconds to store the model
FILES_SEEN = 200  # headers that are read to choose a size
PROBED = 320  # images that candidates are timed on
EMA = ((2500, 0.998), (500, 0.99))  # decay of averaged weights from so many steps on


@dataclass(frozen=True)
class Trial:
    """A candidate, and how it would train."""

    choice: Choice
    side: int
    recipe: Recipe
    step: float  # seconds
    epoch: float  # seconds
    possible: int  # epochs in the time
    group: PlanarGroup  # under which the model is exact

    @property
    def is_enough(self) -> bool:
        return self.possible >= self.choice.epochs

    def __str__(self) -> str:
        return (
            f"{self.choice.name}, {self.side} pixels: {self.step:.3g} s per step, "
            f"{self.possible} epochs possible, {self.choice.epochs} wanted"
        )


@dataclass(frozen=True)
class Plan:
    """The recipe that was chosen, the data that it trains on, and the reasons, one per line."""

    recipe: Recipe
    dataset: Dataset
    reasons: tuple[str, ...]


def plan_training(
    source: str,
    minutes: float,
    overrides: Sequence[str] = (),
    *,
    data_dir: str | Path | None = None,
    began: float | None = None,
) -> Plan:
    """Choose what to train on the images called `source` for `minutes`.

    Args:
        source: "folder:PATH", the path of a table, or a name of the catalogue.
        minutes: from `began` (`time.monotonic()`; now) to the end of training.
        overrides: settings such as "model.group=D1", which win over the choice.
        data_dir: where the data sets are.
    """
    require(0 < minutes < 1e5, f"minutes = {minutes:g} must be above 0 and below 100,000; try 10.")
    end = (time.monotonic() if began is None else began) + 60 * minutes
    on_cpu = "trainer.accelerator=cpu" in overrides or not torch.cuda.is_available()
    device = torch.device("cpu" if on_cpu else "cuda")
    given = make_data_part(source, [s for s in overrides if s.startswith("data.")])
    largest = given.image_size or largest_side(device.type, _kind(given))
    started = time.monotonic()
    loaded = _load(given, _size_to_read(given, largest), data_dir)
    reading = time.monotonic() - started
    share = _largest_over_smallest(loaded)
    trials = list[Trial]()
    kind = loaded.target.kind
    for choice in read_choices(source, device.type, kind=kind, unequal=share > UNEQUAL):
        side = min(given.image_size or choice.side, loaded.image_size)
        if trials and len(loaded.train) < choice.images:
            continue
        recipe = choice.recipe(source, overrides, side=side, batch=len(loaded.train))
        again = reading if side != loaded.image_size else 0.0
        trials.append(_try(choice, recipe, loaded, side, device, end - again, not trials))
        if not trials[-1].is_enough:
            break
    best = next((trial for trial in reversed(trials) if trial.is_enough), trials[0])
    dataset = (
        loaded if best.side == loaded.image_size else _load(best.recipe.data, best.side, data_dir)
    )
    recipe = _within(best, dataset, end - time.monotonic(), overrides)
    reasons = [_describe_data(loaded, device, minutes), *map(str, trials)]
    reasons += _reasons(best, recipe)
    if share > UNEQUAL:
        reasons.append(
            f"balanced class weights, and selection by {recipe.trainer.select}: the largest class "
            f"has {share:.1f} times the images of the smallest"
        )
    return Plan(recipe, dataset, tuple(reasons))


def _load(part: DataPart, size: int | None, data_dir: str | Path | None) -> Dataset:
    return load_dataset(
        part.name, data_dir=data_dir, image_size=size, channels=part.channels, crop=part.crop,
        val_fraction=part.val_fraction, fraction=part.fraction, reading=part.reading,
    )  # fmt: skip


def _kind(part: DataPart) -> str:
    """Return "mask" for images with masks, before they are read, else "class"."""
    if own_reader(part.name) is None:
        return entry(part.name).target
    listed = list_own(part.name, part.reading)
    return "mask" if isinstance(listed, Table) and listed.masks else "class"


def _size_to_read(part: DataPart, largest: int) -> int | None:
    """Return the side to resample to; None where all images are squares of one suitable size."""
    if part.image_size is not None:
        return part.image_size
    if own_reader(part.name) is None:
        return largest if (part.crop or entry(part.name).image_size) > largest else None
    listed = list_own(part.name, part.reading)
    if isinstance(listed, Table):
        every = listed.files[:: max(1, len(listed.files) // FILES_SEEN)]
        shapes = {shape for path in every for shape in _shape_of(path)}
    else:
        shapes = {tuple(listed.examples.images.shape[2:])}
    sides = {side for shape in shapes for side in shape}
    smallest = min(sides, default=largest)
    return None if len(sides) == 1 and smallest <= largest else min(smallest, largest)


def _shape_of(path: Path) -> list[tuple[int, ...]]:
    """Return rows and columns of an image; nothing for a file that the reader will report."""
    try:
        found = describe(path)
    except InputError:
        return []
    return [(found.rows, found.cols)]


def _largest_over_smallest(dataset: Dataset) -> float:
    """Return how unequal the classes are; 1 for targets of other kinds."""
    if not dataset.target.has_classes:
        return 1.0
    counts = dataset.train.labels.bincount(minlength=len(dataset.classes))
    return float(counts.max() / counts.min().clamp(min=1))


def _try(
    choice: Choice,
    recipe: Recipe,
    loaded: Dataset,
    side: int,
    device: torch.device,
    end: float,
    is_first: bool,
) -> Trial:
    """Time a candidate on some of the images; `end` is when training must be over.

    The first is trained if no other can be, so it is timed however slow it is.
    """
    few = loaded.train.take(torch.arange(min(PROBED, len(loaded.train))))
    few = fit_examples(few, side, recipe.data.channels, None)
    model = build_model(recipe, replace(loaded, train=few))
    size = recipe.optimisation.batch_size
    steps = len(loaded.train) // size + EVALUATION * len(loaded.val) / size
    limit = inf if is_first else max(end - time.monotonic(), 0) / steps / choice.epochs
    step = seconds_per_step(model, recipe, few, device, limit)
    epoch = steps * step + EPOCH_COST
    left = max(0.0, end - time.monotonic() - FINISH)
    group: Any = model.group
    return Trial(choice, side, recipe, step, epoch, int(SPARE * left / epoch), group)


def _within(best: Trial, dataset: Dataset, seconds: float, overrides: Sequence[str]) -> Recipe:
    """Return the recipe with as many epochs as fit, and with what depends on their number."""
    recipe, given = best.recipe, {override.partition("=")[0] for override in overrides}
    trainer, part = recipe.trainer, recipe.optimisation
    batches = len(dataset.train) // part.batch_size
    left = max(0.0, seconds - FINISH)
    if "trainer.max_epochs" not in given:
        epochs = min(MOST_EPOCHS, max(1, int(SPARE * left / best.epoch)))
        trainer = replace(trainer, max_epochs=epochs)
    if "trainer.max_minutes" not in given:
        validation = best.epoch - batches * best.step
        trainer = replace(trainer, max_minutes=max(0.01, (left - validation) / 60))
    epochs = trainer.max_epochs
    if not given & {"optimisation.warmup_epochs", "optimisation.warmup_steps"}:
        part = replace(part, warmup_epochs=min(5.0, epochs / 10))
    if "optimisation.ema" not in given:
        decays = (decay for steps, decay in EMA if epochs * batches >= steps)
        part = replace(part, ema=next(decays, None))
    return replace(recipe, trainer=trainer, optimisation=part)


def _describe_data(loaded: Dataset, device: torch.device, minutes: float) -> str:
    colour = "colour" if loaded.channels == 3 else "grey"
    where = f"{os.cpu_count()} CPU cores"
    if device.type == "cuda":
        where = torch.cuda.get_device_name()
    return (
        f"{len(loaded.train):,} {colour} training images of {loaded.image_size} pixels, "
        f"{len(loaded.classes)} classes; {where}; {minutes:g} minutes"
    )


def _reasons(best: Trial, recipe: Recipe) -> list[str]:
    """Return the choice and why, in lines."""
    augment = recipe.augmentation(best.group)
    why = "the last candidate that can train for the epochs wanted"
    if not best.is_enough:
        why = "the cheapest candidate; more minutes would allow more epochs"
    model = f"{recipe.model.name}, {best.side} pixels, {recipe.trainer.max_epochs} epochs"
    found = [f"chosen: {model}: {why}"]
    upright = "for images with an up, add model.group=D1"
    if best.group.order > 1:
        found.append(f"group {best.group}: predictions cannot change under its elements; {upright}")
    else:
        found.append("this model has no symmetry of its own")
    if augment.policy != "none":
        flips = " and flips" if augment.mirror else ""
        found.append(
            f"augmentation: {augment.policy}, with rotations up to {augment.rotation:g}°{flips}: "
            f"what a model that is exact under {best.group.exact_subgroup()} has to learn of "
            f"{recipe.symmetry}"
        )
    return found
