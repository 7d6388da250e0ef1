"""A model in a folder: weights as safetensors, everything else as JSON; nothing is executed.

    model.safetensors   the state dict
    config.json         how to build the model, the names of the classes, what the outputs mean
                        (`data/targets/`), the hash of the weights

The configuration is written last and holds the hash, so a folder is either complete or refused.

An orbit around a module of the user is stored, too.  How to build that module is not: whoever opens
the folder gives a function that builds it.
"""

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

import turnwise
from turnwise.errors import InputError, require
from turnwise.files import write_atomic, write_json
from turnwise.groups import PlanarGroup
from turnwise.models.contract import ModelConfig
from turnwise.models.orbits import Orbit, OrbitDesign
from turnwise.models.registry import config_of, create_model, stored_options
from turnwise.models.weights import list_pretrained, pretrained_folder, require_as_described
from turnwise.options import from_plain
from turnwise.parsing import read_json

WEIGHTS, CONFIG, FORMAT = "model.safetensors", "config.json", 1
FOLDER = "model"  # inside a run folder
AROUND = "orbit"  # the name of a stored orbit around a module of the user


def save(model: nn.Module, folder: str | os.PathLike[str], classes: Sequence[str] = ()) -> Path:
    """Write a model made by `create_model`, or an `orbit` around any module, into `folder`.

    Raises `InputError` before anything is written if `load` could not open the result.
    """
    from safetensors.torch import save as to_bytes

    model = getattr(model, "_orig_mod", model)  # inside the result of torch.compile
    config = _describe(model)
    classes = list(classes or getattr(model, "classes", ()))
    _require_named(config, classes)
    if config.name != AROUND:
        _require_loadable(model, config)
    weights = to_bytes(_tensors_of(model))
    description = {
        "format": FORMAT,
        "turnwise": turnwise.__version__,
        "name": config.name,
        "options": dict(config.options),
        "classes": classes,
        "target": dict(getattr(model, "target", None) or {}),
        "fill": getattr(model, "fill", ""),
        "sha256": hashlib.sha256(weights).hexdigest(),
    }
    folder = Path(folder)
    write_atomic(folder / WEIGHTS, weights)
    write_json(folder / CONFIG, description)
    return folder


def _describe(model: nn.Module) -> ModelConfig:
    """Return how the model is built; of a module inside an orbit, the type's name may be all."""
    try:
        return config_of(model)
    except InputError:
        if not isinstance(model, Orbit):
            raise
    options = {"group": model.group.name, "num_classes": model.num_classes, **asdict(model.design)}
    return ModelConfig(AROUND, {**options, "around": type(model.model).__name__})


def _tensors_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the state dict; tensors that share memory are stored one by one."""
    state = model.state_dict()
    odd = next((key for key, value in state.items() if not isinstance(value, torch.Tensor)), None)
    require(odd is None, f"{odd} is no tensor, and only tensors are stored.")
    return {key: value.detach().cpu().contiguous().clone() for key, value in state.items()}


def _require_named(config: ModelConfig, classes: list[str]) -> None:
    """Raise unless there is a name for every class, or for none."""
    count = config.options.get("num_classes")
    require(
        not classes or len(classes) == count,
        f"{len(classes)} class names were given for a model of {count} classes.",
    )


def _require_loadable(model: nn.Module, config: ModelConfig) -> None:
    """Raise unless the model is what its configuration builds."""
    with torch.random.fork_rng(devices=[]):
        try:
            fresh = create_model(config.name, **config.options).state_dict()
        except InputError:  # weights that it started from may have moved
            return
    shapes = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    wanted = {key: tuple(value.shape) for key, value in fresh.items()}
    other = next((key for key in shapes | wanted if shapes.get(key) != wanted.get(key)), None)
    if other is not None:
        raise InputError(
            f"{other} is {shapes.get(other, 'missing')} and must be {wanted.get(other, 'missing')} "
            f"in a {config.name} with these options: a layer was replaced. Create the model with "
            "the options it should have, or use reset_classifier."
        )


def load(
    folder: str | os.PathLike[str], factory: Callable[[], nn.Module] | None = None
) -> nn.Module:
    """Open what `save` wrote, the model of a run folder, or pretrained weights by name.

    Args:
        folder: what to open.
        factory: builds the module inside an orbit that `create_model` did not build; its weights
            are replaced by those in the folder.

    The model is in eval mode.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load as from_bytes

    folder = find_model(folder)
    config = read_config(folder)
    require_as_described(folder, config)
    try:
        weights = (folder / WEIGHTS).read_bytes()
    except OSError as error:
        raise InputError(f"{folder / WEIGHTS} cannot be read: {error.strerror}.") from error
    require(
        hashlib.sha256(weights).hexdigest() == config["sha256"],
        f"{folder / WEIGHTS} is not the file that {CONFIG} describes (its hash differs); "
        "copy the whole folder again.",
    )
    try:
        model = _build(config, factory, folder)
        model.load_state_dict(from_bytes(weights))
    except (InputError, SafetensorError, RuntimeError, TypeError) as error:
        raise InputError(f"{folder} does not hold a usable model: {error}") from error
    model.classes = tuple(config["classes"])  # type: ignore[assignment]
    model.target = config.get("target", {})
    model.fill = config.get("fill", "")
    return model.eval()


def _build(
    config: dict[str, Any], factory: Callable[[], nn.Module] | None, folder: Path
) -> nn.Module:
    """Build the model that a configuration describes, with any weights."""
    options = dict(config["options"])
    if config["name"] != AROUND:
        require(factory is None, f"{config['name']} is built by its name; give no factory.")
        return create_model(config["name"], **stored_options(config["name"], options))
    around, _ = options.pop("around", "module"), options.pop("num_classes", None)
    if factory is None:
        raise InputError(
            f"it is an orbit around a {around} of your own, and nothing in a folder is executed; "
            f"open it by turnwise.load({str(folder)!r}, factory=…) with a function that builds the "
            f"{around}, or export the orbit to a file."
        )
    group = PlanarGroup.named(options.pop("group", ""))
    return Orbit(factory(), group, from_plain(OrbitDesign, options, str(folder)))


def find_model(folder: str | os.PathLike[str]) -> Path:
    """Return the folder itself, the model folder of a run, or that of pretrained weights."""
    folder = pretrained_folder(folder) or Path(folder)
    for candidate in (folder, folder / FOLDER):
        if (candidate / CONFIG).is_file():
            require((candidate / WEIGHTS).is_file(), f"{candidate} has no {WEIGHTS}.")
            return candidate
    names = "" if folder.exists() else ", ".join(list_pretrained())
    hint = f" Pretrained weights are: {names}." if names else ""
    if folder.is_dir() and not hint:
        hint = " (A run has none before its training ends.)"
    raise InputError(f"{folder} is not a model or run folder: it has no {CONFIG}.{hint}")


def weights_hash(folder: str | os.PathLike[str]) -> str | None:
    """Return the hash of the weights in a model folder, None if there are none."""
    path = Path(folder) / WEIGHTS
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def read_config(folder: Path) -> dict[str, Any]:
    """Return the parsed configuration of a model folder, with the keys it must have."""
    path = folder / CONFIG
    try:
        config = read_json(path)
    except InputError as error:
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
