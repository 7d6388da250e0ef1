"""Every kind of picture by its name: which function draws it, of one model or of several.

A drawing is given the subjects, the wishes of a user and the file to write; it returns a table of
its numbers for the terminal, or nothing.
"""

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from turnwise.errors import InputError, require
from turnwise.evaluation import read_evaluation
from turnwise.evaluation.metrics import Interval
from turnwise.evaluation.rotations import equal_angles
from turnwise.reports.figures.angles import angles_figure, shifts_figure
from turnwise.reports.figures.artefact import artefact_figure
from turnwise.reports.figures.attention import attention_figure, positions_figure
from turnwise.reports.figures.features import element_names, features_figure
from turnwise.reports.figures.film import STILLS, film_frames, film_strip_figure, write_film
from turnwise.reports.figures.mistakes import confusion_figure, worst_figure
from turnwise.reports.figures.orbit import orbit_figure
from turnwise.reports.figures.plots import figure_file, training_curves
from turnwise.reports.loaded_models import (
    LoadedModel,
    chosen_example,
    recognised_example,
    require_alike,
)
from turnwise.reports.tables import format_percent, text_table
from turnwise.reports.views import answers_to, rotated_views


@dataclass(frozen=True)
class FigureOptions:
    """What a user may choose; None is chosen for them."""

    picture: int | None = None
    pictures: int = 200
    angles: int = 36
    layer: int = 0
    head: int = 0
    element: int = 0
    pixel: tuple[int, int] | None = None
    channel: int | None = None
    progress: bool = False


@dataclass(frozen=True)
class Kind:
    """A kind of picture: what it shows, and how it is drawn into a file; the table is returned."""

    words: str
    draw: Callable[[Sequence[LoadedModel], FigureOptions, Path], str]
    several: bool = False
    suffixes: tuple[str, ...] = field(default=(".png", ".svg"))


def draw_figure(
    kind: str, subjects: Sequence[LoadedModel], wishes: FigureOptions, path: Path
) -> str:
    """Draw the kind into the file; returns a table for the terminal, or nothing."""
    chosen = KINDS[kind]
    require_file(kind, path)
    require(
        chosen.several or len(subjects) == 1,
        f"{kind} shows one model at a time, got {len(subjects)}; name one.",
    )
    if chosen.several and kind not in ("curves", "artefact"):
        require_alike(subjects)
    return chosen.draw(subjects, wishes, path)


def require_file(kind: str, path: Path) -> None:
    """Raise unless the name of the file says a kind of file that this picture can be."""
    suffixes = KINDS[kind].suffixes
    require(
        path.suffix.lower() in suffixes,
        f"{kind} is written as {' or '.join(suffixes)}, got {path.name!r}.",
    )


def read_metrics(run: Path) -> list[Mapping[str, Any]]:
    """The rows of a run's metrics, one for each epoch."""
    try:
        with (run / "metrics.csv").open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{run} has no metrics.csv that can be read; name a run.") from error


def runs_table(runs: Mapping[str, Path]) -> tuple[list[str], list[list[str]]]:
    """Headers and rows: epochs, best validation accuracy, and the test where there was one."""
    rows = []
    for name, run in runs.items():
        metrics = read_metrics(run)
        reached = [float(m["val_accuracy"]) for m in metrics if m.get("val_accuracy")]
        tested = read_evaluation(run)
        test, worst = "–", "–"
        if tested is not None:
            test = format_percent(Interval.kept(tested["scores"]["accuracy"]))
            worst = format_percent(min(tested["angles"]["accuracy"]))
        best = format_percent(max(reached, default=float("nan")))
        rows.append([name, str(len(metrics)), best, test, worst])
    return ["run", "epochs", "validation", "test, upright", "test, worst angle"], rows


def _picture(subjects: Sequence[LoadedModel], wishes: FigureOptions) -> int:
    return recognised_example(subjects) if wishes.picture is None else wishes.picture


def _film(subjects: Sequence[LoadedModel], wishes: FigureOptions, path: Path) -> str:
    one = chosen_example(subjects[0], _picture(subjects, wishes))
    strip = path.suffix.lower() == ".png"
    angles = equal_angles(STILLS if strip else wishes.angles)
    views = rotated_views(one.images[0], angles)
    answers = {s.name: answers_to(s.model, views) for s in subjects}
    given = (views, angles, answers, subjects[0].classes, int(one.labels))
    if strip:
        figure_file(film_strip_figure(*given), path)
    else:
        write_film(path, film_frames(*given), len(angles), progress=wishes.progress)
    return ""


def _angles(subjects: Sequence[LoadedModel], wishes: FigureOptions, path: Path) -> str:
    return _written(
        angles_figure(
            subjects, picture=_picture(subjects, wishes), pictures=wishes.pictures,
            angles=wishes.angles, progress=wishes.progress,
        ),
        path,
    )  # fmt: skip


def _shifts(subjects: Sequence[LoadedModel], wishes: FigureOptions, path: Path) -> str:
    return _written(
        shifts_figure(
            subjects, picture=_picture(subjects, wishes), pictures=wishes.pictures,
            progress=wishes.progress,
        ),
        path,
    )  # fmt: skip


def _features(subjects: Sequence[LoadedModel], wishes: FigureOptions, path: Path) -> str:
    (subject,) = subjects
    figure, rows = features_figure(
        subject, picture=_picture(subjects, wishes), channel=wishes.channel
    )
    return _written(figure, path, ["layer", *element_names(subject)], rows)


def _attention(subjects: Sequence[LoadedModel], wishes: FigureOptions, path: Path) -> str:
    figure, gaps = attention_figure(
        subjects[0], picture=_picture(subjects, wishes), layer=wishes.layer, head=wishes.head,
        element=wishes.element, pixel=wishes.pixel,
    )  # fmt: skip
    _written(figure, path)
    return f"largest difference to the turned attention: {max(gaps):.1e}"


def _positions(subjects: Sequence[LoadedModel], wishes: FigureOptions, path: Path) -> str:
    return _written(positions_figure(subjects[0]), path)


def _orbit(subjects: Sequence[LoadedModel], wishes: FigureOptions, path: Path) -> str:
    figure = orbit_figure(subjects[0], picture=_picture(subjects, wishes), pictures=wishes.pictures)
    return _written(figure, path)


def _artefact(subjects: Sequence[LoadedModel], wishes: FigureOptions, path: Path) -> str:
    figure, rows = artefact_figure(subjects, progress=wishes.progress)
    return _written(figure, path, ["change of the scores at", "22.5°", "45°", "90°"], rows)


def _curves(subjects: Sequence[LoadedModel], wishes: FigureOptions, path: Path) -> str:
    runs = {s.name: s.run for s in subjects if s.run is not None}
    require(len(runs) == len(subjects), "curves are of trained runs; an untrained model has none.")
    headers, rows = runs_table(runs)
    figure = training_curves({name: read_metrics(run) for name, run in runs.items()})
    return _written(figure, path, headers, rows)


def _confusion(subjects: Sequence[LoadedModel], wishes: FigureOptions, path: Path) -> str:
    return _written(confusion_figure(subjects[0], pictures=wishes.pictures), path)


def _worst(subjects: Sequence[LoadedModel], wishes: FigureOptions, path: Path) -> str:
    figure = worst_figure(subjects[0], pictures=wishes.pictures, progress=wishes.progress)
    return _written(figure, path)


def _written(
    figure: Figure, path: Path, headers: Sequence[str] = (), rows: Sequence[Sequence[str]] = ()
) -> str:
    figure_file(figure, path)
    return text_table(headers, rows) if rows else ""


KINDS = {
    "film": Kind("a picture turns, and what each model says", _film, several=True,
                 suffixes=(".gif", ".png", ".mp4")),
    "angles": Kind("probability and accuracy against the angle", _angles, several=True),
    "shifts": Kind("probability and accuracy against the shift", _shifts, several=True),
    "features": Kind("fields of every layer under each element", _features),
    "attention": Kind("where a token looks, and how that turns", _attention),
    "positions": Kind("learned positional encodings as maps", _positions),
    "orbit": Kind("the answer to each view, and which was surest", _orbit),
    "artefact": Kind("how far the answer moves off the grid, at 45°", _artefact, several=True),
    "curves": Kind("training curves and a table of the runs", _curves, several=True),
    "confusion": Kind("which classes are confused, upright and turned", _confusion),
    "worst": Kind("the pictures that fall deepest when they turn", _worst),
}  # fmt: skip
