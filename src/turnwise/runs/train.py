"""From a recipe to a run folder.

    recipe.yaml        the recipe with every default filled in
    environment.json   versions, machine, command, and hashes of the data
    metrics.csv        one row per epoch; `tensorboard/` holds the same for TensorBoard
    checkpoints/       best.ckpt (by validation accuracy) and last.ckpt, for Lightning to resume
    model/             the best weights as a model folder, for everything else

Training sees the train and validation splits alone.  Of the test split only a hash is taken, by
which `turnwise test`, to which it belongs, knows it again.
"""

import errno
import json
import os
import platform
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib.metadata import distributions
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import lightning
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities import rank_zero_only
from torch import nn

import turnwise
from turnwise.errors import InputError, require
from turnwise.data import Dataset, load_dataset
from turnwise.data.storage import expand_home
from turnwise.files import cannot_write, write_json, write_atomic
from turnwise.layers.normalise import Normalise
from turnwise.models import create_model, save
from turnwise.training.module import Classifier
from turnwise.training.interruption import interruptible
from turnwise.training.recipe import Recipe
from turnwise.training.trainer import SplitBatches, make_trainer, quick_products, quiet

WRITE_ERRORS = (errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EPERM, errno.ENOTDIR)
FOLDER_VARIABLE = "TURNWISE_RUN_FOLDER"  # tells the processes of one run which folder is theirs


def next_folder(parent: Path) -> Path:
    """`parent`/version_N with the first N that no run has taken."""
    taken = [int(p.name[8:]) for p in parent.glob("version_*") if p.name[8:].isdecimal()]
    return parent / f"version_{max(taken, default=-1) + 1}"


def claim_folder(folder: Path, numbered: bool) -> Path:
    """Make `folder`, or the next numbered one in it, before any other run can."""
    while True:
        place = next_folder(folder) if numbered else folder
        try:
            place.mkdir(parents=True)
        except FileExistsError:
            require(numbered, f"{place} {_taken(place)}")
        except OSError as error:
            raise cannot_write(place, error) from error
        else:
            return place


def _taken(place: Path) -> str:
    """Why a folder cannot be trained in, and what would work."""
    if last_checkpoint(place).is_file():
        return f"exists; choose another --output, or continue it with --resume {place}."
    if (place / "recipe.yaml").is_file() and not (place / "metrics.csv").is_file():
        return (
            "holds a run without a whole epoch, which goes on or was killed; choose another "
            "--output, or remove it if it was killed."
        )
    return "exists; choose another --output."


def last_checkpoint(run: Path) -> Path:
    """What a run is resumed from, once it has finished an epoch."""
    return run / "checkpoints" / "last.ckpt"


def load_recipe_data(recipe: Recipe, data_dir: str | Path | None) -> Dataset:
    """The data set that a recipe names; the same splits for every seed of the training."""
    part = recipe.data
    return load_dataset(
        part.name, data_dir=data_dir, image_size=part.image_size, channels=part.channels,
        crop=part.crop, val_fraction=part.val_fraction, fraction=part.fraction,
    )  # fmt: skip


def load_run_data(run: Path, recipe: Recipe, data_dir: str | Path | None) -> Dataset:
    """The data set of a run, which must be the one that it was started on, picture for picture.

    Otherwise pictures that were trained on could be tested, or classes could have moved.
    """
    dataset = load_recipe_data(recipe, data_dir)
    try:
        started = json.loads((run / "environment.json").read_text(encoding="utf-8"))["data"]
        same_classes = started["classes"] == list(dataset.classes)
        same_splits = started["sha256"] == dataset.digests()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{run / 'environment.json'} does not tell the run's data set.") from error
    require(
        same_classes and same_splits,
        f"the pictures or classes of {dataset.name} are not those that {run} was trained on; "
        "bring them back, or train again.",
    )
    return dataset


def _with_full_path(recipe: Recipe) -> Recipe:
    """Pictures and first weights by their full paths, so that the run finds them from anywhere."""
    name, weights = recipe.data.name, recipe.model.options.get("weights")
    if weights and Path(weights).exists():
        options = recipe.model.options | {"weights": str(Path(weights).resolve())}
        recipe = replace(recipe, model=replace(recipe.model, options=options))
    if not name.startswith("folder:"):
        return recipe
    path = Path(name.removeprefix("folder:")).expanduser().resolve()
    return replace(recipe, data=replace(recipe.data, name=f"folder:{path}"))


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
    if not recipe.model.options.get("weights"):  # a trained base keeps what it was trained with
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
    numbered: bool = False,
    command: str = "",
    begins: Callable[[Path], None] = lambda place: None,
) -> Path:
    """Train as the recipe says and leave everything in `folder`; returns it.

    If `numbered`, in the next free `folder`/version_N.  With `resume`, continue from the last whole
    checkpoint in `folder`.  A run that fails before its first epoch is complete leaves nothing
    behind.  Once training begins, `begins` is told where.
    """
    known = os.environ.get(FOLDER_VARIABLE)
    folder = expand_home(known or folder, "the folder of a run")
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    if resume:
        last = last_checkpoint(folder)
        require(
            last.is_file(),
            f"{folder} has no checkpoints/{last.name} to resume from: no epoch was finished, or it "
            "was taken away; bring it back, or train with another --output.",
        )
        read_checkpoint(last)
    elif not _is_follower():
        folder = claim_folder(folder, numbered and not known)
    with _cleaned_up(folder, missing):
        if resume:
            dataset = load_run_data(folder, recipe, data_dir)
        else:
            dataset = load_recipe_data(recipe, data_dir)
        recipe = _with_full_path(recipe)
        model = build_model(recipe, dataset)
        if not resume:
            _start_folder(folder, recipe, dataset, command)
        begins(folder)
        _fit(model, recipe, dataset, folder, resume)
    return folder


def _fit(model: nn.Module, recipe: Recipe, dataset: Dataset, folder: Path, resume: bool) -> None:
    """Let Lightning train the model, and keep the weights that validation chose."""
    checkpoints = folder / "checkpoints"
    with _shared_folder(folder):
        with quiet():
            trainer = make_trainer(recipe, folder)
        module = Classifier(model, recipe, len(dataset.classes))
        if recipe.trainer.compile:
            model.compile(mode="reduce-overhead" if recipe.trainer.cuda_graphs else None)
        with quiet(), quick_products(recipe.trainer.precision), interruptible(trainer):
            try:
                trainer.fit(
                    module,
                    datamodule=SplitBatches(dataset, recipe),
                    ckpt_path=str(last_checkpoint(folder)) if resume else None,
                    weights_only=True,
                )
            except MisconfigurationException as error:  # fewer epochs than were trained, say
                raise InputError(" ".join(str(error).split())) from error
            except ValueError as error:
                if "more than 1 value per channel" not in str(error):
                    raise
                raise InputError(
                    "a batch of one picture leaves this model's norms nothing to compare; choose "
                    "another optimisation.batch_size, so that no batch is so small."
                ) from error
    if trainer.is_global_zero:
        best = checkpoints / "best.ckpt"
        save(_with_weights(model, best), folder / "model", classes=dataset.classes)


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


def _is_follower() -> bool:
    """Whether this is one of several processes, and not the one that writes."""
    return bool(getattr(rank_zero_only, "rank", 0))


@rank_zero_only
def _start_folder(folder: Path, recipe: Recipe, dataset: Dataset, command: str) -> None:
    write_atomic(folder / "recipe.yaml", recipe.yaml().encode())
    environment = {
        "command": command,
        "turnwise": turnwise.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "packages": {d.name: d.version for d in sorted(distributions(), key=lambda d: d.name)},
        "data": {
            "name": dataset.name,
            "provenance": dataset.provenance,
            "classes": dataset.classes,
            "sha256": dataset.digests(),
        },
    }
    write_json(folder / "environment.json", environment)


@contextmanager
def _cleaned_up(folder: Path, missing: list[Path]) -> Iterator[None]:
    """Turn a full or read-only disk into one line; leave no folder without a whole checkpoint.

    Folders that were `missing` before, innermost first, are unmade, unless others use them.
    """
    try:
        yield
    except BaseException as error:
        if not last_checkpoint(folder).is_file() and not _is_follower():
            shutil.rmtree(folder, ignore_errors=True)
            with suppress(OSError):
                for place in missing:
                    if place.is_dir():
                        place.rmdir()
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
