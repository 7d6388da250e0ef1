"""The Lightning Trainer of a recipe, and the batches it is given.

Lightning loops, distributes, saves and shows progress; this file only tells it what to do.
"""

import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import (
    Callback,
    ModelCheckpoint,
    TQDMProgressBar,
)
from lightning.pytorch.loggers import Logger, TensorBoardLogger

from turnwise.data import Dataset
from turnwise.data.batches import EvaluationBatches, TrainingBatches
from turnwise.errors import InputError, require
from turnwise.training.callbacks import (
    AveragedWeights,
    EpochTable,
    FollowMove,
    KeepRecipe,
    RepeatableSteps,
    StopAtNonsense,
    StopWithoutProgress,
    WholeCheckpoints,
)
from turnwise.training.recipe import Recipe


class SplitBatches(lightning.LightningDataModule):
    """Train and validation batches on the device of this process; it never holds a test split."""

    def __init__(self, dataset: Dataset, recipe: Recipe) -> None:
        super().__init__()
        self.train, self.val, self.recipe = dataset.train, dataset.val, recipe

    def train_dataloader(self) -> TrainingBatches:
        return TrainingBatches(
            self.train,
            self.recipe.optimisation.batch_size,
            augmentation=self.recipe.data.augment,
            seed=self.recipe.seed,
            **self._place(),
        )

    def val_dataloader(self) -> EvaluationBatches:
        return EvaluationBatches(self.val, self.recipe.evaluation.batch_size, **self._place())

    def _place(self) -> dict[str, Any]:
        assert self.trainer is not None
        return {
            "device": self.trainer.strategy.root_device,
            "rank": self.trainer.global_rank,
            "world": self.trainer.world_size,
        }


def make_trainer(recipe: Recipe, folder: Path) -> lightning.Trainer:
    """The Lightning Trainer of a recipe: it loops, distributes, saves and shows progress."""
    place = folder / "checkpoints"
    best = ModelCheckpoint(
        dirpath=place, filename="best", monitor="val_accuracy", mode="max",
        save_on_train_epoch_end=True, enable_version_counter=False,
    )  # fmt: skip
    last = ModelCheckpoint(  # after `best`, whose state it then holds
        dirpath=place, filename="last", save_on_train_epoch_end=True, enable_version_counter=False
    )
    callbacks: list[Callback] = [RepeatableSteps(recipe.seed), StopAtNonsense()]
    if recipe.optimisation.ema is not None:
        callbacks.append(AveragedWeights(recipe.optimisation.ema))
    if recipe.trainer.patience is not None:
        callbacks.append(StopWithoutProgress(recipe.trainer.patience))
    callbacks += [KeepRecipe(recipe, folder / "recipe.yaml")]
    callbacks += [EpochTable(folder / "metrics.csv"), FollowMove(place), best, last]
    show = sys.stdout.isatty()
    if show:
        callbacks.append(TQDMProgressBar(leave=False))
    loggers: list[Logger] = []
    try:
        loggers.append(TensorBoardLogger(folder, name="tensorboard", version=""))
    except ModuleNotFoundError:
        print("TensorBoard files are not written: tensorboardX is not installed.", file=sys.stderr)
    part = recipe.trainer
    several = part.devices * part.num_nodes > 1
    try:
        trainer = lightning.Trainer(
            max_epochs=part.max_epochs, accelerator=part.accelerator, devices=part.devices,
            num_nodes=part.num_nodes, precision=part.precision,  # type: ignore[arg-type]
            strategy="ddp" if several and part.strategy == "auto" else part.strategy,
            gradient_clip_val=recipe.optimisation.gradient_clip, callbacks=callbacks,
            deterministic=part.deterministic or None,
            logger=loggers, plugins=[WholeCheckpoints()], enable_progress_bar=show,
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


@contextmanager
def quiet() -> Iterator[None]:
    """Without Lightning's remarks about what it found; its errors and our own lines stay."""
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
def quick_products(precision: str) -> Iterator[None]:
    """With bf16-mixed or 16-mixed, what stays in float32 is multiplied on tensor cores, too (TF32).

    Its factors are rounded to ten bits, three more than bfloat16 has, and sums are in float32.  On
    a GPU attention by features, whose features are float32, would otherwise leave these cores idle.
    """
    backend: Any = torch.backends.cuda.matmul
    before = backend.allow_tf32
    backend.allow_tf32 = before or precision.endswith("-mixed")
    try:
        yield
    finally:
        backend.allow_tf32 = before
