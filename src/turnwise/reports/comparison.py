"""One page that sets models side by side: turned pictures, curves over angles, certificates."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor, nn

from turnwise.checks import require
from turnwise.data import Pictures
from turnwise.evaluation import Certificate
from turnwise.evaluation.metrics import Interval
from turnwise.evaluation.predictions import (
    equal_angles,
    predict_over_angles,
    predict_probabilities,
)
from turnwise.geometry.warps import turn_image
from turnwise.reports.page import (
    Answer,
    Section,
    code_html,
    figure_html,
    film_strip,
    page,
    paragraph_html,
    table_html,
)
from turnwise.reports.plots import accuracy_against_angle, figure_svg
from turnwise.reports.tables import format_error, format_percent

FRAMES = 8  # of a film strip: every 45°


@dataclass(frozen=True, eq=False)
class Contestant:
    """A model with all that was measured of it."""

    model: nn.Module
    examination: Mapping[str, Any]
    certificate: Certificate


def comparison_page(
    title: str,
    contestants: Mapping[str, Contestant],
    examples: Pictures,
    classes: Sequence[str],
    *,
    note: str,
    commands: str,
) -> str:
    """The page as HTML; `examples` are shown turning, `note` says how they were chosen, and
    `commands` repeat what was done."""
    certificates = {name: c.certificate for name, c in contestants.items()}
    groups = sorted({c.group for c in certificates.values()})
    require(len(groups) == 1, f"models are compared under one group, got {', '.join(groups)}.")
    return page(
        title,
        [
            Section(
                "Turn the picture",
                paragraph_html(note) + _strips(contestants, examples, classes),
            ),
            Section("Accuracy against angle", _angles(contestants)),
            Section("Certificate", _certificates(certificates)),
            Section("Scores on the test split", _scores(contestants)),
            Section("How this was made", code_html(commands)),
        ],
        summary=_headline(contestants),
    )


def _headline(contestants: Mapping[str, Contestant]) -> str:
    """What a busy reader takes home, made from the figures."""
    parts = []
    for name, c in contestants.items():
        quarter = _quarters(c.examination)
        verb = "keeps its answer" if c.certificate.holds else "changes its answers"
        parts.append(
            f"The {name} model {verb} when the picture is turned by a quarter: accuracy "
            f"{', '.join(format_percent(a) for a in quarter.values())} at "
            f"{', '.join(f'{d:g}°' for d in quarter)}."
        )
    return " ".join(parts)


def _quarters(examination: Mapping[str, Any]) -> dict[float, float]:
    angles = examination["angles"]
    by_angle = dict(zip(angles["degrees"], angles["accuracy"], strict=True))
    return {degrees: a for degrees, a in by_angle.items() if degrees % 90 == 0}


def recognised_by_all(
    models: Iterable[nn.Module], pictures: Pictures, classes: Sequence[int]
) -> Int64[Tensor, " chosen"]:
    """The first picture of each of `classes` that all models recognise when upright."""
    right = torch.ones(len(pictures), dtype=torch.bool)
    for model in models:
        right &= predict_probabilities(model, pictures).argmax(-1) == pictures.labels
    found = [(right & (pictures.labels == label)).nonzero()[:1, 0] for label in classes]
    return torch.cat(found)


def _strips(
    contestants: Mapping[str, Contestant], examples: Pictures, classes: Sequence[str]
) -> str:
    angles = equal_angles(FRAMES)
    answers = {
        name: predict_over_angles(c.model, examples, angles) for name, c in contestants.items()
    }
    strips = []
    for i, label in enumerate(examples.labels.tolist()):
        image = examples.images[i : i + 1].float()
        frames = [turn_image(image, a)[0].round().to(torch.uint8) for a in angles]
        said = {name: _said(given[:, i], label, classes) for name, given in answers.items()}
        strips.append(film_strip(angles, frames, said, caption=f"A picture of: {classes[label]}"))
    return "\n".join(strips)


def _said(probabilities: torch.Tensor, label: int, classes: Sequence[str]) -> list[Answer]:
    best = probabilities.max(dim=-1)
    return [
        Answer(classes[i], p, right=i == label)
        for p, i in zip(best.values.tolist(), best.indices.tolist(), strict=True)
    ]


def _angles(contestants: Mapping[str, Contestant]) -> str:
    curves = {}
    for name, c in contestants.items():
        angles = c.examination["angles"]
        curves[name] = (angles["degrees"], angles["accuracy"])
    plot = figure_svg(accuracy_against_angle(curves, [0.0, 90.0, 180.0, 270.0]))
    columns = [d for d in next(iter(curves.values()))[0] if d % 45 == 0]
    rows = [
        [name, *(format_percent(dict(zip(*curve, strict=True))[d], digits=2) for d in columns)]
        for name, curve in curves.items()
    ]
    return figure_html(
        plot,
        "Share of right answers on the test pictures as they turn. Quarter turns are exact; "
        "between them pixels are interpolated.",
    ) + table_html(["model", *(f"{d:g}°" for d in columns)], rows)


def _certificates(certificates: Mapping[str, Certificate]) -> str:
    verdicts = [
        paragraph_html(
            f"The {name} model is {'INVARIANT' if c.holds else 'NOT INVARIANT'} under {c.claim}. "
            f"Measured on {c.pictures}."
        )
        for name, c in certificates.items()
    ]
    first = next(iter(certificates.values()))
    rows = []
    for i, element in enumerate(first.elements):
        errors = [
            format_error(value)
            for c in certificates.values()
            for value in (c.elements[i].float64, c.elements[i].float32)
        ]
        rows.append([element.meaning, *errors])
    headers = [f"{name}, {kind}" for name in certificates for kind in ("float64", "float32")]
    note = paragraph_html(
        "The largest change of the output, relative to its size. An element holds up to 1e-10 in "
        "float64 and 1e-4 in float32; a control must move the answer by more than 1e-6."
    )
    moved = table_html(["the picture is moved by", *headers], rows)
    controls = [
        [control.name, *(format_error(c.controls[i].change) for c in certificates.values())]
        for i, control in enumerate(first.controls)
    ]
    spoken = table_html(["control", *certificates], controls)
    return "\n".join([*verdicts, moved, spoken, note])


def _scores(contestants: Mapping[str, Contestant]) -> str:
    rows = []
    for name, c in contestants.items():
        scores = c.examination["scores"]
        figures = [format_percent(Interval.kept(score)) for score in scores.values()]
        agree = format_percent(c.examination["orbit_agreement"])
        turned = format_percent(c.examination["turn_agreement"])
        rows.append([name, *figures, agree, turned])
    names = [
        name.replace("_", " ") for name in next(iter(contestants.values())).examination["scores"]
    ]
    group = next(iter(contestants.values())).certificate.group
    headers = ["model", *names, f"same answer over {group}", "same answer at all angles"]
    note = "Upright, with 95 % bootstrap intervals; then the share of pictures whose answer stays."
    return table_html(headers, rows, caption=note)
