"""What models say as pictures turn and shift: the probability of one, the accuracy on many.

Every function takes subjects that see the same pictures, measures, and draws one figure.
"""

from collections.abc import Sequence
from functools import partial

import matplotlib
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from torch import Tensor
from tqdm import tqdm

from turnwise.evaluation.rotations import (
    accuracy_by_view,
    agreement,
    equal_angles,
    predict_over_angles,
    predict_probabilities,
)
from turnwise.reports.figures.plots import (
    LOOK,
    angle_axis,
    closed_curve,
    draw_curves,
    laid_out,
    mark_exact_angles,
    percent_axis,
)
from turnwise.reports.loaded_models import LoadedModel, chosen_example, spaced_examples
from turnwise.reports.tables import format_percent
from turnwise.reports.views import (
    answers_to,
    rotated_views,
    shift_image,
    shifted_views,
    steps_around,
)

QUARTERS = (0.0, 90.0, 180.0, 270.0)


def draw_image(axes: Axes, image: Tensor, title: str = "") -> None:
    """A picture (channel, row, col) from 0 to 1, pixel by pixel, without an axis."""
    colours = image.clamp(0, 1).cpu().movedim(0, -1).numpy()
    grey = colours.shape[-1] == 1
    axes.imshow(colours[..., 0] if grey else colours, cmap="gray", vmin=0, vmax=1)
    axes.set_axis_off()
    axes.set_title(title, fontsize=14)


def angles_figure(
    subjects: Sequence[LoadedModel], *, picture: int = 0, pictures: int = 200, angles: int = 36,
    progress: bool = False,
) -> Figure:  # fmt: skip
    """Above, the probability of one picture's class against its angle; below, the accuracy of many.

    The legend tells how many pictures keep one answer at all the angles.
    """
    first, degrees = subjects[0], equal_angles(angles)
    one = chosen_example(first, picture)
    label, views = int(one.labels), rotated_views(one.images[0], degrees)
    sample = spaced_examples(first, pictures)
    with matplotlib.rc_context(LOOK):
        figure = Figure(figsize=(7.5, 8.4), layout="constrained")
        above, below = figure.subplots(2, 1, sharex=True)
        probability, accuracy = {}, {}
        for subject in subjects:
            turned = predict_over_angles(subject.model, sample, degrees, progress=progress)
            name = f"{subject.name}: same answer for {format_percent(agreement(turned), 0)}"
            said = answers_to(subject.model, views)[:, label].tolist()
            probability[name] = closed_curve(degrees, said)
            accuracy[name] = closed_curve(degrees, accuracy_by_view(turned, sample.labels))
        draw_curves(above, probability, 36)
        draw_curves(below, accuracy, 36)
        above.set(ylabel=f"probability of “{first.classes[label]}”", title="one picture")
        below.set(ylabel="accuracy", xlabel="turned by", title=f"{len(sample)} pictures")
        for axes in (above, below):
            percent_axis(axes, [0.0])
            angle_axis(axes)
            mark_exact_angles(axes, QUARTERS)
        handles, names = above.get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower right")
        laid_out(figure)
        draw_image(figure.add_axes((0.02, 0.01, 0.15, 0.13)), views[0])
        return figure


def shifts_figure(
    subjects: Sequence[LoadedModel], *, picture: int = 0, pictures: int = 200, reach: int = 6,
    progress: bool = False,
) -> Figure:  # fmt: skip
    """Above, one picture's probability at every shift; below, accuracy against the shift."""
    first = subjects[0]
    one = chosen_example(first, picture)
    label, sample = int(one.labels), spaced_examples(first, pictures)
    views = shifted_views(one.images[0], steps_around(reach))
    side, ends = 2 * reach + 1, (-reach - 0.5, reach + 0.5)
    with matplotlib.rc_context({**LOOK, "axes.grid": False}):
        figure = Figure(figsize=(max(7.5, 3.4 * len(subjects)), 8), layout="constrained")
        parts = figure.subfigures(2, 1, squeeze=False, height_ratios=(1, 1.15))
        above, below = parts[0, 0], parts[1, 0]
        maps = above.subplots(1, len(subjects), squeeze=False)[0]
        for axes, subject in zip(maps, subjects, strict=True):
            said = answers_to(subject.model, views)[:, label].view(side, side)
            drawn = axes.imshow(said.numpy(), cmap="cividis", vmin=0, vmax=1, extent=(*ends, *ends))
            axes.set(xlabel="right, pixels", title=subject.name)
        maps[0].set_ylabel("up, pixels")
        above.colorbar(
            drawn,
            ax=list(maps),
            label=f"probability of “{first.classes[label]}”",
            format=PercentFormatter(xmax=1, symbol=" %"),
        )
        axes = below.add_subplot(xlabel="shifted to the right by, pixels", ylabel="accuracy")
        steps = range(-reach, reach + 1)
        curves = {}
        for subject in tqdm(subjects, desc="shifting", disable=not progress, leave=False):
            moved = [
                predict_probabilities(subject.model, sample, move=partial(_shift, right=step))
                for step in steps
            ]
            curves[subject.name] = (
                list(map(float, steps)),
                accuracy_by_view(torch.stack(moved), sample.labels),
            )
        draw_curves(axes, curves, 30)
        axes.grid(axis="y")
        percent_axis(axes, [0.0])
        handles, names = axes.get_legend_handles_labels()
        below.legend(handles, names, loc="outside lower center", ncols=2)
        return laid_out(figure)


def _shift(images: Tensor, right: int) -> Tensor:
    return shift_image(images, right, 0)
