"""Attention maps that follow the image, and what a model has learned about positions.

Attention is linear in its values, out = Σ_s w_s v_s, so w_s = ∂out/∂v_s.  The weights are computed
as that derivative, whatever formula or kernel the layer uses; a layer only declares where its
values enter and leave (`layers.declarations`).
"""

from collections.abc import Sequence
from typing import NamedTuple

import matplotlib
import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn

from turnwise.data.batches import to_unit
from turnwise.errors import InputError, require
from turnwise.evaluation.transformations import describe_element
from turnwise.geometry.layouts import to_field
from turnwise.groups import PlanarGroup, act_on_image
from turnwise.inference.predictor import Predictor
from turnwise.layers.declarations import AttentionTaps, HasAttention, HasPositions
from turnwise.reports.figures import FigureOptions, Plot, figure
from turnwise.reports.figures.plots import COLOURS, IMAGE_LOOK, draw_image, draw_map, fix_layout
from turnwise.reports.loaded_models import LoadedModel, take_example
from turnwise.reports.tables import format_error

Image = Float[Tensor, "1 channel row col"]
Weights = Float[Tensor, "group key_row key_col"]
GROUP_AXIS = {"field": 1, "regular": 2}  # of the layouts whose group axis is separate


class Query(NamedTuple):
    """A query token: the number of its layer, its head, group element, row and column."""

    layer: int
    head: int
    element: int
    row: int
    col: int


@figure("attention", "what a token attends to, and how that follows the image")
def attention_figure(models: Sequence[LoadedModel], options: FigureOptions) -> Plot:
    """Draw one column for each group element g that maps pixels to pixels.

    From above: the image transformed by g with the query token marked, the attention weights of
    that token, summed over the group, and how they differ from the first column, transformed.
    """
    (model,) = models
    image = to_unit(take_example(model, options.image_for(models)).images)
    order, side, _, _ = attention_grid(model.model, image, options.layer)
    group = _acting_group(model, order)
    row, col = options.pixel or (side // 3, side // 2)
    query = Query(options.layer, options.head, options.element, row, col)
    first = attention_weights(model.model, image, query).sum(dim=0)
    elements, errors, bound = group.grid_elements(), list[float](), float(first.max())
    with matplotlib.rc_context(IMAGE_LOOK):
        fig = Figure(figsize=(1.6 + 1.9 * len(elements), 6.3), layout="constrained")
        cells = fig.subplots(3, len(elements), squeeze=False)
        for column, g in enumerate(elements):
            token = transform_query(group, g, query, order, side)
            transformed = act_on_image(group, g, image)
            weights = attention_weights(model.model, transformed, token).sum(dim=0)
            difference = weights - act_on_image(group, g, first)
            errors.append(float(difference.abs().max() / bound))
            title = describe_element(group, g).replace(", ", ",\n")
            draw_image(cells[0, column], transformed[0])
            cells[0, column].set_title(title, fontsize=12)
            _mark(cells[0, column], token, image.shape[-1] / side)
            draw_map(cells[1, column], weights, bound, signed=False)
            draw_map(cells[2, column], difference, bound)
            cells[2, column].set_xlabel(format_error(errors[-1]), fontsize=12)
        cells[1, 0].set_ylabel("attention")
        cells[2, 0].set_ylabel("difference")
        title = f"{model.name}: layer {query.layer}, head {query.head}, "
        fig.suptitle(f"{title}group element {query.element} at ({row}, {col})", fontsize=13)
        text = f"largest difference to the transformed attention: {max(errors):.1e}"
        return Plot(fix_layout(fig), text)


@figure("positions", "learned positional encodings as maps")
def positions_figure(models: Sequence[LoadedModel], options: FigureOptions) -> Plot:
    """Draw the position maps of the first layer that declares any: a column per group element.

    Blue is negative and red positive; the number beside a row is its largest absolute value.
    """
    (model,) = models
    maps = position_maps(model.model)
    order = max(len(each) for each in maps.values())
    group: PlanarGroup = model.model.group  # type: ignore[assignment]
    with matplotlib.rc_context(IMAGE_LOOK):
        size = (1.8 + 1.6 * order, 1.0 + 1.6 * len(maps))
        fig = Figure(figsize=(max(4.0, size[0]), size[1]), layout="constrained")
        cells = fig.subplots(len(maps), order, squeeze=False)
        for row, (name, each) in zip(cells, maps.items(), strict=True):
            bound = float(each.abs().max())
            for g, axes in enumerate(row):
                draw_map(axes, each[g], bound)
            row[0].set_ylabel(f"{name}\n±{bound:.2g}")
        for g, axes in enumerate(cells[0]):
            title = f"element {g}:\n{describe_element(group, g)}" if order > 1 else "no group axis"
            axes.set_title(title, fontsize=11)
        return Plot(fix_layout(fig))


def position_maps(model: nn.Module) -> dict[str, Weights]:
    """Return the maps that the first layer with learned positions declares."""
    for module in model.modules():
        if isinstance(module, HasPositions):
            return module.position_maps()
    raise InputError(f"{type(model).__name__} has no positions that can be shown.")


def attention_layers(model: nn.Module) -> list[HasAttention]:
    """Return the layers whose attention can be shown, in the order of the network."""
    return [module for module in model.modules() if isinstance(module, HasAttention)]


def attention_grid(model: nn.Module, image: Image, layer: int) -> tuple[int, int, int, int]:
    """Return the number of group elements, rows and columns of a layer's tokens, and its heads."""
    taps = _taps(model, layer)
    _, mixed = _run(model, image, taps)
    order, rows, cols, _ = _as_field(mixed, taps.layout).shape
    return order, rows, cols, taps.heads


def attention_weights(model: nn.Module, image: Image, query: Query) -> Weights:
    """Return the weights of all keys (group, row, col) for one query token; they sum to 1.

    Rows and columns of keys are those of the layer's input, of queries those of its output.
    """
    taps = _taps(model, query.layer)
    value, mixed = _run(model, image, taps)
    outputs = _as_field(mixed, taps.layout)
    order, rows, cols, width = outputs.shape
    require(
        0 <= query.head < taps.heads and 0 <= query.element < order,
        f"the layer has heads 0 to {taps.heads - 1} and group elements 0 to {order - 1}.",
    )
    require(
        0 <= query.row < rows and 0 <= query.col < cols,
        f"the layer has rows 0 to {rows - 1} and columns 0 to {cols - 1}.",
    )
    channel = query.head * (width // taps.heads)  # any channel of the head has the same weights
    output = outputs[query.element, query.row, query.col, channel]
    (gradient,) = torch.autograd.grad(output, value)
    return _as_field(gradient, taps.layout)[..., taps.first + channel].detach().cpu()


def transform_query(group: PlanarGroup, g: int, query: Query, order: int, side: int) -> Query:
    """Return the same token of the image transformed by g: the pixel g·x, and the element g·h."""
    one = torch.zeros(side, side)
    one[query.row, query.col] = 1
    row, col = divmod(int(act_on_image(group, g, one).argmax()), side)
    element = group.compose(g, query.element) if order == group.order else query.element
    return query._replace(element=element, row=row, col=col)


def _taps(model: nn.Module, layer: int) -> AttentionTaps:
    layers = attention_layers(model)
    require(bool(layers), f"{type(model).__name__} has no attention that can be shown.")
    require(
        0 <= layer < len(layers), f"there is no layer {layer}; they are 0 to {len(layers) - 1}."
    )
    return layers[layer].attention_taps()


def _run(model: nn.Module, image: Image, taps: AttentionTaps) -> tuple[Tensor, Tensor]:
    """Return the values of a layer, as a leaf of the graph, and the values mixed by attention."""
    kept: dict[str, Tensor] = {}

    def keep_value(module: nn.Module, inputs: object, output: Tensor) -> Tensor:
        kept["value"] = output.detach().requires_grad_()
        return kept["value"]

    def keep_mixed(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        kept["mixed"] = inputs[0]

    handles = [
        taps.value.register_forward_hook(keep_value),
        taps.output.register_forward_pre_hook(keep_mixed),
    ]
    predictor, was_training = Predictor(model), model.training
    try:
        with torch.enable_grad():
            prepared = predictor.preprocess(image.to(predictor.device, predictor.precision))
            model.eval()(prepared)
    finally:
        model.train(was_training)
        for handle in handles:
            handle.remove()
    require(
        len(kept["value"]) == len(image),
        f"{type(model).__name__} runs the layer on several views of the image; show the attention "
        "of the model inside.",
    )
    return kept["value"], kept["mixed"]


def _as_field(x: Tensor, layout: str) -> Float[Tensor, "group row col channel"]:
    """Convert the features of one image; values may have fewer group elements than outputs."""
    order = x.shape[GROUP_AXIS[layout]] if layout in GROUP_AXIS else 1
    return to_field(x, layout, order)[0]


def _acting_group(model: LoadedModel, order: int) -> PlanarGroup:
    """Return the model's own group, or if it has none, the one that it is measured against."""
    own: PlanarGroup = model.model.group  # type: ignore[assignment]
    return own if own.order == order and order > 1 else model.group.exact_subgroup()


def _mark(axes: Axes, query: Query, scale: float) -> None:
    """Draw a ring around a token; `scale` is the number of pixels per token."""
    x, y = (query.col + 0.5) * scale - 0.5, (query.row + 0.5) * scale - 0.5
    axes.plot([x], [y], marker="o", markersize=11, mfc="none", mec=COLOURS[4], mew=2.5)
