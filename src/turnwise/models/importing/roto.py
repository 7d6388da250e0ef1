"""Import networks that PoolFormer and Roto-MetaFormer trained.

The file determines all sizes, and which stages have attention.  The rest is taken as published: the
image size, the mean and standard deviation of the images, the norm (over the image where all stages
pool, over the channels where one attends), and whether the convolutions are equivariant.

Both programs use the same keys.  Their list `network` holds stages and, between them, convolutions:
stage n is entry 2n, the convolution before it entry 2n − 1; the first one is `patch_embed`.  In
files with RotoConv each of these convolutions is wrapped: `proj.conv1.weight` for `proj.weight`.
The programs keep the 1,000 outputs of ImageNet for every data set and use the first ones only.
"""

import re
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path

import torch
from torch import nn

from turnwise.errors import InputError, require, require_known
from turnwise.models.importing.checkpoints import (
    Counterpart,
    Weights,
    fill_strictly,
    import_weights,
    shape_of,
)
from turnwise.models.metaformer import DESIGNS, MetaFormer
from turnwise.models.registry import create_model

MIXER = {
    "mixer.attention.to_query_key_value": ("token_mixer.qkv", ("weight",)),
    "mixer.attention.to_output": ("token_mixer.proj", ("weight", "bias")),
}
BLOCK = {
    "norm_mixer": ("norm1", ("weight", "bias")),
    "norm_mlp": ("norm2", ("weight", "bias")),
    "mlp.0": ("mlp.fc1", ("weight", "bias")),
    "mlp.2": ("mlp.fc2", ("weight", "bias")),
}
SCALES = {"scale_mixer": "layer_scale_1", "scale_mlp": "layer_scale_2"}
WRAPPED = ".proj.conv1."  # a convolution inside RotoConv

Counterparts = dict[str, Counterpart]


@dataclass(frozen=True)
class RotoProgram:
    """An original program: whether it is equivariant, and the images that it was trained on."""

    roto: bool
    image_size: int
    mean: tuple[float, ...]  # of the channels, or one number for any
    std: tuple[float, ...]


ROTO_ORIGINS = {
    "poolformer": RotoProgram(False, 224, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "metaformer": RotoProgram(False, 128, (0.0,), (1.0,)),
    "roto-metaformer": RotoProgram(True, 128, (0.0,), (1.0,)),
}


def import_roto_original(
    path: str | Path, origin: str, image_size: int | None = None, classes: int | None = None
) -> nn.Module:
    """Build the network in a state dict of PoolFormer or Roto-MetaFormer, in eval mode.

    "metaformer" is a network of Roto-MetaFormer's program that was trained without RotoConv.
    With `classes` only the first outputs are kept, as the program does for its data sets.
    """
    require_known(origin, ROTO_ORIGINS, "origin")
    build = partial(build_roto_original, origin=origin, image_size=image_size, classes=classes)
    return import_weights(path, build)


def build_roto_original(
    weights: Weights, origin: str, image_size: int | None = None, classes: int | None = None
) -> nn.Module:
    """Build the model that computes with these weights what the program `origin` does."""
    program = ROTO_ORIGINS[origin]
    weights = _unwrapped(weights, origin)
    name = _published_name(weights)
    weights = _first_classes(weights, classes)
    channels = shape_of(weights, f"{convolution(0)}.weight", [4], ROTO_ORIGINS)[1]
    require(
        len(program.mean) in (1, channels),
        f"it takes images of {channels} channels, and {origin}'s have {len(program.mean)}.",
    )
    model = create_model(
        f"roto_{name}" if program.roto else name,
        group="D4" if program.roto else "C1",
        num_classes=len(weights["head.weight"]),
        in_chans=channels,
        image_size=program.image_size if image_size is None else image_size,
        qk_norm=False,
        **({"reduce": "legacy"} if program.roto else {}),
    )
    assert isinstance(model, MetaFormer)
    fill_strictly(model, counterparts_of(model), weights)
    model.preprocess.mean.copy_(torch.tensor(program.mean))
    model.preprocess.spread.copy_(torch.tensor(program.std))
    return model.eval()


def _unwrapped(weights: Weights, origin: str) -> Weights:
    """Return the weights with the keys of plain convolutions; RotoConv wraps all of them."""
    program, wrapped = ROTO_ORIGINS[origin], [key for key in weights if WRAPPED in key]
    plain = [key for key in weights if re.search(r"\.proj\.(weight|bias)$", key)]
    plain = [key for key in plain if "token_mixer" not in key]
    require(
        program.roto or not wrapped,
        f"it has {wrapped[:1]}, a convolution inside RotoConv; import it as roto-metaformer.",
    )
    require(
        not (program.roto and plain),
        f"it has {plain[:1]}, a convolution without RotoConv; import it as metaformer.",
    )
    return {key.replace(WRAPPED, ".proj."): values for key, values in weights.items()}


def _first_classes(weights: Weights, classes: int | None) -> Weights:
    """Return the weights with the first outputs of the head, or all of them."""
    outputs = shape_of(weights, "head.weight", [2], ROTO_ORIGINS)[0]
    if classes is None:
        return weights
    require(
        1 <= classes <= outputs,
        f"classes = {classes} must be from 1 to its {outputs} outputs.",
    )
    head = {key: weights[key][:classes] for key in ("head.weight", "head.bias") if key in weights}
    return weights | head


def _published_name(weights: Weights) -> str:
    """Return the published model that has these depths, widths and mixers."""
    require(
        not any("pos_embed" in key for key in weights),
        "it adds absolute positions before attention, which are not equivariant; only networks "
        "without them can be imported.",
    )
    depths, widths, mixers = list[int](), list[int](), ""
    for stage in count():
        if f"{convolution(stage)}.weight" not in weights:
            break
        widths.append(shape_of(weights, f"{convolution(stage)}.weight", [4], ROTO_ORIGINS)[0])
        found = (re.match(rf"network\.{2 * stage}\.(\d+)\.", key) for key in weights)
        depths.append(len({match[1] for match in found if match is not None}))
        attends = f"{block(stage, 0)}.token_mixer.qkv.weight" in weights
        mixers += "a" if attends else "p"
    for name, design in DESIGNS.items():
        if (tuple(depths), tuple(widths), mixers) == (design.depths, design.widths, design.mixers):
            return name
    raise InputError(
        f"it has stages of {depths} blocks, {widths} channels and mixers {mixers!r}, which no "
        f"published network has; known are {', '.join(DESIGNS)}."
    )


def convolution(stage: int) -> str:
    """Return the key of the convolution before a stage."""
    return "patch_embed.proj" if stage == 0 else f"network.{2 * stage - 1}.proj"


def block(stage: int, number: int) -> str:
    """Return the key of a block of a stage."""
    return f"network.{2 * stage}.{number}"


def counterparts_of(model: MetaFormer) -> Counterparts:
    """Return the counterpart of each of our parameters."""
    design = model.design
    pairs = _both("norm", "norm") | _both("head", "head")
    for stage, (depth, letter) in enumerate(zip(design.depths, design.mixers, strict=True)):
        pairs |= _both(f"embeddings.{stage}", convolution(stage))
        for number in range(depth):
            ours = f"stages.{stage}.{number}"
            pairs |= _block(ours, block(stage, number), attends=letter in "aw")
    return pairs


def _both(ours: str, theirs: str, names: tuple[str, ...] = ("weight", "bias")) -> Counterparts:
    return {f"{ours}.{name}": Counterpart(f"{theirs}.{name}") for name in names}


def _block(ours: str, theirs: str, attends: bool) -> Counterparts:
    pairs = {f"{ours}.{a}": Counterpart(f"{theirs}.{b}") for a, b in SCALES.items()}
    for name, (other, names) in (BLOCK | (MIXER if attends else {})).items():
        pairs |= _both(f"{ours}.{name}", f"{theirs}.{other}", names)
    return pairs
