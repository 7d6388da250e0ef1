"""Write the tables of docs/papers/orbits.md from the records, beside what was published.

python benchmarks/posthoc_table.py            rewrite what stands between the markers
python benchmarks/posthoc_table.py --check    only say whether it is out of date (exit status 1)

A column of ours appears with its first record: of recipes.jsonl for what was trained, of
posthoc.jsonl for what was not.
"""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gsa_tables import by_numbers, percent
from records import Record, read_records

from turnwise.layers.orbit.combinations import LEARNED, OF_FEATURES, OF_LOGITS
from turnwise.reports.tables import markdown_table
from turnwise.training.recipe import Recipe, read_recipe

HERE = Path(__file__).parent
RECIPES, PAGE = HERE.parent / "recipes", HERE.parent / "docs" / "papers" / "orbits.md"
MARKED = re.compile(
    r"(<!-- (\w+): made by benchmarks/posthoc_table.py -->\n).*?(<!-- (\w+) ends -->)", re.DOTALL
)
NOTHING, BARE = "–", "bare"
COMBINATIONS = (BARE, *OF_LOGITS, *OF_FEATURES, *LEARNED)
REGIMES = {"none": "none", "head": "head", "all": "whole"}
EXPERIMENTS = {  # the data of a recipe, and how much of it -> the name of its table
    ("rotmnist", 1.0): "full",
    ("rotmnist", 0.1): "tenth",
    ("mnist_rotated", 1.0): "upright",
    ("eurosat", 1.0): "eurosat",
    ("first_radio_galaxies", 1.0): "galaxies",
    ("pcam", 1.0): "pcam",
}
# Test accuracies in percent, tuned not at all, the head, and everything, as in the tables of the
# blog of WouterBant/GEVit-DL2-Project; its names of the combinations: docs/papers/orbits.md.
PUBLISHED: dict[str, dict[str, tuple[float | None, float | None, float | None]]] = {
    "full": {
        BARE: (97.23, None, None),
        "mean": (98.09, None, None),
        "mean_features": (98.07, 98.20, 98.24),
        "max_features": (97.82, 98.12, 98.31),
        "sum_features": (98.07, 98.20, 98.24),
        "most_likely": (98.09, 98.14, 98.18),
        "most_certain": (97.63, 97.94, 98.10),
        "learned_weights": (96.46, 95.48, 96.46),
        "learned_attention": (96.75, 96.33, 96.75),
    },
    "tenth": {
        BARE: (86.21, None, None),
        "mean": (89.03, None, None),
        "mean_features": (88.99, 89.20, 89.73),
        "max_features": (88.73, 88.96, 89.41),
        "sum_features": (88.99, 89.20, 89.73),
        "most_likely": (89.03, 89.12, 87.19),
        "most_certain": (87.88, 88.34, 88.87),
        "learned_weights": (80.75, 79.10, 82.27),
        "learned_attention": (82.66, 82.63, 84.44),
    },
    "upright": {
        BARE: (28.72, None, None),
        "mean": (40.72, None, None),
        "mean_features": (43.31, 85.50, 97.53),
        "max_features": (41.89, 87.13, 97.28),
        "sum_features": (43.31, 85.50, 97.53),
        "most_likely": (29.30, 72.91, 75.47),
        "most_certain": (48.99, 82.52, 96.26),
        "learned_weights": (83.28, 87.00, 94.99),
        "learned_attention": (92.43, 92.41, 96.16),
    },
    "pcam": {
        BARE: (86.61, None, None),
        "mean": (87.23, None, None),
        "mean_features": (87.27, 87.52, None),
        "max_features": (86.15, 86.94, None),
        "sum_features": (87.43, 87.15, None),
        "most_likely": (87.27, 87.14, None),
        "most_certain": (87.11, 86.98, None),
    },
}

Cells = dict[tuple[str, str], list[float]]  # (combination, regime) -> a figure of each seed


def records_of(name: str) -> list[Record]:
    path = HERE / name
    return read_records(path) if path.is_file() else []


def latest(name: str) -> dict[str, dict[str, Any]]:
    """Recipe -> the figures of its last record."""
    return {record["figures"]["recipe"]: record["figures"] for record in records_of(name)}


def base_of(path: Path) -> str | None:
    """The recipe whose run this one starts from, as its first line says."""
    said = re.search(r"model\.weights=runs/(\w+)/", path.read_text(encoding="utf-8"))
    return said[1] if said else None


def experiment_of(recipe: Recipe) -> str | None:
    return EXPERIMENTS.get((recipe.data.name, recipe.data.fraction))


def seeds_of(figures: dict[str, Any]) -> list[float]:
    return [seed["test_accuracy"] for seed in figures["seeds"].values()]


def ours(experiment: str) -> dict[str, Cells]:
    """Base recipe -> what it came to, bare, wrapped, and tuned, as far as there are records."""
    trained, wrapped = latest("recipes.jsonl"), latest("posthoc.jsonl")
    found: dict[str, Cells] = {}
    for path in sorted(RECIPES.glob("*_orbit_*.yaml"), key=by_numbers):
        base, recipe = base_of(path), read_recipe(path)
        if base is None or experiment_of(recipe) != experiment:
            continue
        cells = found.setdefault(base, {})
        if base in trained:
            cells[BARE, "none"] = seeds_of(trained[base])
        if path.stem in trained:
            tuned = recipe.model.options
            cells[tuned["combine"], REGIMES[tuned["tune"]]] = seeds_of(trained[path.stem])
    for base, cells in found.items():
        for seed in wrapped.get(base, {"seeds": {}})["seeds"].values():
            for name, accuracy in seed.items():
                if name != BARE:
                    cells.setdefault((name, "none"), []).append(accuracy)
    return {base: cells for base, cells in found.items() if cells}


def experiment_table(experiment: str) -> str:
    """Combinations by what was tuned: first as published, then of each base of ours."""
    said, bases = PUBLISHED.get(experiment, {}), ours(experiment)
    regimes = list(REGIMES.values())
    if not said and not bases:
        return "No record yet."
    columns: dict[str, list[str]] = {}
    for number, regime in enumerate(regimes):
        values = [said.get(name, (None,) * 3)[number] for name in COMBINATIONS]
        columns[f"published, {regime}"] = [f"{v:.2f} %" if v else NOTHING for v in values]
    for base, found in bases.items():
        for regime in regimes:
            seeds = [found.get((name, regime)) for name in COMBINATIONS]
            columns[f"{base}, {regime}"] = [percent(s) if s else NOTHING for s in seeds]
    columns = {head: cells for head, cells in columns.items() if set(cells) != {NOTHING}}
    rows = [[name, *cells] for name, *cells in zip(COMBINATIONS, *columns.values(), strict=True)]
    rows = [row for row in rows if set(row[1:]) != {NOTHING}]
    return markdown_table(["", *columns], rows)


def costs() -> str:
    """Of every combination, times the bare model: the last record of each kind of machine."""
    keys = ("answer_seconds", "answer_bytes", "train_seconds", "train_bytes")
    last = {"--device" in record["command"]: record for record in records_of("orbit_cost.jsonl")}
    parts = []
    for record in last.values():
        rows, group = record["figures"]["rows"], record["figures"]["group"]
        table = [
            [name, *(f"{row[key] / rows['bare'][key]:.2f}" for key in keys)]
            for name, row in rows.items()
        ]
        heads = [f"{group}, times the bare model", *(key.replace("_", " ") for key in keys)]
        parts.append(f"{record['machine']}:\n\n{markdown_table(heads, table)}")
    return "\n\n".join(parts) or "No record yet."


def hybrids() -> str:
    """A training step of the hybrid beside GE-ViT's, and what both came to."""
    trained = latest("recipes.jsonl")
    recipes = {"hybrid": "rotmnist_hybrid_c4", "ge_vit": "rotmnist_ge_vit_p4"}
    last: dict[tuple[str, bool], Record] = {}
    for record in records_of("hybrid_speed.jsonl"):
        last[record["figures"]["device"], record["figures"]["compiled"]] = record
    parts = []
    for (device, compiled), record in last.items():
        figures = record["figures"]
        slow, table = figures["rows"]["ge_vit"], []
        for name, row in figures["rows"].items():
            known = trained.get(recipes.get(name, ""))
            table.append([
                name, f"{1000 * row['step_seconds']:.1f} ms",
                f"{row['step_seconds'] / slow['step_seconds']:.3f}",
                f"{row['training_seconds'] / slow['training_seconds']:.3f}",
                percent(seeds_of(known)) if known else NOTHING,
            ])  # fmt: skip
        where = "one thread" if device == "cpu" else device
        how = f"batches of {figures['batch_size']}, {'compiled' if compiled else 'not compiled'}"
        heads = ["p4", "step", "of GE-ViT's", "training, of GE-ViT's", "test accuracy"]
        parts.append(f"{record['machine']}, {where}, {how}:\n\n{markdown_table(heads, table)}")
    return "\n\n".join(parts) or "No record yet."


TABLES: dict[str, Callable[[], str]] = {
    **{name: (lambda name=name: experiment_table(name)) for name in EXPERIMENTS.values()},
    "costs": costs,
    "hybrids": hybrids,
}


def fresh(text: str) -> str:
    """The page with every table made anew."""
    return MARKED.sub(lambda found: f"{found[1]}{TABLES[found[2]]()}\n{found[3]}", text)


def main() -> int:
    text = PAGE.read_text(encoding="utf-8")
    made = fresh(text)
    if "--check" in sys.argv[1:]:
        if made != text:
            print(f"{PAGE.name} is out of date", file=sys.stderr)
        return int(made != text)
    PAGE.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
