"""Open a model from what a user names: a run, a folder, a file, code, or a registered name."""

import hashlib
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from turnwise.data.catalogue import CATALOGUE
from turnwise.errors import InputError, require
from turnwise.inference.exported import FileModel, open_file
from turnwise.models import create_model, list_models, load
from turnwise.models.registry import config_of
from turnwise.models.storage import find_model, read_config
from turnwise.models.weights import forbids_commerce, pretrained_folder, read_card
from turnwise.options import parse_value
from turnwise.runs.run import Run
from turnwise.training.recipe import make_recipe

FILES = (".pt2", ".onnx")


def open_model(
    target: str, settings: Sequence[str] = (), *, group: str = "", seed: int = 0
) -> nn.Module:
    """Return the model that `target` names.

    Args:
        target: a run folder, a model folder, the name of pretrained weights, a .pt2 or .onnx file,
            "module:callable", or the name of a registered model.
        settings: options of a registered model or of the callable, as key=value.
        group: the group of a registered model (default C4).
        seed: draws the weights of an untrained model.
    """
    path = Path(target)
    is_folder = path.is_dir() or pretrained_folder(path) is not None
    if is_folder or path.suffix.lower() in FILES:
        kind = "folder" if is_folder else "file"
        require(not settings, f"{target} is a {kind} and takes no options; leave them out.")
        return open_trained(path) if is_folder else open_file(path)
    if is_code(target):
        return open_callable(target, read_settings(settings), seed)
    require(
        target in list_models() or not set("/.") & set(target),
        f"{target} is neither a folder nor a model; `turnwise models` lists the models.",
    )
    torch.manual_seed(seed)
    return create_model(target, **{"group": group or "C4", **read_settings(settings)})


def open_trained(target: str | Path) -> nn.Module:
    """Return the model of a run, a model folder or an exported file, or pretrained weights."""
    if Path(target).suffix.lower() in FILES:
        return open_described(target)
    run = Run(target)
    return run.model() if run.exists else load(target)


def fill_of(target: str | Path) -> str:
    """Return the fill mode that a model was trained with; "zeros" if nothing states it."""
    run, folder = Run(target), pretrained_folder(target)
    if run.exists:
        return run.recipe.data.fill
    if folder is not None:
        return make_recipe(read_card(folder)["recipe"], stored=True).data.fill
    stated = read_config(find_model(target)).get("fill") if Path(target).is_dir() else ""
    return str(stated or "zeros")


def open_described(target: str | Path) -> FileModel:
    """Return the model in a file that states its classes, as files of `turnwise.export` do."""
    model = open_file(target)
    require(
        model.description is not None,
        f"{target} does not state its classes and its preprocessing; export it with turnwise, or "
        "give the model that it was made from.",
    )
    return model


def weights_licence(target: str | Path) -> str:
    """Return the licence of trained weights where it is known, else an empty string.

    Pretrained weights state it on their card.  Weights of a run have the licence of their data if
    that forbids commercial use.
    """
    folder, run = pretrained_folder(target), Run(target)
    if folder is not None:
        return str(read_card(folder)["licence"])
    if not run.exists or run.recipe.data.name not in CATALOGUE:
        return ""
    licence = CATALOGUE[run.recipe.data.name].licence
    return licence if forbids_commerce(licence) else ""


def is_code(target: str) -> bool:
    """Return whether a target is module:callable, code that runs when it is opened."""
    return ":" in target and not Path(target).is_dir() and Path(target).suffix not in FILES


def open_callable(name: str, options: dict[str, Any], seed: int = 0) -> nn.Module:
    """Return what module:callable makes.  This imports and runs the code that the user named."""
    module, _, attribute = name.partition(":")
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        made = getattr(importlib.import_module(module), attribute)
        torch.manual_seed(seed)  # not before the import, which happens once and may draw, too
        made = made if isinstance(made, nn.Module) else made(**options)
    except (Exception, SystemExit) as error:  # foreign code may raise anything, or exit
        raise InputError(
            f"{name} cannot be made: {str(error) or type(error).__name__}; write module:callable, "
            "the name of something that can be imported here and returns an nn.Module."
        ) from error
    finally:
        sys.path.remove(here)
    require(
        isinstance(made, nn.Module),
        f"{name} returns a {type(made).__name__}; it must return an nn.Module.",
    )
    require(
        not any(is_lazy(tensor) for tensor in [*made.parameters(), *made.buffers()]),
        f"{name} has lazy layers without weights; call it once on images before it is used.",
    )
    return made


def read_settings(settings: Sequence[str]) -> dict[str, Any]:
    """Return the values of key=value, read as YAML."""
    options = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        require(bool(equals), f"an option is written key=value, e.g. width=64, got {setting!r}.")
        require(key != "name", f"{setting} is no option; the model's name comes first, alone.")
        options[key] = parse_value(text, setting)
    return options


def image_shape(model: nn.Module) -> tuple[int | None, int | None]:
    """Return the channels and the side of the images that a model takes, where it is known."""
    if isinstance(model, FileModel):
        return model.shape[1], model.shape[2]
    try:
        options = config_of(model).options
    except InputError:  # not made by name
        return None, None
    return options.get("in_chans"), options.get("image_size")


def class_names(model: nn.Module) -> tuple[str, ...]:
    """Return the names of the model's classes, or their numbers."""
    names = tuple(getattr(model, "classes", ()))
    count = getattr(model, "num_classes", 0)
    return names or tuple(str(number) for number in range(count))


def certificate_hash(target: str) -> str:
    """Return the hash of the certificate in a run or model folder; empty if there is none."""
    file = Run(target).certificate_file
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else ""


def hash_weights(model: nn.Module) -> str:
    """Return one hash of the names and bytes of all weights and buffers; of a file, its bytes."""
    if isinstance(model, FileModel):
        return model.sha256
    digest = hashlib.sha256()
    for part in model.modules():
        if isinstance(part, FileModel):
            digest.update(part.sha256.encode())
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(
            value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        )
    return digest.hexdigest()
