"""The tables of docs/papers/roto.md: scores upright and over the orbit, and what RotoConv costs."""

from collections.abc import Iterable
from statistics import mean
from typing import Any

from records import Record

from turnwise.data.catalogue import entry
from turnwise.reports.tables import markdown_table
from turnwise.training.recipe import Recipe

SCORES = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "macro_f1": "macro-F1",
    "auc": "AUC",
}
DATA = ("dermamnist", "dermamnist_c", "breastmnist", "eurosat", "first_radio_galaxies")
NONE = "None yet."

Figures = dict[str, Any]
Run = tuple[str, Recipe, Record]  # the recipe's name, what it says, and what came of it


def score(seeds: list[Figures], name: str) -> str:
    """Upright: mean over the seeds ± half their range; then at the worst element, their mean."""
    upright = [100 * float(seed["scores"][name]) for seed in seeds]
    least = mean(100 * float(seed["orbit_scores"][name]["least"]) for seed in seeds)
    return f"{mean(upright):.1f} ± {(max(upright) - min(upright)) / 2:.1f} / {least:.1f}"


def scores(runs: Iterable[Run]) -> str:
    """Every recorded run on these sets whose record has all scores, by set and size."""
    found = []
    for stem, recipe, record in runs:
        figures, seeds = record["figures"], list(record["figures"]["seeds"].values())
        data = figures.get("data", recipe.data.name)
        if data not in DATA or not all("orbit_scores" in seed for seed in seeds):
            continue
        size = recipe.data.image_size or entry(data).image_size
        cells = [f"{data}, {size}", f"[{stem}](../../recipes/{stem}.yaml)", weights(seeds)]
        cells += [*(score(seeds, name) for name in SCORES), str(len(seeds))]
        found.append(((DATA.index(data), size, stem), cells))
    headers = ["data, pixels", "recipe", "parameters", *SCORES.values(), "seeds"]
    return markdown_table(headers, [cells for _, cells in sorted(found)]) if found else NONE


def weights(seeds: list[Figures]) -> str:
    """In millions, where the record counts them."""
    counts = {seed["weights"] for seed in seeds if "weights" in seed}
    return ", ".join(f"{count / 1e6:.2f} M" for count in sorted(counts)) or "–"


def speed(records: list[Record], device: str) -> str:
    """The newest measurement of each case on this device: a step of the plain one, and ratios."""
    newest: dict[tuple[str, str, str], tuple[Figures, Record]] = {}
    for record in records:
        figures = record["figures"]
        if figures["device"] == device:
            for case in figures["results"]:
                if "plain" in case["times"]:
                    key = case["case"], case["geometry"], settings(record)
                    newest[key] = case["times"], record
    kinds = list(dict.fromkeys(kind for times, _ in newest.values() for kind in times))
    kinds = [kind for kind in kinds if kind != "plain"]
    rows = [
        [*key, f"{1000 * times['plain']['step']:.1f} ms", *(ratio(times, kind) for kind in kinds)]
        for key, (times, _) in newest.items()
    ]
    headers = ["case", "geometry", "measured", "plain step", *(f"× {kind}" for kind in kinds)]
    machines = dict.fromkeys(record["machine"] for _, record in newest.values())
    return f"{markdown_table(headers, rows)}\n\n{'; '.join(machines)}." if newest else NONE


def settings(record: Record) -> str:
    figures = record["figures"]
    precision = {"32": "fp32"}.get(figures["precision"], figures["precision"])
    how = ["compiled"] if figures["compiled"] else []
    how += ["CUDA graphs"] if figures.get("cuda_graphs") else []
    return ", ".join([f"batch {figures['batch']}", precision, *how])


def ratio(times: Figures, kind: str) -> str:
    return f"{times[kind]['step'] / times['plain']['step']:.2f}" if kind in times else "–"
