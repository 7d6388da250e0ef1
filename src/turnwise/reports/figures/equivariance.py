"""How exactly a model follows a rotation: its features layer by layer, and its logits off the grid.

For features, column g shows the image transformed by g and, for each layer, the group element that
the identity is mapped to: if the layer is equivariant, every map of a row is the first one,
transformed.  Under each map is the difference F(g f) − g F(f), on the scale of the map.

Off the grid, an image is rotated in two ways: by interpolating its pixels, and by drawing smooth
spots again at every angle, without interpolation.  The change in the second is due to the network
alone: its grid and its neighbourhoods do not rotate by 45°.
"""

from collections.abc import Sequence

import matplotlib
import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from torch import Tensor
from tqdm import tqdm

from turnwise.data.batches import to_unit
from turnwise.errors import require
from turnwise.evaluation.layer_trace import layer_errors
from turnwise.evaluation.steerability import change_over_angles
from turnwise.evaluation.transformations import describe_element
from turnwise.groups import PlanarGroup, act_on_image
from turnwise.reports.figures import FigureOptions, Plot, figure
from turnwise.reports.figures.plots import (
    IMAGE_LOOK,
    LOOK,
    add_legend,
    angle_axis,
    closed_curve,
    draw_curves,
    draw_image,
    draw_map,
    fix_layout,
    mark_exact_angles,
)
from turnwise.reports.loaded_models import LoadedModel, take_example
from turnwise.reports.tables import format_error, text_table

Images = Float[Tensor, "batch channel row col"]
Compared = dict[str, tuple[Tensor, Tensor, float]]  # by layer: F(g f), g F(f), relative error
MAX_LAYERS = 6
STEPS = 16  # every 22.5°
FLOOR = 1e-9  # smaller changes are drawn here: a logarithmic axis has no zero


@figure("features", "features of every layer under each group element")
def features_figure(models: Sequence[LoadedModel], options: FigureOptions) -> Plot:
    """Draw features layer by layer; the text is a table of errors.

    The channel is the one that varies most over the image, unless given.
    """
    (model,) = models
    image = to_unit(take_example(model, options.image_for(models)).images)
    group = model.group.exact_subgroup()
    own: PlanarGroup = model.model.group  # type: ignore[assignment]
    acting = own if own.order > 1 and own.exact_subgroup() == group else group
    elements = acting.grid_elements()  # those of `group`, in its order, as `acting` numbers them
    compared = [layer_errors(model.model, acting, image, g) for g in elements]
    widest = max(after.shape[-1] for after, _, _ in compared[0].values())
    require(
        options.channel is None or 0 <= options.channel < widest,
        f"channel = {options.channel} must be from 0 to {widest - 1}; in layers with fewer "
        "channels it is taken modulo their number.",
    )
    names = [describe_element(group, g) for g in range(group.order)]
    fig = _draw_features(image, group, elements, compared, options.channel)
    rows = [[n, *(format_error(by_layer[n][2]) for by_layer in compared)] for n in compared[0]]
    return Plot(fig, text_table(["layer", *names], rows))


def _draw_features(
    image: Images,
    group: PlanarGroup,
    elements: Sequence[int],
    compared: Sequence[Compared],
    channel: int | None,
) -> Figure:
    layers = _choose_layers(list(compared[0]))
    with matplotlib.rc_context(IMAGE_LOOK):
        size = (1.7 + 1.55 * len(elements), 1.9 + 2.9 * len(layers))
        fig = Figure(figsize=size, layout="constrained")
        cells = fig.subplots(1 + 2 * len(layers), len(elements), squeeze=False)
        for g, element in enumerate(elements):
            title = describe_element(group, g).replace(", then ", ",\n")
            draw_image(cells[0, g], act_on_image(group, g, image)[0])
            cells[0, g].set_title(title, fontsize=12)
            for i, layer in enumerate(layers):
                after, expected, error = compared[g][layer]
                shown = _most_varied(compared[0][layer][0]) if channel is None else channel
                shown %= after.shape[-1]
                index = element if after.shape[1] > 1 else 0
                bound = float(expected[0, ..., shown].abs().max())
                for below, field in enumerate((after, after - expected)):
                    axes = cells[1 + 2 * i + below, g]
                    draw_map(axes, field[0, index, ..., shown], bound)
                    axes.spines[:].set_visible(True)
                cells[2 + 2 * i, g].set_xlabel(format_error(error), fontsize=12)
        for i, layer in enumerate(layers):
            cells[1 + 2 * i, 0].set_ylabel(layer)
            cells[2 + 2 * i, 0].set_ylabel("difference")
        return fix_layout(fig)


def _most_varied(field: Tensor) -> int:
    """Return the channel of the identity with the largest variance over the pixels."""
    return int(torch.var(field[0, 0].flatten(0, 1), dim=0).argmax())


def _choose_layers(layers: list[str]) -> list[str]:
    """Return at most `MAX_LAYERS`, evenly spaced, with the first and the last."""
    count = min(MAX_LAYERS, len(layers))
    numbers = torch.linspace(0, len(layers) - 1, count).round().long().tolist()
    return [layers[number] for number in numbers]


@figure(
    "artefact", "how far the logits change off the pixel grid, e.g. at 45°",
    several=True, comparable=False,
)  # fmt: skip
def artefact_figure(models: Sequence[LoadedModel], options: FigureOptions) -> Plot:
    """Draw the change of the logits against the angle; the text is a table at three angles."""
    angles = [360 * k / STEPS for k in range(STEPS)]
    curves, rows = {}, []
    for model in tqdm(models, desc="rotating", disable=not options.progress, leave=False):
        channels, size = model.examples.images.shape[1:3]
        for way, change in change_over_angles(
            model.predictor.logits, channels, size, angles
        ).items():
            name = f"{model.name}, {way}"
            curves[name] = closed_curve(angles, [max(FLOOR, value) for value in change])
            rows.append([name, *(f"{change[angles.index(a)]:.1e}" for a in (22.5, 45.0, 90.0))])
    with matplotlib.rc_context(LOOK):
        fig = Figure(figsize=(7.5, 6), layout="constrained")
        axes = fig.add_subplot(
            xlabel="angle of rotation", yscale="log",
            ylabel="change of the logits\n(1: as to another image)",
        )  # fmt: skip
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0e}"))
        draw_curves(axes, curves, 36)
        angle_axis(axes)
        mark_exact_angles(axes)
        add_legend(fig, axes)
        table = text_table(["change of the logits at", "22.5°", "45°", "90°"], rows)
        return Plot(fix_layout(fig), table)
