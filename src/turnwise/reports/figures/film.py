"""The film: a picture turning through 360°, and beside it what each model says, class by class.

As a GIF, as an MP4 where ffmpeg is installed, or as a strip of stills.
"""

import io
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import matplotlib
import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor
from tqdm import tqdm

from turnwise.errors import InputError, require_known
from turnwise.files import fill_atomic, write_atomic
from turnwise.reports.figures.angles import draw_image
from turnwise.reports.figures.plots import COLOURS, LOOK, laid_out

Answers = Mapping[str, Float[Tensor, "angle class"]]
Views = Float[Tensor, "angle channel row col"]
MOST_CLASSES = 10
STILLS = 8
RIGHT, OTHER = COLOURS[0], "#b9b9b9"


def classes_to_show(answers: Answers, label: int, most: int = MOST_CLASSES) -> list[int]:
    """All classes if they are few, else the label and those that came nearest to an answer."""
    highest = torch.stack([said.amax(dim=0) for said in answers.values()]).amax(dim=0)
    highest[label] = 2.0  # above every probability
    return sorted(highest.argsort(descending=True)[:most].tolist())


def film_frames(
    views: Views, angles: Sequence[float], answers: Answers, classes: Sequence[str], label: int
) -> Iterator[Image.Image]:
    """One picture for each angle; the figure is laid out once and its bars are moved."""
    shown = classes_to_show(answers, label)
    with matplotlib.rc_context({**LOOK, "axes.grid": False}):
        figure = Figure(figsize=(3.0 + 3.2 * len(answers), 3.6), dpi=80, layout="constrained")
        canvas = FigureCanvasAgg(figure)
        left, *others = figure.subplots(1, 1 + len(answers))
        draw_image(left, views[0], "000°")
        bars = [
            _bars(axes, name, said[0, shown], [classes[c] for c in shown], shown.index(label))
            for axes, (name, said) in zip(others, answers.items(), strict=True)
        ]
        laid_out(figure)
        for number, angle in enumerate(angles):
            left.clear()
            draw_image(left, views[number], f"turned by {angle:g}°")
            for drawn, said in zip(bars, answers.values(), strict=True):
                for bar, probability in zip(drawn, said[number, shown].tolist(), strict=True):
                    bar.set_width(probability)
            canvas.draw()
            yield Image.frombytes("RGBA", canvas.get_width_height(), canvas.buffer_rgba()).convert(
                "RGB"
            )


def film_strip_figure(
    views: Views, angles: Sequence[float], answers: Answers, classes: Sequence[str], label: int
) -> Figure:
    """Stills side by side: the turned picture above, under it one row of bars for each model."""
    shown, count = classes_to_show(answers, label), len(angles)
    names = [classes[c] for c in shown]
    with matplotlib.rc_context({**LOOK, "axes.grid": False}):
        figure = Figure(figsize=(1.6 + 1.6 * count, 1.9 + 2.6 * len(answers)), layout="constrained")
        cells = figure.subplots(
            1 + len(answers), count, squeeze=False, height_ratios=[1, *[1.5] * len(answers)]
        )
        for column, angle in enumerate(angles):
            draw_image(cells[0, column], views[column], f"{angle:g}°")
        for row, (name, said) in zip(cells[1:], answers.items(), strict=True):
            for column, axes in enumerate(row):
                _bars(axes, "", said[column, shown], names, shown.index(label))
                axes.set_xticks([])
                if column:
                    axes.set_yticks([])
            row[0].set_ylabel(name)
        return laid_out(figure)


def write_film(
    path: Path, frames: Iterator[Image.Image], count: int, *, progress: bool = False
) -> None:
    """Write a .gif, or a .mp4 where ffmpeg is there; one step takes 80 ms."""
    require_known(path.suffix.lower(), (".gif", ".mp4"), "kind of film")
    if path.suffix.lower() == ".mp4" and shutil.which("ffmpeg") is None:
        raise InputError(
            f"{path.name} needs ffmpeg, which is not installed; write a .gif, or a .png strip."
        )
    drawn = list(tqdm(frames, total=count, desc="drawing", disable=not progress, leave=False))
    if path.suffix.lower() == ".mp4":
        fill_atomic(path, lambda beside: _encode_mp4(drawn, beside))
        return
    # one palette for all frames, or colours would flicker
    palette = drawn[0].quantize(128, method=Image.Quantize.MAXCOVERAGE)
    small = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in drawn]
    encoded = io.BytesIO()
    small[0].save(
        encoded, "GIF", save_all=True, append_images=small[1:], duration=80, loop=0, optimize=True
    )
    write_atomic(path, encoded.getvalue())


def _bars(
    axes: Axes, title: str, said: Tensor, names: Sequence[str], label: int
) -> Sequence[matplotlib.patches.Rectangle]:
    """Bars of probability, the right class dark and the others grey."""
    colours = [RIGHT if i == label else OTHER for i in range(len(names))]
    bars = axes.barh(list(names), said.tolist(), color=colours)
    axes.set(xlim=(0, 1.02), title=title)
    axes.set_xticks([0, 0.5, 1], ["0", "50", "100 %"])
    axes.tick_params(labelsize=12)
    axes.invert_yaxis()
    return list(bars)


def _encode_mp4(frames: Sequence[Image.Image], path: Path) -> None:
    """H.264 of even sides, which players need."""
    width, height = (side - side % 2 for side in frames[0].size)
    raw = b"".join(frame.crop((0, 0, width, height)).tobytes() for frame in frames)
    command = ["ffmpeg", "-y", "-loglevel", "error", "-f", "rawvideo", "-pix_fmt", "rgb24"]
    command += ["-s", f"{width}x{height}", "-r", "12.5", "-i", "-", "-pix_fmt", "yuv420p"]
    done = subprocess.run([*command, str(path)], input=raw, capture_output=True, check=False)
    if done.returncode:
        raise InputError(f"ffmpeg failed: {done.stderr.decode(errors='replace').strip()[-200:]}")
