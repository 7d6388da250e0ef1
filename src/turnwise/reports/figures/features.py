"""Latent fields, layer by layer, under every element of the group, and the difference to the law.

Column g shows the picture moved by g and, for each layer, the pose that pose 0 has moved to: if the
layer is equivariant, every map of a row is the first one, moved.  Under each map stands what is
left of F(g f) − g·F(f), on the scale of the map.
"""

import matplotlib
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from turnwise.errors import require
from turnwise.evaluation.certificate.moves import describe_element
from turnwise.groups import PlanarGroup, act_on_image
from turnwise.reports.figures.angles import draw_image
from turnwise.reports.figures.fields import layer_errors
from turnwise.reports.figures.plots import LOOK, laid_out
from turnwise.reports.loaded_models import LoadedModel, chosen_example
from turnwise.reports.tables import format_error

MOST_LAYERS = 6


def features_figure(
    subject: LoadedModel, *, picture: int = 0, channel: int | None = None
) -> tuple[Figure, list[list[str]]]:
    """The figure, and a table of layers and their errors under each element.

    The channel is the one that varies most over the first picture of the layer, unless given.
    """
    image = chosen_example(subject, picture).images.float() / 255
    group = subject.group.exact_subgroup()
    elements = list(range(group.order))
    own: PlanarGroup = subject.model.group  # type: ignore[assignment]
    acting = own if own.order > 1 and own.exact_subgroup() == group else group
    numbers = {g: acting.grid_elements()[i] for i, g in enumerate(elements)}
    compared = {g: layer_errors(subject.model, acting, image, numbers[g]) for g in elements}
    widest = max(after.shape[-1] for after, _, _ in compared[0].values())
    require(
        channel is None or 0 <= channel < widest,
        f"--channel {channel} must be from 0 to {widest - 1}; narrower layers begin again at 0.",
    )
    layers = _spread(list(compared[0]))
    with matplotlib.rc_context({**LOOK, "axes.grid": False, "font.size": 13.0}):
        size = (1.7 + 1.55 * len(elements), 1.9 + 2.9 * len(layers))
        figure = Figure(figsize=size, layout="constrained")
        cells = figure.subplots(1 + 2 * len(layers), len(elements), squeeze=False)
        for g in elements:
            title = describe_element(group, g).replace(", then ", ",\n")
            draw_image(cells[0, g], act_on_image(group, g, image)[0])
            cells[0, g].set_title(title, fontsize=12)
            for i, layer in enumerate(layers):
                after, expected, error = compared[g][layer]
                shown = _varied(compared[0][layer][0]) if channel is None else channel
                pose = numbers[g] if after.shape[1] > 1 else 0
                bound = float(expected[0, ..., shown % after.shape[-1]].abs().max())
                pair = (after, after - expected)
                for below, field in enumerate(pair):
                    axes = cells[1 + 2 * i + below, g]
                    _show_map(axes, field[0, pose, ..., shown % after.shape[-1]], bound)
                cells[2 + 2 * i, g].set_xlabel(format_error(error), fontsize=12)
        for i, layer in enumerate(layers):
            cells[1 + 2 * i, 0].set_ylabel(layer)
            cells[2 + 2 * i, 0].set_ylabel("difference")
        rows = [[n, *(format_error(compared[g][n][2]) for g in elements)] for n in compared[0]]
        return laid_out(figure), rows


def element_names(subject: LoadedModel) -> list[str]:
    """What the columns of the table are."""
    group = subject.group.exact_subgroup()
    return [describe_element(group, g) for g in range(group.order)]


def _show_map(axes: Axes, values: Tensor, bound: float) -> None:
    """Blue below zero, red above, white at zero, which the colour-blind tell apart."""
    axes.imshow(values.numpy(), cmap="RdBu_r", vmin=-bound, vmax=bound)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(True)


def _varied(field: Tensor) -> int:
    """The channel of pose 0 that varies most over the pixels."""
    return int(torch.var(field[0, 0].flatten(0, 1), dim=0).argmax())


def _spread(layers: list[str]) -> list[str]:
    """At most `MOST_LAYERS`, first and last among them."""
    count = min(MOST_LAYERS, len(layers))
    numbers = torch.linspace(0, len(layers) - 1, count).round().long().tolist()
    return [layers[number] for number in numbers]
