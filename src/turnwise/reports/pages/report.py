"""One page about runs, for lay readers: an image to rotate, curves, certificates, scores, recipes.

The page needs no server: the predictions for every view of its images are computed beforehand, and
its script (explorer.js) transforms the pixels as for the model and looks the predictions up.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from turnwise.data import Examples
from turnwise.data.masks import is_mask
from turnwise.errors import InputError
from turnwise.evaluation.certificate.certificate import Certificate, read_certificate
from turnwise.evaluation.certificate.comparison import hash_weights
from turnwise.evaluation.evaluate import evaluated_kind, main_score_by_angle
from turnwise.evaluation.metrics import Interval
from turnwise.evaluation.transformations import (
    equal_angles,
    predict_over_angles,
)
from turnwise.groups import PlanarGroup
from turnwise.reports.evaluations import (
    confusion_table,
    decision_sentences,
    detail_table,
    group_table,
    rotation_sentences,
    title_of,
)
from turnwise.reports.figures.curves import accuracy_against_angle, runs_table, training_curves
from turnwise.reports.figures.plots import figure_svg
from turnwise.reports.figures.reliability import reliability_diagram
from turnwise.reports.loaded_models import (
    LoadedModel,
    rotated_views,
    sample_examples,
)
from turnwise.reports.pages import (
    LivePart,
    Prediction,
    Section,
    code_html,
    figure_html,
    film_strip,
    folded_html,
    page,
    paragraph_html,
    read_assets,
    table_html,
)
from turnwise.reports.pages.certificate import control_table, element_table, verdict
from turnwise.reports.pages.explorer import INSTRUCTIONS, explorer_data, explorer_html
from turnwise.reports.pages.rotated_masks import ABOUT, masks_data, masks_html
from turnwise.reports.tables import format_percent, format_score
from turnwise.runs.run import Run

Curve = tuple[list[float], list[float]]  # degrees and accuracies
STILLS = 8
MAX_STRIPS = 3
ABOUT_CERTIFICATES = (
    "A certificate states whether the output of a model stays the same when every picture is "
    "transformed. The columns float64 and float32 show the largest change of the output, relative "
    "to its size, in numbers with about 16 and 7 digits. A transformation holds if this change is "
    "rounding error: at most 1e-10 and 1e-4. The other columns show the share of pictures that "
    "keep their predicted class, the largest change of a probability, and the margin: the smallest "
    "lead of the original class over every other class. A margin below 0 means that a prediction "
    "changed. The negative controls check the measurement itself: they must change the output."
)
ABOUT_LIVE = (
    "The models run in this browser, on your picture, at any angle. The picture is cropped to its "
    "central square and resampled to the models' size. It stays on this machine: the page sends "
    "nothing, and needs no network."
)


def report_page(
    title: str,
    models: Sequence[LoadedModel],
    examples: Examples,
    *,
    note: str,
    commands: str,
    live: LivePart | None = None,
    progress: bool = False,
) -> str:
    """Return the page as HTML.

    Args:
        title: plain text.
        models: must take the same images and have the same classes.
        examples: the images to rotate and shift.
        note: how the examples were chosen.
        commands: what to type to make the page again.
        live: a section that runs the models in the browser.
        progress: show progress bars.
    """
    runs = {m.name: m.run for m in models if m.run is not None and m.run.exists}
    trained = {name: run for name, run in runs.items() if run.has_metrics}
    recipes = "".join(
        folded_html(name, code_html(run.recipe_file.read_text(encoding="utf-8")))
        for name, run in runs.items()
    )
    sections = [
        Section("Scores on the test images", _scores(models)),
        Section("Certificates", _certificates(models), folded=True),
        Section("Decisions", _decisions(models), folded=True),
        Section("Training", _training(trained) if trained else "", folded=True),
        Section("How this page was made", code_html(commands) + recipes, folded=True),
    ]
    has_classes = examples.targets.ndim == 1
    headline = _headline(models)
    if has_classes:
        data = explorer_data(models, examples, progress=progress)
        rotate = paragraph_html(f"{note} {INSTRUCTIONS}") + explorer_html(data, examples)
        curves, images = _accuracy_curves(models, progress)
        headline = headline or _range_sentence(curves, images)
        strips = Section("The pictures at several angles", _strips(models, examples), folded=True)
        sections = [
            Section("Rotate the picture", rotate),
            Section("Accuracy against the angle", _angles(models, curves, images)),
            sections[0],
            strips,
            *sections[1:],
        ]
    if has_masks := is_mask(examples.targets):
        slider = paragraph_html(ABOUT) + masks_html(masks_data(models, examples))
        sections = [Section("Rotate the picture", slider), *sections]
    explorer = ("predictions.js", "rotation.js", "explorer.js")
    script = read_assets(*(explorer if has_classes else ("masks.js",) * has_masks))
    if live is not None:
        sections.insert(0, Section("Your own picture", paragraph_html(ABOUT_LIVE) + live.html))
        script += live.script
    shown = [section for section in sections if section.html]
    return page(title, shown, summary=headline, script=script, runs_models=live is not None)


def choose_examples(models: Sequence[LoadedModel], count: int = 6) -> Examples:
    """Return one image of each of the first classes, if possible one that all models recognise.

    Of targets that are not classes, return images evenly spaced in the split.
    """
    sample = sample_examples(models[0], 400)
    if sample.targets.ndim > 1:
        return sample_examples(models[0], count)
    correct = torch.zeros(len(sample))
    for model in models:
        predicted = model.predictor.probabilities(sample.images).argmax(-1)
        correct += predicted == sample.labels
    chosen: list[int] = []
    for label in sample.labels.unique().tolist()[:count]:
        of_class = (sample.labels == label).nonzero()[:, 0]
        chosen.append(int(of_class[correct[of_class].argmax()]))
    return sample.take(torch.tensor(chosen))


def stored_certificate(model: LoadedModel) -> Certificate | None:
    """Return the certificate in the run folder, if there is one and it is of these weights."""
    if model.run is None or not model.run.certificate_file.is_file():
        return None
    try:
        certificate, _ = read_certificate(model.run.certificate_file)
    except InputError:
        return None
    same = certificate.weights_sha256 == hash_weights(model.model)
    return certificate if same else None


def stored_evaluation(model: LoadedModel) -> dict[str, Any] | None:
    """Return the evaluation in the run folder, if there is one and it is of these weights."""
    return None if model.run is None else model.run.evaluation()


def _headline(models: Sequence[LoadedModel]) -> str:
    """Return one sentence per model, from its stored evaluation and certificate."""
    sentences = []
    for model in models:
        tested, certificate = stored_evaluation(model), stored_certificate(model)
        if tested is None or certificate is None or not _rotates_by_90(certificate.group):
            continue
        (name, values), kind = main_score_by_angle(tested), evaluated_kind(tested)
        by_angle = dict(zip(tested["angles"]["degrees"], values, strict=True))
        right = {degrees: a for degrees, a in by_angle.items() if degrees % 90 == 0}
        verb = "keeps its predictions" if certificate.holds else "changes its predictions"
        scores = [f"{format_score(kind, name, a)} at {d:g}°" for d, a in right.items()]
        sentences.append(
            f"The {model.name} model {verb} when the picture is rotated by 90°: its "
            f"{title_of(name)} is {', '.join(scores)}."
        )
    return " ".join(sentences)


def _rotates_by_90(group: str) -> bool:
    return PlanarGroup.named(group).exact_subgroup().rotations == 4


def _strips(models: Sequence[LoadedModel], examples: Examples) -> str:
    angles, classes = equal_angles(STILLS), models[0].classes
    strips = []
    for image, label in zip(examples.images[:MAX_STRIPS], examples.labels.tolist(), strict=False):
        views = rotated_views(image, angles, models[0].fill)
        stills = [(255 * view).round().to(torch.uint8) for view in views]
        predictions = {
            m.name: _predictions(m.predictor.probabilities(views), label, classes) for m in models
        }
        caption = f"A picture of: {classes[label]}"
        strips.append(film_strip(angles, stills, predictions, caption=caption))
    return "\n".join(strips)


def _predictions(probabilities: Tensor, label: int, classes: Sequence[str]) -> list[Prediction]:
    best = probabilities.max(dim=-1)
    return [
        Prediction(classes[i], p, correct=i == label)
        for p, i in zip(best.values.tolist(), best.indices.tolist(), strict=True)
    ]


def _accuracy_curves(models: Sequence[LoadedModel], progress: bool) -> tuple[dict[str, Curve], str]:
    """Return accuracy by angle: from the tests if all were tested, else on validation."""
    tested = [stored_evaluation(model) for model in models]
    all_tested = all(stored is not None for stored in tested)
    curves: dict[str, Curve] = {}
    for model, stored in zip(models, tested, strict=True):
        if all_tested and stored is not None:
            curves[model.name] = (stored["angles"]["degrees"], stored["angles"]["accuracy"])
            continue
        degrees, sample = equal_angles(24), sample_examples(model, 200)
        rotated = predict_over_angles(
            model.predictor, sample.images, degrees, fill=model.fill, progress=progress
        )
        kind = model.predictor.kind.named(model.classes)
        measured = [kind.point_scores(kind.measure(view, sample.targets)) for view in rotated]
        curves[model.name] = (degrees, [scores["accuracy"] for scores in measured])
    return curves, "the test images" if all_tested else "200 validation images"


def _range_sentence(curves: Mapping[str, Curve], images: str) -> str:
    """Return the headline where nothing was tested: the accuracy as the images rotate."""
    found = [
        f"{name}, between {format_percent(min(values))} and {format_percent(max(values))}"
        for name, (_, values) in curves.items()
    ]
    return f"Accuracy on {images} as they rotate once round: {'; '.join(found)}."


def _angles(models: Sequence[LoadedModel], curves: Mapping[str, Curve], images: str) -> str:
    """Return the chart, and its values in a folded table."""
    tested = [stored_evaluation(model) for model in models]
    caption = (
        f"Accuracy on {images} as they rotate. Rotations by 90° are exact; at other angles pixels "
        f"are interpolated, and corners are filled by {models[0].fill}.{_corner_sentence(tested)}"
    )
    columns = [d for d in next(iter(curves.values()))[0] if d % 45 == 0]
    rows = [
        [name, *(format_percent(dict(zip(*c, strict=True)).get(d, float("nan"))) for d in columns)]
        for name, c in curves.items()
    ]
    plot = figure_svg(accuracy_against_angle(curves))
    table = table_html(["model", *(f"{d:g}°" for d in columns)], rows)
    return figure_html(plot, caption) + folded_html("The values", table)


def _corner_sentence(tested: Sequence[dict[str, Any] | None]) -> str:
    """Return the accuracy of the control, if every test has it."""
    controls = [
        stored["corner_control"] for stored in tested if stored and "corner_control" in stored
    ]
    if len(controls) < len(tested):
        return ""
    shown = ", ".join(format_percent(control["accuracy"]) for control in controls)
    degrees = controls[0]["degrees"]
    return f" With corners filled as by {degrees:g}°, but nothing rotated, it is {shown}."


def _certificates(models: Sequence[LoadedModel]) -> str:
    parts = [paragraph_html(ABOUT_CERTIFICATES)]
    for model in models:
        certificate = stored_certificate(model)
        if certificate is None:
            target = model.name if model.run is None else model.run.path
            text = f"{model.name} has no certificate yet; make one: turnwise certify {target}"
            parts.append(paragraph_html(text))
            continue
        text = (
            f"The {model.name} model is {verdict(certificate)}. Measured on {certificate.images}."
        )
        elements, controls = element_table(certificate), control_table(certificate)
        parts += [
            paragraph_html(text),
            table_html(elements.headers, elements.rows),
            table_html(controls.headers, controls.rows),
        ]
    return "\n".join(parts)


def _scores(models: Sequence[LoadedModel]) -> str:
    """Return the upright scores of the models that were tested, empty if none was."""
    tested = {m.name: stored for m in models if (stored := stored_evaluation(m))}
    if not tested:
        return ""
    rows = [
        [
            name,
            *(
                format_score(evaluated_kind(stored), key, Interval.from_plain(score))
                for key, score in stored["scores"].items()
            ),
            f"{format_percent(float(stored['orbit_agreement']))} ({stored['group']})",
            format_percent(float(stored["rotation_agreement"])),
        ]
        for name, stored in tested.items()
    ]
    first = next(iter(tested.values()))
    names = [title_of(name) for name in first["scores"]]
    headers = ["model", *names, "same prediction over the group", "same prediction at all angles"]
    note = (
        "Of upright pictures, with 95 % bootstrap intervals; then the share of pictures whose "
        "prediction is the same for all views."
    )
    return table_html(headers, rows, caption=note)


def _decisions(models: Sequence[LoadedModel]) -> str:
    """Return confusion, groups, calibration, and rotated scores of the models that were tested."""
    tested = {m.name: stored for m in models if (stored := stored_evaluation(m))}
    parts = []
    for name, stored in tested.items():
        kind = evaluated_kind(stored)
        sentences = [*decision_sentences(kind, stored), *rotation_sentences(kind, stored)]
        parts.append(paragraph_html(f"{name}: {'; '.join(sentences)}."))
        tables = [confusion_table(stored), group_table(stored), detail_table(stored)]
        parts += [table_html(*table) for table in tables if table and table[1]]
    calibrations = {n: s["calibration"] for n, s in tested.items() if "calibration" in s}
    if calibrations:
        caption = "Reliability diagram of the test images: calibrated models are on the diagonal."
        parts.append(figure_html(figure_svg(reliability_diagram(calibrations)), caption))
    return "\n".join(parts)


def _training(runs: Mapping[str, Run]) -> str:
    curves = figure_svg(training_curves({name: run.metrics for name, run in runs.items()}))
    return figure_html(curves, "Training and validation.") + table_html(*runs_table(runs))
