"""Layouts of feature tensors, and the conversions between them.

    name          axes                               used by
    image         batch, channel, row, col           images, and features without a group axis
    plain_tokens  batch, token, channel              plain transformers
    regular       batch, channel, group, row, col    convolutional layers on the group
    field         batch, group, row, col, channel    group self-attention
    tokens        batch, token, group, channel       transformers on the group
    maps          batch, group·channel, row, col     storage inside convolutions

Tokens are pixels, row by row.  Channel c of group element g is map g·channels + c, so one ordinary
convolution mixes group elements, channels and pixels.

Layers pass regular features to one another without copies.  `maps_to_regular` returns a view, and
`regular_to_maps` of that view is a view again, in either memory format of the maps; elementwise
operations keep its strides.  Tokens of maps in `torch.channels_last` are a contiguous view.
"""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from turnwise.errors import InputError, require, require_known
from turnwise.groups import Action, PlanarGroup, act_on_field, act_on_image

LAYOUTS = ("image", "plain_tokens", "regular", "field", "tokens", "maps")

Image = Float[Tensor, "batch channel row col"]
PlainTokens = Float[Tensor, "batch token channel"]
Regular = Float[Tensor, "batch channel group row col"]
Field = Float[Tensor, "batch group row col channel"]
Tokens = Float[Tensor, "batch token group channel"]
Maps = Float[Tensor, "batch group_channel row col"]


def for_convolutions(images: Image, training: bool) -> Image:
    """Return images in `torch.channels_last` where that is faster: on a GPU, and in inference.

    Not in training on a CPU: there torch adds up the statistics of batch norms in this format one
    by one in float32, with errors of 1e-5 and more.  Graphs of CPU programs stay free of it, too.
    """
    if torch._C._are_functorch_transforms_active():  # vmap knows no memory formats
        return images
    infers = not training and not torch.is_grad_enabled() and not torch.compiler.is_compiling()
    if not images.is_cuda and not infers:
        return images
    if images.shape[1] == 1:  # the strides of such images fit both formats: write them anew
        rows = images.permute(0, 2, 3, 1).clone(memory_format=torch.contiguous_format)
        return rows.permute(0, 3, 1, 2)
    return images.contiguous(memory_format=torch.channels_last)


def maps_to_regular(maps: Maps, group_order: int) -> Regular:
    """Convert maps to regular features: a view."""
    return maps.unflatten(1, (group_order, -1)).transpose(1, 2)


def regular_to_maps(regular: Regular) -> Maps:
    """Convert regular features to maps: a view of what `maps_to_regular` returns, else a copy."""
    return regular.transpose(1, 2).flatten(1, 2)


def on_maps(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Apply a function of maps to an image or, through a view, to regular features."""
    if x.ndim == 4:
        return function(x)
    return maps_to_regular(function(regular_to_maps(x)), x.shape[2])


def maps_to_field(maps: Maps, group_order: int) -> Field:
    """Convert maps to a field: a view."""
    return maps.unflatten(1, (group_order, -1)).permute(0, 1, 3, 4, 2)


def field_to_maps(field: Field) -> Maps:
    """Convert a field to maps."""
    return field.permute(0, 1, 4, 2, 3).flatten(1, 2)


def maps_to_tokens(maps: Maps, group_order: int) -> Tokens:
    """Convert maps to tokens: one for each pixel, with all group elements."""
    return maps.permute(0, 2, 3, 1).flatten(1, 2).unflatten(-1, (group_order, -1))


def tokens_to_maps(tokens: Tokens, rows: int, cols: int) -> Maps:
    """Convert tokens to maps in `torch.channels_last`."""
    return tokens.flatten(2).unflatten(1, (rows, cols)).permute(0, 3, 1, 2)


def regular_to_field(regular: Regular) -> Field:
    """Convert regular features to a field: a view."""
    return regular.permute(0, 2, 3, 4, 1)


def field_to_regular(field: Field) -> Regular:
    """Convert a field to regular features: a view."""
    return field.permute(0, 4, 1, 2, 3)


def regular_to_tokens(regular: Regular) -> Tokens:
    """Convert regular features to tokens: one for each pixel, with all group elements."""
    return regular.permute(0, 3, 4, 2, 1).flatten(1, 2)


def tokens_to_regular(tokens: Tokens, rows: int, cols: int) -> Regular:
    """Convert tokens to regular features: a view."""
    return tokens.unflatten(1, (rows, cols)).permute(0, 4, 3, 1, 2)


def field_to_tokens(field: Field) -> Tokens:
    """Convert a field to tokens: one for each pixel, with all group elements."""
    return field.permute(0, 2, 3, 1, 4).flatten(1, 2)


def tokens_to_field(tokens: Tokens, rows: int, cols: int) -> Field:
    """Convert tokens to a field: a view."""
    return tokens.unflatten(1, (rows, cols)).permute(0, 3, 1, 2, 4)


def to_field(
    x: Float[Tensor, "batch *axes"],
    layout: str,
    group_order: int,
    rows_cols: tuple[int, int] | None = None,
) -> Float[Tensor, "batch group row col channel"]:
    """Convert features of any layout to a field.

    Args:
        x: the features.
        layout: the name of their layout, one of `LAYOUTS`.
        group_order: the number of group elements; ignored by the layouts without a group axis,
            whose field has one.
        rows_cols: the grid of the tokens, for the two layouts of tokens; a square by default.

    >>> import torch
    >>> to_field(torch.zeros(2, 6, 8, 5, 5), "regular", 8).shape
    torch.Size([2, 8, 5, 5, 6])
    >>> to_field(torch.zeros(2, 9, 6), "plain_tokens", 8).shape
    torch.Size([2, 1, 3, 3, 6])
    """
    require_known(layout, LAYOUTS, "layout")
    if layout == "image":
        return x.movedim(1, -1)[:, None]
    if layout == "maps":
        return maps_to_field(x, group_order)
    if layout in ("tokens", "plain_tokens"):
        tokens = x[:, :, None] if layout == "plain_tokens" else x
        return tokens_to_field(tokens, *(rows_cols or _square(x.shape[1])))
    field = regular_to_field(x) if layout == "regular" else x
    require(
        field.shape[1] == group_order,
        f"{layout} features of shape {tuple(x.shape)} have {field.shape[1]} group elements, "
        f"not {group_order}.",
    )
    return field


def _square(tokens: int) -> tuple[int, int]:
    side = math.isqrt(tokens)
    if side * side != tokens:
        raise InputError(f"{tokens} tokens do not form a square; give rows_cols.")
    return side, side


def action_on(layout: str) -> Action:
    """Return the action of a group on features: a function (group, g, x) -> g·x.

    `layout` is "image", "regular", "field" or "maps": a layout with rows and columns.

    >>> import torch
    >>> from turnwise.groups import assert_equivariant
    >>> x, act = torch.randn(1, 3, 8, 9, 9), action_on("regular")
    >>> assert_equivariant(torch.relu, "D4", x, act_in=act, act_out=act)
    """
    actions = {"image": act_on_image, "field": act_on_field, "regular": _act_on_regular_features,
               "maps": _act_on_maps}  # fmt: skip
    require_known(layout, actions, "layout with rows and columns")
    return actions[layout]


def _act_on_regular_features(
    group: PlanarGroup | str, g: int, x: Shaped[Tensor, "batch channel group row col"]
) -> Shaped[Tensor, "batch channel group newrow newcol"]:
    return field_to_regular(act_on_field(group, g, regular_to_field(x)))


def _act_on_maps(
    group: PlanarGroup | str, g: int, x: Shaped[Tensor, "batch group_channel row col"]
) -> Shaped[Tensor, "batch group_channel newrow newcol"]:
    field = maps_to_field(x, PlanarGroup.named(group).order)
    return field_to_maps(act_on_field(group, g, field))
