"""`Run`: the one owner of a run folder.

    recipe.yaml            the recipe with every default filled in
    environment.json       versions, machine, command, and hashes of the data
    skipped.csv            files of the data set that were left out, and why, if there are any
    metrics.csv            one row per epoch; `tensorboard/` holds the same for TensorBoard
    checkpoints/           best.ckpt (by validation), last.ckpt, and partial.ckpt within an epoch
    model/                 the best weights as a model folder (models/storage.py)
    test.json              the evaluation on the test split; `elsewhere/` holds those on other data
    certificate.json       the equivariance certificate

No other module knows these names.
"""

import csv
import hashlib
import io
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import torch
from torch import nn

import turnwise
from turnwise.data import Dataset, entry, load_dataset
from turnwise.data.sources import own_path, own_reader
from turnwise.errors import InputError, UnfinishedRunError, require, require_known
from turnwise.files import cannot_write, write_atomic, write_json
from turnwise.models.storage import CONFIG as MODEL_CONFIG
from turnwise.models.storage import FOLDER as MODEL
from turnwise.models.storage import load, save, weights_hash
from turnwise.parsing import read_json
from turnwise.training.recipe import Recipe, read_recipe
from turnwise.training.trainer import TrainingFiles

SKIPPED = "skipped.csv"
RECIPE, ENVIRONMENT, METRICS, LOGS = "recipe.yaml", "environment.json", "metrics.csv", "tensorboard"
CHECKPOINTS, CHECKPOINT = "checkpoints", "{}.ckpt"
RESUMABLE = ("last", "partial")
EVALUATION, ELSEWHERE = "test.json", "elsewhere"
CERTIFICATE = "certificate.json"
# keys of an evaluation that version 0.1.0 wrote, and their present names
OLD_KEYS = {
    "pictures": "images",
    "times_examined": "times_evaluated",
    "turn_agreement": "rotation_agreement",
}
NEEDED = {*OLD_KEYS.values(), "scores", "classes", "angles", "orbit_agreement"}


class Run:
    """A run folder, which may be missing, in training, or finished.

    >>> Run("runs/none").exists
    False
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    def __fspath__(self) -> str:
        return os.fspath(self.path)

    @property
    def exists(self) -> bool:
        """Whether the folder is a run: it has a recipe."""
        return (self.path / RECIPE).is_file()

    @property
    def is_resumable(self) -> bool:
        """Whether training can continue from a checkpoint."""
        return any(self.checkpoint(which).is_file() for which in RESUMABLE)

    @property
    def is_startable(self) -> bool:
        """Whether the run was killed, or is in training, before its first checkpoint."""
        begun = self.exists and (self.path / ENVIRONMENT).is_file()
        return begun and not (self.is_resumable or self.model_folder.exists())

    @property
    def has_metrics(self) -> bool:
        """Whether an epoch was trained; the run may come from `turnwise orbit`."""
        return (self.path / METRICS).is_file()

    @property
    def recipe_file(self) -> Path:
        return self.path / RECIPE

    @property
    def recipe(self) -> Recipe:
        return self.read_recipe()

    def read_recipe(self, overrides: Sequence[str] = ()) -> Recipe:
        """Read the stored recipe, with overrides such as `trainer.max_epochs=5`."""
        return read_recipe(self.recipe_file, overrides, stored=True)

    def write_recipe(self, recipe: Recipe) -> None:
        write_atomic(self.recipe_file, recipe.yaml().encode())

    @property
    def skipped_file(self) -> Path:
        """The list of files that were left out; it exists if there are any."""
        return self.path / SKIPPED

    @property
    def environment(self) -> dict[str, Any]:
        """What the run was started with: versions, machine, command and data set."""
        return _read_json(self.path / ENVIRONMENT, "without it the run is not complete")

    def write_environment(self, environment: Mapping[str, Any]) -> None:
        write_json(self.path / ENVIRONMENT, environment)

    def dataset(self, data_dir: str | Path | None = None, recipe: Recipe | None = None) -> Dataset:
        """Load the data set of the run; it must be the one that training started with.

        Otherwise training images could be tested, or classes could have been renumbered.
        """
        dataset = load_recipe_data(recipe or self.recipe, data_dir)
        _, classes, digests = self.trained_on()
        require(
            classes == list(dataset.classes) and digests == dataset.digests(),
            f"the images or classes of {dataset.name} are not those that {self.path} was trained "
            "on; restore them, or train again.",
        )
        return dataset

    def trained_on(self) -> tuple[str, list[str], dict[str, str]]:
        """Return the name, the classes and the hashes of the splits of the run's data set."""
        try:
            data = self.environment["data"]
            digests = {split: data["sha256"][split] for split in ("train", "val", "test")}
            return data["name"], list(data["classes"]), digests
        except (KeyError, TypeError) as error:
            path = self.path / ENVIRONMENT
            raise InputError(f"{path} does not describe the run's data set.") from error

    @classmethod
    def create(cls, folder: str | Path, *, numbered: bool = False) -> "Run":
        """Create `folder`, or the next free `folder`/version_N; an existing run is refused."""
        folder = Path(folder)
        while True:
            run = cls(_next_version(folder) if numbered else folder)
            try:
                run.path.mkdir(parents=True)
            except FileExistsError:
                require(numbered, f"{run.path} {run._why_taken()}")
            except OSError as error:
                raise cannot_write(run.path, error) from error
            else:
                return run

    def start(self, recipe: Recipe, dataset: Dataset, command: str) -> None:
        """Write the recipe, the environment and the list of skipped files."""
        if dataset.skipped:
            rows = [("file", "reason"), *((s.file, s.reason) for s in dataset.skipped)]
            text = io.StringIO()
            csv.writer(text, lineterminator="\n").writerows(rows)
            write_atomic(self.skipped_file, text.getvalue().encode())
        self.write_environment(
            {
                "command": command,
                "recipe": recipe.plain(),
                "turnwise": turnwise.__version__,
                "python": platform.python_version(),
                "platform": platform.platform(),
                "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
                "packages": dict(sorted(((d.name, d.version) for d in distributions()), key=str)),
                "data": {
                    "name": dataset.name,
                    "provenance": dataset.provenance,
                    "classes": dataset.classes,
                    "sha256": dataset.digests(),
                    "groups": dataset.group_counts(),
                },
            }
        )
        self.write_recipe(recipe)  # last: the folder is then a run

    def training_files(self) -> TrainingFiles:
        """Return the paths that the trainer writes to."""
        return TrainingFiles(
            **{which: self.checkpoint(which) for which in ("best", *RESUMABLE)},
            metrics=self.path / METRICS,
            logs=self.path / LOGS,
            write_recipe=self.write_recipe,
        )

    def checkpoint(self, which: str) -> Path:
        """Return the path of the "best" (by validation) or "last" epoch, or a "partial" one."""
        require_known(which, ("best", *RESUMABLE), "checkpoint")
        return self.path / CHECKPOINTS / CHECKPOINT.format(which)

    def read_checkpoint(self, which: str) -> dict[str, Any]:
        """Read a checkpoint as tensors and plain values; nothing in the file is executed."""
        path = self.checkpoint(which)
        try:
            checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # torch.load fails in many ways on damaged files
            raise InputError(f"{path} is damaged or no checkpoint; train again.") from error
        require(
            isinstance(checkpoint, dict) and isinstance(checkpoint.get("state_dict"), dict),
            f"{path} holds no weights; train again.",
        )
        return dict(checkpoint)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the run for this process; another process that trains it raises an error.

        The lock is on the folder itself and ends with the process, however it ends.
        """
        try:
            import fcntl
        except ImportError:  # not on Windows
            yield
            return
        folder = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(folder)
            raise InputError(f"{self.path} is being trained by another process.") from None
        except OSError:
            pass  # a file system without locks
        try:
            yield
        finally:
            os.close(folder)

    @property
    def model_folder(self) -> Path:
        return self.path / MODEL

    def model(self) -> nn.Module:
        """Load the best weights, in eval mode."""
        if self.is_resumable and not (self.model_folder / MODEL_CONFIG).is_file():
            raise UnfinishedRunError(f"{self.path} has not finished training.", self.path)
        model = load(self.path)
        if self.exists:  # older models do not state it
            model.fill = self.recipe.data.fill  # type: ignore[assignment]
        return model

    def save_model(self, model: nn.Module, classes: tuple[str, ...] = ()) -> None:
        save(model, self.model_folder, classes=classes)

    @property
    def weights_hash(self) -> str | None:
        return weights_hash(self.model_folder)

    @property
    def metrics(self) -> list[dict[str, float]]:
        """The rows of the metrics table, one per epoch."""
        path = self.path / METRICS
        try:
            with path.open(encoding="utf-8", newline="") as file:
                return [{k: float(v) for k, v in row.items() if v} for row in csv.DictReader(file)]
        except (OSError, ValueError, TypeError, AttributeError, csv.Error) as error:
            raise InputError(f"{path} cannot be read as a table of epochs.") from error

    def evaluation_file(self, data: str | None = None) -> Path:
        """Return where the evaluation is stored: on the run's own data set, or on `data`."""
        if data is None:
            return self.path / EVALUATION
        kind = own_reader(data)
        if kind is None:
            entry(data)  # an unknown name raises and suggests the nearest one
            return self.path / ELSEWHERE / data / EVALUATION
        path = own_path(data).resolve()
        mark = hashlib.sha256(os.fsencode(path)).hexdigest()[:12]
        before = kind.removesuffix("s")  # folder, manifest
        return self.path / ELSEWHERE / f"{before}_{path.name}_{mark}" / EVALUATION

    def evaluation(self, data: str | None = None) -> dict[str, Any] | None:
        """Return the stored evaluation of the present weights, None if there is none."""
        stored = self._stored_evaluation(data)
        tested = stored.get("weights_sha256") if stored else None
        return stored if tested is None or tested == self.weights_hash else None

    def times_evaluated(self, data: str | None = None) -> int:
        """Return how often the test split was used, by these or earlier weights."""
        stored = self._stored_evaluation(data)
        return int(stored["times_evaluated"]) if stored else 0

    def write_evaluation(self, result: Mapping[str, Any], data: str | None = None) -> None:
        write_json(self.evaluation_file(data), result)

    def _stored_evaluation(self, data: str | None) -> dict[str, Any] | None:
        path = self.evaluation_file(data)
        if not path.is_file():
            return None
        stored = _read_json(path, "remove it to test again")
        renamed = {OLD_KEYS.get(key, key): value for key, value in stored.items()}
        require(
            renamed.keys() >= NEEDED,
            f"{path} is damaged (figures are missing); remove it to test again.",
        )
        return renamed

    @property
    def certificate_file(self) -> Path:
        return self.path / CERTIFICATE

    @property
    def certificate(self) -> dict[str, Any] | None:
        """The certificate as stored, None if there is none; `read_certificate` also checks it."""
        path = self.certificate_file
        return _read_json(path, "certify again") if path.is_file() else None

    def write_certificate(self, certificate: Mapping[str, Any]) -> None:
        write_json(self.certificate_file, certificate)

    def _why_taken(self) -> str:
        if self.is_resumable:
            return "holds a run that can be resumed; choose another folder, or resume it."
        if self.is_startable:
            words = "holds a run without a checkpoint, which is in training or was killed; "
            return words + "choose another folder, or resume it."
        return "exists; choose another folder."


def _read_json(path: Path, hint: str) -> dict[str, Any]:
    try:
        return dict(read_json(path))
    except (ValueError, TypeError) as error:  # InputError is a ValueError
        raise InputError(f"{path} is damaged ({error}); {hint}.") from error


def _next_version(parent: Path) -> Path:
    """Return `parent`/version_N with the first N that no run has taken."""
    taken = [int(p.name[8:]) for p in parent.glob("version_*") if p.name[8:].isdecimal()]
    return parent / f"version_{max(taken, default=-1) + 1}"


def load_recipe_data(recipe: Recipe, data_dir: str | Path | None) -> Dataset:
    """Load the data set that a recipe names; its splits do not depend on the seed."""
    part = recipe.data
    return load_dataset(
        part.name, data_dir=data_dir, image_size=part.image_size, channels=part.channels,
        crop=part.crop, val_fraction=part.val_fraction, fraction=part.fraction,
        reading=part.reading,
    )  # fmt: skip
