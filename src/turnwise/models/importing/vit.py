"""Import the vision transformers of WouterBant/GEVit-DL2-Project, bare or in its orbits.

The file determines patch, width, depth and classes; four heads are taken as published.  A file of
an orbit ("posthoc") holds the transformer under `model.` and the combination, if it is learned,
beside it; which of the other combinations was used, and over which rotations, it does not say.
"""

import re
from functools import partial
from math import isqrt
from pathlib import Path

import torch
from torch import nn

from turnwise.errors import require, require_known
from turnwise.layers.orbit.combinations import OF_FEATURES, OF_LOGITS
from turnwise.models.importing.checkpoints import (
    Counterpart,
    Weights,
    fill_strictly,
    import_weights,
    shape_of,
    weight_and_bias,
)
from turnwise.models.importing.gsa import PUBLISHED_DATA
from turnwise.models.orbits import Orbit, orbit
from turnwise.models.registry import create_model
from turnwise.models.vit import VisionTransformer

HEADS = 4
BLOCK = {
    "norm_attention": "layer_norm_1",
    "norm_mlp": "layer_norm_2",
    "attention.to_output": "attn.out_proj",
    "mlp.0": "linear.0",
    "mlp.2": "linear.3",
}
DATA = {1: "rotmnist", 3: "pcam"}  # by the channels of the images
INNER = "model."  # before the keys of the transformer in the file of an orbit
COMBINED_BY = {"scoring_model.": "published_weights", "aggregation_model.": "published_attention"}
WHAT = ["GEVit-DL2-Project"]

Counterparts = dict[str, Counterpart]


def import_vit(path: str | Path, upright: bool = False) -> nn.Module:
    """Build the transformer in a state dict, in eval mode.

    Grey images are transposed first, as the program reads rotated MNIST, unless it was trained on
    `upright` MNIST.
    """
    return import_weights(path, partial(build_vit, upright=upright))


def build_vit(weights: Weights, upright: bool = False) -> VisionTransformer:
    """Build the model that computes with these weights what the program does."""
    width, inputs = shape_of(weights, "input_layer.weight", [2], WHAT)
    tokens = shape_of(weights, "pos_embedding", [3], WHAT)[1]
    shape_of(weights, "cls_token", [3], WHAT)
    channels = 1 if isqrt(inputs) ** 2 == inputs else 3
    patch, side = isqrt(inputs // channels), isqrt(tokens - 1)
    require(
        channels * patch**2 == inputs and side**2 == tokens - 1,
        f"its patches of {inputs} numbers and {tokens} tokens are not those of square images.",
    )
    found = (re.match(r"transformer\.(\d+)\.", key) for key in weights)
    hidden = shape_of(weights, "transformer.0.linear.0.weight", [2], WHAT)[0]
    data = PUBLISHED_DATA[DATA[channels]]
    model = create_model(
        "vit",
        group="C1",
        num_classes=shape_of(weights, "mlp_head.1.weight", [2], WHAT)[0],
        in_chans=channels,
        image_size=patch * side,
        patch=patch,
        width=width,
        depth=len({match[1] for match in found if match is not None}),
        heads=HEADS,
        mlp_ratio=hidden / width,
        pool="class",
        qk_norm=False,
        transposed=channels == 1 and not upright,
    )
    assert isinstance(model, VisionTransformer)
    shaped = {
        "cls_token": weights["cls_token"].flatten(),
        "pos_embedding": weights["pos_embedding"].flatten(0, 1),
        "input_layer.weight": weights["input_layer.weight"].view(width, channels, patch, patch),
    }
    fill_strictly(model, counterparts_of(model), weights | shaped)
    model.preprocess.mean.copy_(torch.tensor(data.mean))
    model.preprocess.spread.copy_(torch.tensor(data.std))
    return model.eval()


def counterparts_of(model: VisionTransformer) -> Counterparts:
    """Return the counterpart of each parameter."""
    pairs = {
        "class_token": Counterpart("cls_token"),
        "position": Counterpart("pos_embedding"),
        **weight_and_bias("patches.project", "input_layer"),
    }
    for number in range(len(model.blocks)):
        ours, theirs = f"blocks.{number}", f"transformer.{number}"
        for name, other in BLOCK.items():
            pairs |= weight_and_bias(f"{ours}.{name}", f"{theirs}.{other}")
        for name in ("weight", "bias"):
            pairs[f"{ours}.attention.to_query_key_value.{name}"] = Counterpart(
                f"{theirs}.attn.in_proj_{name}"
            )
    return pairs | weight_and_bias("head.0", "mlp_head.0") | weight_and_bias("head.1", "mlp_head.1")


def import_posthoc(
    path: str | Path, group: str = "D4", combine: str = "mean_features", upright: bool = False
) -> nn.Module:
    """Build the transformer and the orbit around it in a state dict, in eval mode.

    The learned combinations run over four rotations and their reflections (D4) in the program.
    """
    build = partial(build_posthoc, group=group, combine=combine, upright=upright)
    return import_weights(path, build)


def build_posthoc(
    weights: Weights, group: str = "D4", combine: str = "mean_features", upright: bool = False
) -> Orbit:
    """Build the orbit that computes with these weights what the program does."""
    inner = {k.removeprefix(INNER): v for k, v in weights.items() if k.startswith(INNER)}
    rest = {key: values for key, values in weights.items() if not key.startswith(INNER)}
    learned = [
        name for prefix, name in COMBINED_BY.items() if any(k.startswith(prefix) for k in rest)
    ]
    require_known(combine, [*OF_LOGITS, *OF_FEATURES], "combination that learns nothing")
    model = orbit(build_vit(inner, upright), group, *(learned or [combine]))
    if rest:
        require(bool(learned), f"it has {next(iter(rest))}, which no orbit of the program has.")
        fill_strictly(model.readout, _readout_counterparts(model.readout), rest)
    return model.eval()


def _readout_counterparts(readout: nn.Module) -> Counterparts:
    """Return the counterparts of a learned combination; its names are the program's own."""
    prefix = "scoring_model.fc." if hasattr(readout, "score") else "aggregation_model."
    rename = {"score.": "", "blocks.": "transformer.", "token": "cls_token"}
    pairs = {}
    for name, _ in readout.named_parameters():
        theirs = name
        for ours, other in rename.items():
            theirs = other + theirs.removeprefix(ours) if theirs.startswith(ours) else theirs
        pairs[name] = Counterpart(prefix + theirs)
    return pairs
