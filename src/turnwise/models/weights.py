"""Pretrained weights that are installed: which there are, and their cards.

One small set is in this package; the others are in the package turnwise_weights, a wheel of its own
built from the folder weights/ of the repository.

    weights/MODEL.DATA/   a model folder (models/storage.py), such as turnwise_vit_nano.rotmnist
        card.json         where the weights come from, what was measured, their hash
        card.md           the same as a page

`benchmarks/ship_weights.py` writes these folders; `load` checks a folder against its card.
"""

import os
from collections.abc import Mapping
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from torch import nn

from turnwise.errors import InputError, require, require_known
from turnwise.groups import PlanarGroup
from turnwise.models.registry import (
    DEFAULTS,
    check_options,
    config_of,
    list_models,
    model_options,
)
from turnwise.options import to_plain
from turnwise.parsing import read_json

ROOT = Path(__file__).parents[1] / "weights"
CHECKOUT = Path(__file__).parents[3] / "weights" / "src" / "turnwise_weights"
CARD, PAGE, FORMAT = "card.json", "card.md", 1
# what a card states of a model, and config.json beside it must state as well
DESCRIBED = ("name", "options", "classes", "sha256")
PARTS = {
    "format", "name", "model", "weights", "bytes", "stored", "data", "licence", "recipe", "seed",
    "equivariance", "record", "shipped",
}  # fmt: skip
REMEDY = "reinstall turnwise"
USUAL = "rotmnist"  # what pretrained=True means where a model has several weights


def find_more() -> tuple[Path, ...]:
    """Return the folder of turnwise_weights, as installed or else in the checkout."""
    spec = find_spec("turnwise_weights")
    if spec is not None and spec.origin is not None:
        return (Path(spec.origin).parent,)
    return (CHECKOUT,) if CHECKOUT.is_dir() else ()


MORE = find_more()


def list_pretrained(pattern: str = "*") -> list[str]:
    """Return the names, MODEL.DATA, of all pretrained weights that match `pattern`."""
    folders = [f for root in (ROOT, *MORE) if root.is_dir() for f in root.iterdir()]
    found = {f.name for f in folders if f.is_dir() and not f.name.startswith(".")}
    return sorted(name for name in found if "." in name and fnmatchcase(name, pattern))


def weights_folder(name: str) -> Path:
    """Return the folder of the pretrained weights called `name`."""
    return next((root / name for root in MORE if (root / name).is_dir()), ROOT / name)


def pretrained_folder(target: str | os.PathLike[str]) -> Path | None:
    """Return the folder if `target` names pretrained weights; an existing path takes precedence."""
    name = os.fspath(target)
    named = not Path(name).exists() and name in list_pretrained()
    return weights_folder(name) if named else None


def read_card(folder: Path) -> dict[str, Any]:
    """Return the card of pretrained weights, with the parts that it must have."""
    path = folder / CARD
    try:
        card = read_json(path)
    except InputError as error:
        raise InputError(f"{path} cannot be read: {error}; {REMEDY}.") from error
    missing = PARTS - (card.keys() if isinstance(card, dict) else set())
    require(not missing, f"{path} lacks {', '.join(sorted(missing))}; {REMEDY}.")
    require(
        card["format"] == FORMAT,
        f"{path} has format {card['format']!r}, this version reads {FORMAT}; update turnwise.",
    )
    return dict(card)


def forbids_commerce(licence: str) -> bool:
    """Return whether a licence of data forbids commercial use; then weights have it, too."""
    return "-NC" in licence or "non-commercial" in licence


def require_as_described(folder: Path, config: Mapping[str, Any]) -> None:
    """Raise unless the configuration in a folder of pretrained weights agrees with its card.

    The configuration holds the hash of the weights, so the card vouches for both.
    """
    if folder.parent not in (ROOT, *MORE):
        return
    described = read_card(folder)["model"]
    require(isinstance(described, dict), f"{folder / CARD} describes no model; {REMEDY}.")
    wrong = [key for key in DESCRIBED if described.get(key) != config[key]]
    require(
        not wrong,
        f"{folder} is not what its {CARD} describes ({', '.join(wrong)} differ); {REMEDY}.",
    )


def create_pretrained(name: str, pretrained: bool | str, given: Mapping[str, Any]) -> nn.Module:
    """Return the model `name` with pretrained weights; `given` are the user's other arguments.

    It is in training mode, as all that `create_model` returns; `load` opens it in eval mode.
    """
    from turnwise.models.storage import load

    weights = chosen_weights(name, pretrained)
    model: Any = load(weights_folder(weights))
    config = config_of(model)
    own = check_options(config.name, {k: v for k, v in given.items() if k not in DEFAULTS})
    shared = {k: v for k, v in given.items() if k in DEFAULTS and k != "num_classes"}
    _require_agreement(weights, model, shared | own)
    count = given.get("num_classes", config.options["num_classes"])
    if count != config.options["num_classes"]:
        model.reset_classifier(count)
    return model.train()


def chosen_weights(name: str, pretrained: bool | str = True) -> str:
    """Return the full name, MODEL.DATA, of the weights that `name` and `pretrained` select."""
    model, _, data = name.partition(".")
    require_known(model, list_models(), "model")
    wanted = pretrained.removeprefix(f"{model}.") if isinstance(pretrained, str) else ""
    require(
        not data or wanted in ("", data),
        f"{name} and pretrained = {pretrained!r} name different weights; leave one out.",
    )
    found = {n.removeprefix(f"{model}."): n for n in list_pretrained() if _is_of(n, model)}
    data, known = data or wanted, " or ".join(map(repr, found))
    if not found:
        others = ", ".join(list_pretrained()) or "none"
        raise InputError(
            f"there are no pretrained weights of {model!r} (of others: {others}); train the model "
            "and open its folder with turnwise.load(folder)."
        )
    if not data:
        require(
            len(found) == 1 or USUAL in found,
            f"there are several pretrained weights of {model!r}; set pretrained = {known}.",
        )
        return found.get(USUAL) or next(iter(found.values()))
    require(
        data in found,
        f"there are no pretrained weights of {model!r} for {data!r}; set pretrained = {known}.",
    )
    return found[data]


def _is_of(weights: str, model: str) -> bool:
    return weights.partition(".")[0] == model


def _require_agreement(weights: str, model: nn.Module, given: Mapping[str, Any]) -> None:
    """Raise if an argument differs from what the weights were trained with."""
    config = config_of(model)
    trained = {**model_options(config.name), **config.options}
    for key, value in given.items():
        wanted = PlanarGroup.named(value).name if key == "group" else to_plain(value)
        require(
            wanted == to_plain(trained[key]),
            f"{weights} has {key} = {trained[key]}, not {wanted}; leave {key} out, or train a "
            "model of your own.",
        )
