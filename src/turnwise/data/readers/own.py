"""A user's own images, from a folder, a table or an .npz file, as a data set of three splits.

Splits that are given must be disjoint, by content and by group.  Otherwise the images are split by
the seed: stratified, with groups and equal images together.
"""

from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module

import torch
from torch import Tensor

from turnwise.data.dataset import SPLITS, Dataset, Examples, Target
from turnwise.data.readers.decoding import decode_table
from turnwise.data.readers.table import Rows, Table
from turnwise.data.reading import Reading
from turnwise.data.sources import own_path, own_reader
from turnwise.data.splits import (
    TEST_SHARE,
    VAL_SHARE,
    find_duplicates,
    split_by_content,
    split_by_group,
    strata_of,
    val_count,
)
from turnwise.data.transforms import fit_images
from turnwise.errors import require

Positions = dict[str, Tensor]  # of the examples of each split


def list_own(name: str, reading: Reading) -> Table | Rows:
    """Return the files of `name` before they are decoded, or its arrays."""
    module = import_module(f"turnwise.data.readers.{own_reader(name)}")
    listed: Table | Rows = module.read_table(own_path(name), reading)
    return listed


def read_own(
    name: str,
    reading: Reading,
    *,
    image_size: int | None = None,
    channels: int | None = None,
    val_fraction: float | None = None,
    seed: int = 0,
) -> Dataset:
    """Read the data set called `name`, "folder:PATH" or the path of a file."""
    rows = list_own(name, reading)
    require(
        val_fraction is None or "val" not in rows.splits,
        f"val_fraction = {val_fraction} does not apply, because {own_path(name)} holds the "
        "validation images; leave it out.",
    )
    if isinstance(rows, Table):
        rows = decode_table(rows, image_size, channels, reading)
    else:
        images = fit_images(rows.examples.images, image_size, channels, None)
        rows = replace(rows, examples=replace(rows.examples, images=images))
    positions, note = split_positions(rows, val_fraction, seed)
    facts = [f"{len(rows.examples):,} images {rows.origin}"]
    if count := rows.examples.group_count:
        facts.append(f"{count:,} groups")
    if rows.skipped:
        facts.append(f"{len(rows.skipped):,} files skipped")
    return Dataset(
        name=name,
        target=rows.target,
        train=rows.examples.take(positions["train"]),
        val=rows.examples.take(positions["val"]),
        test=rows.examples.take(positions["test"]),
        provenance=", ".join([*facts, note]),
        licence="as the images",
        skipped=rows.skipped,
    )


def _split(rows: Examples, target: Target, shares: Sequence[float], seed: int) -> list[Tensor]:
    if target.kind == "class" and not rows.groups:
        return split_by_content(rows, target.names, shares, seed)
    return split_by_group(rows, target, shares, seed)


def _val_share(examples: Examples, default: float, val_fraction: float | None) -> float:
    if val_fraction is None:
        return default
    return val_count(len(examples), 0, val_fraction) / len(examples)


def split_positions(rows: Rows, val_fraction: float | None, seed: int) -> tuple[Positions, str]:
    """Return the positions of train, val and test, and how they were found."""
    return _given(rows, val_fraction, seed) if rows.splits else _drawn(rows, val_fraction, seed)


def _drawn(rows: Rows, val_fraction: float | None, seed: int) -> tuple[Positions, str]:
    """Split all images by the seed."""
    kept = 1 - TEST_SHARE
    val = kept * _val_share(rows.examples, VAL_SHARE / kept, val_fraction)
    parts = _split(rows.examples, rows.target, (kept - val, val, TEST_SHARE), seed)
    together = "groups and equal images" if rows.examples.groups else "equal images"
    return dict(zip(SPLITS, parts, strict=True)), f"split by seed {seed}, {together} together"


def _given(rows: Rows, val_fraction: float | None, seed: int) -> tuple[Positions, str]:
    """Return the given splits; hold out val from train if it is missing."""
    _require_disjoint(rows)
    given = {
        split: torch.tensor([i for i, found in enumerate(rows.splits) if found == split])
        for split in SPLITS
        if split in rows.splits
    }
    for split in ("train", "test"):
        require(split in given, f"no usable image is left in {split}; correct the files.")
    train = rows.examples.take(given["train"])
    _require_classes(train, rows.target)
    if "val" in given:
        return given, "split as given"
    val = _val_share(train, VAL_SHARE, val_fraction)
    kept, held_out = _split(train, rows.target, (1 - val, val), seed)
    given |= {"train": given["train"][kept], "val": given["train"][held_out]}
    return given, f"test as given, val held out from train by seed {seed}"


def _require_disjoint(rows: Rows) -> None:
    """Raise if two splits share a group, or an image, compared by content."""
    examples, first = rows.examples, dict[str, str]()
    for group, split in zip(examples.groups, rows.splits, strict=bool(examples.groups)):
        other = first.setdefault(group, split)
        require(
            other == split,
            f"group {group!r} has images in {other} and in {split}, so the model would be tested "
            "on what it has seen; move them into one split, or set group_by or layout if it is "
            "no group.",
        )
    names = examples.names or tuple(f"image {i}" for i in range(len(examples)))
    for one, *copies in find_duplicates(examples.images):
        leaks = [names[copy] for copy in copies if rows.splits[copy] != rows.splits[one]]
        require(
            not leaks,
            f"{names[one]} and {''.join(leaks[:1])} are the same image in two splits; "
            "remove one of them, and any other that is in both.",
        )


def _require_classes(train: Examples, target: Target) -> None:
    """Raise if the training images lack a class."""
    if not target.has_classes:
        return
    for name, count in zip(target.names, strata_of(train, target).sum(0).tolist(), strict=True):
        require(count > 0, f"class {name!r} has no training image; add some, or remove the class.")
