"""Figures for `turnwise show`, and their registry.

A module of this package adds a figure with `@figure`; there is no list of figures elsewhere.
"""

import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Protocol, TypeVar

from matplotlib.figure import Figure

from turnwise.errors import require, require_known
from turnwise.reports.figures.plots import FORMATS, figure_file
from turnwise.reports.loaded_models import LoadedModel, recognised_example, require_comparable


@dataclass(frozen=True)
class FigureOptions:
    """What a user may choose; every figure uses what it needs.

    Args:
        image: number in the validation split; None takes one that all models classify correctly.
        images: how many images to measure rates on.
        angles: equal steps over 360°.
        layer, head: of attention.
        element: group element of the query token.
        pixel: (row, col) of the query token.
        channel: of features; None takes the one that varies most.
        progress: show progress bars.
    """

    image: int | None = None
    images: int = 200
    angles: int = 36
    layer: int = 0
    head: int = 0
    element: int = 0
    pixel: tuple[int, int] | None = None
    channel: int | None = None
    progress: bool = False

    def image_for(self, models: Sequence[LoadedModel]) -> int:
        """Return the number of the image to show."""
        return recognised_example(models) if self.image is None else self.image


class Drawing(Protocol):
    """What drawing a figure returns: something to write to a file, and text for the terminal."""

    @property
    def text(self) -> str: ...

    def write(self, path: Path) -> None: ...


@dataclass(frozen=True)
class Plot:
    """A matplotlib figure, and text for the terminal."""

    figure: Figure
    text: str = ""

    def write(self, path: Path) -> None:
        figure_file(self.figure, path)


Draw = Callable[[Sequence[LoadedModel], FigureOptions], Drawing]
DrawT = TypeVar("DrawT", bound=Draw)


@dataclass(frozen=True)
class FigureKind:
    """A registered figure.

    Args:
        description: one line for the help text.
        draw: the function that draws it.
        several: whether it shows several models side by side.
        comparable: whether several models must take the same images and have the same classes.
        suffixes: the file types it can be written as, the default first.
    """

    description: str
    draw: Draw
    several: bool
    comparable: bool
    suffixes: tuple[str, ...]


_KINDS: dict[str, FigureKind] = {}


def figure(
    name: str,
    description: str,
    *,
    several: bool = False,
    comparable: bool = True,
    suffixes: tuple[str, ...] = FORMATS,
) -> Callable[[DrawT], DrawT]:
    """Register a function (models, options) -> `Drawing` as a figure of `turnwise show`."""

    def register(draw: DrawT) -> DrawT:
        require(name not in _KINDS, f"a figure {name!r} is registered already.")
        _KINDS[name] = FigureKind(description, draw, several, comparable, suffixes)
        return draw

    return register


def figure_kinds() -> dict[str, FigureKind]:
    """Return all figures by name; this imports every module of the package."""
    for module in pkgutil.iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
    return dict(sorted(_KINDS.items()))


def draw_figure(
    kind: str, models: Sequence[LoadedModel], options: FigureOptions, path: Path
) -> str:
    """Draw a figure into a file, and return its text for the terminal."""
    require_file(kind, path)
    chosen = figure_kinds()[kind]
    require(
        chosen.several or len(models) == 1,
        f"{kind} shows one model at a time, got {len(models)}; name one.",
    )
    if chosen.comparable:
        require_comparable(models)
    drawing = chosen.draw(models, options)
    drawing.write(path)
    return drawing.text


def require_file(kind: str, path: Path) -> None:
    """Raise unless the figure can be written as a file of this type."""
    kinds = figure_kinds()
    require_known(kind, kinds, "figure")
    suffixes = kinds[kind].suffixes
    require(
        path.suffix.lower() in suffixes,
        f"{kind} is written as {' or '.join(suffixes)}, got {path.name!r}.",
    )
