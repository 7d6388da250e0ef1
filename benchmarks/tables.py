"""Write the tables of README.md from the records, so that no number is typed by hand.

python benchmarks/tables.py            rewrite the part between the markers
python benchmarks/tables.py --check    only say whether it is up to date (exit status 1 if not)
"""

import sys
from pathlib import Path

from turnwise.reports.records import Record, read_records
from turnwise.reports.tables import markdown_table

HERE = Path(__file__).parent
README = HERE.parent / "README.md"
START, END = "<!-- results: made by benchmarks/tables.py -->", "<!-- end of results -->"


def percent(values: list[float]) -> str:
    """Mean and half the range: 97.14 ± 0.05 %."""
    mean = sum(values) / len(values)
    return f"{100 * mean:.2f} ± {50 * (max(values) - min(values)):.2f} %"


def row(record: Record) -> list[str]:
    figures = record["figures"]
    seeds = list(figures["seeds"].values())

    def over_seeds(key: str) -> str:
        return percent([seed[key] for seed in seeds])

    return [
        f"[{figures['recipe']}](recipes/{figures['recipe']}.yaml)",
        over_seeds("test_accuracy"),
        over_seeds("worst_angle"),
        over_seeds("orbit_agreement"),
        over_seeds("turn_agreement"),
        str(len(seeds)),
    ]


def results() -> str:
    headers = ["recipe", "test accuracy", "at the worst of 24 angles", "same answer over C4",
               "same answer at 24 angles", "seeds"]  # fmt: skip
    latest = {r["figures"]["recipe"]: r for r in read_records(HERE / "recipes.jsonl")}
    return markdown_table(headers, [row(record) for record in latest.values()])


def main() -> int:
    text = README.read_text(encoding="utf-8")
    before, _, rest = text.partition(START)
    _, _, after = rest.partition(END)
    fresh = f"{before}{START}\n{results()}\n{END}{after}"
    if "--check" in sys.argv[1:]:
        return int(fresh != text)
    README.write_text(fresh, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
