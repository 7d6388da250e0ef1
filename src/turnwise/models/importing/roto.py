"""Networks that PoolFormer and Roto-MetaFormer trained, as models of ours.

The file tells all sizes and which stages attend.  What leaves no trace in it is taken as published:
the size of the pictures, their mean and spread, the norm (of the picture where all stages pool, of
the channels where one attends), and whether the convolutions turn.
"""

import re
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import torch
from torch import nn

from turnwise.errors import InputError, require, require_known
from turnwise.models.importing.checkpoints import Weights, fill_strictly, read_checkpoint_weights
from turnwise.models.importing.roto_keys import block, convolution, counterparts_of, is_buffer
from turnwise.models.metaformer import DESIGNS, MetaFormer
from turnwise.models.registry import create_model


@dataclass(frozen=True)
class RotoProgram:
    """An original program: whether its convolutions turn, and the pictures it was trained on."""

    roto: bool
    image_size: int
    mean: tuple[float, ...]  # of the channels, or one number for any
    spread: tuple[float, ...]


ROTO_ORIGINS = {
    "poolformer": RotoProgram(False, 224, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "metaformer": RotoProgram(False, 128, (0.0,), (1.0,)),
    "roto-metaformer": RotoProgram(True, 128, (0.0,), (1.0,)),
}


def import_roto_original(path: str | Path, origin: str, image_size: int | None = None) -> nn.Module:
    """The network in a state dict of PoolFormer or of Roto-MetaFormer, in eval mode.

    "metaformer" is a network of Roto-MetaFormer's program that was trained without RotoConv.
    """
    require_known(origin, ROTO_ORIGINS, "origin")
    weights = read_checkpoint_weights(path)
    try:
        return build_roto_original(weights, origin, image_size)
    except InputError as error:
        raise InputError(f"{path} cannot be imported: {error}") from error


def build_roto_original(weights: Weights, origin: str, image_size: int | None = None) -> nn.Module:
    """A model that computes with these weights what the program `origin` does."""
    program = ROTO_ORIGINS[origin]
    name = _published_name(weights)
    classes = _shape(weights, "head.weight", 2)[0]
    channels = _shape(weights, f"{convolution(0)}.weight", 4)[1]
    require(
        len(program.mean) in (1, channels),
        f"it takes pictures of {channels} channels, and {origin}'s have {len(program.mean)}.",
    )
    model = create_model(
        f"roto_{name}" if program.roto else name,
        group="D4" if program.roto else "C1",
        num_classes=classes,
        in_chans=channels,
        image_size=program.image_size if image_size is None else image_size,
        **({"reduce": "legacy"} if program.roto else {}),
    )
    assert isinstance(model, MetaFormer)
    fill_strictly(model, counterparts_of(model), weights, ignored=is_buffer)
    model.preprocess.mean.copy_(torch.tensor(program.mean))
    model.preprocess.spread.copy_(torch.tensor(program.spread))
    return model.eval()


def _published_name(weights: Weights) -> str:
    """The published model that has these depths, widths and mixers."""
    require(
        not any("pos_embed" in key for key in weights),
        "it adds positions before attention, which no turned picture survives; only networks "
        "without them fit.",
    )
    depths, widths, mixers = list[int](), list[int](), ""
    for stage in count():
        if f"{convolution(stage)}.weight" not in weights:
            break
        widths.append(_shape(weights, f"{convolution(stage)}.weight", 4)[0])
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


def _shape(weights: Weights, key: str, axes: int) -> tuple[int, ...]:
    require(
        key in weights and weights[key].ndim == axes,
        f"it has no {key} of {axes} axes, but for instance {next(iter(weights))}; give the whole "
        f"state dict of a network of {' or '.join(ROTO_ORIGINS)}.",
    )
    return tuple(weights[key].shape)
