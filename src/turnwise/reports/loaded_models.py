"""Models to report on, with images they were not trained on, and rotated or shifted views of those.

Images are of the validation split: the test split belongs to `turnwise test`.  Rotations by 90° and
shifts by whole pixels are exact; other angles are interpolated.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from turnwise.data import Dataset, Examples, load_dataset
from turnwise.data.batches import to_unit
from turnwise.data.catalogue import entry
from turnwise.errors import require
from turnwise.geometry.warps import AUTO, choose_fill, rotate_image
from turnwise.groups import PlanarGroup
from turnwise.inference.loading import class_names, image_shape, open_model
from turnwise.inference.predictor import Predictor
from turnwise.models.weights import pretrained_folder, read_card
from turnwise.runs.run import Run, load_recipe_data
from turnwise.training.recipe import make_recipe

Pixels = UInt8[Tensor, "channel row col"]
Views = Float[Tensor, "view channel row col"]


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model and all that a figure of it needs; `run` is None if it is untrained."""

    name: str
    model: nn.Module
    classes: tuple[str, ...]
    group: PlanarGroup  # what it is measured against: its own, or the recipe's if it has none
    examples: Examples
    origin: str
    run: Run | None
    fill: str = "zeros"  # of the corners of rotated images

    @property
    def predictor(self) -> Predictor:
        return Predictor(self.model)


def load_models(
    targets: Sequence[str], *, data_dir: str | Path | None = None, device: Any = "cpu"
) -> list[LoadedModel]:
    """Load runs, model folders, pretrained weights or untrained models.

    Words such as `width=64` between them are options of the untrained models.
    """
    settings = [t for t in targets if "=" in t and not Path(t).exists()]
    names = [t for t in targets if t not in settings]
    require(bool(names), "name at least one run, model folder or model.")
    folders = [n for n in names if Path(n).is_dir() or pretrained_folder(n) is not None]
    require(
        not settings or len(folders) < len(names),
        f"{' '.join(settings)} are options of an untrained model, but only folders are given; "
        "leave them out.",
    )
    return [
        _from_folder(title, Path(name), data_dir, device)
        if name in folders
        else _untrained(title, name, settings, device)
        for title, name in zip(_titles(names), names, strict=True)
    ]


def require_comparable(models: Sequence[LoadedModel]) -> None:
    """Raise unless all take images of one shape and one fill mode, and have the same classes."""
    first = models[0]
    for other in models[1:]:
        require(
            other.fill == first.fill,
            f"{first.name} is rotated with the fill mode {first.fill}, {other.name} with "
            f"{other.fill}; show them one by one, or train them with the same data.fill.",
        )
        same = other.examples.images.shape[1:] == first.examples.images.shape[1:]
        require(
            same and other.classes == first.classes,
            f"{first.name} and {other.name} differ in the shape of their images or in their "
            "classes; show them one by one.",
        )


def sample_examples(model: LoadedModel, count: int) -> Examples:
    """Return at most `count` examples, evenly spaced: a split may be sorted by class."""
    examples = model.examples
    number = torch.linspace(0, len(examples) - 1, min(count, len(examples))).round().long()
    return examples.take(number)


def take_example(model: LoadedModel, number: int) -> Examples:
    """Return one of the model's examples."""
    count = len(model.examples)
    require(
        0 <= number < count,
        f"there is no image {number}; {model.name} has images 0 to {count - 1}.",
    )
    return model.examples.take(torch.tensor([number]))


def recognised_example(models: Sequence[LoadedModel]) -> int:
    """Return the number of an example that all models classify correctly when upright.

    The first from the middle of the split on, or the middle itself if none of a hundred is.
    """
    examples = models[0].examples
    middle = len(examples) // 2
    numbers = torch.arange(middle, min(middle + 100, len(examples)))
    correct = _all_correct((m.model for m in models), examples.take(numbers))
    return int(numbers[correct][0]) if correct.any() else middle


def least_stable(
    models: Sequence[LoadedModel], examples: Examples, count: int, angles: int
) -> Examples:
    """Return images of different classes for which the last model's predictions vary most.

    All models classify them correctly upright.  Where none of a class is, it is left out; where
    that leaves no image at all, the first ones are returned.

    Args:
        models: the model of interest is the last one.
        examples: to choose from.
        count: the number of classes, in order of how much the predictions vary.
        angles: over 360 degrees, at which the last model predicts.
    """
    last = models[-1]
    correct = _all_correct((model.model for model in models), examples)
    changes = torch.zeros(len(examples))
    for number in range(1, angles):
        rotate = partial(rotate_image, degrees=360 * number / angles, fill=last.fill)
        predicted = last.predictor.probabilities(examples.images, rotate).argmax(-1)
        changes += predicted != examples.labels
    changes = changes.masked_fill(~correct, -1)
    best = [
        int(of_class[changes[of_class].argmax()])
        for label in examples.labels.unique()
        for of_class in [(examples.labels == label).nonzero()[:, 0]]
    ]
    best = sorted((i for i in best if correct[i]), key=lambda i: -changes[i])[:count]
    return examples.take(torch.tensor(best or list(range(min(count, len(examples))))))


def rotated_views(image: Pixels, angles: Sequence[float], fill: str) -> Views:
    """Return the image, from 0 to 1, rotated counter-clockwise by each angle in degrees."""
    upright = to_unit(image[None])
    return torch.cat([rotate_image(upright, angle, fill) for angle in angles])


def shift_image(images: Views, right: int, up: int) -> Views:
    """Return f(x − t): images shifted by whole pixels, with zeros shifted in."""
    rows, cols = images.shape[-2:]
    # padding on one side is cropped on the other: negative padding crops
    return F.pad(images, (right, -right, -up, up)).reshape(*images.shape[:2], rows, cols)


def shifts_within(reach: int) -> list[tuple[int, int]]:
    """Return all shifts (right, up) by at most `reach` pixels, from the upper left, row by row."""
    steps = range(-reach, reach + 1)
    return [(right, -down) for down in steps for right in steps]


def shifted_views(image: Pixels, shifts: Sequence[tuple[int, int]]) -> Views:
    """Return the image, from 0 to 1, shifted by each of (right, up)."""
    upright = to_unit(image[None])
    return torch.cat([shift_image(upright, right, up) for right, up in shifts])


def _all_correct(models: Iterable[nn.Module], examples: Examples) -> Tensor:
    correct = torch.ones(len(examples), dtype=torch.bool)
    for model in models:
        predicted = Predictor(model).probabilities(examples.images).argmax(-1)
        correct &= predicted == examples.labels
    return correct


def _from_folder(name: str, folder: Path, data_dir: str | Path | None, device: Any) -> LoadedModel:
    model, run = open_model(str(folder)).to(device), Run(folder)
    if run.exists:
        recipe, dataset = run.recipe, run.dataset(data_dir)
        default, fill = recipe.symmetry.name, recipe.data.fill
        origin = f"validation images of {dataset.name}"
    else:
        dataset, origin, fill = _data_of_weights(folder, model, data_dir)
        default = "C4"
    return LoadedModel(
        name, model, class_names(model), _own_group(model, default), dataset.val, origin, run,
        choose_fill(fill, dataset.train.images),
    )  # fmt: skip


def _untrained(name: str, target: str, settings: Sequence[str], device: Any) -> LoadedModel:
    model = open_model(target, settings).to(device).eval()
    dataset, origin = _digits(model)
    group, title = _own_group(model, "C4"), f"{name}, untrained"
    return LoadedModel(title, model, class_names(model), group, dataset.val, origin, None)


def _own_group(model: nn.Module, default: str) -> PlanarGroup:
    own = getattr(model, "group", None)
    known = isinstance(own, PlanarGroup) and own.order > 1
    return own if known else PlanarGroup.named(default)  # type: ignore[return-value]


def _data_of_weights(
    folder: Path, model: nn.Module, data_dir: str | Path | None
) -> tuple[Dataset, str, str]:
    """Return embedded digits, or the data of pretrained weights that do not classify digits.

    Also returns where they come from, in words, and the fill mode of their recipe.
    """
    pretrained = pretrained_folder(folder)
    card = {} if pretrained is None else read_card(pretrained)
    if not card or tuple(card["model"]["classes"]) == entry("digits").classes:
        return *_digits(model), AUTO
    recipe = make_recipe(card["recipe"], stored=True)
    dataset = load_recipe_data(recipe, data_dir)
    return dataset, f"validation images of {dataset.name}", recipe.data.fill


def _digits(model: nn.Module) -> tuple[Dataset, str]:
    channels, size = image_shape(model)
    return load_dataset("digits", image_size=size, channels=channels), "embedded digits"


def _titles(names: Sequence[str]) -> list[str]:
    """Return the last part of each path, or all of it where two would have the same title."""
    require(len(set(names)) == len(names), "a run is named twice; name each once.")
    short = [Path(name).name or str(Path(name).resolve().name) for name in names]
    return [s if short.count(s) == 1 else n for s, n in zip(short, names, strict=True)]
