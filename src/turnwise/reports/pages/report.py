"""One page about one or several runs: turn the picture, curves, certificate, table, recipe."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from turnwise.data import Examples
from turnwise.evaluation import read_evaluation
from turnwise.evaluation.certificate.scores import hash_weights
from turnwise.evaluation.metrics import Interval
from turnwise.evaluation.rotations import (
    accuracy_by_view,
    equal_angles,
    predict_over_angles,
    predict_probabilities,
)
from turnwise.groups import PlanarGroup
from turnwise.reports.figures.plots import accuracy_against_angle, figure_svg, training_curves
from turnwise.reports.gallery import read_metrics, runs_table
from turnwise.reports.loaded_models import LoadedModel, spaced_examples
from turnwise.reports.pages.explorer import explorer_data, explorer_html, explorer_script
from turnwise.reports.pages.page import (
    Answer,
    Section,
    code_html,
    figure_html,
    film_strip,
    folded_html,
    page,
    paragraph_html,
    table_html,
)
from turnwise.reports.tables import format_error, format_percent
from turnwise.reports.views import answers_to, rotated_views

CERTIFICATE = "certificate.json"
STILLS = 8
MOST_STRIPS = 3
TURNING = (
    "Drag the slider to turn the picture, or the picture to shift it; by keyboard, arrow keys move "
    "either. The answers were computed beforehand, every 5° and for shifts up to 5 pixels."
)


def report_page(
    title: str,
    subjects: Sequence[LoadedModel],
    examples: Examples,
    *,
    note: str,
    commands: str,
    progress: bool = False,
) -> str:
    """The page as HTML; `examples` can be turned, `note` says how they were chosen, and `commands`
    repeat what was done."""
    data = explorer_data(subjects, examples, progress=progress)
    runs = {s.name: s.run for s in subjects if s.run is not None}
    trained = {name: run for name, run in runs.items() if (run / "metrics.csv").is_file()}
    recipes = "".join(
        folded_html(name, code_html((run / "recipe.yaml").read_text(encoding="utf-8")))
        for name, run in runs.items()
        if (run / "recipe.yaml").is_file()
    )
    turning = paragraph_html(f"{note} {TURNING}") + explorer_html(data, examples)
    sections = [
        Section("Turn the picture", turning),
        Section("As it turns, still by still", _strips(subjects, examples)),
        Section("Accuracy against angle", _angles(subjects, progress)),
        Section("Certificate", _certificates(subjects)),
        *([Section("Scores on the test split", scores)] if (scores := _scores(subjects)) else []),
        *([Section("Training", _training(trained))] if trained else []),
        Section("How this was made", code_html(commands) + recipes),
    ]
    return page(title, sections, summary=_headline(subjects), script=explorer_script())


def chosen_examples(subjects: Sequence[LoadedModel], count: int = 6) -> Examples:
    """One picture of each of the first classes, all that are recognised upright before others."""
    sample = spaced_examples(subjects[0], 400)
    right = torch.zeros(len(sample))
    for subject in subjects:
        right += predict_probabilities(subject.model, sample).argmax(-1) == sample.labels
    chosen: list[int] = []
    for label in sample.labels.unique().tolist()[:count]:
        of_class = (sample.labels == label).nonzero()[:, 0]
        chosen.append(int(of_class[right[of_class].argmax()]))
    return sample.take(torch.tensor(chosen))


def read_certificate(subject: LoadedModel) -> Mapping[str, Any] | None:
    """The certificate of these weights that `turnwise certify` left in the run, if there is one."""
    if subject.run is None:
        return None
    try:
        kept = json.loads((subject.run / CERTIFICATE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    needed = {"holds", "group", "elements", "controls", "pictures", "weights_sha256"}
    if not isinstance(kept, dict) or not needed <= kept.keys():
        return None
    return kept if kept["weights_sha256"] == hash_weights(subject.model) else None


def _turns(group: str) -> bool:
    """Whether a certificate of this group is about quarter turns."""
    return PlanarGroup.named(group).exact_subgroup().rotations == 4


def _headline(subjects: Sequence[LoadedModel]) -> str:
    """What a busy reader takes home, made from the figures."""
    parts = []
    for subject in subjects:
        tested = read_evaluation(subject.run) if subject.run else None
        certificate = read_certificate(subject)
        if tested is None or certificate is None or not _turns(certificate["group"]):
            continue
        angles = tested["angles"]
        by_angle = dict(zip(angles["degrees"], angles["accuracy"], strict=True))
        quarters = {degrees: a for degrees, a in by_angle.items() if degrees % 90 == 0}
        verb = "keeps its answer" if certificate["holds"] else "changes its answers"
        parts.append(
            f"The {subject.name} model {verb} when the picture is turned by a quarter: accuracy "
            f"{', '.join(format_percent(a) for a in quarters.values())} at "
            f"{', '.join(f'{d:g}°' for d in quarters)}."
        )
    return " ".join(parts)


def _strips(subjects: Sequence[LoadedModel], examples: Examples) -> str:
    angles, classes = equal_angles(STILLS), subjects[0].classes
    strips = []
    for image, label in zip(examples.images[:MOST_STRIPS], examples.labels.tolist(), strict=False):
        views = rotated_views(image, angles)
        frames = [(255 * view).round().to(torch.uint8) for view in views]
        said = {s.name: _said(answers_to(s.model, views), label, classes) for s in subjects}
        strips.append(film_strip(angles, frames, said, caption=f"A picture of: {classes[label]}"))
    return "\n".join(strips)


def _said(probabilities: Tensor, label: int, classes: Sequence[str]) -> list[Answer]:
    best = probabilities.max(dim=-1)
    return [
        Answer(classes[i], p, right=i == label)
        for p, i in zip(best.values.tolist(), best.indices.tolist(), strict=True)
    ]


def _angles(subjects: Sequence[LoadedModel], progress: bool) -> str:
    """From the test where all were tested, else on validation pictures."""
    tested = [read_evaluation(s.run) if s.run else None for s in subjects]
    curves: dict[str, tuple[list[float], list[float]]] = {}
    whole = all(kept is not None for kept in tested)
    for subject, kept in zip(subjects, tested, strict=True):
        if whole and kept is not None:
            curves[subject.name] = (kept["angles"]["degrees"], kept["angles"]["accuracy"])
            continue
        degrees, sample = equal_angles(24), spaced_examples(subject, 200)
        turned = predict_over_angles(subject.model, sample, degrees, progress=progress)
        curves[subject.name] = (degrees, accuracy_by_view(turned, sample.labels))
    plot = figure_svg(accuracy_against_angle(curves, [0.0, 90.0, 180.0, 270.0]))
    what = "the test pictures" if whole else "200 validation pictures"
    caption = (
        f"Share of right answers on {what} as they turn. Quarter turns are exact; between them "
        "pixels are interpolated."
    )
    columns = [d for d in next(iter(curves.values()))[0] if d % 45 == 0]
    rows = [
        [name, *(format_percent(dict(zip(*c, strict=True)).get(d, float("nan"))) for d in columns)]
        for name, c in curves.items()
    ]
    return figure_html(plot, caption) + table_html(["model", *(f"{d:g}°" for d in columns)], rows)


def _certificates(subjects: Sequence[LoadedModel]) -> str:
    parts = []
    for subject in subjects:
        certificate = read_certificate(subject)
        if certificate is None:
            place = subject.run or subject.name
            told = f"{subject.name} has no certificate yet; make one: turnwise certify {place}"
            parts.append(paragraph_html(told))
            continue
        verdict = "INVARIANT" if certificate["holds"] else "NOT INVARIANT"
        exact = certificate.get("exact_part", certificate["group"])
        whole = exact == certificate["group"]
        claim = exact if whole else f"{exact}, the exact part of {certificate['group']}"
        told = (
            f"The {subject.name} model is {verdict} under {claim}. "
            f"Measured on {certificate['pictures']}."
        )
        elements = [
            [str(e["meaning"]), _error(e.get("float64")), _error(e.get("float32"))]
            for e in certificate["elements"]
        ]
        controls = [[str(c["name"]), _error(c.get("change"))] for c in certificate["controls"]]
        parts += [
            paragraph_html(told),
            table_html(["the picture is moved by", "float64", "float32"], elements),
            table_html(["control", "change"], controls),
        ]
    parts.append(
        paragraph_html(
            "Errors are the largest change of the output, relative to its size. An element holds "
            "up to 1e-10 in float64 and 1e-4 in float32; a control must move the answer."
        )
    )
    return "\n".join(parts)


def _error(value: Any) -> str:
    return "–" if value is None else format_error(float(value))


def _scores(subjects: Sequence[LoadedModel]) -> str:
    """Upright scores of those that were tested; nothing if none was."""
    tested = {s.name: kept for s in subjects if s.run and (kept := read_evaluation(s.run))}
    if not tested:
        return ""
    rows = [
        [
            name,
            *(format_percent(Interval.kept(score)) for score in kept["scores"].values()),
            f"{format_percent(float(kept['orbit_agreement']))} ({kept['group']})",
            format_percent(float(kept["turn_agreement"])),
        ]
        for name, kept in tested.items()
    ]
    first = next(iter(tested.values()))
    names = [name.replace("_", " ") for name in first["scores"]]
    headers = ["model", *names, "same answer over the group", "same answer at all angles"]
    note = "Upright, with 95 % bootstrap intervals; then the share of pictures whose answer stays."
    return table_html(headers, rows, caption=note)


def _training(runs: Mapping[str, Path]) -> str:
    curves = figure_svg(training_curves({name: read_metrics(run) for name, run in runs.items()}))
    return figure_html(curves, "Training loss and validation accuracy.") + table_html(
        *runs_table(runs)
    )
