"""Import GE-ViT on patches and the hybrid of WouterBant/GEVit-DL2-Project.

The file determines the stem, patch, embedding and window.  Images are those of PCam, 96 pixels
unless another size is given.  The G-CNN of the hybrid stores the grids on which it interpolates its
filters; the filters are interpolated here, once.
"""

import re
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from turnwise.errors import require
from turnwise.groups import PlanarGroup
from turnwise.models.importing.checkpoints import (
    Counterpart,
    Weights,
    fill_strictly,
    import_weights,
    shape_of,
    weight_and_bias,
)
from turnwise.models.importing.gsa import (
    LIFT,
    PUBLISHED_DATA,
    body_counterparts,
    is_buffer,
    require_tables_of,
)
from turnwise.models.modern_eq_vit import CONVS, ModernEquivariantViT
from turnwise.models.registry import create_model

GROUP = PlanarGroup(4)
PREFIXES = {"patches": "gevit.", "g_cnn": "group_transformer."}  # of GE-ViT behind each stem
WHAT = ["GEVit-DL2-Project"]

Counterparts = dict[str, Counterpart]


def import_modern(path: str | Path, image_size: int | None = None) -> nn.Module:
    """Build the network in a state dict, in eval mode."""
    return import_weights(path, partial(build_modern, image_size=image_size))


def build_modern(weights: Weights, image_size: int | None = None) -> ModernEquivariantViT:
    """Build the model that computes with these weights what the program does."""
    stem = next((s for s, p in PREFIXES.items() if any(k.startswith(p) for k in weights)), "")
    require(
        bool(stem),
        f"it has no keys that begin with {' or '.join(PREFIXES.values())}, but for instance "
        f"{next(iter(weights))}; give the state dict of a network of {WHAT[0]}.",
    )
    prefix, data = PREFIXES[stem], PUBLISHED_DATA["pcam"]
    require_tables_of("ge-vit", weights, GROUP)
    blocks, head = _numbers(weights, prefix)
    options: dict[str, Any] = {}
    if stem == "patches":
        channels = len(data.mean)
        embedding, inputs = shape_of(weights, "project.weight", [2], WHAT)
        patch = round((inputs / channels) ** 0.5)
        require(channels * patch**2 == inputs, f"its patches have {inputs} numbers, not 3 × side².")
        options = {"patch": patch, "embedding": embedding}
    model = create_model(
        "modern_eq_vit",
        group=GROUP,
        num_classes=shape_of(weights, f"{prefix}transformer.{head}.weight", [5], WHAT)[0],
        in_chans=len(data.mean),
        image_size=data.size if image_size is None else image_size,
        stem=stem,
        width=shape_of(weights, f"{prefix}{LIFT}.wout.weight", [5], WHAT)[0],
        window=shape_of(weights, f"{prefix}{LIFT}.row_indices", [3], WHAT)[1],
        **options,
    )
    assert isinstance(model, ModernEquivariantViT)
    pairs = _stem_counterparts(stem) | {
        "head.weight": Counterpart(f"{prefix}transformer.{head}.weight"),
        **{
            f"network.{ours}": Counterpart(f"{prefix}{pair.key}", pair.arrange)
            for ours, pair in body_counterparts(model.network, blocks).items()
        },
    }
    fill_strictly(model, pairs, _with_interpolated_filters(weights), ignored=_is_table)
    model.preprocess.mean.copy_(torch.tensor(data.mean))
    model.preprocess.spread.copy_(torch.tensor(data.std))
    return model.eval()


def _numbers(weights: Weights, prefix: str) -> tuple[tuple[int, ...], int]:
    """Return the numbers of the blocks and of the head in the list `transformer`."""
    start = re.escape(f"{prefix}transformer.")
    found = (re.match(rf"{start}(\d+)\.", key) for key in weights)
    numbers = sorted({int(match[1]) for match in found if match is not None})
    blocks = [n for n in numbers if f"{prefix}transformer.{n}.attention.2.wout.weight" in weights]
    require(len(blocks) == 5, f"it has {len(blocks)} blocks, and the published networks five.")
    return tuple(blocks), numbers[-1]


def _stem_counterparts(stem: str) -> Counterparts:
    if stem == "patches":
        project, norm = ("stem.project", "project"), ("stem.norm", "layernorm")
        return weight_and_bias(*project) | weight_and_bias(*norm)
    return {f"stem.convs.{n}.weight": Counterpart(f"{_kernel(n)}.weight") for n in range(CONVS)}


def _kernel(number: int) -> str:
    return f"gcnn.{f'gconvs.{number - 1}' if number else 'lifting_conv'}.kernel"


def _is_table(key: str) -> bool:
    return (
        is_buffer(key) or re.search(r"\.(grid|transformed_grid)_\w+$|\.identity$", key) is not None
    )


def _with_interpolated_filters(weights: Weights) -> Weights:
    """Return the weights with all rotated filters of the G-CNN, as its program uses them."""
    made = dict(weights)
    for number in range(CONVS):
        kernel = _kernel(number)
        grid = weights.get(f"{kernel}.transformed_grid_{'R2xH' if number else 'R2'}")
        if grid is not None and f"{kernel}.weight" in weights:
            made[f"{kernel}.weight"] = _interpolated(weights[f"{kernel}.weight"], grid)
    return made


def _interpolated(weight: Tensor, grid: Tensor) -> Tensor:
    """Return (out · element, in · element, row, col): the filters at the grid of each element.

    The first axis of the grid holds (row, col), or (row, col, element); the grid has those of the
    output's elements next.
    """
    out, channels = weight.shape[:2]
    signal = weight.flatten(0, 1)[None]
    places = grid.to(weight).movedim(0, -1).roll(1, dims=-1)
    filters = torch.cat(
        [
            F.grid_sample(signal, place[None], padding_mode="zeros", align_corners=True)
            for place in places
        ]
    )  # (element, out · in, …, row, col)
    filters = filters.unflatten(1, (out, channels)).transpose(0, 1)  # (out, element, in, …)
    side = weight.shape[-1]
    return filters.reshape(out * len(places), -1, side, side)
