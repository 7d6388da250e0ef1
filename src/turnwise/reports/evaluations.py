"""An evaluation as tables and sentences, for the terminal and for pages."""

from collections.abc import Mapping
from typing import Any

from turnwise.data.targets import TargetKind
from turnwise.evaluation.evaluate import evaluated_kind, fill_of, main_score_by_angle
from turnwise.evaluation.metrics import Interval
from turnwise.reports.tables import format_percent, format_score, text_table

Result = Mapping[str, Any]
Table = tuple[list[str], list[list[str]]]  # headers and rows
MAX_MATRIX = 20  # classes of a confusion matrix that is shown
TITLES = {"name": "", "count": "images", "f1": "F1", "map": "mAP", "auc": "AUC", "r2": "R²",
          "mae": "mean absolute error", "rmse": "RMSE", "macro_f1": "macro F1",
          "mean_iou": "mean IoU", "iou": "IoU", "dice": "Dice", "mean_dice": "mean Dice",
          "ap50": "AP@0.5", "ap75": "AP@0.75", "ap": "AP", "pq": "PQ",
          "boundary_f1": "boundary F1"}  # fmt: skip


def evaluation_text(result: Result) -> str:
    """Return the evaluation for the terminal."""
    if "main_score" in result:
        return text_of_masks(result)
    kind = evaluated_kind(result)
    tables = [score_table(result), detail_table(result), group_table(result)]
    confusion = confusion_table(result)
    tables += [confusion] if confusion else []
    return "\n\n".join(
        [
            f"{result['model']} on {result['images']} test images of {result['data']} "
            f"({result['provenance']}){_group_counts(result)}",
            *(text_table(*table) for table in tables if table[1]),
            *decision_sentences(kind, result),
            *rotation_sentences(kind, result),
        ]
    )


def text_of_masks(result: Result) -> str:
    """Return the evaluation of a model of masks for the terminal."""
    main, subsets = result["main_score"], result["subsets"]
    rotated = result["angles"][main]
    scores = [
        [title_of(name), format_percent(Interval.from_plain(score), digits=2)]
        for name, score in result["scores"].items()
    ]
    classes = [
        [c["name"], *(format_percent(c[k]) for k in ("dice", "iou"))] for c in result["classes"]
    ]
    kinds = [
        [name, str(int(row["images"])), *(format_percent(row[key]) for key in result["scores"])]
        for name, row in subsets.items()
    ]
    words = [title_of(key) for key in result["scores"]]
    lines = [
        f"{result['model']} on {result['images']} test images of {result['data']} "
        f"({result['provenance']})",
        text_table(["upright", "value (95 % interval)"], scores),
        text_table(["class of pixels", "Dice", "IoU"], classes),
        *([text_table(["images", "count", *words], kinds)] if kinds else []),
        f"rotated in {len(rotated)} steps over 360°, corners filled by {fill_of(result)}: "
        f"{title_of(main)} "
        f"{format_percent(min(rotated), digits=2)} at worst, "
        f"{format_percent(sum(rotated) / len(rotated), digits=2)} on average",
        f"same class over all exact elements of {result['group']}: "
        f"{format_percent(result['orbit_agreement'], digits=2)} of the pixels; over the angles: "
        f"{format_percent(result['rotation_agreement'], digits=2)}",
    ]
    return "\n\n".join(lines)


def title_of(score: str) -> str:
    """Return the name of a score or figure for readers.

    >>> title_of("balanced_accuracy"), title_of("auc")
    ('balanced accuracy', 'AUC')
    """
    return TITLES.get(score, score.replace("_", " "))


def score_table(result: Result) -> Table:
    """Return the upright scores with their intervals."""
    kind, groups = evaluated_kind(result), result.get("groups")
    how = f", {groups['count']} groups resampled" if groups else ""
    return [f"upright{'' if not how else ' images'}", f"value (95 % interval{how})"], _rows(
        kind, result["scores"]
    )


def group_table(result: Result) -> Table:
    """Return the scores of groups, such as patients; no rows where groups are not known."""
    groups = result.get("groups")
    if not groups:
        return [], []
    left_out = f", {groups['mixed']} of mixed targets left out" if groups["mixed"] else ""
    heading = f"{groups['count']} groups, mean prediction of their images{left_out}"
    rows = _rows(evaluated_kind(result), groups["scores"])
    return [heading, "value (95 % interval)"], rows or [["no group has one target", "–"]]


def detail_table(result: Result) -> Table:
    """Return a row for every class, label or column of numbers."""
    kind, rows = evaluated_kind(result), result["classes"]
    keys = list(rows[0]) if rows else []
    what = "column" if not kind.has_probabilities else "label" if kind.axes == 2 else "class"
    headers = [what if key == "name" else title_of(key) for key in keys]
    return headers, [[_cell(kind, key, row[key]) for key in keys] for row in rows]


def confusion_table(result: Result) -> Table | None:
    """Return the confusion matrix, None if there is none or it is too large to be read."""
    matrix, names = result.get("confusion"), [row["name"] for row in result["classes"]]
    if not matrix or len(matrix) > MAX_MATRIX:
        return None
    rows = [[name, *map(str, counts)] for name, counts in zip(names, matrix, strict=True)]
    return ["class \\ predicted", *names], rows


def decision_sentences(kind: TargetKind, result: Result) -> list[str]:
    """Return how decisions are made, and how well probabilities are calibrated."""
    found, plain = [], kind.plain()
    calibration = result.get("calibration")
    if calibration:
        found.append(
            f"expected calibration error {format_percent(float(calibration['ece']))}, at the "
            f"temperature {plain['temperature']:.3g} (1: as trained)"
        )
    if plain.get("threshold") is not None:
        positive = kind.names[plain["positive"]]
        found.append(
            f"decides for “{positive}” from a probability of {plain['threshold']:.4g}, chosen on "
            "validation"
        )
    if plain.get("thresholds"):
        pairs = zip(kind.names, plain["thresholds"], strict=True)
        limits = ", ".join(f"{name} {limit:.4g}" for name, limit in pairs)
        found.append(f"thresholds of the labels, chosen on validation: {limits}")
    return found


def rotation_sentences(kind: TargetKind, result: Result) -> list[str]:
    """Return the main score over all angles, with its control, and how often decisions stay."""
    name, rotated = main_score_by_angle(result)
    worst = (max if name in kind.falling else min)(rotated)
    mean = sum(rotated) / len(rotated)
    control, shown = result.get("corner_control"), title_of(name)
    aside = ""
    if control is not None:
        value = format_score(kind, name, float(control[name]), digits=2)
        aside = f"; control, corners filled as by {control['degrees']:g}° but not rotated: {value}"
    return [
        f"rotated in {len(rotated)} steps over 360°, corners filled by {fill_of(result)}: {shown} "
        f"{format_score(kind, name, worst, digits=2)} at worst, "
        f"{format_score(kind, name, mean, digits=2)} on average{aside}",
        f"same prediction over all exact elements of {result['group']}: "
        f"{format_percent(float(result['orbit_agreement']), digits=2)} of the images; over all "
        f"angles: {format_percent(float(result['rotation_agreement']), digits=2)}",
    ]


def _group_counts(result: Result) -> str:
    """Return how many groups each split has, empty where groups are not known."""
    counts = result.get("group_counts", {})
    if not any(counts.values()):
        return ""
    found = ", ".join(f"{count:,} in {split}" for split, count in counts.items())
    return f"; groups, none of them in two splits: {found}"


def _rows(kind: TargetKind, scores: Mapping[str, Any]) -> list[list[str]]:
    return [
        [title_of(name), format_score(kind, name, Interval.from_plain(score), digits=2)]
        for name, score in scores.items()
    ]


def _cell(kind: TargetKind, key: str, value: Any) -> str:
    if key == "name" or isinstance(value, int):
        return str(value)
    return format_score(kind, key, float(value))
