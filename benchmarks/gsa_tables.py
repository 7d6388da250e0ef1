"""The tables of docs/papers/gsa.md, from published_errors.py and the records of recipes.

What was published stands in the head of each recipe, in words that `published` reads.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from records import Record

from turnwise.reports.tables import format_error, format_percent, markdown_table

RECIPES = Path(__file__).parents[1] / "recipes"
STAGES = {"lift": "lift", "group": "+ 1", "two groups": "+ 2", "pooled": "pooled"}

Figures = dict[str, Any]


def index_tables(figures: Figures) -> str:
    rows = [
        [program, *(format_percent(share, 0) for share in groups.values())]
        for program, groups in figures["tables"].items()
    ]
    return markdown_table(["", *figures["tables"]["gsa-2021"]], rows)


def layers(figures: Figures, kind: str) -> str:
    """The published programs stage by stage, and the largest error of ours at any stage."""
    found, short = figures["layers"], {"gsa-2021": "2021", "gevit-2023": "2023"}
    ours = [program for program in found if program not in short]
    headers = [f"{year} {word}" for year in short.values() for word in STAGES.values()]
    rows = []
    for group in found["gsa-2021"]:
        stages = [format_error(found[p][group][kind][stage]) for p in short for stage in STAGES]
        largest = [format_error(max(found[p][group][kind].values())) for p in ours]
        rows.append([group, *stages, *largest])
    return markdown_table(["", *headers, *ours], rows)


def networks(figures: Figures) -> str:
    found = figures["networks"]
    sizes = list(found["gsa-2021"]["p4"])
    rows = [
        [group, *(format_error(found[program][group][size]) for program in found for size in sizes)]
        for group in found["gsa-2021"]
    ]
    headers = [f"{program}, {size}×{size}" for program in found for size in sizes]
    return markdown_table(["", *headers], rows)


def pcam(figures: Figures) -> str:
    found = figures["pcam"]
    rows = [
        [stage.partition(": ")[2] or stage, *(format_error(found[p][stage]) for p in found)]
        for stage in found["gsa-2021"]
    ]
    return markdown_table(["after", *found], rows)


def faults(figures: Figures) -> str:
    rows = [
        [
            fault,
            format_error(cost["p4"]),
            format_error(cost["p4m"]),
            f"{cost['first loss']:.1f}",
            format_error(cost["far away"]),
        ]
        for fault, cost in figures["faults"].items()
    ]
    headers = ["fault", "logits, p4", "logits, p4m", "first loss", "change far away"]
    return markdown_table(headers, rows)


def encodings(figures: Figures) -> str:
    rows = [
        [program, f"{code['distinct']:.0f}", format_error(code["near and far"])]
        for program, code in figures["encodings"].items()
    ]
    return markdown_table(["", "distinct, of 9", "near against far"], rows)


ERRORS: dict[str, Callable[[Figures], str]] = {
    "index_tables": index_tables,
    "layers_local": lambda figures: layers(figures, "local"),
    "layers_global": lambda figures: layers(figures, "global"),
    "networks": networks,
    "pcam": pcam,
    "faults": faults,
    "encodings": encodings,
}


def published(recipe: Path) -> tuple[str, str]:
    """The published accuracy and the split it was selected on, as the head of the recipe says."""
    comments = re.findall(r"^# +(.*)", recipe.read_text(encoding="utf-8"), re.MULTILINE)
    said = re.search(r"published ([\d.]+ %), selected on the (\w+) split", " ".join(comments))
    return (said[1], said[2]) if said else ("none", "–")


def percent(values: list[float]) -> str:
    """Mean and half the range: 97.14 ± 0.05 %; of one value, which has no range, itself."""
    mean = sum(values) / len(values)
    if len(values) == 1:
        return format_percent(mean, 2)
    return f"{100 * mean:.2f} ± {50 * (max(values) - min(values)):.2f} %"


def by_numbers(path: Path) -> list[str | int]:
    """To sort p4 before p12."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path.stem)]


def accuracies(records: dict[str, Record]) -> str:
    """Published and ours, recipe by recipe; a recipe without a record was not run."""
    rows = []
    found = [*RECIPES.glob("*_gsa_net_*.yaml"), *RECIPES.glob("*_ge_vit_*.yaml")]
    for path in sorted(found, key=by_numbers):
        seeds = records[path.stem]["figures"]["seeds"].values() if path.stem in records else []
        ours = percent([seed["test_accuracy"] for seed in seeds]) if seeds else "not run"
        chosen = "validation" if seeds else "–"
        link = f"[{path.stem}](../../recipes/{path.name})"
        rows.append([link, *published(path), ours, chosen, str(len(seeds))])
    headers = ["recipe", "published", "selected on", "ours", "selected on", "seeds"]
    return markdown_table(headers, rows)


def curve(records: list[Record], recipe: str, whole: int, every: int = 5) -> str:
    """Loss and accuracy every few epochs, means over the seeds of the runs of `whole` epochs."""
    runs = [
        record["figures"]["curve"]
        for record in records
        if record["command"].startswith(f"turnwise train recipes/{recipe}.yaml ")
        and record["figures"]["epochs"] == whole
    ]
    rows = []
    for epoch in range(every, whole + 1, every):
        points = [run[epoch - 1] for run in runs]
        train, val = (sum(p[k] for p in points) / len(points) for k in ("train_loss", "val_loss"))
        right = percent([point["val_accuracy"] for point in points])
        rows.append([str(epoch), f"{train:.3f}", f"{val:.3f}", right])
    return markdown_table(["epoch", "train loss", "validation loss", "validation accuracy"], rows)
