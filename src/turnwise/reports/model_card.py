"""Model cards: what is known of shipped weights, for people, made from card.json and nothing else.

`benchmarks/ship_weights.py` writes both files; the record inside a card is a line of
benchmarks/recipes.jsonl, word for word.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from turnwise.models.shipped import list_pretrained, read_card, weights_folder
from turnwise.reports.tables import format_error, format_percent, markdown_table

Card = Mapping[str, Any]
HEADERS = ["name", "group", "weights", "test accuracy", "over seeds", "bytes", "licence"]
FIGURES = {
    "val_accuracy": "validation accuracy",
    "test_accuracy": "test accuracy",
    "worst_angle": "at the worst of the angles",
    "orbit_agreement": "same answer over the group",
    "turn_agreement": "same answer at all angles",
}
TURNED = ("worst_angle", "turn_agreement")  # say something only where pictures were turned


def shipped_cards(pattern: str = "*") -> list[dict[str, Any]]:
    """The cards of all shipped weights whose name, or whose model's, matches."""
    names = list_pretrained(pattern) or list_pretrained(f"{pattern}.*")
    return [read_card(weights_folder(name)) for name in names]


def summary_rows(cards: Iterable[Card]) -> list[list[str]]:
    """A line for each card, under HEADERS."""
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
    """What the record says of the seed whose weights are shipped."""
    return dict(card["record"]["figures"]["seeds"][str(card["seed"])])


def over_seeds(card: Card, key: str) -> str:
    """Mean, lowest and highest of a figure over all seeds of the record."""
    values = [seed[key] for seed in card["record"]["figures"]["seeds"].values()]
    if len(values) == 1:
        return "1 seed"
    low, high = format_percent(min(values), digits=2), format_percent(max(values), digits=2)
    mean = format_percent(sum(values) / len(values), digits=2)
    return f"{mean}, {low} to {high} ({len(values)} seeds)"


def card_page(card: Card) -> str:
    """The card as Markdown."""
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


def _facts(card: Card) -> list[list[str]]:
    record, figures, model = card["record"], seed_figures(card), card["model"]
    return [
        ["model", f"`{model['name']}`, group {model['options']['group']}"],
        ["weights", f"{card['weights']:,} in {card['bytes']:,} bytes; {_stored(card['stored'])}"],
        ["sha256", f"`{model['sha256']}`"],
        ["licence", card["licence"]],
        ["seed", f"{card['seed']}, {_choice(card)}"],
        ["trained", f"{figures['epochs']} epochs, {figures['training_seconds']:.0f} s"],
        ["machine", record["machine"]],
        ["command", f"`{record['command']}`"],
        ["commit", f"{record['commit']} ({record['date']}); shipped at {card['shipped']}"],
        *([["note", record["figures"]["note"]]] if "note" in record["figures"] else []),
    ]


def _choice(card: Card) -> str:
    count = len(card["record"]["figures"]["seeds"])
    return f"the best of {count} on validation" if count > 1 else "the only one"


def _stored(stored: Mapping[str, Any]) -> str:
    if stored["precision"] == "float32":
        return "float32, as trained"
    before, after = (format_percent(stored[key], digits=2) for key in ("before", "after"))
    return (
        f"float16: all {stored['pictures']:,} validation pictures get the same answer as with the "
        f"float32 weights ({before} and {after} right), with which the figures below were measured"
    )


def _measured(card: Card) -> str:
    figures, errors = seed_figures(card), card["equivariance"]
    angles = card["recipe"]["evaluation"]["angles"]
    turned = angles > 1
    keys = [key for key in FIGURES if key in figures and (turned or key not in TURNED)]
    rows = [
        [FIGURES[key], format_percent(figures[key], digits=2), over_seeds(card, key)]
        for key in keys
    ]
    examined = figures.get("times_examined")
    single, double = (format_error(errors[kind]) for kind in ("float32", "float64"))
    return (
        f"{markdown_table(['', 'these weights', 'all seeds'], rows)}\n\n"
        f"The test split was examined {'once' if examined == 1 else f'{examined} times'}"
        f"{f', turned in {angles} equal steps of 360°' if turned else ''}. "
        f"Largest relative change of the scores over {errors['group']}, of the weights in this "
        f"folder, on {errors['pictures']}: {double} in float64, {single} in float32."
    )


def _data(card: Card) -> list[list[str]]:
    data = card["data"]
    return [
        ["data set", f"{data['name']}: {data['title']}"],
        ["these pictures", data["provenance"]],
        ["licence", data["licence"]],
        ["cite", data["citation"]],
        ["classes", ", ".join(card["model"]["classes"])],
        *([f"sha256 of {split}", f"`{digest}`"] for split, digest in data["sha256"].items()),
    ]
