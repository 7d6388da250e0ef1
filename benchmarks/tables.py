"""Write the tables of README.md and docs from the records, so that no number is typed by hand.

python benchmarks/tables.py            rewrite what stands between the markers
python benchmarks/tables.py --check    only say what is out of date (exit status 1 if anything is)
"""

import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from gsa_tables import ERRORS, accuracies, percent

from turnwise.groups import PlanarGroup
from turnwise.reports.records import Record, read_records
from turnwise.reports.tables import markdown_table
from turnwise.training.recipe import read_recipe

HERE = Path(__file__).parent
PAGES = [HERE.parent / "README.md", *sorted((HERE.parent / "docs").glob("*.md"))]
ANGLES, SEEDS = 24, 3  # that a row of the results must have
MARKED = re.compile(
    r"(<!-- (\w+): made by benchmarks/tables.py -->\n).*?(<!-- end of \2 -->)", re.DOTALL
)


def row(record: Record) -> list[str]:
    figures = record["figures"]
    recipe, seeds = f"recipes/{figures['recipe']}.yaml", list(figures["seeds"].values())
    exact = PlanarGroup.named(read_recipe(HERE.parent / recipe).model.group).exact_part()

    def over_seeds(key: str) -> str:
        return percent([seed[key] for seed in seeds])

    turned = all(seed.get("angles", ANGLES) == ANGLES for seed in seeds)

    return [
        f"[{figures['recipe']}]({recipe})",
        over_seeds("test_accuracy"),
        over_seeds("worst_angle") if turned else "–",
        f"{over_seeds('orbit_agreement')} ({exact})" if exact.order > 1 else "–",
        over_seeds("turn_agreement") if turned else "–",
        str(len(seeds)),
    ]


def latest_by_recipe() -> dict[str, Record]:
    return {r["figures"]["recipe"]: r for r in read_records(HERE / "recipes.jsonl")}


def results() -> str:
    """What was trained from three seeds or more; single runs are in the page of their model."""
    worst, same = f"at the worst of {ANGLES} angles", f"same answer at {ANGLES} angles"
    headers = ["recipe", "test accuracy", worst, "same answer over the group", same, "seeds"]
    claims = [r for r in latest_by_recipe().values() if len(r["figures"]["seeds"]) >= SEEDS]
    return markdown_table(headers, [row(record) for record in claims])


def published_error(name: str) -> str:
    record = read_records(HERE / "published_errors.jsonl")[-1]
    return ERRORS[name](record["figures"])


TABLES: dict[str, Callable[[], str]] = {
    "results": results,
    "accuracies": lambda: accuracies(latest_by_recipe()),
    **{name: partial(published_error, name) for name in ERRORS},
}


def main() -> int:
    stale = {}
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        fresh = MARKED.sub(lambda found: f"{found[1]}{TABLES[found[2]]()}\n{found[3]}", text)
        if fresh != text:
            stale[page] = fresh
    if "--check" in sys.argv[1:]:
        for page in stale:
            print(f"{page.name} is out of date", file=sys.stderr)
        return int(bool(stale))
    for page, fresh in stale.items():
        page.write_text(fresh, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
