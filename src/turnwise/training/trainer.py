"""The Lightning Trainer and the batches of a recipe."""

import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import Callback, ModelCheckpoint, TQDMProgressBar
from lightning.pytorch.loggers import Logger, TensorBoardLogger

from turnwise.data import Dataset
from turnwise.data.batches import EvaluationBatches, TrainingBatches
from turnwise.errors import InputError, require
from turnwise.geometry.warps import choose_fill
from turnwise.training.callbacks import (
    AtomicCheckpoints,
    AveragedWeights,
    EpochTable,
    RelocateCheckpoints,
    RepeatableSteps,
    StopWithoutProgress,
    StoreRecipe,
)
from turnwise.training.objectives import ClassObjective, Objective
from turnwise.training.recipe import Recipe
from turnwise.training.recovery import SkipNonFiniteSteps


@dataclass(frozen=True)
class TrainingFiles:
    """The files that the trainer writes; `runs.run.Run` chooses their names."""

    best: Path  # checkpoint with the best validation score
    last: Path  # checkpoint of the last epoch, in the same folder
    metrics: Path
    logs: Path
    write_recipe: Callable[[Recipe], None]


class SplitBatches(lightning.LightningDataModule):
    """Training and validation batches on the device of this process; there is no test split."""

    def __init__(self, dataset: Dataset, recipe: Recipe) -> None:
        super().__init__()
        self.train, self.val, self.recipe = dataset.train, dataset.val, recipe

    def train_dataloader(self) -> TrainingBatches:
        return TrainingBatches(
            self.train,
            self.recipe.optimisation.batch_size,
            augmentation=self.recipe.data.augment,
            seed=self.recipe.seed,
            repeat=self.recipe.data.repeat,
            **self._process(),
        )

    def val_dataloader(self) -> EvaluationBatches:
        return EvaluationBatches(self.val, self.recipe.evaluation.batch_size, **self._process())

    def _process(self) -> dict[str, Any]:
        assert self.trainer is not None
        return {
            "device": self.trainer.strategy.root_device,
            "fill": choose_fill(self.recipe.data.fill, self.train.images),
            "rank": self.trainer.global_rank,
            "world": self.trainer.world_size,
        }


def make_trainer(
    recipe: Recipe, files: TrainingFiles, objective: type[Objective] = ClassObjective
) -> lightning.Trainer:
    """Return the Lightning Trainer of a recipe, which selects by the score of the objective."""
    part, show = recipe.trainer, sys.stdout.isatty()
    several = part.devices * part.num_nodes > 1
    callbacks = [
        *_callbacks(recipe, files, objective),
        *([TQDMProgressBar(leave=False)] if show else []),
    ]
    try:
        trainer = lightning.Trainer(
            max_epochs=part.max_epochs,
            max_time=None if part.max_minutes is None else timedelta(minutes=part.max_minutes),
            accelerator=part.accelerator, devices=part.devices,
            num_nodes=part.num_nodes, precision=part.precision,  # type: ignore[arg-type]
            strategy="ddp" if several and part.strategy == "auto" else part.strategy,
            gradient_clip_val=recipe.optimisation.gradient_clip, callbacks=callbacks,
            deterministic=part.deterministic or None,
            logger=_loggers(files.logs), plugins=[AtomicCheckpoints()], enable_progress_bar=show,
            enable_model_summary=False, num_sanity_val_steps=0, log_every_n_steps=10,
        )  # fmt: skip
    except (MisconfigurationException, ModuleNotFoundError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"these trainer settings cannot be used here: {reason}") from error
    require(
        part.precision != "16-mixed" or trainer.strategy.root_device.type == "cuda",
        "precision = 16-mixed needs a GPU; use bf16-mixed or 32-true.",
    )
    return trainer


def _callbacks(recipe: Recipe, files: TrainingFiles, objective: type[Objective]) -> list[Callback]:
    folder = files.last.parent
    best = ModelCheckpoint(
        dirpath=folder, filename=files.best.stem, monitor=f"val_{objective.score}", mode="max",
        save_on_train_epoch_end=True, enable_version_counter=False,
    )  # fmt: skip
    last = ModelCheckpoint(  # after `best`, whose state it then holds
        dirpath=folder, filename=files.last.stem, save_on_train_epoch_end=True,
        enable_version_counter=False,
    )  # fmt: skip
    callbacks: list[Callback] = [RepeatableSteps(recipe.seed), SkipNonFiniteSteps(recipe)]
    if recipe.optimisation.ema is not None:
        callbacks.append(AveragedWeights(recipe.optimisation.ema))
    if recipe.trainer.patience is not None:
        callbacks.append(StopWithoutProgress(recipe.trainer.patience, objective.score))
    table = EpochTable(files.metrics, objective.score, objective.title)
    callbacks += [StoreRecipe(recipe, files.write_recipe), table]
    return [*callbacks, RelocateCheckpoints(folder), best, last]


def _loggers(folder: Path) -> list[Logger]:
    try:
        return [TensorBoardLogger(folder.parent, name=folder.name, version="")]
    except ModuleNotFoundError:
        print("TensorBoard files are not written: tensorboardX is not installed.", file=sys.stderr)
        return []


@contextmanager
def quiet() -> Iterator[None]:
    """Silence Lightning's warnings; errors are still shown."""
    logger = logging.getLogger("lightning.pytorch")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"lightning\..*")
            warnings.filterwarnings("ignore", message=".*LeafSpec.*")
            yield
    finally:
        logger.setLevel(level)


@contextmanager
def allow_tf32(precision: str) -> Iterator[None]:
    """Under mixed precision, let float32 matrix products (Performer features) use TF32 on GPUs.

    TF32 rounds factors to ten bits, three more than bfloat16, and accumulates in float32.
    """
    backend: Any = torch.backends.cuda.matmul
    before = backend.allow_tf32
    backend.allow_tf32 = before or precision.endswith("-mixed")
    try:
        yield
    finally:
        backend.allow_tf32 = before
