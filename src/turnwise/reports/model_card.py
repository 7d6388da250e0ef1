"""Model cards of pretrained weights as Markdown, made from card.json alone.

`benchmarks/ship_weights.py` writes both files; the record inside a card is a line of
benchmarks/recipes.jsonl, unchanged.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from turnwise.models.weights import list_pretrained, read_card, weights_folder
from turnwise.reports.tables import format_error, format_percent, markdown_table
from turnwise.runs.run import OLD_KEYS

Card = Mapping[str, Any]
HEADERS = ["name", "group", "parameters", "test accuracy", "over seeds", "bytes", "licence"]
FIGURES = {
    "val_accuracy": "validation accuracy",
    "test_accuracy": "test accuracy",
    "worst_angle": "at the worst angle",
    "orbit_agreement": "same prediction over the group",
    "rotation_agreement": "same prediction at all angles",
}
NEEDS_ANGLES = ("worst_angle", "rotation_agreement")


def pretrained_cards(pattern: str = "*") -> list[dict[str, Any]]:
    """Return the cards of all pretrained weights whose name, or whose model's, matches."""
    names = list_pretrained(pattern) or list_pretrained(f"{pattern}.*")
    return [read_card(weights_folder(name)) for name in names]


def summary_rows(cards: Iterable[Card]) -> list[list[str]]:
    """Return a row for each card, under HEADERS."""
    return [
        [
            card["name"],
            card["model"]["options"]["group"],
            f"{card['weights']:,}",
            format_percent(seed_figures(card)["test_accuracy"], digits=2),
            over_seeds(card, "test_accuracy"),
            f"{card['bytes']:,}",
            card["licence"],
        ]
        for card in cards
    ]


def seed_figures(card: Card) -> dict[str, Any]:
    """Return the recorded figures of the seed whose weights are published."""
    return _all_figures(card)[str(card["seed"])]


def over_seeds(card: Card, key: str) -> str:
    """Return the mean, minimum and maximum of a figure over all seeds of the record."""
    values = [figures[key] for figures in _all_figures(card).values()]
    if len(values) == 1:
        return "1 seed"
    low, high = format_percent(min(values), digits=2), format_percent(max(values), digits=2)
    mean = format_percent(sum(values) / len(values), digits=2)
    return f"{mean}, {low} to {high} ({len(values)} seeds)"


def card_page(card: Card) -> str:
    """Return the card as Markdown."""
    return "\n\n".join(
        [
            f"# {card['name']}",
            "Made from card.json by `benchmarks/ship_weights.py`; do not edit.",
            markdown_table(["", ""], _facts(card)),
            f"## Measured\n\n{_measured(card)}",
            f"## Data\n\n{markdown_table(['', ''], _data(card))}",
            f"## Recipe\n\n```yaml\n{yaml.safe_dump(card['recipe'], sort_keys=False)}```\n",
        ]
    )


def _all_figures(card: Card) -> dict[str, dict[str, Any]]:
    """Return the figures of all seeds, with the present names of their keys."""
    return {seed: _renamed(each) for seed, each in card["record"]["figures"]["seeds"].items()}


def _renamed(figures: Mapping[str, Any]) -> dict[str, Any]:
    return {OLD_KEYS.get(key, key): value for key, value in figures.items()}


def _facts(card: Card) -> list[list[str]]:
    record, figures, model = card["record"], seed_figures(card), card["model"]
    return [
        ["model", f"`{model['name']}`, group {model['options']['group']}"],
        ["parameters", f"{card['weights']:,} in {card['bytes']:,} bytes; {_stored(card)}"],
        ["sha256", f"`{model['sha256']}`"],
        ["licence", card["licence"]],
        ["seed", f"{card['seed']}, {_choice(card)}"],
        ["trained", f"{figures['epochs']} epochs, {figures['training_seconds']:.0f} s"],
        ["machine", record["machine"]],
        ["command", f"`{record['command']}`"],
        ["commit", f"{record['commit']} ({record['date']}); published at {card['shipped']}"],
        *([["note", record["figures"]["note"]]] if "note" in record["figures"] else []),
    ]


def _choice(card: Card) -> str:
    count = len(_all_figures(card))
    return f"the best of {count} on validation" if count > 1 else "the only one"


def _stored(card: Card) -> str:
    stored = _renamed(card["stored"])
    if stored["precision"] == "float32":
        return "float32, as trained"
    before, after = (format_percent(stored[key], digits=2) for key in ("before", "after"))
    return (
        f"float16: the predicted class of all {stored['images']:,} validation images is that of "
        f"the float32 weights (accuracy {before} and {after}), with which the figures below were "
        "measured"
    )


def _measured(card: Card) -> str:
    figures, errors = seed_figures(card), _renamed(card["equivariance"])
    angles = card["recipe"]["evaluation"]["angles"]
    rotated = angles > 1
    keys = [key for key in FIGURES if key in figures and (rotated or key not in NEEDS_ANGLES)]
    rows = [
        [FIGURES[key], format_percent(figures[key], digits=2), over_seeds(card, key)]
        for key in keys
    ]
    times = figures.get("times_evaluated")
    single, double = (format_error(errors[kind]) for kind in ("float32", "float64"))
    return (
        f"{markdown_table(['', 'these weights', 'all seeds'], rows)}\n\n"
        f"The test split was evaluated {'once' if times == 1 else f'{times} times'}"
        f"{f', rotated by {angles} equal steps of 360°' if rotated else ''}. "
        f"Largest relative change of the logits over {errors['group']}, of the weights in this "
        f"folder, on {errors['images']}: {double} in float64, {single} in float32."
    )


def _data(card: Card) -> list[list[str]]:
    data = card["data"]
    return [
        ["data set", f"{data['name']}: {data['title']}"],
        ["provenance", data["provenance"]],
        ["licence", data["licence"]],
        ["cite", data["citation"]],
        ["classes", ", ".join(card["model"]["classes"])],
        *([f"sha256 of {split}", f"`{digest}`"] for split, digest in data["sha256"].items()),
    ]
