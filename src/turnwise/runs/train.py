"""Train a recipe into a run folder.

Training sees the training and validation splits only.  The run stores a hash of the test split, by
which `turnwise test` recognises it.
"""

import errno
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path

import lightning
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities import rank_zero_only
from torch import nn

from turnwise.data import Dataset
from turnwise.data.sources import with_full_path
from turnwise.data.storage import expand_home
from turnwise.data.targets import TargetKind
from turnwise.errors import InputError, require
from turnwise.files import cannot_write
from turnwise.geometry.warps import choose_fill
from turnwise.layers.normalise import Normalise
from turnwise.models import create_model
from turnwise.runs import resume as resuming
from turnwise.runs.run import Run, load_recipe_data
from turnwise.signals import end_with_parent
from turnwise.training.callbacks import StopBetweenBatches, interruptible
from turnwise.training.decisions import choose_decisions
from turnwise.training.module import SupervisedModule
from turnwise.training.recipe import Recipe
from turnwise.training.trainer import (
    SplitBatches,
    allow_tf32,
    make_trainer,
    quiet,
    selected_score,
)

WRITE_ERRORS = (errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EPERM, errno.ENOTDIR)
FOLDER_VARIABLE = "TURNWISE_RUN_FOLDER"  # the folder that all processes of a run share


def train(
    recipe: Recipe,
    folder: str | Path,
    *,
    data_dir: str | Path | None = None,
    dataset: Dataset | None = None,
    resume: bool = False,
    numbered: bool = False,
    command: str = "",
    on_start: Callable[[Run], None] = lambda run: None,
) -> Run:
    """Train a recipe and return the run.

    Args:
        recipe: the experiment.
        folder: the run folder; with `numbered` the next free `folder`/version_N.
        data_dir: where the data sets are.
        dataset: the data set of the recipe, if it is loaded already.
        resume: continue from the last checkpoint in `folder`, or from the beginning if the run
            was killed before its first.
        command: the command line, to be stored.
        on_start: called with the run when training starts.

    A run that fails before the end of its first epoch leaves no files.
    """
    known = os.environ.get(FOLDER_VARIABLE)
    folder = expand_home(known or folder, "the folder of a run")
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    run = Run(folder)
    if resume:
        require(
            run.is_resumable or run.is_startable,
            f"{folder} has no checkpoint to resume from: no epoch was finished, or the checkpoint "
            "was removed; restore it, or train in another folder.",
        )
    elif _is_rank_zero():
        run = Run.create(folder, numbered=numbered and not known)
    lock = run.lock() if _is_rank_zero() else nullcontext()
    with _cleaned_up(run, None if resume else missing), lock:
        newest = resuming.newest_checkpoint(run) if resume and run.is_resumable else None
        if resume:
            resuming.require_same_recipe(run, recipe)
            dataset = run.dataset(data_dir, recipe)
        elif dataset is None:
            dataset = load_recipe_data(recipe, data_dir)
        recipe = _with_full_paths(_with_choices(recipe, dataset))
        model = build_model(recipe, dataset)
        augment = recipe.augmentation(model.group)  # type: ignore[arg-type]
        recipe = replace(recipe, data=replace(recipe.data, augment=augment))
        if resume:
            _prepare(run, model, newest)
        else:
            rank_zero_only(run.start)(recipe, dataset, command)
        on_start(run)
        if _is_rank_zero() and (note := _describe_fit(model, dataset)):
            print(note, file=sys.stderr)
        _fit(model, recipe, dataset, run, run.checkpoint(newest) if newest else None)
    return run


def build_model(recipe: Recipe, dataset: Dataset) -> nn.Module:
    """Build the recipe's model for these images and classes, with weights drawn from the seed."""
    lightning.seed_everything(recipe.seed, verbose=False)
    model = create_model(
        recipe.model.name,
        group=recipe.model.group,
        num_classes=len(dataset.classes),  # or labels, or columns of numbers
        in_chans=dataset.channels,
        image_size=dataset.image_size,
        fit=recipe.data.fit,
        **recipe.model.options,
    )
    if not recipe.model.options.get("weights"):  # a trained model keeps its normalisation
        for module in model.modules():
            if isinstance(module, Normalise):
                module.fit(dataset.train.images)
    model.classes = dataset.classes  # type: ignore[assignment]
    model.target = dataset.target_kind.plain()  # type: ignore[assignment]
    return model


def _describe_fit(model: nn.Module, dataset: Dataset) -> str:
    """Return how the model changes images of this size, empty if it does not."""
    words = {"pad": "padded", "crop": "cropped", "resize": "resampled"}
    for module in model.modules():
        if isinstance(module, Normalise) and module.fit_size is not None:
            return (
                f"images of {dataset.image_size} pixels are {words[module.fit_mode]} to "
                f"{module.fit_size}, where the model is exact (data.fit)"
            )
    return ""


def _with_choices(recipe: Recipe, dataset: Dataset) -> Recipe:
    """Store what follows from the data: the fill mode, and the score that selects an epoch.

    Raises before training if a choice cannot be made for this kind of target.
    """
    part, kind = recipe.evaluation, dataset.target_kind
    if part.sensitivity or part.specificity:
        kind.require_thresholds(part.positive)
    if recipe.data.sampling == "balanced":
        kind.strata(dataset.train.targets)
    fill = choose_fill(recipe.data.fill, dataset.train.images)
    select = selected_score(recipe, kind)
    return replace(
        recipe, data=replace(recipe.data, fill=fill), trainer=replace(recipe.trainer, select=select)
    )


def class_weights(recipe: Recipe, dataset: Dataset, kind: TargetKind) -> tuple[float, ...] | None:
    """Return the weights of classes or labels in the training loss, None for equal ones."""
    given = recipe.optimisation.class_weights
    return kind.balanced_weights(dataset.train.targets) if isinstance(given, str) else given


def _with_full_paths(recipe: Recipe) -> Recipe:
    """Store own images and initial weights by full path, so that the run finds them later."""
    weights = recipe.model.options.get("weights")
    if weights and Path(weights).exists():
        options = recipe.model.options | {"weights": str(Path(weights).resolve())}
        recipe = replace(recipe, model=replace(recipe.model, options=options))
    return replace(recipe, data=replace(recipe.data, name=with_full_path(recipe.data.name)))


def _fit(
    model: nn.Module, recipe: Recipe, dataset: Dataset, run: Run, checkpoint: Path | None
) -> None:
    """Train with Lightning, and store the weights and the decisions that validation selected."""
    kind = dataset.target_kind
    with _shared_folder(run.path):
        with quiet():
            trainer = make_trainer(recipe, run.training_files(), kind)
        module = SupervisedModule(model, recipe, kind, class_weights(recipe, dataset, kind))
        if recipe.trainer.compile:
            model.compile(mode="reduce-overhead" if recipe.trainer.cuda_graphs else None)
        with (
            quiet(), allow_tf32(recipe.trainer.precision), interruptible(trainer) as stop,
            _explained(trainer, checkpoint, stop),
        ):  # fmt: skip
            trainer.fit(
                module, datamodule=SplitBatches(dataset, recipe),
                ckpt_path=None if checkpoint is None else str(checkpoint), weights_only=True,
            )  # fmt: skip
    if trainer.is_global_zero:
        module.load_state_dict(run.read_checkpoint("best")["state_dict"])
        device = trainer.strategy.root_device
        model.target = choose_decisions(module, dataset, device).plain()  # type: ignore[assignment]
        model.fill = recipe.data.fill  # type: ignore[assignment]
        run.save_model(model, dataset.classes)


def _prepare(run: Run, model: nn.Module, newest: str | None) -> None:
    """Check and repair the files of a run that is to be resumed from its newest checkpoint."""
    if newest is not None:
        resuming.require_fitting(run, model, newest)
    if _is_rank_zero():
        resuming.remove_temporary_files(run)
        resuming.start_again(run) if newest is None else resuming.recover_best(run)


@contextmanager
def _explained(
    trainer: lightning.Trainer, checkpoint: Path | None, stop: StopBetweenBatches
) -> Iterator[None]:
    """Raise a one-line error for a failure that is no fault of turnwise."""
    try:
        yield
    except InputError:
        raise
    except MisconfigurationException as error:  # e.g. fewer epochs than were trained
        raise InputError(" ".join(str(error).split())) from error
    except Exception as error:
        if trainer.world_size > 1 and _is_lost_connection(error):
            raise KeyboardInterrupt("another process of this run has ended") from error
        if "more than 1 value per channel" in str(error):
            raise InputError(
                "batch norm cannot train on a batch of one image; choose another "
                "optimisation.batch_size, so that no batch is that small."
            ) from error
        is_other = isinstance(error, OSError) or "memory" in str(error)
        if checkpoint is None or stop.has_started or is_other:
            raise
        raise InputError(
            f"{checkpoint} does not hold the state of this training ({type(error).__name__}); "
            "restore it, or train in another folder."
        ) from error


def _is_lost_connection(error: Exception) -> bool:
    """Return whether the connection to another process failed, as gloo or NCCL reports it."""
    kinds = (torch.distributed.DistError, ConnectionError)
    words = ("connection closed by peer", "connection reset", "connection refused", "broken pipe",
             "socket closed", "recvvalue failed", "sendbytes failed")  # fmt: skip
    return isinstance(error, kinds) or any(word in str(error).lower() for word in words)


def _is_rank_zero() -> bool:
    """Return whether this is the only process, or the one of several that writes files."""
    return not getattr(rank_zero_only, "rank", 0)


@contextmanager
def _cleaned_up(run: Run, missing: list[Path] | None) -> Iterator[None]:
    """Remove the folder of a new run that fails without a checkpoint; report a full disk.

    Folders that were `missing` before, innermost first, are removed unless they are in use.  A
    resumed run, of which none was missing (None), is never removed.
    """
    try:
        yield
    except BaseException as error:
        if missing is not None and not run.is_resumable and _is_rank_zero():
            shutil.rmtree(run.path, ignore_errors=True)
            with suppress(OSError):
                for path in missing:
                    if path.is_dir():
                        path.rmdir()
        if isinstance(error, OSError) and error.errno in WRITE_ERRORS:
            raise cannot_write(run.path, error) from error
        raise


@contextmanager
def _shared_folder(folder: Path) -> Iterator[None]:
    """Pass the folder to the processes that Lightning starts, which end with this one."""
    is_first = FOLDER_VARIABLE not in os.environ
    if not is_first:
        end_with_parent()
    os.environ.setdefault(FOLDER_VARIABLE, str(folder))
    try:
        yield
    finally:
        if is_first:
            del os.environ[FOLDER_VARIABLE]
