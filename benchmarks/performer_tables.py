"""The tables of docs/papers/performers.md, from the records.

python benchmarks/performer_tables.py            rewrite what stands between the markers
python benchmarks/performer_tables.py --check    only say what is out of date (exit status 1)

Accuracies are those of recipes.jsonl, shifts those of shifts.jsonl (performer_shifts.py), costs
those of linear_attention.jsonl.  What was published stands in the heads of the recipes, and for the
shift test here: Horn et al. 2021, results of their program, one run each.
"""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from records import Record, read_records

from turnwise.reports.tables import UNDEFINED, format_error, format_percent, markdown_table

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "papers" / "performers.md"
MARKED = re.compile(
    r"(<!-- (\w+): made by benchmarks/performer_tables.py -->\n).*?(<!-- end: \2 -->)", re.DOTALL
)
DATA = {"mnist": "MNIST", "fashionmnist": "FashionMNIST", "cifar10": "CIFAR-10"}
ROWS = {
    "performer": ("performer",),
    "nopos_performer": ("nopos_performer",),
    "relative_performer": ("relative_performer",),
    "relative_performer, 128 channels, 4 blocks, 4 heads": (
        "relative_performer_small_moved",
        "relative_performer_small",
    ),
    "clipped_relative_performer": ("clipped_relative_performer",),
    "group_performer, upright (C1 or D1)": ("group_performer_c1", "group_performer_d1"),
    "group_performer, C4": ("group_performer_c4",),
}
# accuracy on class 1 at the worst of the shifts from -8 to 8 pixels
PUBLISHED_WORST = {
    "mnist_performer": 0.258,
    "mnist_nopos_performer": 0.994,
    "mnist_relative_performer": 0.996,
    "mnist_clipped_relative_performer": 0.965,
    "fashionmnist_performer": 0.0,
    "fashionmnist_relative_performer": 0.896,
    "fashionmnist_clipped_relative_performer": 0.394,
}
NOT_RUN = "not run"


def records_of(name: str) -> list[Record]:
    path = HERE / name
    return read_records(path) if path.is_file() else []


def recipe_of(data: str, endings: tuple[str, ...]) -> Path | None:
    """The recipe of a model for a data set, if there is one."""
    paths = [HERE.parent / "recipes" / f"{data}_{ending}.yaml" for ending in endings]
    return next((path for path in paths if path.is_file()), None)


def published(recipe: Path) -> str:
    """The accuracy that the head of the recipe says was published."""
    said = re.search(r"published ([\d.]+ %)", recipe.read_text(encoding="utf-8"))
    return said[1] if said else UNDEFINED


def measured(recipe: str) -> str:
    """Mean over the seeds of the latest record, with half their range where there are several."""
    found = [
        r["figures"] for r in records_of("recipes.jsonl") if r["figures"]["recipe"] == recipe
        if r["figures"].get("data", recipe.split("_")[0]) == recipe.split("_")[0]
    ]  # fmt: skip
    if not found:
        return NOT_RUN
    values = [seed["test_accuracy"] for seed in found[-1]["seeds"].values()]
    mean, half = sum(values) / len(values), (max(values) - min(values)) / 2
    spread = f" ± {100 * half:.2f}" if len(values) > 1 else ""
    return f"{100 * mean:.2f}{spread} %"


def performer_accuracies() -> str:
    rows = []
    for model, endings in ROWS.items():
        cells = []
        for data in DATA:
            recipe = recipe_of(data, endings)
            cells += [published(recipe), measured(recipe.stem)] if recipe else [UNDEFINED] * 2
        rows.append([f"`{model.split(',')[0]}`{''.join(model.partition(',')[1:])}", *cells])
    heads = [f"{data}, {what}" for data in DATA.values() for what in ("published", "ours")]
    return markdown_table(["", *heads], rows)


def performer_shifts() -> str:
    """The published test and ours, of the latest record of each recipe; rows without are left."""
    latest = {r["figures"]["recipe"]: r["figures"]["tests"] for r in records_of("shifts.jsonl")}
    rows = []
    for endings in ROWS.values():
        for data in DATA:
            recipe = recipe_of(data, endings)
            if recipe is None or (recipe.stem not in latest and recipe.stem not in PUBLISHED_WORST):
                continue
            theirs = PUBLISHED_WORST.get(recipe.stem)
            shown = UNDEFINED if theirs is None else format_percent(theirs)
            link = f"[{recipe.stem}](../../recipes/{recipe.name})"
            rows.append([link, shown, *shift_cells(latest.get(recipe.stem))])
    heads = ["recipe", "class 1 by 8, published worst", "our worst", "unshifted",
             "change of logits", "all classes by 4, worst", "unshifted",
             "same prediction at worst"]  # fmt: skip
    return markdown_table(heads, rows)


def shift_cells(tests: dict[str, Any] | None) -> list[str]:
    if tests is None:
        return [NOT_RUN, *[UNDEFINED] * 5]
    one, ten = tests["class 1"], tests["all classes"]
    worst = format_percent(one["worst"], 2) + (" (circular)" if one["circular"] else "")
    return [
        worst,
        format_percent(one["unmoved"], 2),
        format_error(one["logit_change"]),
        *(format_percent(ten[key], 2) for key in ("worst", "unmoved", "agreement")),
    ]


def latest_costs(part: str, device: str) -> tuple[list[dict[str, Any]], str]:
    """The cases of a part in the last record that has it, and the machine they ran on."""
    for record in reversed(records_of("linear_attention.jsonl")):
        cases = [
            case for case in record["figures"]["results"]
            if case["case"]["part"] == part and case["case"]["device"] == device
            if "failed" not in case["figures"]
        ]  # fmt: skip
        if cases:
            return cases, record["machine"]
    return [], ""


def performer_growth() -> str:
    """Milliseconds of one layer, forward and backward, and its memory."""
    rows = []
    for device in ("cpu", "cuda"):
        cases, machine = latest_costs("growth", device)
        sides = sorted({case["case"]["side"] for case in cases})
        for name in ("linear", "softmax") if cases else ():
            spent = {c["case"]["side"]: c["figures"] for c in cases if c["case"]["name"] == name}
            cells = [
                f"{1000 * spent[s]['seconds']:.1f}" if s in spent else UNDEFINED for s in sides
            ]
            memory = [f"{spent[s]['peak_mib']:.0f}" if s in spent else UNDEFINED for s in sides]
            rows.append(
                [machine, name, *(f"{c} / {m}" for c, m in zip(cells, memory, strict=True))]
            )
    heads = ["machine", "attention", "28 px, ms / MiB", "56 px", "112 px", "224 px"]
    return markdown_table(heads, [row for row in rows if len(row) == len(heads)])


def performer_window() -> str:
    """The latest case of each machine, as it is and compiled, linear beside the window."""
    latest: dict[tuple[str, bool], dict[str, Any]] = {}
    for record in records_of("linear_attention.jsonl"):
        cases = [c for c in record["figures"]["results"] if c["case"]["part"] == "window"]
        if cases:
            key = record["machine"], cases[0]["case"].get("compile", False)
            latest[key] = {case["case"]["name"]: case["figures"] for case in cases}
    rows = []
    for (machine, compiled), spent in latest.items():
        shown = [f"{1000 * s['seconds']:.2f} / {s['peak_mib']:.0f}" for s in spent.values()]
        ratio = spent["local 9 x 9"]["seconds"] / spent["linear"]["seconds"]
        rows.append([machine, "yes" if compiled else "no", *shown, f"{ratio:.1f}"])
    heads = ["machine", "compiled", "linear, ms / MiB", "9 × 9 window", "times faster"]
    return markdown_table(heads, rows)


def performer_steps() -> str:
    cases, _ = latest_costs("step", "cpu")
    spent = {case["case"]["name"]: case["figures"] for case in cases}
    quantities = {"seconds": 2, "cpu_seconds": 2, "peak_mib": 0}  # and their decimal places
    rows = []
    for name, figures in spent.items():
        theirs = spent.get(f"{name.split()[0]} tep-2021", figures)
        shares = [f"{figures[key] / theirs[key]:.2f}" for key in quantities]
        spent_here = (f"{figures[key]:.{digits}f}" for key, digits in quantities.items())
        rows.append([name, *spent_here, *shares])
    heads = ["step", "seconds", "of the processors", "peak MiB"]
    return markdown_table([*heads, "time of tep-2021", "processors' time", "memory"], rows)


TABLES: dict[str, Callable[[], str]] = {
    "performer_accuracies": performer_accuracies,
    "performer_shifts": performer_shifts,
    "performer_growth": performer_growth,
    "performer_window": performer_window,
    "performer_steps": performer_steps,
}


def main() -> int:
    text = PAGE.read_text(encoding="utf-8")
    fresh = MARKED.sub(lambda found: f"{found[1]}{TABLES[found[2]]()}\n{found[3]}", text)
    if "--check" in sys.argv[1:]:
        if fresh != text:
            print(f"{PAGE.name} is out of date; run python benchmarks/performer_tables.py")
        return int(fresh != text)
    PAGE.write_text(fresh, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
