"""What to certify, and on which images: a request, which the certificate stores.

A request is everything that a certificate depends on beside the weights and the images, so that
`turnwise verify` can measure the same again.
"""

from dataclasses import asdict, dataclass, fields, replace
from secrets import randbelow
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from turnwise.data import load_dataset
from turnwise.data.batches import to_unit
from turnwise.errors import InputError, require, require_kind
from turnwise.evaluation.certificate.certificate import Certificate
from turnwise.evaluation.certificate.certify import Scope, certify
from turnwise.evaluation.certificate.comparison import (
    logit_change,
    predict_logits,
    usable_precisions,
    with_noise,
)
from turnwise.geometry.warps import AUTO, choose_fill
from turnwise.groups import PlanarGroup
from turnwise.inference.exported import FileModel, to_bytes
from turnwise.inference.loading import image_shape, open_model
from turnwise.inference.predictor import Predictor
from turnwise.runs.run import Run

EARLIER: dict[str, Any] = {"fill": "zeros", "conditions": False, "fresh": 0}  # what 0.1 measured
DEFAULT_SIZE, DEFAULT_CHANNELS = 28, 1  # for a model that does not state them
Images = Float[Tensor, "image channel row col"]


@dataclass(frozen=True)
class Request:
    """What to certify and how; empty and 0 mean the model's own.

    target     what `inference.loading.open_model` opens
    settings   options of a registered model or of the callable, as key=value
    data       a data set, whose validation images are used
    against    the model that a file was exported from
    fill       the fill mode of rotations off the grid; "auto" is the run's, or suits the images
    """

    target: str
    group: str = ""
    settings: tuple[str, ...] = ()
    seed: int = 0
    images: int = 32
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
    fill: str = AUTO
    conditions: bool = True
    fresh: int = 16
    fresh_seed: int = -1
    thorough: bool = False

    def __post_init__(self) -> None:
        require(self.images >= 2, f"images = {self.images} must be at least 2.")
        require(self.angles >= 1, f"angles = {self.angles} must be at least 1.")
        require(0 <= self.seed < 2**32, f"seed = {self.seed} must be from 0 to 2^32 − 1.")
        require(self.size >= 0, f"size = {self.size} must be positive.")
        require(self.channels in (0, 1, 3), f"channels = {self.channels} must be 1 or 3.")
        if self.group:
            PlanarGroup.named(self.group)
        self.scope()

    def scope(self, progress: bool = False) -> Scope:
        return Scope(
            progress=progress, **{f.name: getattr(self, f.name) for f in fields(Scope)
                                  if f.name != "progress"}
        )  # fmt: skip

    def plain(self) -> dict[str, Any]:
        """Return the request as JSON stores it."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}


def read_request(plain: dict[str, Any]) -> Request:
    """Return the request that a certificate stores.

    Before 0.2 `images` was called `pictures`, and less was measured.
    """
    plain = {"images" if key == "pictures" else key: value for key, value in plain.items()}
    plain = EARLIER | plain
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
    """Return the model that the request names."""
    return open_model(request.target, request.settings, group=request.group, seed=request.seed)


def open_original(request: Request) -> tuple[str, nn.Module] | None:
    """Return the model that the target was exported from, if the request names one."""
    if not request.against:
        return None
    return request.against, open_target(replace(request, target=request.against, settings=()))


def default_group(request: Request, model: nn.Module) -> str:
    """Return the model's own group; a plain model is measured against that of its images, or C4."""
    own = getattr(model, "group", None)
    if isinstance(own, PlanarGroup) and own.order > 1:
        return own.name
    run = Run(request.target)
    return run.recipe.symmetry.name if run.exists else "C4"


def choose_images(
    request: Request, model: nn.Module, data_dir: str | None = None
) -> tuple[Images, str, str]:
    """Return validation images of the run or of the data set requested, or embedded digits.

    Also returns where they come from, in words, and the fill mode that suits them.
    """
    run = Run(request.target)
    if not request.data and run.exists:
        dataset = run.dataset(data_dir)
        own = (dataset.channels, dataset.image_size)
        require(
            request.channels in (0, own[0]) and request.size in (0, own[1]),
            f"the images of {run.path} have {own[0]} channels and {own[1]} pixels a side; leave "
            "channels and size out, or name another data set.",
        )
        return (
            to_unit(dataset.val.images[: request.images]),
            f"validation images of {dataset.name}",
            choose_fill(run.recipe.data.fill, dataset.train.images),
        )
    channels, size = image_shape(model)
    channels = request.channels or channels or DEFAULT_CHANNELS
    size = request.size or size or DEFAULT_SIZE
    if not request.data:
        words = "embedded digits, resampled, with noise"
        images = noisy_digits(request.images, channels, size)
        takes_bytes = isinstance(model, FileModel) and model.takes_bytes
        return (to_unit(to_bytes(images)) if takes_bytes else images), words, "zeros"
    dataset = load_dataset(request.data, data_dir=data_dir, image_size=size, channels=channels)
    words = f"validation images of {dataset.name}"
    fill = choose_fill(AUTO, dataset.train.images)
    return to_unit(dataset.val.images[: request.images]), words, fill


def noisy_digits(count: int, channels: int, size: int) -> Images:
    """Return embedded digits of this size, with noise, so that no region is blank."""
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
    """Certify the model as the request says; return the certificate and the images."""
    images, origin, fill = choose_images(request, model, data_dir)
    request = request if request.fill != AUTO else replace(request, fill=fill)
    if request.fresh_seed < 0:
        request = replace(request, fresh_seed=randbelow(2**32))
    require_predictions(request, model, images)
    original = open_original(request)
    if isinstance(model, FileModel) and original is not None:
        match_preprocessing(model, original[1], images)
    certificate = certify(
        to_device(model, device), request.group, images,
        target=request.target, images_from=origin, angles=request.angles,
        scope=request.scope(progress), original=original,
    )  # fmt: skip
    return replace(certificate, request=request.plain()), images


def match_preprocessing(model: FileModel, original: nn.Module, images: Images) -> None:
    """Use the original's preprocessing for a file if its outputs then agree with the original's.

    A file may have been exported with its preprocessing inside, or without; it does not say.
    """
    preprocess, model.preprocess = getattr(original, "preprocess", None), None
    (precision,) = usable_precisions(original, (model.precision,))
    few = images[:8]
    theirs = predict_logits(Predictor(original, batch_size=8, precision=precision), few)
    plain = predict_logits(Predictor(model, batch_size=8), few)
    if preprocess is None or plain.shape != theirs.shape:
        return
    model.preprocess = preprocess
    prepared = predict_logits(Predictor(model, batch_size=8), few)
    if logit_change(theirs, plain) <= logit_change(theirs, prepared):
        model.preprocess = None


def to_device(model: nn.Module, device: torch.device | str) -> nn.Module:
    """Return the model on the device; a file's program stays where it was exported to run."""
    return model if isinstance(model, FileModel) else model.to(device)


def require_predictions(request: Request, model: nn.Module, images: Tensor) -> None:
    """Raise, in one line, if a foreign model cannot take the images at all."""
    (precision,) = usable_precisions(model, request.precisions[:1])
    try:
        predict_logits(Predictor(model, batch_size=1, precision=precision), images[:1])
    except InputError:
        raise
    except (Exception, SystemExit) as error:  # foreign code may raise anything, or exit
        if "memory" in str(error):
            raise
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise InputError(
            f"{request.target} cannot take images of shape {tuple(images.shape[1:])} ({reason}); "
            "give their size and channels."
        ) from error
