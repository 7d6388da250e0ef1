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
from torch import Tensor

from turnwise.data import Dataset
from turnwise.data.batches import EvaluationBatches, TrainingBatches
from turnwise.data.targets import TargetKind
from turnwise.errors import InputError, require
from turnwise.geometry.warps import AUTO, choose_fill
from turnwise.training.callbacks import (
    AveragedWeights,
    EpochTable,
    RepeatableSteps,
    StopWithoutProgress,
    StoreRecipe,
)
from turnwise.training.checkpoints import (
    AtomicCheckpoints,
    CheckpointsWithinEpochs,
    RelocateCheckpoints,
)
from turnwise.training.recipe import Recipe
from turnwise.training.recovery import SkipNonFiniteSteps


@dataclass(frozen=True)
class TrainingFiles:
    """The files that the trainer writes; `runs.run.Run` chooses their names."""

    best: Path  # checkpoint with the best validation score
    last: Path  # checkpoint of the last epoch, in the same folder
    partial: Path  # checkpoint within the epoch that is being trained
    metrics: Path
    logs: Path
    write_recipe: Callable[[Recipe], None]


class SplitBatches(lightning.LightningDataModule):
    """Training and validation batches on the device of this process; there is no test split."""

    def __init__(self, dataset: Dataset, recipe: Recipe) -> None:
        super().__init__()
        self.train, self.val, self.recipe = dataset.train, dataset.val, recipe
        self.kind = dataset.target_kind

    def train_dataloader(self) -> TrainingBatches:
        return TrainingBatches(
            self.train,
            self.recipe.optimisation.batch_size,
            augmentation=self.recipe.data.augment,
            seed=self.recipe.seed,
            repeat=self.recipe.data.repeat,
            strata=self._strata(),
            **self._process(),
        )

    def _strata(self) -> Tensor | None:
        if self.recipe.data.sampling == "uniform":
            return None
        return self.kind.strata(self.train.targets)

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


def make_trainer(recipe: Recipe, files: TrainingFiles, kind: TargetKind) -> lightning.Trainer:
    """Return the Lightning Trainer of a recipe, for this kind of target."""
    part, show = recipe.trainer, sys.stdout.isatty()
    several = part.devices * part.num_nodes > 1
    callbacks = [
        *_callbacks(recipe, files, kind),
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


def _callbacks(recipe: Recipe, files: TrainingFiles, kind: TargetKind) -> list[Callback]:
    folder, select = files.last.parent, selected_score(recipe, kind)
    monitor, mode = f"val_{select}", "min" if kind.is_better_lower(select) else "max"
    best = ModelCheckpoint(
        dirpath=folder, filename=files.best.stem, monitor=monitor, mode=mode,
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
        callbacks.append(StopWithoutProgress(recipe.trainer.patience, monitor, mode))
    callbacks += [StoreRecipe(recipe, files.write_recipe), EpochTable(files.metrics, kind, select)]
    partial = CheckpointsWithinEpochs(files.partial, recipe.trainer.checkpoint_minutes)
    return [*callbacks, RelocateCheckpoints(folder), best, last, partial]


def selected_score(recipe: Recipe, kind: TargetKind) -> str:
    """Return the validation score that selects the best epoch: the recipe's, or the kind's own."""
    select = recipe.trainer.select
    if select == AUTO:
        return kind.selection
    kind.require_score(select)
    return select


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
