"""turnwise models, datasets, groups: what there is, by name."""

import argparse
from textwrap import fill
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from turnwise.data.catalogue import Entry


def model_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "pattern", nargs="?", default="*", metavar="NAME",
        help="a model, to explain its options, or a pattern such as 'orbit_*' (default: all)",
    )  # fmt: skip


def models(args: argparse.Namespace) -> int:
    """List the models that can be built by name, by family, with their parameters, image sizes and
    recorded results, and the pretrained weights; a single model is listed with its options.
    Exit status: 0, or 1 if no name matches."""
    from turnwise.models.registry import ORBIT, list_models
    from turnwise.reports.model_card import HEADERS, pretrained_cards, summary_rows
    from turnwise.reports.model_table import BUILT_FOR, describe, model_tables
    from turnwise.reports.tables import text_table

    names = list_models(args.pattern)
    if names == [args.pattern]:
        print(f"{names[0]}: {describe(names[0])}\n{_explain_options(names[0])}")
    elif names:
        is_whole = args.pattern == "*"
        print(model_tables([n for n in names if not (is_whole and n.startswith(ORBIT))]))
        print(f"\nParameters: {BUILT_FOR}. `turnwise models NAME` lists results and options.")
        if is_whole:
            print("orbit_NAME runs NAME on every view: exactly invariant, |G| times the cost.")
    rows = summary_rows(pretrained_cards(args.pattern))
    if rows:
        print(f"\npretrained weights:\n{text_table(HEADERS, rows)}")
    if not names and not rows:
        print(f"no model matches {args.pattern!r}; known: {', '.join(list_models())}")
    return 0 if names or rows else 1


def _explain_options(name: str) -> str:
    """Return one line per option: its default value, and what it means."""
    from turnwise.cli.model_flags import option_help
    from turnwise.models import describe_options

    described = [(f"{o.name}={o.default!r}", option_help(o)) for o in describe_options(name)]
    width = min(26, max(len(setting) for setting, _ in described) + 2)
    return "\n".join(
        fill(f"    {setting:<{width}} {text}", 100, subsequent_indent=" " * (width + 5))
        for setting, text in described
    )


def dataset_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="describe this data set (default: list all)"
    )


def datasets(args: argparse.Namespace) -> int:
    """List the data sets that can be loaded by name; folder:PATH and PATH.csv are for images
    of your own."""
    from turnwise.data.catalogue import CATALOGUE, entry
    from turnwise.reports.tables import text_table

    if args.name is not None:
        print(_details(entry(args.name)))
        return 0
    rows = [
        [e.name, e.title, str(len(e.classes)), f"{e.channels}×{e.image_size}²",
         e.splits.split(" (")[0]]
        for e in CATALOGUE.values()
    ]  # fmt: skip
    own = {"folder:PATH": "your own images in folders", "PATH.csv": "or in a table"}
    rows += [[name, title, "", "", "70 / 15 / 15 %"] for name, title in own.items()]
    print(text_table(["name", "title", "classes", "shape", "train / val / test"], rows))
    return 0


def _details(e: "Entry") -> str:
    return "\n".join(
        [
            f"{e.name}: {e.title}",
            f"classes:  {', '.join(e.classes)}",
            f"splits:   {e.splits}",
            f"licence:  {e.licence}",
            f"cite:     {e.citation}",
            f"files:    {'; or '.join(' and '.join(f) for f in e.files) or 'inside the package'}",
            f"download: {', '.join(d.url for d in e.downloads_of(e.image_size)) or 'none'}",
            *([f"notes:    {e.notes}"] if e.notes else []),
        ]
    )


def groups(args: argparse.Namespace) -> int:
    """List the groups of rotations and reflections, and how many of their elements are exact."""
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
