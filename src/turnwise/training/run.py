"""From a recipe to a run folder.

    recipe.yaml        the recipe with every default filled in
    environment.json   versions, machine, command
    metrics.csv        one row per epoch; `tensorboard/` holds the same for TensorBoard
    checkpoints/       best.ckpt (by validation accuracy) and last.ckpt, for Lightning to resume
    model/             the best weights as a model folder, for everything else

Only the train and validation splits are seen here; the test split belongs to `turnwise test`.
"""

import errno
import logging
import os
import platform
import shutil
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import distributions
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import lightning
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import (
    Callback,
    ModelCheckpoint,
    TQDMProgressBar,
    WeightAveraging,
)
from lightning.pytorch.loggers import Logger, TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only
from torch import nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

import turnwise
from turnwise.checks import InputError, require
from turnwise.data import Dataset, load_dataset
from turnwise.data.batches import EvaluationBatches, TrainingBatches
from turnwise.files import cannot_write, write_json, write_whole
from turnwise.layers.normalise import Normalise
from turnwise.models import create_model, save
from turnwise.training.callbacks import (
    EpochTable,
    RepeatableSteps,
    StopAtNonsense,
    WholeCheckpoints,
)
from turnwise.training.classifier import Classifier
from turnwise.training.recipe import Recipe

WRITE_ERRORS = (errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EPERM, errno.ENOTDIR)
FOLDER_VARIABLE = "TURNWISE_RUN_FOLDER"  # tells the processes of one run which folder is theirs


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


def next_folder(parent: Path) -> Path:
    """`parent`/version_N with the first N that no run has taken."""
    taken = [int(p.name[8:]) for p in parent.glob("version_*") if p.name[8:].isdigit()]
    return parent / f"version_{max(taken, default=-1) + 1}"


def load_recipe_data(recipe: Recipe, data_dir: str | Path | None) -> Dataset:
    """The data set that a recipe names; the same splits for every seed of the training."""
    part = recipe.data
    return load_dataset(
        part.name, data_dir=data_dir, image_size=part.image_size, channels=part.channels,
        crop=part.crop, val_fraction=part.val_fraction,
    )  # fmt: skip


def build_model(recipe: Recipe, dataset: Dataset) -> nn.Module:
    """The recipe's model for these pictures and classes, its first weights drawn from the seed."""
    lightning.seed_everything(recipe.seed, verbose=False)
    model = create_model(
        recipe.model.name,
        group=recipe.model.group,
        num_classes=len(dataset.classes),
        in_chans=dataset.channels,
        image_size=dataset.image_size,
        **recipe.model.options,
    )
    for module in model.modules():
        if isinstance(module, Normalise):
            module.fit(dataset.train.images)
    model.classes = dataset.classes  # type: ignore[assignment]
    return model


def train(
    recipe: Recipe,
    folder: str | Path,
    *,
    data_dir: str | Path | None = None,
    resume: bool = False,
    command: str = "",
) -> Path:
    """Train as the recipe says and leave everything in `folder`; returns it.

    With `resume`, continue from the last whole checkpoint in `folder`.  A run that fails before its
    first epoch is complete leaves nothing behind.
    """
    folder = Path(os.environ.get(FOLDER_VARIABLE) or folder)
    last = folder / "checkpoints" / "last.ckpt"
    if resume:
        require(last.is_file(), f"{folder} has no {last.name} to resume from.")
        read_checkpoint(last)
    require(
        resume or _is_follower() or not folder.exists(),
        f"{folder} exists; choose another --output, or continue it with --resume {folder}.",
    )
    dataset = load_recipe_data(recipe, data_dir)
    model = build_model(recipe, dataset)
    with _cleaned_up(folder, keep=last):
        _start_folder(folder, recipe, dataset, command)
        with _shared_folder(folder):
            with _quiet():
                trainer = make_trainer(recipe, folder)
            module = Classifier(model, recipe, len(dataset.classes))
            if recipe.trainer.compile:
                model.compile()
            with _quiet(), _interruptible(trainer):
                trainer.fit(
                    module,
                    datamodule=SplitBatches(dataset, recipe),
                    ckpt_path=str(last) if resume else None,
                    weights_only=True,
                )
        if trainer.is_global_zero:
            best = folder / "checkpoints" / "best.ckpt"
            save(_with_weights(model, best), folder / "model", classes=dataset.classes)
    return folder


def make_trainer(recipe: Recipe, folder: Path) -> lightning.Trainer:
    """The Lightning Trainer of a recipe: it loops, distributes, saves and shows progress."""
    checkpoint = ModelCheckpoint(
        dirpath=folder / "checkpoints", filename="best", monitor="val_accuracy", mode="max",
        save_last=True, save_on_train_epoch_end=True, enable_version_counter=False,
    )  # fmt: skip
    callbacks: list[Callback] = [RepeatableSteps(recipe.seed), StopAtNonsense()]
    if recipe.optimisation.ema is not None:
        average = get_ema_multi_avg_fn(recipe.optimisation.ema)
        callbacks.append(WeightAveraging(multi_avg_fn=average))
    callbacks += [EpochTable(folder / "metrics.csv"), checkpoint]
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
        return lightning.Trainer(
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


def _with_weights(model: nn.Module, checkpoint: Path) -> nn.Module:
    state = read_checkpoint(checkpoint)["state_dict"]
    own = {key.removeprefix("model."): v for key, v in state.items() if key.startswith("model.")}
    model.load_state_dict(own)
    return model


def read_checkpoint(path: Path) -> dict[str, Any]:
    """What Lightning kept, as tensors and plain values; nothing in the file is executed."""
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, UnpicklingError, EOFError) as error:
        raise InputError(f"{path} is damaged or no checkpoint; train again.") from error
    require(
        isinstance(checkpoint, dict) and "state_dict" in checkpoint,
        f"{path} holds no weights; train again.",
    )
    return dict(checkpoint)


@contextmanager
def _interruptible(trainer: lightning.Trainer) -> Iterator[None]:
    """Lightning ends the process on Ctrl-C; here it is an interruption like any other."""
    try:
        yield
    except SystemExit:
        if trainer.interrupted:
            raise KeyboardInterrupt from None
        raise


def _is_follower() -> bool:
    """Whether this is one of several processes, and not the one that writes."""
    return bool(getattr(rank_zero_only, "rank", 0))


@rank_zero_only
def _start_folder(folder: Path, recipe: Recipe, dataset: Dataset, command: str) -> None:
    write_whole(folder / "recipe.yaml", recipe.yaml().encode())
    environment = {
        "command": command,
        "turnwise": turnwise.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "packages": {d.name: d.version for d in sorted(distributions(), key=lambda d: d.name)},
        "data": {"name": dataset.name, "provenance": dataset.provenance},
    }
    write_json(folder / "environment.json", environment)


@contextmanager
def _cleaned_up(folder: Path, keep: Path) -> Iterator[None]:
    """Turn a full or read-only disk into one line; leave no folder without a whole checkpoint."""
    try:
        yield
    except BaseException as error:
        if not keep.is_file() and not _is_follower():
            shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, OSError) and error.errno in WRITE_ERRORS:
            raise cannot_write(folder, error) from error
        raise


@contextmanager
def _shared_folder(folder: Path) -> Iterator[None]:
    """While training, child processes that Lightning starts find the same folder."""
    mine = FOLDER_VARIABLE not in os.environ
    os.environ.setdefault(FOLDER_VARIABLE, str(folder))
    try:
        yield
    finally:
        if mine:
            del os.environ[FOLDER_VARIABLE]


@contextmanager
def _quiet() -> Iterator[None]:
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
