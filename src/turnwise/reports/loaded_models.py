"""What is shown: models, each with its classes, its symmetry and pictures it did not learn from.

Examples are those of the validation split: the test split belongs to `turnwise test`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from jaxtyping import Int64
from torch import Tensor, nn

from turnwise.data import Dataset, Examples, load_dataset
from turnwise.data.catalogue import entry
from turnwise.errors import InputError, require
from turnwise.evaluation.rotations import predict_probabilities
from turnwise.groups import PlanarGroup
from turnwise.models import create_model, list_models, load
from turnwise.models.registry import config_of
from turnwise.models.shipped import read_card, shipped_folder
from turnwise.runs.train import load_recipe_data, load_run_data
from turnwise.training.recipe import make_recipe, read_recipe


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model and all that a picture of it needs; `run` is its folder, None if it is untrained."""

    name: str
    model: nn.Module
    classes: tuple[str, ...]
    group: PlanarGroup  # what it is held against: its own, or the recipe's if it has none
    pictures: Examples
    origin: str
    run: Path | None


def load_models(
    targets: Sequence[str], *, data_dir: str | Path | None = None, device: Any = "cpu"
) -> list[LoadedModel]:
    """The subjects called `targets`: runs, model folders, shipped weights, untrained models.

    Words such as `width=64` between them are options of the models that are named.
    """
    words = [t for t in targets if "=" in t and not Path(t).exists()]
    places = [t for t in targets if t not in words]
    require(bool(places), "name at least one run, model folder or model.")
    folders = [p for p in places if Path(p).is_dir() or shipped_folder(p) is not None]
    require(
        not words or len(folders) < len(places),
        f"{' '.join(words)} are options of a named model, but only folders are given; leave them.",
    )
    names = _distinct_names(places)
    return [
        _from_folder(name, Path(place), data_dir, device)
        if place in folders
        else _untrained(name, place, words, device)
        for name, place in zip(names, places, strict=True)
    ]


def require_alike(subjects: Sequence[LoadedModel]) -> None:
    """Raise unless all take the same pictures and answer with the same classes."""
    first = subjects[0]
    for other in subjects[1:]:
        same = other.pictures.images.shape[1:] == first.pictures.images.shape[1:]
        require(
            same and other.classes == first.classes,
            f"{first.name} and {other.name} differ in the shape of their pictures or in their "
            "classes; show them one by one.",
        )


def spaced_examples(subject: LoadedModel, count: int) -> Examples:
    """At most `count` pictures, evenly spread: splits may be sorted by class."""
    pictures = subject.pictures
    number = torch.linspace(0, len(pictures) - 1, min(count, len(pictures))).round().long()
    return pictures.take(number)


def recognised_example(subjects: Sequence[LoadedModel]) -> int:
    """The number of the first picture, from the middle on, that all recognise when upright.

    The middle itself if there is none among the next hundred.
    """
    pictures = subjects[0].pictures
    middle = len(pictures) // 2
    numbers = torch.arange(middle, min(middle + 100, len(pictures)))
    tried = pictures.take(numbers)
    right = torch.ones(len(numbers), dtype=torch.bool)
    for subject in subjects:
        right &= predict_probabilities(subject.model, tried).argmax(-1) == tried.labels
    return int(numbers[right][0]) if right.any() else middle


def recognised_by_all(
    models: Iterable[nn.Module], pictures: Examples, classes: Sequence[int]
) -> Int64[Tensor, " chosen"]:
    """The first picture of each of `classes` that all models recognise when upright."""
    right = torch.ones(len(pictures), dtype=torch.bool)
    for model in models:
        right &= predict_probabilities(model, pictures).argmax(-1) == pictures.labels
    found = [(right & (pictures.labels == label)).nonzero()[:1, 0] for label in classes]
    return torch.cat(found)


def chosen_example(subject: LoadedModel, number: int) -> Examples:
    """One of the subject's pictures."""
    count = len(subject.pictures)
    require(
        0 <= number < count,
        f"there is no picture {number}; {subject.name} has pictures 0 to {count - 1}.",
    )
    return subject.pictures.take(torch.tensor([number]))


def _from_folder(name: str, folder: Path, data_dir: str | Path | None, device: Any) -> LoadedModel:
    model = load(folder).to(device)
    options = config_of(model).options
    classes = tuple(getattr(model, "classes", ())) or _numbered(options["num_classes"])
    own: PlanarGroup = model.group  # type: ignore[assignment]
    if not (folder / "recipe.yaml").is_file():
        dataset, origin = _shown_to(folder, options, data_dir)
        group = own if own.order > 1 else PlanarGroup.named("C4")
        return LoadedModel(name, model, classes, group, dataset.val, origin, folder)
    recipe = read_recipe(folder / "recipe.yaml")
    dataset = load_run_data(folder, recipe, data_dir)
    group = own if own.order > 1 else PlanarGroup.named(recipe.model.group)
    origin = f"validation pictures of {dataset.name}"
    return LoadedModel(name, model, classes, group, dataset.val, origin, folder)


def _untrained(name: str, model_name: str, words: Sequence[str], device: Any) -> LoadedModel:
    known = model_name in list_models()
    if not known and ("/" in model_name or "." in model_name or Path(model_name).exists()):
        raise InputError(f"{model_name} is neither a folder nor a model; see turnwise models.")
    torch.manual_seed(0)
    model = create_model(model_name, **_options(words)).to(device).eval()
    options = config_of(model).options
    digits, origin = _digits(options)
    own: PlanarGroup = model.group  # type: ignore[assignment]
    group = own if own.order > 1 else PlanarGroup.named("C4")
    classes = _numbered(options["num_classes"])
    return LoadedModel(f"{name}, untrained", model, classes, group, digits.val, origin, None)


def _options(words: Sequence[str]) -> dict[str, Any]:
    pairs = [word.partition("=") for word in words]
    try:
        return {key: yaml.safe_load(text) for key, _, text in pairs}
    except yaml.YAMLError:
        raise InputError(f"{' '.join(words)} cannot be read; write width=64.") from None


def _shown_to(folder: Path, options: Any, data_dir: str | Path | None) -> tuple[Dataset, str]:
    """Embedded digits; for shipped weights that do not know digits, the data of their recipe."""
    shipped = shipped_folder(folder)
    card = {} if shipped is None else read_card(shipped)
    if not card or tuple(card["model"]["classes"]) == entry("digits").classes:
        return _digits(options)
    dataset = load_recipe_data(make_recipe(card["recipe"]), data_dir)
    return dataset, f"validation pictures of {dataset.name}"


def _digits(options: Any) -> tuple[Dataset, str]:
    """The embedded digits in the model's size, where no data set is named."""
    size, channels = options["image_size"], options["in_chans"]
    return load_dataset("digits", image_size=size, channels=channels), "embedded digits"


def _numbered(count: int) -> tuple[str, ...]:
    return tuple(str(number) for number in range(count))


def _distinct_names(places: Sequence[str]) -> list[str]:
    """The last part of each path, or all of it where two would be called the same."""
    require(len(set(places)) == len(places), "a run is named twice; name each once.")
    short = [Path(place).name or str(Path(place).resolve().name) for place in places]
    return [s if short.count(s) == 1 else p for s, p in zip(short, places, strict=True)]
