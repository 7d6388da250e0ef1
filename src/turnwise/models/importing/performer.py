"""Import the Performers of ExpectationMax/Translational-Equivariant-Performers.

The keys determine which of its four models a file holds, and the shapes determine all sizes.  That
the attention is an ordinary softmax (its `--no_projection`) leaves no trace in the weights; it is
read from the options that Lightning stores beside them.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from turnwise.models.importing.checkpoints import (
    Checkpoint,
    Counterpart,
    Weights,
    fill_strictly,
    import_checkpoint,
    shape_of,
    weight_and_bias,
)
from turnwise.models.importing.gsa import PUBLISHED_DATA
from turnwise.models.performer import LEVELS, PixelPerformer
from turnwise.models.registry import create_model

IMAGE_SIZE = 32  # the program resizes all its images to this
LAYERS = "performer.net.layers"
WHAT = ["Performer", "NoposPerformer", "RelativePerformer", "ClippedRelativePerformer"]
EMBEDDINGS = {"weight": "linear", "net.0.weight": "MLP", "embeddings.weight": "lookup"}

Counterparts = dict[str, Counterpart]


def import_performer(path: str | Path, image_size: int | None = None) -> nn.Module:
    """Build the Performer in a checkpoint or a state dict, in eval mode."""
    return import_checkpoint(path, partial(build_performer, image_size=image_size))


def build_performer(checkpoint: Checkpoint, image_size: int | None = None) -> PixelPerformer:
    """Build the model that computes with these weights what the program does."""
    weights = checkpoint.weights
    name, own = _kind(weights)
    embedding, channels = _embedding(weights)
    width = shape_of(weights, "class_query", [1], WHAT)[0]
    heads = _heads(weights, name, width)
    softmax = bool(checkpoint.options.get("no_projection", False))
    model = create_model(
        name,
        group="C1",
        num_classes=shape_of(weights, "output_layer.weight", [2], WHAT)[0],
        in_chans=channels,
        image_size=IMAGE_SIZE if image_size is None else image_size,
        variant="tep-2021",
        width=width,
        depth=len({key.split(".")[3] for key in weights if key.startswith(LAYERS)}),
        heads=heads,
        embedding=embedding,
        kernel="softmax" if softmax and name != "clipped_relative_performer" else "favor",
        **own,
    )
    assert isinstance(model, PixelPerformer)
    by_head = {
        key: values.unflatten(0, (heads, -1))
        for key, values in weights.items()
        if key.endswith((".alpha", ".beta"))
    }
    fill_strictly(model, counterparts_of(model), weights | by_head, ignored=is_bookkeeping)
    normal = channels == 3 and embedding != "lookup"  # of grey images and levels there is no norm
    data = PUBLISHED_DATA["cifar10"]
    model.preprocess.mean.copy_(torch.tensor(data.mean if normal else [0.0] * channels))
    model.preprocess.spread.copy_(torch.tensor(data.std if normal else [1.0] * channels))
    return model.eval()


def _attention(block: int) -> str:
    return f"{LAYERS}.{block}.0.fn"


def _kind(weights: Weights) -> tuple[str, dict[str, Any]]:
    """Return our name of the model, and the options that it alone has."""
    if f"{_attention(0)}.rpe" in weights:
        distances = shape_of(weights, f"{_attention(0)}.rpe", [2], WHAT)[0]
        return "clipped_relative_performer", {"clipping_distance": distances - 1}
    if f"{_attention(0)}.to_q.alpha" in weights:
        scales = shape_of(weights, "positional_embedding.inv_freq", [1], WHAT)[0]
        return "relative_performer", {"pos_scales": scales}
    absolute = "positional_embedding.inv_freq" in weights
    return ("performer" if absolute else "nopos_performer"), {}


def _heads(weights: Weights, name: str, width: int) -> int:
    """Return the number of heads, from what each of them has."""
    if name == "relative_performer":
        pairs = 2 * len(weights["positional_embedding.inv_freq"])
        return len(weights[f"{_attention(0)}.to_q.alpha"]) // pairs
    key = f"{_attention(0)}.fast_attention.projection_matrix"
    return width // shape_of(weights, key, [2], WHAT)[1]


def _embedding(weights: Weights) -> tuple[str, int]:
    """Return the kind of the embedding, and the channels of the images."""
    for end, kind in EMBEDDINGS.items():
        if (key := f"content_embedding.{end}") in weights:
            rows, cols = shape_of(weights, key, [2], WHAT)
            return kind, rows // LEVELS if kind == "lookup" else cols
    shape_of(weights, "content_embedding.weight", [2], WHAT)
    raise AssertionError


def is_bookkeeping(key: str) -> bool:
    """Return whether the key holds a counter, or a table that we compute."""
    return key.endswith(("calls_since_last_redraw", "offdiag_matrix", "projection_matrix"))


def counterparts_of(model: PixelPerformer) -> Counterparts:
    """Return the counterpart of each parameter, and of the random rows, which are buffers."""
    pairs = {"class_token": Counterpart("class_query"), **weight_and_bias("head", "output_layer")}
    if model.absolute is not None or model.shared is not None:
        ours = "absolute" if model.absolute is not None else "shared"
        pairs[f"{ours}.frequency"] = Counterpart("positional_embedding.inv_freq")
    if model.embedding.kind == "lookup":
        pairs["embedding.table.weight"] = Counterpart("content_embedding.embeddings.weight")
    elif model.embedding.kind == "MLP":
        for layer in ("0", "2"):
            pairs |= weight_and_bias(f"embedding.map.{layer}", f"content_embedding.net.{layer}")
    else:
        pairs |= weight_and_bias("embedding.map.0", "content_embedding")
    state = model.state_dict()
    for number in range(len(model.blocks)):
        pairs |= dict(_block(f"blocks.{number}", number, state))
    return pairs


def _block(ours: str, number: int, state: Weights) -> Iterator[tuple[str, Counterpart]]:
    attention, mlp = f"{LAYERS}.{number}.0", f"{LAYERS}.{number}.1"
    relative = f"{ours}.attention.alpha" in state
    inner = ".content_linear" if relative else ""
    names = {
        "norm_attention": f"{attention}.norm",
        "attention.to_query": f"{attention}.fn.to_q{inner}",
        "attention.to_key": f"{attention}.fn.to_k{inner}",
        "attention.to_value": f"{attention}.fn.to_v",
        "attention.to_output": f"{attention}.fn.to_out",
        "norm_mlp": f"{mlp}.norm",
        "mlp.spread": f"{mlp}.fn.fn.w1",
        "mlp.gather": f"{mlp}.fn.fn.w2",
    }
    for name, theirs in names.items():
        yield from weight_and_bias(f"{ours}.{name}", theirs).items()
    single = {
        "alpha": "to_q.alpha",
        "beta": "to_q.beta",
        "table": "rpe",
        "kernel.projection.rows": "fast_attention.projection_matrix",
        "content_kernel.projection.rows": "fast_attention.projection_matrix",
        "place_kernel.projection.rows": "relative_attention.projection_matrix",
    }
    for name, theirs in single.items():
        if f"{ours}.attention.{name}" in state:
            yield f"{ours}.attention.{name}", Counterpart(f"{attention}.fn.{theirs}")
