"""What a network holds inside, layer by layer, as fields on the group.

A field turns with the picture: (g F)(h, x) = F(g⁻¹h, g⁻¹x).  An orbit's layers become fields by
turning each view's map back: F(h) = h·φ(h⁻¹f).  The maps of a plain network have no poses.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from turnwise.errors import require
from turnwise.evaluation.rotations import device_of
from turnwise.groups import PlanarGroup, act_on_field, act_on_image
from turnwise.layers.conv.conv import ConvStem, PatchLift
from turnwise.layers.gsa.attention import LiftingSelfAttention
from turnwise.layers.gsa.blocks import FieldPool, GroupBlock
from turnwise.layers.transformer.block import GroupTransformerBlock
from turnwise.layers.transformer.plain import PatchEmbedding, TransformerBlock
from turnwise.models.orbits import Orbit

Field = Float[Tensor, "batch group newrow newcol width"]
Fields = dict[str, Tensor]  # of one `Field` for each layer, each of its own size
Images = Float[Tensor, "batch channel row col"]

WORDS: dict[type[nn.Module], str] = {
    LiftingSelfAttention: "lift",
    GroupBlock: "block",
    FieldPool: "pool",
    ConvStem: "stem",
    PatchLift: "stem",
    GroupTransformerBlock: "block",
    PatchEmbedding: "patches",
    TransformerBlock: "block",
}


@torch.no_grad()
def layer_fields(model: nn.Module, images: Images) -> Fields:
    """The output of every layer of `WORDS`, by name and number; pictures are from 0 to 1."""
    group: PlanarGroup = model.group  # type: ignore[assignment]
    found: Fields = {}
    require(
        not isinstance(model, Orbit) or model.plan.chunk == 0,
        "the layers of an orbit can be shown where all views are in one batch: chunk = 0.",
    )
    views = group if isinstance(model, Orbit) else None
    poses = 1 if isinstance(model, Orbit) else group.order
    handles = []
    for module in model.modules():
        if type(module) in WORDS:
            handles.append(module.register_forward_hook(_keeper(found, poses, views)))
    was_training = model.training
    try:
        model.eval()(model.preprocess(images.to(device_of(model))))  # type: ignore[operator]
    finally:
        model.train(was_training)
        for handle in handles:
            handle.remove()
    require(bool(found), f"no layers of {type(model).__name__} can be shown as fields.")
    return found


def act_on_layer(group: PlanarGroup, g: int, field: Field) -> Field:
    """What the law expects of a layer: poses turn with the pixels; a map without poses, alone."""
    if field.shape[1] == group.order:
        return act_on_field(group, g, field)
    return act_on_image(group, g, field.movedim(-1, 2)).movedim(2, -1)


def layer_errors(
    model: nn.Module, group: PlanarGroup, images: Images, g: int
) -> dict[str, tuple[Tensor, Tensor, float]]:
    """By layer: F(g f), g·F(f), and the largest difference relative to the largest value."""
    before = layer_fields(model, images)
    after = layer_fields(model, act_on_image(group, g, images))
    compared = {}
    for name, field in before.items():
        expected = act_on_layer(group, g, field)
        gap = (after[name] - expected).abs().max() / expected.abs().max()
        compared[name] = (after[name], expected, float(gap))
    return compared


def _keeper(found: Fields, poses: int, views: PlanarGroup | None) -> Callable[..., None]:
    """A hook that keeps a layer's output as a field, under the layer's word and number."""

    def keep(module: nn.Module, given: Any, output: Tensor) -> None:
        word = WORDS[type(module)]
        number = 1 + sum(name.startswith(word) for name in found)
        field = _as_field(module, output, given, poses)
        if views is not None:
            field = _orbit_field(field, views)
        found[f"{word} {number}"] = field.detach().cpu()

    return keep


def _as_field(module: nn.Module, output: Tensor, given: Any, poses: int) -> Field:
    """Fields as they are; maps and tokens by their layouts."""
    if isinstance(module, LiftingSelfAttention | GroupBlock | FieldPool):
        return output
    if isinstance(module, ConvStem | PatchLift):  # (batch, group·channel, row, col)
        return output.unflatten(1, (poses, -1)).permute(0, 1, 3, 4, 2)
    if isinstance(module, GroupTransformerBlock):  # (batch, token, group, channel)
        return output.unflatten(1, (given[1], given[2])).permute(0, 3, 1, 2, 4)
    side = math.isqrt(output.shape[1])  # a plain transformer: (batch, token, channel)
    return output.unflatten(1, (side, side))[:, None]


def _orbit_field(views: Float[Tensor, "all 1 newrow newcol width"], group: PlanarGroup) -> Field:
    """F(h) = h·φ(h⁻¹f), from the maps of all views, of which batch · |G| came in one batch."""
    maps = views.unflatten(0, (group.order, -1))[:, :, 0].movedim(-1, 2)  # (h, batch, channel, …)
    turned = [act_on_image(group, h, maps[h]) for h in range(group.order)]
    return torch.stack(turned, dim=1).movedim(2, -1)
