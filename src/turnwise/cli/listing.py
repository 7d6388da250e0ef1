"""turnwise models, datasets, groups: what there is, by name."""

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from turnwise.data.entries import Entry


def model_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pattern", nargs="?", default="*", help="e.g. 'orbit_*' (default: all)")


def models(args: argparse.Namespace) -> int:
    """List the models that can be made by name, with their own options, and the weights that
    come with the package."""
    from turnwise.models import describe_model, list_models, model_options
    from turnwise.reports.model_card import HEADERS, shipped_cards, summary_rows
    from turnwise.reports.tables import text_table

    names = list_models(args.pattern)
    for name in names:
        options = ", ".join(f"{key}={value!r}" for key, value in model_options(name).items())
        print(f"{name}\n    {describe_model(name)}\n    options: {options}")
    rows = summary_rows(shipped_cards(args.pattern))
    if rows:
        print(f"\nweights that come with the package:\n{text_table(HEADERS, rows)}")
    if not names and not rows:
        print(f"no model matches {args.pattern!r}; known: {', '.join(list_models())}")
    return 0 if names or rows else 1


def dataset_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="tell all about this one (default: list all)")


def datasets(args: argparse.Namespace) -> int:
    """List the data sets that can be loaded by name, and folder:PATH for pictures of your own."""
    from turnwise.data.catalogue import CATALOGUE, entry
    from turnwise.reports.tables import text_table

    if args.name is not None:
        print(_details(entry(args.name)))
        return 0
    rows = [
        [
            e.name,
            e.title,
            str(len(e.classes)),
            f"{e.channels}×{e.image_size}²",
            e.splits.split(" (")[0],
        ]
        for e in CATALOGUE.values()
    ]
    rows.append(
        ["folder:PATH", "your own pictures, a sub-folder per class", "", "", "70 / 15 / 15 %"]
    )
    print(text_table(["name", "what", "classes", "values", "train / val / test"], rows))
    return 0


def _details(e: "Entry") -> str:
    return "\n".join(
        [
            f"{e.name}: {e.title}",
            f"classes:  {', '.join(e.classes)}",
            f"splits:   {e.splits}",
            f"licence:  {e.licence}",
            f"cite:     {e.citation}",
            f"files:    {'; or '.join(e.files) or 'inside the package'}",
            f"download: {', '.join(d.url for d in e.downloads_of(e.image_size)) or 'none'}",
            *([f"notes:    {e.notes}"] if e.notes else []),
        ]
    )


def groups(args: argparse.Namespace) -> int:
    """List the groups of rotations and mirrors, and which of their elements are exact."""
    from turnwise.groups import PlanarGroup
    from turnwise.reports.tables import text_table

    names = [f"C{n}" for n in range(1, 17)] + [f"D{n}" for n in range(1, 9)]
    rows = []
    for group in map(PlanarGroup.named, names):
        exact = len(group.grid_elements())
        shown = "all" if exact == group.order else f"{exact} of {group.order}"
        rows.append([group.name, ", ".join(group.aliases), str(group.order), shown])
    print(text_table(["group", "in papers", "elements", "exact on pixels"], rows))
    return 0
