"""turnwise inspect: what a data set holds, what must be fixed, and what to set before training."""

import argparse
import json
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnwise.cli.terminal import add_data_dir, chosen_device

if TYPE_CHECKING:
    from turnwise.data.inspection import Finding, Inspection

SHOWN = 10  # files of each finding; JSON has all
SETTINGS = ("group_by", "layout", "target", "on_error", "image_size")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source", metavar="SOURCE",
        help="folder:PATH, a .csv, .parquet or .npz file, or a data set (turnwise datasets)",
    )  # fmt: skip
    parser.add_argument(
        "settings", nargs="*", metavar="key=value",
        help="settings of a recipe's data part, such as columns.label=grade",
    )  # fmt: skip
    for name in SETTINGS:
        parser.add_argument(
            f"--{name.replace('_', '-')}", metavar="VALUE", help=f"the setting data.{name}"
        )
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument(
        "--contact-sheet", metavar="FILE", help="write images of each class as .png or .html"
    )
    add_data_dir(parser)


def inspect(args: argparse.Namespace) -> int:
    """Inspect a data set before training: classes, sizes, groups, unusable files, equal and nearly
    equal images, which image size, symmetry group, fill mode and recipe suit it, and the command
    that trains with them. Exit status: 0, or 1 if something must be fixed before training."""
    from turnwise.data.inspection import inspect_source
    from turnwise.reports.contact_sheet import require_sheet, write_contact_sheet
    from turnwise.training.choices import largest_side
    from turnwise.training.recipe import make_data_part

    sheet = Path(args.contact_sheet) if args.contact_sheet else None
    if sheet:
        require_sheet(sheet)
    flags = [f"{name}={value}" for name in SETTINGS if (value := getattr(args, name)) is not None]
    data = make_data_part(args.source, [*args.settings, *flags])
    found = inspect_source(
        data.name, data.reading, image_size=data.image_size, val_fraction=data.val_fraction,
        data_dir=args.data_dir, largest=largest_side(chosen_device("auto").type),
    )  # fmt: skip
    found, settings = with_recipe(found)
    given = [f"data.{setting.removeprefix('data.')}" for setting in (*args.settings, *flags)]
    command = train_command(found, given, settings)
    if sheet:
        write_contact_sheet(found, sheet)
    if args.json:
        plain = {**as_plain(found), "command": command}
        print(json.dumps(plain, ensure_ascii=False, indent=2))
    else:
        print(summary(found))
        if command and not found.must_fix:
            print(f"\ntrain with:\n  {command}")
    if sheet and not args.json:
        print(f"\nimages of each class are in {sheet}")
    return int(found.must_fix)


def with_recipe(found: "Inspection") -> "tuple[Inspection, tuple[str, ...]]":
    """Add the recipe to the suggestions; return its settings, too."""
    from turnwise.data.suggestions import Suggestion
    from turnwise.training.choices import UNEQUAL, advise

    counts = [len(positions) for positions in found.strata.values()]
    advice = advise(
        chosen_device("auto").type, found.suggestions["group"].value, kind=found.target.kind,
        unequal=found.target.has_classes and max(counts) > UNEQUAL * max(1, min(counts)),
    )  # fmt: skip
    if advice is None:
        return found, ()
    suggestion = {"recipe": Suggestion(advice.recipe, advice.reason)}
    return replace(found, suggestions=found.suggestions | suggestion), advice.settings


def train_command(found: "Inspection", given: Sequence[str], settings: Sequence[str]) -> str:
    """Return the command that trains as suggested; empty if no recipe is.

    Args:
        given: the settings of the data part that the user gave.
        settings: those that the recipe needs.
    """
    if "recipe" not in found.suggestions:
        return ""
    side = found.suggestions["image_size"].value
    size = [f"data.image_size={side}"]
    if set(found.sizes) == {(int(side), int(side))} or any("image_size=" in s for s in given):
        size = []
    words = ["turnwise", "train", found.suggestions["recipe"].value, found.source]
    return shlex.join([*words, *given, *size, *settings])


def as_plain(found: "Inspection") -> dict[str, Any]:
    """Return the inspection as values for JSON."""
    return {
        "source": found.source,
        "origin": found.origin,
        "files": found.files,
        "images": len(found.small),
        "target": {"kind": found.target.kind, "names": list(found.target.names)},
        "counts": _counts(found),
        "groups": _group_counts(found),
        "sizes": [{"rows": r, "cols": c, "images": n} for (r, c), n in found.sizes.most_common()],
        "colour": sum(info.colour for info in found.infos),
        "bits": sorted({info.bits for info in found.infos}),
        "must_fix": found.must_fix,
        "findings": [
            {"text": f.text, "must_fix": f.must_fix, "details": list(f.details)}
            for f in found.findings
        ],
        "suggestions": {
            name: {"value": s.value, "reason": s.reason} for name, s in found.suggestions.items()
        },
    }


def summary(found: "Inspection") -> str:
    """Return the inspection as text."""
    from turnwise.reports.tables import text_table

    counts = _counts(found)
    parts = list(next(iter(counts.values()), {}))
    rows = [[name, *(f"{c[part]:,}" for part in parts)] for name, c in counts.items()]
    sizes = [f"{r}×{c} ({n:,})" for (r, c), n in found.sizes.most_common(4)]
    more = f" and {len(found.sizes) - 4:,} others" if len(found.sizes) > 4 else ""
    colour = sum(info.colour for info in found.infos)
    bits = sorted({info.bits for info in found.infos})
    facts = [
        ["sizes", ", ".join(sizes) + more],
        ["channels", f"{colour:,} in colour, {len(found.infos) - colour:,} grey"],
        ["bits", " and ".join(map(str, bits)) + " per channel"],
        *([["groups", _describe_groups(found)]] if found.small.groups else []),
    ]
    blocks = [
        f"{found.source}: {len(found.small):,} images of {found.files:,} files, {found.origin}",
        text_table([_heading(found.target.kind), *parts], rows),
        "\n".join(f"{name:<9} {text}" for name, text in facts),
    ]
    for title, must_fix in (("must be fixed before training", True), ("to know", False)):
        listed = [_explain(f) for f in found.findings if f.must_fix == must_fix]
        blocks += ["\n".join([f"{title}:", *listed])] if listed else []
    width = max(len(s.value) for s in found.suggestions.values())
    suggested = [
        f"  {name:<10}  {s.value:<{width}}  {s.reason}" for name, s in found.suggestions.items()
    ]
    return "\n\n".join([*blocks, "\n".join(["suggested:", *suggested])])


def _heading(kind: str) -> str:
    return {"multilabel": "label", "number": "third"}.get(kind, "class")


def _counts(found: "Inspection") -> dict[str, dict[str, int]]:
    """Return the number of images of each class, in all and in each split."""
    parts = {split: set(rows.tolist()) for split, rows in found.splits.items()}
    return {
        name: {"images": len(rows)}
        | {s: len(part & set(rows.tolist())) for s, part in parts.items()}
        for name, rows in found.strata.items()
    }


def _group_counts(found: "Inspection") -> dict[str, int]:
    groups = found.small.groups
    if not groups:
        return {}
    parts = {split: {groups[i] for i in rows.tolist()} for split, rows in found.splits.items()}
    return {"all": len(set(groups))} | {split: len(part) for split, part in parts.items()}


def _describe_groups(found: "Inspection") -> str:
    from collections import Counter

    sizes = Counter(found.small.groups).values()
    counts = _group_counts(found)
    inside = ", ".join(f"{n:,} in {split}" for split, n in counts.items() if split != "all")
    each = f"{min(sizes):,} to {max(sizes):,} images each"
    return f"{counts['all']:,} of {each}" + (f"; {inside}" if inside else "")


def _explain(finding: "Finding") -> str:
    lines = [f"  {finding.text}", *(f"    {detail}" for detail in finding.details[:SHOWN])]
    hidden = len(finding.details) - SHOWN
    return "\n".join(
        [*lines, *([f"    … and {hidden:,} more (--json lists all)"] if hidden > 0 else [])]
    )
