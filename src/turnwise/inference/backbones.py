"""Backbones by name, as models that return one invariant vector per image.

    timm:NAME        a model of timm, with its pretrained weights
    hf:NAME          a model of transformers, from the Hub's cache or a folder
    onnx:FILE        an ONNX file; pt2:FILE a file of torch.export; either also without a prefix
    RUN, MODEL       a run, a model folder, or the name of pretrained weights
    module:callable  code, which is imported and run

Sizes and normalisation come from the backbone's own configuration.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from turnwise.errors import InputError, import_extra, require, require_known
from turnwise.groups import PlanarGroup
from turnwise.inference.exported import FileModel, open_file
from turnwise.inference.loading import FILES, image_shape, is_code, open_callable, open_trained
from turnwise.inference.preparation import Preparation, commutation_error
from turnwise.models.embedding import Embedding
from turnwise.models.orbits import orbit

DEFAULT_SIZE = 224  # of a backbone that does not state it
COMBINATIONS = ("mean", "max", "sum")
PLAIN = "none"  # the combination that uses the backbone as it is
SETTINGS = ("preprocessor_config.json",)  # beside a folder's weights, as transformers writes it
RESAMPLING = {2: "bilinear", 3: "bicubic"}  # Pillow's numbers, as transformers stores them
Images = Float[Tensor, "batch channel row col"]


class Normalised(nn.Module):
    """(x − mean) / std, channel by channel."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float64).view(-1, 1, 1))
        self.register_buffer("std", torch.tensor(std, dtype=torch.float64).view(-1, 1, 1))

    def forward(self, images: Images) -> Images:
        return (images - self.mean.to(images)) / self.std.to(images)


class Backbone(NamedTuple):
    """A model, what it takes, and what was changed so that this commutes with rotations."""

    model: nn.Module
    preparation: Preparation
    preprocess: Callable[..., Tensor] | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class BackboneName:
    """A backbone by name, and how its vectors become invariant; it can be sent to a process.

    Args:
        name: as above.
        group: the group of the orbit; empty leaves the backbone as it is, or its own group.
        combine: how the vectors of all views are combined, "none" for no orbit.
        pool: how tokens become a vector.
        size: the side of the images, where the backbone does not state it.
    """

    name: str
    group: str = ""
    combine: str = "mean"
    pool: str = "auto"
    size: int = 0

    def open(self) -> nn.Module:
        """Return the model: images in [0, 1] in, vectors out."""
        return _open(self).model

    def backbone(self) -> Backbone:
        return _open(self)


@dataclass(frozen=True)
class ClassifierName:
    """A trained classifier by name; it can be sent to a process."""

    name: str

    def open(self) -> nn.Module:
        """Return the model: images in [0, 1] in, logits out."""
        return _open_classifier(self.name)

    def preparation(self) -> Preparation:
        channels, size = image_shape(self.open())
        return Preparation(size or DEFAULT_SIZE, channels or 3)


@lru_cache(maxsize=1)
def _open_classifier(name: str) -> nn.Module:
    return open_trained(name)


@lru_cache(maxsize=1)
def _open(name: BackboneName) -> Backbone:
    require_known(name.combine, (*COMBINATIONS, PLAIN), "combination of vectors")
    found = open_backbone(name.name, name.size)
    symmetric = found.preparation.symmetrised()
    error, notes = commutation_error(symmetric), found.notes
    require(
        error == 0,
        f"preparing the images of {name.name} does not commute with rotations (by {error} grey "
        "levels); choose another size.",
    )
    if symmetric != found.preparation:
        notes += (
            f"the images are resampled to {symmetric.resize} pixels before the crop to "
            f"{symmetric.size}, not to {found.preparation.resize}, so that the crop is central",
        )
    model: nn.Module = Embedding(found.model, name.pool, found.preprocess).eval()
    wanted = PlanarGroup.named(name.group) if name.group else None
    own = getattr(model, "group", PlanarGroup(1))
    if wanted is not None and name.combine != PLAIN and not _covers(own, wanted):
        model = orbit(model, wanted, combine=name.combine)
    return Backbone(model, symmetric, None, notes)


def _covers(own: PlanarGroup, wanted: PlanarGroup) -> bool:
    """Return whether a model of the group `own` is invariant under `wanted`."""
    return own.rotations % wanted.rotations == 0 and own.reflections >= wanted.reflections


def open_backbone(name: str, size: int = 0) -> Backbone:
    """Open a backbone by name, without an orbit; `size` is for one that does not state it."""
    prefix, colon, rest = name.partition(":")
    if colon and prefix in OPENERS:
        return OPENERS[prefix](rest, size)
    path = Path(name)
    if path.suffix.lower() in FILES:
        return _open_file(name, size)
    model = open_callable(name, {}) if is_code(name) else open_trained(name)
    channels, side = image_shape(model)
    return Backbone(model, Preparation(side or size or DEFAULT_SIZE, channels or 3))


def _open_file(name: str, size: int) -> Backbone:
    model = open_file(name)
    rows, cols = model.shape[2:]
    require(
        rows == cols, f"{name} takes images of {rows}×{cols} pixels; a rotation needs square ones."
    )
    return Backbone(FileBackbone(model), Preparation(rows or size or DEFAULT_SIZE, model.shape[1]))


class FileBackbone(nn.Module):
    """A model in a file, for any number of images and in any precision around it."""

    def __init__(self, file: FileModel) -> None:
        super().__init__()
        self.file = file
        self.group = getattr(file, "group", PlanarGroup(1))  # stated by files of turnwise.export

    def preprocess(self, images: Images) -> Images:
        inner = self.file.preprocess
        return images if inner is None else inner(images)

    def forward(self, images: Images) -> Tensor:
        own = getattr(torch, self.file.precision)
        batch = self.file.batch or len(images)
        vectors = torch.cat([self._run(chunk, batch) for chunk in images.to(own).split(batch)])
        return vectors.to(images)

    def _run(self, images: Images, batch: int) -> Tensor:
        count = len(images)
        filled = torch.cat([images, images[-1:].expand(batch - count, *images.shape[1:])])
        outputs = self.file.outputs(filled)
        return outputs.get("embedding", outputs["logits"])[:count]


def _open_timm(name: str, size: int) -> Backbone:
    timm = import_extra("timm", "timm", "timm:NAME")
    try:
        model = timm.create_model(name, pretrained=True, num_classes=0)
    except Exception as error:  # an unknown name, or no network: many kinds of exceptions
        raise _cannot_open(f"timm:{name}", error) from error
    config = timm.data.resolve_model_data_config(model)
    side, share = config["input_size"][-1], config.get("crop_pct") or 1.0
    preparation = Preparation(
        side, config["input_size"][0], max(side, round(side / share)),
        _mode(config.get("interpolation", "bilinear")),
    )  # fmt: skip
    model.prefix = getattr(model, "num_prefix_tokens", None)
    return Backbone(model, preparation, Normalised(config["mean"], config["std"]))


def _open_transformers(name: str, size: int) -> Backbone:
    transformers = import_extra("transformers", "hf", "hf:NAME")
    try:
        model = transformers.AutoModel.from_pretrained(name, trust_remote_code=False)
        model = getattr(model, "vision_model", model)  # of a pair of image and text
        settings = _image_settings(transformers, name)
    except Exception as error:  # no such folder, no network, a damaged file: many exceptions
        raise _cannot_open(f"hf:{name}", error) from error
    config = model.config
    side = int(_side(settings.get("crop_size")) or _side(settings.get("size")) or size
               or _side(getattr(config, "image_size", None)) or DEFAULT_SIZE)  # fmt: skip
    before = _side(settings.get("size")) if settings.get("do_center_crop", True) else None
    channels = int(getattr(config, "num_channels", 3))
    preparation = Preparation(
        side, channels, max(side, int(before or side)), _mode(settings.get("resample", 2))
    )
    registers = int(getattr(config, "num_register_tokens", 0) or 0)
    model.prefix = 1 + registers
    if not settings.get("do_normalize", bool(settings)):
        return Backbone(model, preparation, None, () if settings else (NO_SETTINGS,))
    preprocess = Normalised(settings["image_mean"], settings["image_std"])
    return Backbone(model, preparation, preprocess)


NO_SETTINGS = "the backbone states no normalisation, so images stay in [0, 1]"


def _image_settings(transformers: Any, name: str) -> dict[str, Any]:
    """Return the image settings of a folder or of the Hub; empty if there are none."""
    folder = Path(name)
    if folder.is_dir():
        found = [folder / file for file in SETTINGS if (folder / file).is_file()]
        return json.loads(found[0].read_text(encoding="utf-8")) if found else {}
    return dict(transformers.AutoImageProcessor.from_pretrained(name).to_dict())


def _side(size: Any) -> int | None:
    """Return the side of a square size, as transformers writes it in several ways."""
    if isinstance(size, dict):
        sides = {value for value in size.values() if isinstance(value, int)}
        require(len(sides) == 1, f"the backbone takes images of {size}; they must be square.")
        return next(iter(sides))
    return size if isinstance(size, int) else None


def _mode(resampling: Any) -> str:
    name = RESAMPLING.get(resampling, resampling)
    require_known(str(name), RESAMPLING.values(), "interpolation of a backbone")
    return str(name)


def _cannot_open(name: str, error: Exception) -> InputError:
    reason = " ".join(str(error).split())[:200] or type(error).__name__
    return InputError(f"{name} cannot be opened: {reason}")


OPENERS: dict[str, Callable[[str, int], Backbone]] = {
    "timm": _open_timm,
    "hf": _open_transformers,
    "onnx": _open_file,
    "pt2": _open_file,
}
