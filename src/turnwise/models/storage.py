"""A model in a folder: weights as safetensors, everything else as JSON, nothing that is executed.

    model.safetensors   the state dict
    config.json         how to build the model again, the names of the classes, the weights' hash

The configuration is written last and carries the hash, so that a folder is either whole or refused.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import Any

import torch
from torch import nn

import turnwise
from turnwise.errors import InputError, require
from turnwise.files import write_atomic, write_json
from turnwise.models.registry import ModelConfig, config_of, create_model
from turnwise.models.shipped import list_pretrained, require_as_shipped, shipped_folder

WEIGHTS, CONFIG, FORMAT = "model.safetensors", "config.json", 1


def save(model: nn.Module, folder: str | Path, classes: Sequence[str] = ()) -> Path:
    """Write a model made by `create_model` (or `orbit` around one) into `folder`.

    What `load` could not open is refused before anything is written.
    """
    from safetensors.torch import save as to_bytes

    model = getattr(model, "_orig_mod", model)  # inside what torch.compile gives
    config = config_of(model)
    classes = list(classes or getattr(model, "classes", ()))
    _require_as_described(model, config, classes)
    state = {key: value.detach().cpu().contiguous() for key, value in model.state_dict().items()}
    weights = to_bytes(state)
    description = {
        "format": FORMAT,
        "turnwise": turnwise.__version__,
        "name": config.name,
        "options": dict(config.options),
        "classes": classes,
        "sha256": hashlib.sha256(weights).hexdigest(),
    }
    folder = Path(folder)
    write_atomic(folder / WEIGHTS, weights)
    write_json(folder / CONFIG, description)
    return folder


def _require_as_described(model: nn.Module, config: ModelConfig, classes: list[str]) -> None:
    """Raise unless the model is what its configuration builds, and has a name for every class."""
    count = config.options.get("num_classes")
    require(
        not classes or len(classes) == count,
        f"{len(classes)} names of classes were given for a model of {count} classes.",
    )
    with torch.random.fork_rng(devices=[]):
        try:
            fresh = create_model(config.name, **config.options).state_dict()
        except InputError:  # weights that it starts from may have moved
            return
    shapes = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    wanted = {key: tuple(value.shape) for key, value in fresh.items()}
    other = next((key for key in shapes | wanted if shapes.get(key) != wanted.get(key)), None)
    if other is not None:
        raise InputError(
            f"{other} is {shapes.get(other, 'missing')} and must be {wanted.get(other, 'missing')} "
            f"as {config.name} was made: a part was replaced. Make the model with what it is to "
            "have, such as num_classes=3, and give it these weights."
        )


def load(folder: str | Path) -> nn.Module:
    """Open what `save` wrote, the model of a run folder, or shipped weights by their name.

    It is ready to answer: in eval mode.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load as from_bytes

    folder = find_model(folder)
    config = read_config(folder)
    require_as_shipped(folder, config)
    weights = (folder / WEIGHTS).read_bytes()
    require(
        hashlib.sha256(weights).hexdigest() == config["sha256"],
        f"{folder / WEIGHTS} is not the file that {CONFIG} describes (its hash differs); "
        "copy the whole folder again.",
    )
    try:
        model = create_model(config["name"], **config["options"])
        model.load_state_dict(from_bytes(weights))
    except (InputError, SafetensorError, RuntimeError, TypeError) as error:
        raise InputError(f"{folder} does not hold a usable model: {error}") from error
    model.classes = tuple(config["classes"])  # type: ignore[assignment]
    return model.eval()


from_pretrained = load


def find_model(folder: str | Path) -> Path:
    """The folder itself, the `model` folder of a run, or the folder of shipped weights."""
    folder = shipped_folder(folder) or Path(folder)
    for candidate in (folder, folder / "model"):
        if (candidate / CONFIG).is_file():
            require((candidate / WEIGHTS).is_file(), f"{candidate} has no {WEIGHTS}.")
            return candidate
    if (folder / "recipe.yaml").is_file():
        raise InputError(f"{folder} {_unfinished(folder)}")
    shipped = "" if folder.exists() else ", ".join(list_pretrained())
    hint = f" Shipped weights are: {shipped}." if shipped else ""
    raise InputError(f"{folder} is not a model or run folder: it has no {CONFIG}.{hint}")


def _unfinished(run: Path) -> str:
    """Why a run has no model yet, and what would give it one."""
    if (run / "checkpoints" / "last.ckpt").is_file():
        return (
            f"has not finished training: it has no model/{CONFIG}; if it was stopped, continue it "
            f"with: turnwise train --resume {quote(str(run))}"
        )
    return (
        f"has not finished training: it has no model/{CONFIG}, and no epoch to continue from; wait "
        "for it, or train again."
    )


def read_config(folder: Path) -> dict[str, Any]:
    """The parsed configuration of a model folder, with the keys it must have."""
    path = folder / CONFIG
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}.") from error
    needed = {"format", "name", "options", "classes", "sha256"}
    given = config.keys() if isinstance(config, dict) else set()
    require(needed <= given, f"{path} lacks {', '.join(sorted(needed - given))}.")
    options, classes = config["options"], config["classes"]
    named = isinstance(classes, list) and all(isinstance(name, str) for name in classes)
    require(
        isinstance(options, dict) and named and len(classes) in (0, options.get("num_classes")),
        f"{path} must name as many classes as the model has; copy the whole folder again.",
    )
    require(
        config["format"] == FORMAT,
        f"{path} has format {config['format']!r}, this version reads {FORMAT}; update turnwise.",
    )
    return config
