"""An image, its true mask, what models predict, and where that changes under rotation."""

from collections.abc import Sequence
from typing import NamedTuple

import matplotlib
import torch
from jaxtyping import Float, UInt8
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from turnwise.data.batches import to_unit
from turnwise.data.masks import IGNORED, require_masks
from turnwise.errors import require
from turnwise.groups import PlanarGroup, act_on_image
from turnwise.inference.predictor import Predictor
from turnwise.inference.tiling import label_image, overlay
from turnwise.reports.figures import FigureOptions, Plot, figure
from turnwise.reports.figures.plots import IMAGE_LOOK, draw_image, fix_layout
from turnwise.reports.loaded_models import LoadedModel, take_example
from turnwise.reports.tables import format_percent, text_table

Pixels = UInt8[Tensor, "channel row col"]
Colours = UInt8[Tensor, "3 row col"]


class Segmented(NamedTuple):
    """What a model predicts for one image.

    outlined   the image with the outlines of the predicted objects
    changes    for each pixel the share of the group elements under which its class changes
    scores     of this image, by the names of the kind of target
    """

    outlined: Colours
    changes: Float[Tensor, "row col"]
    scores: dict[str, float]


@figure(
    "segmentation", "an image, its mask, the predictions, and where they change under the group",
    several=True,
)  # fmt: skip
def segmentation_figure(models: Sequence[LoadedModel], options: FigureOptions) -> Plot:
    """Draw one row per model; the elements are those of the group that are exact on the grid."""
    first = models[0]
    require(
        first.model.output == "map",
        f"{first.name} predicts no masks; name runs of models such as turnwise_unet_small.",
    )
    number = len(first.examples) // 2 if options.image is None else options.image
    one = take_example(first, number)
    image, mask = one.images[0], require_masks(one.targets)
    found = {model.name: segment(model, image, mask) for model in models}
    truth = outline(image, mask[0].long().masked_fill(mask[0] == IGNORED[mask.dtype], 0))
    with matplotlib.rc_context(IMAGE_LOOK):
        size = (14.2, 3.9 * len(models))
        fig = Figure(figsize=size, layout="constrained")
        cells = fig.subplots(len(models), 4, squeeze=False)
        for row, (name, seen) in zip(cells, found.items(), strict=True):
            draw_image(row[0], to_unit(image), "image")
            draw_image(row[1], to_unit(truth), "truth")
            draw_image(row[2], to_unit(seen.outlined), name)
            _draw_changes(row[3], seen.changes)
    selection = first.predictor.kind.selection  # the score by which training selects
    rows = [
        [name, format_percent(seen.scores[selection]), format_percent(_changed(seen))]
        for name, seen in found.items()
    ]
    heads = ["model", f"{selection} of this image", "pixels whose class changes"]
    return Plot(fix_layout(fig), text_table(heads, rows))


def segment(model: LoadedModel, image: Pixels, mask: Tensor) -> Segmented:
    """Return what a model predicts for one image, upright and under its group."""
    predictor, group = model.predictor, model.group
    upright = predictor.probabilities(image[None])
    scores = predictor.kind.point_scores(predictor.kind.measure(upright, mask))
    changes = changes_under(predictor, group, image)
    return Segmented(outlined(predictor, image, upright[0]), changes, scores)


def changes_under(
    predictor: Predictor, group: PlanarGroup, image: Pixels
) -> Float[Tensor, "row col"]:
    """Return for each pixel the share of the exact elements under which its class changes."""
    upright = predictor.probabilities(image[None]).argmax(dim=1)
    others = group.grid_elements()[1:]
    changed = torch.zeros(upright.shape[1:])
    for g in others:
        found = predictor.probabilities(act_on_image(group, g, image[None])).argmax(dim=1)
        changed += (act_on_image(group, group.invert(g), found) != upright)[0]
    return changed / max(1, len(others))


def outlined(predictor: Predictor, image: Pixels, found: Float[Tensor, "class row col"]) -> Colours:
    """Return the image with the outlines of the classes or instances of a map."""
    return outline(image, torch.from_numpy(label_image(predictor, found).astype("int64")))


def outline(image: Pixels, labels: Tensor) -> Colours:
    """Return the image in colour, with the outlines of the labels."""
    drawn = overlay(image, labels.numpy().astype("uint16"))
    return torch.from_numpy(drawn).movedim(-1, 0)


def _changed(seen: Segmented) -> float:
    return float((seen.changes > 0).double().mean())


def _draw_changes(axes: Axes, changes: Float[Tensor, "row col"]) -> None:
    axes.imshow(changes.numpy(), cmap="inferno", vmin=0, vmax=1)
    axes.set_axis_off()
    share = float((changes > 0).double().mean())
    axes.set_title(f"changes under the group: {format_percent(share)}", fontsize=14)
