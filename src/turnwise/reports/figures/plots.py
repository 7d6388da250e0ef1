"""The style of all figures, their parts, and how they are written to files.

Curves differ in colour (Okabe and Ito's palette, safe for colour-blind readers), in marker and in
dashes, so any one of the three distinguishes them.  Figures use no global state of matplotlib, and
the same numbers give the same file.
"""

import io
from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from torch import Tensor

from turnwise.errors import require
from turnwise.files import ANOTHER_PATH, write_atomic

Curves = Mapping[str, tuple[Sequence[float], Sequence[float]]]
FORMATS = (".png", ".svg")
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")  # seven colours and eight markers: 56 pairs
DASHES = ("-", "--", "-.")  # with eight markers: 24 pairs without colour
MAX_NAME = 47  # letters in a legend
LOOK: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so every machine has it
    "font.size": 15.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": "#dddddd",
    "lines.linewidth": 2.2,
    "lines.markersize": 8.5,
    "legend.frameon": False,
    "legend.handlelength": 3.2,
    "text.parse_math": False,  # a dollar sign in a model's name is a dollar sign
    "svg.hashsalt": "turnwise",
}
IMAGE_LOOK = {**LOOK, "axes.grid": False, "font.size": 13.0}  # of grids of images


def figure_svg(figure: Figure) -> str:
    """Return the figure as one self-contained `<svg>` element; text is drawn as shapes."""
    drawn = io.StringIO()
    with matplotlib.rc_context(LOOK):
        nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
        figure.savefig(drawn, format="svg", metadata=nothing)
    text = drawn.getvalue()
    return text[text.index("<svg") :]  # without the XML prologue, which refers to an external DTD


def figure_file(figure: Figure, path: Path, hint: str = ANOTHER_PATH) -> None:
    """Write the figure as .svg, or as .png with 192 dpi; `hint` as in `files.fill_atomic`."""
    suffix = path.suffix.lower()
    require(suffix in FORMATS, f"a figure is written as .png or .svg, got {path.name!r}.")
    if suffix == ".svg":
        write_atomic(path, figure_svg(figure).encode(), hint)
        return
    drawn = io.BytesIO()
    with matplotlib.rc_context(LOOK):
        figure.savefig(drawn, format="png", dpi=192, metadata={"Software": None})
    write_atomic(path, drawn.getvalue(), hint)


def draw_image(axes: Axes, image: Float[Tensor, "channel row col"], title: str = "") -> None:
    """Draw an image with values from 0 to 1, without an axis."""
    colours = image.clamp(0, 1).cpu().movedim(0, -1).numpy()
    grey = colours.shape[-1] == 1
    axes.imshow(colours[..., 0] if grey else colours, cmap="gray", vmin=0, vmax=1)
    axes.set_axis_off()
    axes.set_title(title, fontsize=14)


def draw_map(
    axes: Axes, values: Float[Tensor, "row col"], bound: float, *, signed: bool = True
) -> None:
    """Draw a map of values from −bound (blue) to bound (red), or from 0 to bound."""
    colours, lowest = ("RdBu_r", -bound) if signed else ("cividis", 0.0)
    axes.imshow(values.numpy(), cmap=colours, vmin=lowest, vmax=bound)
    axes.set_xticks([])
    axes.set_yticks([])


def draw_curves(axes: Axes, curves: Curves, max_markers: int) -> None:
    """Draw each curve in its own colour, marker and dashes."""
    looks = zip(cycle(COLOURS), cycle(MARKERS), cycle(DASHES), strict=False)
    for (name, (x, y)), (colour, marker, dashes) in zip(curves.items(), looks, strict=False):
        axes.plot(
            x,
            y,
            label=legend_label(name),
            color=colour,
            marker=marker,
            linestyle=dashes,
            markevery=-(-len(x) // max_markers) or 1,
            markeredgecolor="white",
            markeredgewidth=0.7,
        )


def legend_label(name: str) -> str:
    """Return the name for a legend, with its middle left out where it is too long.

    A zero-width space precedes an underscore, because matplotlib hides labels that begin with one.
    """
    if len(name) > MAX_NAME:
        half = (MAX_NAME - 1) // 2
        name = f"{name[:half]}…{name[-half:]}"
    return f"\u200b{name}" if name.startswith("_") else name


def angle_axis(axes: Axes) -> None:
    """Put a tick every 45°."""
    axes.set_xticks(range(0, 361, 45), [f"{angle}°" for angle in range(0, 361, 45)])


def mark_exact_angles(axes: Axes) -> None:
    """Draw a light line behind the curves at each angle at which pixels rotate exactly."""
    for angle in range(0, 361, 90):
        label = "pixels rotate exactly" if angle == 0 else None
        axes.axvline(angle, color="#e2e2e2", linewidth=5, zorder=0, label=label)


def percent_axis(axes: Axes, values: Sequence[float]) -> None:
    """Show percentages from the ten below the lowest value up to 100 %, with space for markers."""
    lowest = max(0.0, (10 * min(values, default=0.0) - 0.5) // 1 / 10)
    axes.set_ylim(lowest - 0.02 * (1 - lowest), 1 + 0.03 * (1 - lowest))
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0, symbol=" %"))


def legend_columns(names: Iterable[str]) -> int:
    """Return 2 if the names are short, else 1."""
    return 2 if max(map(len, names), default=0) <= 24 else 1


def add_legend(figure: Figure, axes: Axes) -> None:
    """Put the legend below the data."""
    handles, names = axes.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=legend_columns(names))


def fix_layout(figure: Figure) -> Figure:
    """Compute the layout once; otherwise every drawing would shift it slightly."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    return figure


def closed_curve(
    angles: Sequence[float], values: Sequence[float]
) -> tuple[Sequence[float], Sequence[float]]:
    """Sort by angle, and repeat the value at 0° at 360°."""
    points = dict(sorted(zip(angles, values, strict=True)))
    if 0 in points:
        points.setdefault(360.0, points[0])
    return list(points), list(points.values())
