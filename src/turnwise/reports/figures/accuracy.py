"""Probability and accuracy under rotations and shifts, and the images that are misclassified."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import matplotlib
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from torch import Tensor
from tqdm import tqdm

from turnwise.data.batches import to_unit
from turnwise.evaluation.metrics import confusion_matrix
from turnwise.evaluation.transformations import (
    accuracy_by_view,
    agreement,
    equal_angles,
    predict_over_angles,
)
from turnwise.geometry.warps import rotate_image
from turnwise.reports.figures import FigureOptions, Plot, figure
from turnwise.reports.figures.plots import (
    IMAGE_LOOK,
    LOOK,
    angle_axis,
    closed_curve,
    draw_curves,
    draw_image,
    fix_layout,
    mark_exact_angles,
    percent_axis,
)
from turnwise.reports.loaded_models import (
    LoadedModel,
    rotated_views,
    sample_examples,
    shift_image,
    shifted_views,
    shifts_within,
    take_example,
)
from turnwise.reports.tables import format_percent

MAX_NUMBERED = 12  # with more classes, cells show no counts
WORST_ANGLES = 24


@figure("angles", "probability and accuracy against the angle of rotation", several=True)
def angles_figure(models: Sequence[LoadedModel], options: FigureOptions) -> Plot:
    """Draw the probability of one image's class, and the accuracy on many, against the angle.

    The legend states the share of images with the same prediction at all angles.
    """
    first, degrees = models[0], equal_angles(options.angles)
    one = take_example(first, options.image_for(models))
    label, views = int(one.labels), rotated_views(one.images[0], degrees, first.fill)
    sample = sample_examples(first, options.images)
    with matplotlib.rc_context(LOOK):
        fig = Figure(figsize=(7.5, 8.4), layout="constrained")
        above, below = fig.subplots(2, 1, sharex=True)
        probability, accuracy = {}, {}
        for model in models:
            predicted = predict_over_angles(
                model.predictor, sample.images, degrees, fill=model.fill, progress=options.progress
            )
            name = f"{model.name}: same prediction for {format_percent(agreement(predicted), 0)}"
            of_class = model.predictor.probabilities(views)[:, label].tolist()
            probability[name] = closed_curve(degrees, of_class)
            accuracy[name] = closed_curve(degrees, accuracy_by_view(predicted, sample.labels))
        draw_curves(above, probability, 36)
        draw_curves(below, accuracy, 36)
        above.set(ylabel=f"probability of “{first.classes[label]}”", title="one image")
        below.set(
            ylabel="accuracy", xlabel="angle of rotation",
            title=f"{len(sample)} images, corners filled by {first.fill}",
        )  # fmt: skip
        for axes in (above, below):
            percent_axis(axes, [0.0])
            angle_axis(axes)
            mark_exact_angles(axes)
        handles, names = above.get_legend_handles_labels()
        fig.legend(handles, names, loc="outside lower right")
        fix_layout(fig)
        draw_image(fig.add_axes((0.02, 0.01, 0.15, 0.13)), views[0])
        return Plot(fig)


@figure("shifts", "probability and accuracy against the shift", several=True)
def shifts_figure(models: Sequence[LoadedModel], options: FigureOptions, *, reach: int = 6) -> Plot:
    """Draw one image's probability at every shift, and the accuracy on many against the shift."""
    first = models[0]
    one = take_example(first, options.image_for(models))
    label, views = int(one.labels), shifted_views(one.images[0], shifts_within(reach))
    side, ends = 2 * reach + 1, (-reach - 0.5, reach + 0.5)
    with matplotlib.rc_context({**LOOK, "axes.grid": False}):
        fig = Figure(figsize=(max(7.5, 3.4 * len(models)), 8), layout="constrained")
        parts = fig.subfigures(2, 1, squeeze=False, height_ratios=(1, 1.15))
        above, below = parts[0, 0], parts[1, 0]
        maps = above.subplots(1, len(models), squeeze=False)[0]
        for axes, model in zip(maps, models, strict=True):
            of_class = model.predictor.probabilities(views)[:, label].view(side, side)
            shown = axes.imshow(
                of_class.numpy(), cmap="cividis", vmin=0, vmax=1, extent=(*ends, *ends)
            )
            axes.set(xlabel="right, pixels", title=model.name)
        maps[0].set_ylabel("up, pixels")
        above.colorbar(
            shown,
            ax=list(maps),
            label=f"probability of “{first.classes[label]}”",
            format=PercentFormatter(xmax=1, symbol=" %"),
        )
        axes = below.add_subplot(xlabel="shift to the right, pixels", ylabel="accuracy")
        draw_curves(axes, _accuracy_over_shifts(models, options, reach), 30)
        axes.grid(axis="y")
        percent_axis(axes, [0.0])
        handles, names = axes.get_legend_handles_labels()
        below.legend(handles, names, loc="outside lower center", ncols=2)
        return Plot(fix_layout(fig))


def _accuracy_over_shifts(
    models: Sequence[LoadedModel], options: FigureOptions, reach: int
) -> dict[str, tuple[list[float], list[float]]]:
    sample, steps = sample_examples(models[0], options.images), range(-reach, reach + 1)
    curves = {}
    for model in tqdm(models, desc="shifting", disable=not options.progress, leave=False):
        predicted = [
            model.predictor.probabilities(sample.images, partial(shift_image, right=step, up=0))
            for step in steps
        ]
        accuracy = accuracy_by_view(torch.stack(predicted), sample.labels)
        curves[model.name] = (list(map(float, steps)), accuracy)
    return curves


@figure("confusion", "which classes are confused, upright and rotated by 90°")
def confusion_figure(
    models: Sequence[LoadedModel], options: FigureOptions, *, degrees: float = 90.0
) -> Plot:
    """Draw the confusion matrices of upright and of rotated images."""
    (model,) = models
    sample = sample_examples(model, options.images)
    predictions = predict_over_angles(
        model.predictor, sample.images, [0.0, degrees], fill=model.fill
    )
    titles = ("upright", f"rotated by {degrees:g}°")
    with matplotlib.rc_context(IMAGE_LOOK):
        fig = Figure(figsize=(11, 6), layout="constrained")
        cells = fig.subplots(1, 2)
        for axes, predicted, title in zip(cells, predictions, titles, strict=True):
            correct = float((predicted.argmax(-1) == sample.labels).double().mean())
            matrix = confusion_matrix(predicted, sample.labels, len(model.classes))
            shown = _draw_matrix(axes, matrix, model.classes)
            axes.set(xlabel="predicted class", title=f"{title}: {100 * correct:.1f} % correct")
        cells[0].set_ylabel("true class")
        fig.colorbar(shown, ax=list(cells), label="share of the class", shrink=0.8)
        fig.suptitle(f"{model.name}, {len(sample)} {model.origin}", fontsize=14)
        return Plot(fix_layout(fig))


def _draw_matrix(
    axes: Axes, matrix: Tensor, classes: tuple[str, ...]
) -> matplotlib.image.AxesImage:
    share = matrix / matrix.sum(dim=1, keepdim=True).clamp_min(1)
    shown = axes.imshow(share.numpy(), cmap="cividis", vmin=0, vmax=1)
    if len(classes) <= MAX_NUMBERED:
        ticks = range(len(classes))
        axes.set_xticks(ticks, classes, rotation=0 if max(map(len, classes)) < 3 else 90)
        axes.set_yticks(ticks, classes)
        for row, col in matrix.nonzero().tolist():
            colour = "black" if share[row, col] > 0.5 else "white"
            count = str(int(matrix[row, col]))
            axes.text(col, row, count, ha="center", va="center", color=colour, fontsize=11)
    return shown


@dataclass(frozen=True)
class Drop:
    """An image, and the angle at which its class has the lowest probability."""

    number: int
    degrees: float
    upright: float
    rotated: float
    predicted: int


@figure("worst", "the images whose probability drops most under rotation")
def worst_figure(models: Sequence[LoadedModel], options: FigureOptions, *, count: int = 6) -> Plot:
    """Draw the images with the largest drops: upright above, at their worst angle below."""
    (model,) = models
    sample = sample_examples(model, options.images)
    drops = largest_drops(model, options, count)
    with matplotlib.rc_context(IMAGE_LOOK):
        fig = Figure(figsize=(1.0 + 2.0 * len(drops), 5.8), layout="constrained")
        cells = fig.subplots(2, len(drops), squeeze=False)
        for column, drop in enumerate(drops):
            image = to_unit(sample.images[drop.number : drop.number + 1])
            name = model.classes[int(sample.labels[drop.number])]
            title = f"upright\n“{name}”: {100 * drop.upright:.0f} %"
            draw_image(cells[0, column], image[0], title)
            rotated = rotate_image(image, drop.degrees, model.fill)[0]
            predicted = model.classes[drop.predicted]
            title = f"{drop.degrees:g}°: {100 * drop.rotated:.0f} %\npredicts “{predicted}”"
            draw_image(cells[1, column], rotated, title)
        title = f"{model.name}: largest drops over {WORST_ANGLES} angles ({model.fill})"
        fig.suptitle(title, fontsize=14)
        return Plot(fix_layout(fig))


def largest_drops(model: LoadedModel, options: FigureOptions, count: int) -> list[Drop]:
    """Return the images of a sample whose true class loses most probability, worst first."""
    sample, degrees = sample_examples(model, options.images), equal_angles(WORST_ANGLES)
    predicted = predict_over_angles(
        model.predictor, sample.images, degrees, fill=model.fill, progress=options.progress
    )
    of_class = predicted.gather(2, sample.labels.expand(WORST_ANGLES, -1)[..., None])[..., 0]
    lowest = of_class.min(dim=0)
    order = (of_class[0] - lowest.values).argsort(descending=True)[:count].tolist()
    return [
        Drop(
            number=i,
            degrees=degrees[at := int(lowest.indices[i])],
            upright=float(of_class[0, i]),
            rotated=float(lowest.values[i]),
            predicted=int(predicted[at, i].argmax()),
        )
        for i in order
    ]
