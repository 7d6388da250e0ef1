"""Where a token looks: the weight of every source, for one token, head and pose.

Attention is linear in its values, out = Σ_s w_s v_s, so w_s = ∂out/∂v_s.  The layer itself is asked
for that derivative, whatever formula or kernel it computes with.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from turnwise.errors import InputError, require
from turnwise.evaluation.rotations import device_of
from turnwise.layers.gsa.attention import Projections
from turnwise.layers.transformer.plain import SelfAttention
from turnwise.layers.transformer.rotary import GroupRotaryAttention

Images = Float[Tensor, "1 channel row col"]
Weights = Float[Tensor, "pose newrow newcol"]


class Gaze(NamedTuple):
    """Which layer, in the order of the network, which head, and where the token is."""

    layer: int
    head: int
    pose: int
    row: int
    col: int


def attention_layers(model: nn.Module) -> list[nn.Module]:
    """The layers whose gaze can be shown, in the order of the network."""
    kinds = (Projections, GroupRotaryAttention, SelfAttention)
    return [module for module in model.modules() if isinstance(module, kinds)]


def grid_of(model: nn.Module, images: Images, layer: int) -> tuple[int, int, int, int]:
    """Poses, rows and cols of a layer's tokens, and its heads."""
    chosen = _chosen(model, layer)
    _, mixed = _record(model, images, chosen)
    return (*_layout(chosen, mixed), _heads(chosen))


def attention_of(model: nn.Module, images: Images, gaze: Gaze) -> Weights:
    """The weights of all sources (pose, row, col) for the token of `gaze`; they sum to 1.

    Rows and columns of sources are those of the layer's input, of tokens those of its output.
    """
    chosen = _chosen(model, gaze.layer)
    value, mixed = _record(model, images, chosen)
    poses, rows, cols = _layout(chosen, mixed)
    heads = _heads(chosen)
    require(
        0 <= gaze.head < heads and 0 <= gaze.pose < poses,
        f"the layer has heads 0 to {heads - 1} and poses 0 to {poses - 1}.",
    )
    require(
        0 <= gaze.row < rows and 0 <= gaze.col < cols,
        f"the layer has rows 0 to {rows - 1} and columns 0 to {cols - 1}.",
    )
    width = mixed.shape[-1] // heads
    channel = gaze.head * width
    if isinstance(chosen, Projections):  # (1, group, row, col, head·dim)
        out = mixed[0, gaze.pose, gaze.row, gaze.col, channel]
        (slope,) = torch.autograd.grad(out, value)
        return slope[0, ..., channel].detach().cpu()
    token = gaze.row * cols + gaze.col
    posed = mixed[0, token, gaze.pose] if mixed.ndim == 4 else mixed[0, token]
    (slope,) = torch.autograd.grad(posed[channel], value)
    kept = slope[0, ..., 2 * mixed.shape[-1] + channel]  # of queries, keys and values the last
    kept = kept.unflatten(0, (rows, cols))
    return (kept.movedim(-1, 0) if mixed.ndim == 4 else kept[None]).detach().cpu()


def _chosen(model: nn.Module, layer: int) -> nn.Module:
    layers = attention_layers(model)
    require(bool(layers), f"{type(model).__name__} has no attention that can be shown.")
    require(
        0 <= layer < len(layers), f"there is no layer {layer}; they are 0 to {len(layers) - 1}."
    )
    return layers[layer]


def _record(model: nn.Module, images: Images, layer: nn.Module) -> tuple[Tensor, Tensor]:
    """The layer's values, of which derivatives can be taken, and what attention made of them."""
    kept: dict[str, Tensor] = {}

    def keep_value(module: nn.Module, given: object, output: Tensor) -> Tensor:
        kept["value"] = output.detach().requires_grad_()
        return kept["value"]

    def keep_mixed(module: nn.Module, given: tuple[Tensor, ...]) -> None:
        kept["mixed"] = given[0]

    source = "to_value" if isinstance(layer, Projections) else "to_query_key_value"
    handles = [
        getattr(layer, source).register_forward_hook(keep_value),
        layer.to_output.register_forward_pre_hook(keep_mixed),  # type: ignore[union-attr]
    ]
    was_training = model.training
    try:
        with torch.enable_grad():
            model.eval()(model.preprocess(images.to(device_of(model))))  # type: ignore[operator]
    finally:
        model.train(was_training)
        for handle in handles:
            handle.remove()
    return kept["value"], kept["mixed"]


def _layout(layer: nn.Module, mixed: Tensor) -> tuple[int, int, int]:
    """Poses, rows and cols; the tokens of transformers are a square."""
    if isinstance(layer, Projections):
        return mixed.shape[1], mixed.shape[2], mixed.shape[3]
    side = round(mixed.shape[1] ** 0.5)
    if side * side != mixed.shape[1]:
        raise InputError("attention is shown for square pictures.")
    return (mixed.shape[2] if mixed.ndim == 4 else 1), side, side


def _heads(layer: nn.Module) -> int:
    return layer.plan.heads if isinstance(layer, Projections) else int(layer.heads)  # type: ignore[arg-type]
