"""The table of `turnwise models`: families with their parameters, image sizes and results.

What is known of the shipped models is in model_table.json beside this file, which
`python benchmarks/tables.py` writes from the models themselves and from the records.
"""

import json
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from turnwise.models.registry import describe_model, family_of
from turnwise.reports.tables import UNDEFINED, text_table

HEADERS = ["model", "parameters", "image sizes", "test accuracy (training seeds)"]
BUILT_FOR = "group C4, 3 channels, 64 pixels, 10 classes"  # the parameters are of these
MAX_RESULTS = 3  # that a row of the table shows


@cache
def model_facts() -> dict[str, dict[str, Any]]:
    """Return parameters, sizes and results by model; models registered later are not in it."""
    text = (files("turnwise.reports") / "model_table.json").read_text(encoding="utf-8")
    facts: dict[str, dict[str, Any]] = json.loads(text)
    return facts


def model_tables(names: Sequence[str]) -> str:
    """Return one table for each family of the models."""
    families: dict[str, list[str]] = {}
    for name in names:
        families.setdefault(family_of(name), []).append(name)
    parts = [
        f"{title}\n{text_table(HEADERS, list(map(_row, of)))}" for title, of in families.items()
    ]
    return "\n\n".join(parts)


def describe(name: str) -> str:
    """Return what is known of one model, in sentences."""
    facts = model_facts().get(name, {})
    lines = [describe_model(name)]
    if "parameters" in facts:
        lines.append(f"{facts['parameters']:,} parameters ({BUILT_FOR}); images: {facts['sizes']}")
    lines += [
        f"test accuracy {_result(result)}: {result['recipe']}"
        for result in facts.get("results", [])
    ]
    return "\n".join(lines)


def _row(name: str) -> list[str]:
    facts = model_facts().get(name, {})
    parameters = f"{facts['parameters']:,}" if "parameters" in facts else UNDEFINED
    results = [_result(result) for result in facts.get("results", [])]
    more = [f"{len(results) - MAX_RESULTS} more"] if len(results) > MAX_RESULTS else []
    shown = "; ".join(results[:MAX_RESULTS] + more)
    return [name, parameters, facts.get("sizes", UNDEFINED), shown or UNDEFINED]


def _result(result: dict[str, Any]) -> str:
    return f"{result['data']} {result['accuracy']} ({result['seeds']})"
