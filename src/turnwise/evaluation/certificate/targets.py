"""What a user asks to certify, found and opened: runs, folders, names, code, files.

A request is everything that a certificate depends on beside the weights and the pictures; it is
kept in the certificate, so that `turnwise verify` can ask the same again.
"""

import importlib
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import yaml
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from turnwise.data import load_dataset
from turnwise.data.batches import to_unit
from turnwise.errors import InputError, require, require_kind
from turnwise.evaluation.certificate.certificate import Certificate
from turnwise.evaluation.certificate.certify import certify
from turnwise.evaluation.certificate.measurement import Scope
from turnwise.evaluation.certificate.scores import (
    answerer,
    own_precisions,
    score_change,
    with_noise,
)
from turnwise.groups import PlanarGroup
from turnwise.inference.exported import FileModel, open_file
from turnwise.models import create_model, list_models, load
from turnwise.models.registry import config_of
from turnwise.models.shipped import shipped_folder
from turnwise.runs.train import load_run_data
from turnwise.training.recipe import read_recipe

FILES = (".pt2", ".onnx")
UNKNOWN_SIZE, UNKNOWN_CHANNELS = 28, 1  # of a model that does not say: those of the digits


@dataclass(frozen=True)
class Request:
    """What to certify and how: empty and 0 mean the model's own.

    target     a run, a model folder, the name of shipped weights or of a model,
               "module:callable", a .pt2 or .onnx file
    settings   options of a named model or of the callable, as key=value
    data       a data set, of whose validation split the pictures are
    against    the target that a file was exported from
    """

    target: str
    group: str = ""
    settings: tuple[str, ...] = ()
    seed: int = 0
    pictures: int = 32
    data: str = ""
    size: int = 0
    channels: int = 0
    angles: int = 24
    shifts: int = 1
    sizes: tuple[int, ...] = ()
    precisions: tuple[str, ...] = ("float64", "float32")
    layers: bool = True
    chunk: int = 64
    against: str = ""

    def __post_init__(self) -> None:
        require(
            self.pictures >= 2 and self.angles >= 1,
            "--pictures must be at least 2 and --angles at least 1.",
        )
        require(0 <= self.seed < 2**32, f"--seed {self.seed} must be from 0 to 2^32 − 1.")
        require(
            self.size >= 0 and self.channels in (0, 1, 3),
            f"--size {self.size} must be positive, --channels {self.channels} must be 1 or 3.",
        )
        if self.group:
            PlanarGroup.named(self.group)
        self.scope()

    def scope(self, progress: bool = False) -> Scope:
        return Scope(self.shifts, self.sizes, self.precisions, self.layers, self.chunk, progress)

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}


def read_request(plain: dict[str, Any]) -> Request:
    """The request that a certificate kept."""
    known = Request("").plain()
    misfit = {"target"} - plain.keys() | plain.keys() - known.keys()
    require(not misfit, f"its request lacks or does not know {', '.join(sorted(misfit))}.")
    for name, value in plain.items():
        require_kind(value, tuple if isinstance(known[name], list) else type(known[name]), name)
    kinds = {"settings": str, "sizes": int, "precisions": str}
    for name, kind in kinds.items():
        for item in plain.get(name, ()):
            require_kind(item, kind, f"an item of {name}")
    lists = {name: tuple(value) for name, value in plain.items() if isinstance(value, list)}
    return Request(**{**plain, **lists})


def open_target(request: Request) -> nn.Module:
    """The model that the request names, its random weights drawn from the seed."""
    path, settings = Path(request.target), request.settings
    is_folder = path.is_dir() or shipped_folder(path) is not None
    if is_folder or path.suffix.lower() in FILES:
        kind = "folder" if is_folder else "file"
        require(not settings, f"{request.target} is a {kind} and takes no options; leave them out.")
        return load(path) if is_folder else open_file(path)
    if is_code(request.target):
        return open_callable(request.target, read_options(settings), request.seed)
    torch.manual_seed(request.seed)
    require(
        request.target in list_models() or not set("/.") & set(request.target),
        f"{request.target} is neither a folder nor a model; see turnwise models.",
    )
    group = request.group or "C4"
    return create_model(request.target, **{"group": group, **read_options(settings)})


def is_code(target: str) -> bool:
    """Whether a target is module:callable, code that runs when it is opened."""
    return ":" in target and not Path(target).is_dir() and Path(target).suffix not in FILES


def open_original(request: Request) -> tuple[str, nn.Module] | None:
    """The model that the target was exported from, if the request names one."""
    if not request.against:
        return None
    return request.against, open_target(replace(request, target=request.against, settings=()))


def open_callable(name: str, options: dict[str, Any], seed: int = 0) -> nn.Module:
    """What module:callable makes.  This imports and runs the code that the user named."""
    module, _, attribute = name.partition(":")
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        made = getattr(importlib.import_module(module), attribute)
        torch.manual_seed(seed)  # not before the import, which happens once and may draw, too
        made = made if isinstance(made, nn.Module) else made(**options)
    except (Exception, SystemExit) as error:  # code of others may raise anything, or leave
        raise InputError(
            f"{name} cannot be made: {str(error) or type(error).__name__}; write module:callable, "
            "the name of something that can be imported here and called for an nn.Module."
        ) from error
    finally:
        sys.path.remove(here)
    require(
        isinstance(made, nn.Module),
        f"{name} gives a {type(made).__name__}; it must give an nn.Module.",
    )
    require(
        not any(is_lazy(tensor) for tensor in [*made.parameters(), *made.buffers()]),
        f"{name} has lazy layers without weights; call it once on pictures before it is given.",
    )
    return made


def read_options(given: tuple[str, ...]) -> dict[str, Any]:
    """The values of key=value, read as YAML."""
    options = {}
    for option in given:
        key, equals, text = option.partition("=")
        require(bool(equals), f"an option is written key=value, e.g. width=64, got {option!r}.")
        require(key != "name", f"{option} is no option; the model's name stands first, alone.")
        try:
            options[key] = yaml.safe_load(text)
        except yaml.YAMLError:
            raise InputError(f"the value of {option!r} cannot be read; try width=64.") from None
    return options


def own_group(request: Request, model: nn.Module) -> str:
    """What the model promises; a plain one is held against its recipe's group, or C4."""
    promised = getattr(model, "group", None)
    if isinstance(promised, PlanarGroup) and promised.order > 1:
        return promised.name
    recipe = Path(request.target) / "recipe.yaml"
    return read_recipe(recipe).model.group if recipe.is_file() else "C4"


def choose_pictures(
    request: Request, model: nn.Module, data_dir: str | None = None
) -> tuple[Float[Tensor, "picture channel row col"], str]:
    """A run's own validation pictures, those of the data set asked for, or embedded digits."""
    run = Path(request.target)
    if not request.data and (run / "recipe.yaml").is_file():
        dataset = load_run_data(run, read_recipe(run / "recipe.yaml"), data_dir)
        own = (dataset.channels, dataset.image_size)
        require(
            request.channels in (0, own[0]) and request.size in (0, own[1]),
            f"the pictures of {run} have {own[0]} channels and {own[1]} pixels a side; leave "
            "--channels and --size out, or name other pictures with --data.",
        )
        return (
            to_unit(dataset.val.images[: request.pictures]),
            f"validation pictures of {dataset.name}",
        )
    channels, size = picture_form(request, model)
    if not request.data:
        return noisy_digits(request.pictures, channels, size), (
            "embedded digits, resampled, with noise"
        )
    dataset = load_dataset(request.data, data_dir=data_dir, image_size=size, channels=channels)
    words = f"validation pictures of {dataset.name}"
    return to_unit(dataset.val.images[: request.pictures]), words


def picture_form(request: Request, model: nn.Module) -> tuple[int, int]:
    """(channels, size) that the request asks for, or that the model says of itself."""
    channels: int | None = None
    size: int | None = None
    if isinstance(model, FileModel):
        channels, size = model.shape[1], model.shape[2]
    else:
        options = _options_of(model)
        channels, size = options.get("in_chans"), options.get("image_size")
    return (
        request.channels or channels or UNKNOWN_CHANNELS,
        request.size or size or UNKNOWN_SIZE,
    )


def _options_of(model: nn.Module) -> dict[str, Any]:
    try:
        return dict(config_of(model).options)
    except InputError:  # not made by name
        return {}


def noisy_digits(count: int, channels: int, size: int) -> Float[Tensor, "picture channel row col"]:
    """Embedded digits of this size; noise in all, so that nothing is blank."""
    digits = load_dataset("digits", image_size=size)
    images = to_unit(digits.val.images[:count]).repeat(1, channels, 1, 1)
    return with_noise(images)


def certify_request(
    request: Request,
    model: nn.Module,
    data_dir: str | None = None,
    *,
    device: torch.device | str = "cpu",
    progress: bool = False,
) -> tuple[Certificate, Tensor]:
    """Measure the model as the request says, and keep the request; beside it, the pictures."""
    images, origin = choose_pictures(request, model, data_dir)
    require_answers(request, model, images)
    original = open_original(request)
    if isinstance(model, FileModel) and original is not None:
        prepare_alike(model, original[1], images)
    certificate = certify(
        placed(model, device), request.group, images,
        target=request.target, pictures=origin, angles=request.angles,
        scope=request.scope(progress), original=original,
    )  # fmt: skip
    return replace(certificate, request=request.plain()), images


def prepare_alike(
    model: FileModel, original: nn.Module, images: Float[Tensor, "picture channel row col"]
) -> None:
    """Let the file's pictures be prepared as its original's are, where it then answers like it.

    A file may have been exported with that preparation inside, or without; it cannot tell.
    """
    prepare, model.preprocess = getattr(original, "preprocess", None), None
    (precision,) = own_precisions(original, (model.precision,))
    few = images[:8]
    theirs = answerer(original, precision, 8)(few)
    ours = answerer(model, model.precision, 8)(few)
    if prepare is None or ours.shape != theirs.shape:
        return
    model.preprocess = prepare
    prepared = answerer(model, model.precision, 8)(few)
    if score_change(theirs, ours) <= score_change(theirs, prepared):
        model.preprocess = None


def placed(model: nn.Module, device: torch.device | str) -> nn.Module:
    """The model on the device; a file's program stays where it was exported to run."""
    return model if isinstance(model, FileModel) else model.to(device)


def require_answers(request: Request, model: nn.Module, images: Tensor) -> None:
    """Raise, in one line, if a model of others cannot take the pictures at all."""
    (precision,) = own_precisions(model, request.precisions[:1])
    try:
        answerer(model, precision, 1)(images[:1])
    except InputError:
        raise
    except (Exception, SystemExit) as error:  # code of others may raise anything, or leave
        if "memory" in str(error):
            raise
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise InputError(
            f"{request.target} cannot answer pictures of shape {tuple(images.shape[1:])} "
            f"({reason}); say --size and --channels."
        ) from error
