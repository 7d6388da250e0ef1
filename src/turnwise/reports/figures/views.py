"""What models predict for views of one image: as it rotates (a film), and over its orbit."""

import io
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import matplotlib
import torch
from jaxtyping import Float, Int64
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor, nn
from tqdm import tqdm

from turnwise.data.batches import to_unit
from turnwise.errors import InputError, require_known
from turnwise.evaluation.transformations import describe_element, equal_angles
from turnwise.files import fill_atomic, write_atomic
from turnwise.geometry.warps import warp_image
from turnwise.groups import PlanarGroup
from turnwise.inference.predictor import Predictor
from turnwise.models.orbits import Orbit, orbit
from turnwise.reports.figures import FigureOptions, Plot, figure
from turnwise.reports.figures.plots import (
    COLOURS,
    IMAGE_LOOK,
    LOOK,
    draw_image,
    figure_file,
    fix_layout,
)
from turnwise.reports.loaded_models import (
    LoadedModel,
    rotated_views,
    sample_examples,
    take_example,
)

Images = Float[Tensor, "batch channel row col"]
Predictions = Mapping[str, Float[Tensor, "view class"]]  # probabilities by model
MAX_CLASSES = 10
STILLS = 8
FRAME_MS = 80
CORRECT, OTHER = COLOURS[0], "#b9b9b9"


def classes_to_show(predictions: Predictions, label: int, count: int = MAX_CLASSES) -> list[int]:
    """Return all classes if they are few, else the label and those with the highest probability."""
    highest = torch.stack([p.amax(dim=0) for p in predictions.values()]).amax(dim=0)
    highest[label] = 2.0  # above every probability
    return sorted(highest.argsort(descending=True)[:count].tolist())


class Rotation(NamedTuple):
    """An image rotated by every angle, and what models predict for each view."""

    views: Images
    angles: Sequence[float]
    predictions: Predictions
    classes: Sequence[str]
    label: int

    @classmethod
    def of(cls, models: Sequence[LoadedModel], image: int, angles: Sequence[float]) -> "Rotation":
        one = take_example(models[0], image)
        views = rotated_views(one.images[0], angles, models[0].fill)
        predictions = {m.name: m.predictor.probabilities(views) for m in models}
        return cls(views, angles, predictions, models[0].classes, int(one.labels))


@figure(
    "film", "an image as it rotates, and what each model predicts", several=True,
    suffixes=(".gif", ".png", ".mp4"),
)  # fmt: skip
@dataclass(frozen=True)
class Film:
    """An image that rotates, beside the predictions: .gif, .mp4, or a strip of stills as .png."""

    models: Sequence[LoadedModel]
    options: FigureOptions
    text: str = ""

    def write(self, path: Path) -> None:
        is_strip = path.suffix.lower() == ".png"
        angles = equal_angles(STILLS if is_strip else self.options.angles)
        rotation = Rotation.of(self.models, self.options.image_for(self.models), angles)
        if is_strip:
            figure_file(film_strip_figure(rotation), path)
        else:
            frames = film_frames(rotation)
            write_film(path, frames, len(angles), progress=self.options.progress)


def film_frames(rotation: Rotation) -> Iterator[Image.Image]:
    """Yield one frame per angle; the figure is laid out once and its bars are updated."""
    views, angles, predictions, classes, label = rotation
    shown = classes_to_show(predictions, label)
    with matplotlib.rc_context({**LOOK, "axes.grid": False}):
        fig = Figure(figsize=(3.0 + 3.2 * len(predictions), 3.6), dpi=80, layout="constrained")
        canvas = FigureCanvasAgg(fig)
        left, *others = fig.subplots(1, 1 + len(predictions))
        draw_image(left, views[0], "000°")
        bars = [
            _draw_bars(axes, name, p[0, shown], [classes[c] for c in shown], shown.index(label))
            for axes, (name, p) in zip(others, predictions.items(), strict=True)
        ]
        fix_layout(fig)
        for number, angle in enumerate(angles):
            left.clear()
            draw_image(left, views[number], f"rotated by {angle:g}°")
            for drawn, p in zip(bars, predictions.values(), strict=True):
                for bar, probability in zip(drawn, p[number, shown].tolist(), strict=True):
                    bar.set_width(probability)
            canvas.draw()
            size, pixels = canvas.get_width_height(), canvas.buffer_rgba()
            yield Image.frombytes("RGBA", size, pixels).convert("RGB")


def film_strip_figure(rotation: Rotation) -> Figure:
    """Draw stills side by side: the rotated image above, a row of bars per model below."""
    views, angles, predictions, classes, label = rotation
    shown, count = classes_to_show(predictions, label), len(predictions)
    names = [classes[c] for c in shown]
    with matplotlib.rc_context({**LOOK, "axes.grid": False}):
        fig = Figure(figsize=(1.6 + 1.6 * len(angles), 1.9 + 2.6 * count), layout="constrained")
        cells = fig.subplots(
            1 + count, len(angles), squeeze=False, height_ratios=[1, *[1.5] * count]
        )
        for column, angle in enumerate(angles):
            draw_image(cells[0, column], views[column], f"{angle:g}°")
        for row, (name, p) in zip(cells[1:], predictions.items(), strict=True):
            for column, axes in enumerate(row):
                _draw_bars(axes, "", p[column, shown], names, shown.index(label))
                axes.set_xticks([])
                if column:
                    axes.set_yticks([])
            row[0].set_ylabel(name)
        return fix_layout(fig)


def write_film(
    path: Path, frames: Iterator[Image.Image], count: int, *, progress: bool = False
) -> None:
    """Write a .gif, or with ffmpeg a .mp4."""
    suffix = path.suffix.lower()
    require_known(suffix, (".gif", ".mp4"), "kind of film")
    if suffix == ".mp4" and shutil.which("ffmpeg") is None:
        raise InputError(
            f"{path.name} needs ffmpeg, which is not installed; write a .gif, or a .png strip."
        )
    drawn = list(tqdm(frames, total=count, desc="drawing", disable=not progress, leave=False))
    if suffix == ".mp4":
        fill_atomic(path, lambda temporary: _encode_mp4(drawn, temporary))
        return
    # one palette for all frames, or colours would flicker
    palette = drawn[0].quantize(128, method=Image.Quantize.MAXCOVERAGE)
    small = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in drawn]
    encoded = io.BytesIO()
    small[0].save(
        encoded, "GIF", save_all=True, append_images=small[1:], duration=FRAME_MS, loop=0,
        optimize=True,
    )  # fmt: skip
    write_atomic(path, encoded.getvalue())


def _encode_mp4(frames: Sequence[Image.Image], path: Path) -> None:
    """Encode H.264; players need even sides."""
    width, height = (side - side % 2 for side in frames[0].size)
    raw = b"".join(frame.crop((0, 0, width, height)).tobytes() for frame in frames)
    command = ["ffmpeg", "-y", "-loglevel", "error", "-f", "rawvideo", "-pix_fmt", "rgb24"]
    command += ["-s", f"{width}x{height}", "-r", f"{1000 / FRAME_MS:g}", "-i", "-"]
    command += ["-pix_fmt", "yuv420p", str(path)]
    done = subprocess.run(command, input=raw, capture_output=True, check=False)
    if done.returncode:
        raise InputError(f"ffmpeg failed: {done.stderr.decode(errors='replace').strip()[-200:]}")


@dataclass(frozen=True, eq=False)
class OrbitParts:
    """A classifier, its orbit model, and the group of the orbit."""

    inner: nn.Module
    combined: nn.Module
    group: PlanarGroup

    @classmethod
    def of(cls, loaded: LoadedModel) -> "OrbitParts":
        """Take an orbit model apart; wrap any other under the exact part of its group."""
        model, group = loaded.model, loaded.group.exact_subgroup()
        if isinstance(model, Orbit):
            return cls(model.model, model, model.group)
        return cls(model, orbit(model, group), group)

    def views(self) -> list[int]:
        """Return h⁻¹ for every h."""
        return self.group.inverse().tolist()

    def predict_views(self, images: Images) -> Float[Tensor, "batch group class"]:
        """Return the probabilities that the model inside predicts for each view h⁻¹f."""
        views = [warp_image(self.group, view, images) for view in self.views()]
        predictor = Predictor(self.inner)
        return torch.stack([predictor.probabilities(each) for each in views], dim=1)


def most_confident_view(
    predictions: Float[Tensor, "batch group class"],
) -> Int64[Tensor, " batch"]:
    """Return the view with the highest probability of any class."""
    return predictions.amax(dim=-1).argmax(dim=-1)


@figure("orbit", "the prediction for each view of an image, and the most confident view")
def orbit_figure(models: Sequence[LoadedModel], options: FigureOptions) -> Plot:
    """Draw each view, its prediction and the combined one; below, how often a view is the most
    confident, for upright images and for transformed ones.
    """
    (model,) = models
    parts, one = OrbitParts.of(model), take_example(model, options.image_for(models))
    image, label, group = to_unit(one.images), int(one.labels), parts.group
    combined = Predictor(parts.combined).probabilities(image)
    predictions = torch.cat([parts.predict_views(image)[0], combined])
    shown = classes_to_show({"": predictions}, label)
    names, views = [model.classes[c] for c in shown], parts.views()
    best = int(most_confident_view(predictions[None, :-1]))
    with matplotlib.rc_context(IMAGE_LOOK):
        fig = Figure(figsize=(1.0 + 1.75 * len(predictions), 7.6), layout="constrained")
        grid = fig.add_gridspec(3, len(predictions), height_ratios=(1, 1.7, 1.5))
        for h, predicted in enumerate(predictions):
            bars = fig.add_subplot(grid[1, h])
            _draw_bars(bars, "", predicted[shown], names, shown.index(label))
            bars.set_xticks([])
            if h:
                bars.set_yticks([])
            if h == group.order:
                bars.set_xlabel("combined")
                break
            axes = fig.add_subplot(grid[0, h])
            draw_image(axes, warp_image(group, views[h], image)[0])
            axes.set_title(describe_element(group, views[h]).replace(", ", ",\n"), fontsize=11)
            mark, colour = ("▲ ", COLOURS[1]) if h == best else ("", "black")
            bars.set_xlabel(f"{mark}highest: {100 * float(predicted.max()):.0f} %", color=colour)
        _draw_counts(fig.add_subplot(grid[2, :]), parts, model, options.images)
        return Plot(fix_layout(fig))


def _draw_counts(axes: Axes, parts: OrbitParts, model: LoadedModel, count: int) -> None:
    group, sample = parts.group, sample_examples(model, count)
    images = to_unit(sample.images)
    sets = {
        "upright": images,
        f"transformed ({describe_element(group, 1)})": warp_image(group, 1, images),
    }
    for i, (name, transformed) in enumerate(sets.items()):
        chosen = most_confident_view(parts.predict_views(transformed))
        share = (torch.bincount(chosen, minlength=group.order) / len(sample)).tolist()
        x = torch.arange(group.order) + (i - 0.5) * 0.4
        axes.bar(x.tolist(), share, 0.38, label=name, color=COLOURS[i], hatch="/" * i)
    axes.set_xticks(range(group.order), [describe_element(group, view) for view in parts.views()])
    axes.set(ylabel="share of images", title=f"most confident view of {len(sample)} images")
    axes.tick_params(labelsize=11)
    axes.set_ylim(0, 1.4 * axes.get_ylim()[1])  # space for the legend
    axes.legend(ncols=2, loc="upper center")


def _draw_bars(
    axes: Axes, title: str, probabilities: Tensor, names: Sequence[str], label: int
) -> Sequence[matplotlib.patches.Rectangle]:
    """Draw bars of probability, the correct class dark and the others grey."""
    colours = [CORRECT if i == label else OTHER for i in range(len(names))]
    bars = axes.barh(list(names), probabilities.tolist(), color=colours)
    axes.set(xlim=(0, 1.02), title=title)
    axes.set_xticks([0, 0.5, 1], ["0", "50", "100 %"])
    axes.tick_params(labelsize=12)
    axes.invert_yaxis()
    return list(bars)
