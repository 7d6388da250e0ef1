"""Inspect a data set before training: what it holds, what must be fixed, and what to set.

Every file is decoded once, into a hash of its pixels and a small version.  Splits are made exactly
as training makes them, so what must be fixed here is an error there.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Sequence, Sized
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import UInt8
from torch import Tensor

from turnwise.data.dataset import SPLITS, Examples, Images, Target, concatenate
from turnwise.data.load import load_dataset
from turnwise.data.near_duplicates import MOST, find_near_duplicates
from turnwise.data.readers.decoding import find_odd_files, in_threads, require_one_size
from turnwise.data.readers.image_files import FileInfo, decode, describe
from turnwise.data.readers.own import list_own, split_positions
from turnwise.data.readers.table import Rows, Table
from turnwise.data.reading import Reading
from turnwise.data.sources import FOLDER, own_path, own_reader
from turnwise.data.splits import find_duplicates, strata_of
from turnwise.data.suggestions import (
    Sizes,
    Suggestion,
    suggest_fill,
    suggest_group,
    suggest_image_size,
)
from turnwise.data.transforms import convert_channels, resize
from turnwise.errors import InputError

SIDE = 32  # of the small versions
LARGEST = 256  # pixels of a suggested image size
UNEQUAL = 5  # times as many images in the largest class as in the smallest
_PREFIX = "^[^_-]+(?=[_-])"  # of file names that may begin with a patient


@dataclass(frozen=True)
class Finding:
    """Something to know; `must_fix` if training refuses it. `details` name files, one each."""

    text: str
    must_fix: bool = False
    details: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Inspection:
    """What a data set holds.

    Attributes:
        small: the usable images, as small versions in colour, with targets, names and groups.
        pixels: the images themselves where they are arrays, small versions where they are files.
        splits: the positions of each split in `small`; empty if it cannot be split.
        infos: size, colour and bit depth of each usable image.
        files: the number of files, with unusable ones.
    """

    source: str
    origin: str
    target: Target
    small: Examples
    pixels: Images
    splits: dict[str, Tensor]
    infos: tuple[FileInfo, ...]
    files: int
    findings: tuple[Finding, ...]
    suggestions: dict[str, Suggestion]

    @property
    def must_fix(self) -> bool:
        return any(finding.must_fix for finding in self.findings)

    @property
    def sizes(self) -> Sizes:
        return Counter((info.rows, info.cols) for info in self.infos)

    @property
    def strata(self) -> dict[str, Tensor]:
        """The positions of the images of each class or label, or third of the numbers."""
        table, target = strata_of(self.small, self.target), self.target
        names = {"multilabel": (*target.names, "none of them"), "number": ("low", "middle", "high")}
        return {
            name: torch.from_numpy(table[:, i]).nonzero()[:, 0]
            for i, name in enumerate(names.get(target.kind, target.names))
        }


class _Seen(NamedTuple):
    """What inspection keeps of an image."""

    info: FileInfo
    digest: UInt8[Tensor, "1 4 8"]  # 256 bits, in the shape of an image
    small: UInt8[Tensor, "3 side side"]


def inspect_source(
    name: str,
    reading: Reading | None = None,
    *,
    image_size: int | None = None,
    val_fraction: float | None = None,
    data_dir: str | Path | None = None,
    largest: int = LARGEST,
) -> Inspection:
    """Inspect a data set by its name; raise if it cannot be listed at all.

    The suggested image size is at most `largest` pixels.
    """
    reading = reading or Reading()
    if own_reader(name) is None:
        return _inspect_published(name, data_dir, largest)
    listed = list_own(name, reading)
    if isinstance(listed, Table):
        rows, seen, findings = _look_at_files(listed, image_size, reading)
        findings += _strays(name, listed)
        count = len(listed.files)
    else:
        rows, seen, findings = listed, _look_at_images(listed.examples.images), []
        count = len(seen)
    digests = replace(rows.examples, images=torch.stack([one.digest for one in seen]))
    try:
        splits, _ = split_positions(replace(rows, examples=digests), val_fraction, seed=0)
    except InputError as error:
        splits = {}
        findings.append(Finding(str(error), must_fix=True))
    return _conclude(name, rows, seen, count, findings, splits, largest)


def _inspect_published(name: str, data_dir: str | Path | None, largest: int) -> Inspection:
    data = load_dataset(name, data_dir=data_dir)
    whole = concatenate([getattr(data, split) for split in SPLITS])
    ends = torch.tensor([len(getattr(data, split)) for split in SPLITS])
    parts = torch.arange(len(whole)).split(ends.tolist())
    seen = _look_at_images(whole.images)
    rows = Rows(whole, data.target, (), data.provenance)
    splits = dict(zip(SPLITS, parts, strict=True))
    return _conclude(name, rows, seen, len(seen), [], splits, largest)


def _conclude(
    name: str,
    rows: Rows,
    seen: Sequence[_Seen],
    count: int,
    findings: list[Finding],
    splits: dict[str, Tensor],
    largest: int,
) -> Inspection:
    """Add what concerns all images: copies, unequal classes, groups and suggestions."""
    digests = torch.stack([one.digest for one in seen])
    images = torch.stack([one.small for one in seen])
    found = Inspection(
        source=name,
        origin=rows.origin,
        target=rows.target,
        small=replace(rows.examples, images=images),
        pixels=rows.examples.images,
        splits=splits,
        infos=tuple(one.info for one in seen),
        files=count,
        findings=(),
        suggestions={"group": suggest_group(images), "fill": suggest_fill(images)},
    )
    size = {"image_size": suggest_image_size(found.sizes, largest)}
    more = [*_copies(found, digests), *_similar(found, digests), *_balance(found), *_groups(found)]
    return replace(found, findings=(*findings, *more), suggestions={**size, **found.suggestions})


def _look_at_files(
    table: Table, image_size: int | None, reading: Reading
) -> tuple[Rows, list[_Seen], list[Finding]]:
    """Decode every file; return the usable rows, what was seen, and the unusable files."""

    def look(path: Path) -> _Seen | str:
        try:
            return _see(describe(path), decode(path))
        except InputError as error:
            return str(error)

    found = dict(enumerate(in_threads(look, table.files, "inspecting")))
    seen = {i: one for i, one in found.items() if isinstance(one, _Seen)}
    problems = {i: one for i, one in found.items() if isinstance(one, str)}
    infos = {i: one.info for i, one in seen.items()}
    problems |= find_odd_files(table.files, infos, image_size, reading.min_side)
    kept = [i for i in seen if i not in problems]
    findings = []
    if problems:
        action = "left out" if reading.skips else "that cannot be used"
        named = tuple(problems[i] for i in sorted(problems))
        findings.append(Finding(f"{_count(problems, 'file')} {action}", not reading.skips, named))
    if not kept:
        raise InputError(f"none of the images can be used: {next(iter(problems.values()), '')}")
    if image_size is None:
        try:
            require_one_size(table.files, {i: infos[i] for i in kept})
        except InputError as error:
            findings.append(Finding(str(error), must_fix=True))
    chosen = [seen[i] for i in kept]
    return table.take(torch.stack([one.small for one in chosen]), kept), chosen, findings


def _look_at_images(images: UInt8[Tensor, "image channel row col"]) -> list[_Seen]:
    rows, cols = images.shape[-2:]
    info = FileInfo(rows, cols, images.shape[1] == 3, 8)
    return [_see(info, image) for image in images]


def _see(info: FileInfo, pixels: UInt8[Tensor, "channel row col"]) -> _Seen:
    """Return a hash of the pixels and their shape, and a small version."""
    content = str(tuple(pixels.shape)).encode() + pixels.contiguous().numpy().tobytes()
    digest = torch.tensor(list(hashlib.sha256(content).digest()), dtype=torch.uint8)
    small = convert_channels(resize(pixels.unsqueeze(0), SIDE), 3)[0]
    return _Seen(info, digest.view(1, 4, 8), small)


def _strays(name: str, table: Table) -> list[Finding]:
    """Name the files in a folder that are not read."""
    if not name.startswith(FOLDER):
        return []
    folder, read = own_path(name), set(table.files)
    others = sorted(
        str(path)
        for path in folder.rglob("*")
        if path.is_file() and path not in read
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )  # fmt: skip
    text = f"{_count(others, 'other file')} in the folder, not read"
    return [Finding(text, details=tuple(others))] if others else []


def _copies(found: Inspection, digests: Tensor) -> list[Finding]:
    """Report images with equal pixels."""
    copies = [group for group in find_duplicates(digests) if len(group) > 1]
    if not copies:
        return []
    targets = (
        found.small.targets.flatten(1)
        if found.small.targets.ndim > 1
        else (found.small.targets.unsqueeze(1))
    )
    unlike = [group for group in copies if (targets[group] != targets[group[0]]).any()]
    findings = [
        Finding(
            f"{_count(copies, 'image')} more than once; equal images stay in one split",
            details=tuple(_together(found, group) for group in copies),
        )
    ]
    if unlike:
        findings.append(Finding(
            f"{_count(unlike, 'image')} more than once, with different labels",
            details=tuple(_together(found, group) for group in unlike),
        ))  # fmt: skip
    return findings


def _similar(found: Inspection, digests: Tensor) -> list[Finding]:
    """Report images that are nearly the same and may be tested after training on the other."""
    firsts = [group[0] for group in find_duplicates(digests)]
    pairs = find_near_duplicates(found.small.images[torch.tensor(firsts)])
    part = torch.full((len(found.small),), -1)
    for number, positions in enumerate(found.splits.values()):
        part[positions] = number
    groups = found.small.groups
    across = []
    for pair in pairs:
        a, b = firsts[pair.first], firsts[pair.second]
        if part[a] != part[b] or (groups and groups[a] != groups[b]):
            across.append((a, b))
    if not across:
        return []
    where = "different groups or splits" if groups else "different splits"
    least = "at least " if len(pairs) == MOST else ""
    return [Finding(
        f"{least}{_count(across, 'pair')} of nearly equal images in {where}, also if rotated or "
        "flipped; if they show one object, give them one group",
        details=tuple(_together(found, pair, " ~ ") for pair in across),
    )]  # fmt: skip


def _balance(found: Inspection) -> list[Finding]:
    counts = {name: len(positions) for name, positions in found.strata.items()}
    if not found.target.has_classes or max(counts.values()) < UNEQUAL * min(counts.values()):
        return []
    most, least = max(counts, key=counts.__getitem__), min(counts, key=counts.__getitem__)
    return [Finding(
        f"the classes are unequal: {counts[most]:,} images of {most!r}, {counts[least]:,} of "
        f"{least!r}; judge by the balanced accuracy"
    )]  # fmt: skip


def _groups(found: Inspection) -> list[Finding]:
    """Say that no groups are known, and whether the file names look as if they named some."""
    if found.small.groups or not found.small.names or own_reader(found.source) is None:
        return []
    names = [Path(name).name for name in found.small.names]
    starts = [match and match[0] for match in (re.match(_PREFIX, name) for name in names)]
    different, hint = set(starts), ""
    if None not in different and 3 <= len(different) <= len(names) / 2:
        hint = (
            f"; file names begin in {len(different):,} ways, such as {starts[0]!r}: if these are "
            f"patients, set group_by={_PREFIX}"
        )
    return [Finding(
        "no groups are known: if several images come from one patient, slide or field, say so "
        f"with group_by, or they will be in different splits{hint}"
    )]  # fmt: skip


def _together(found: Inspection, positions: Sequence[int], sign: str = " = ") -> str:
    names = found.small.names
    return sign.join(names[i] if names else f"image {i}" for i in positions)


def _count(things: Sized, word: str) -> str:
    return f"{len(things):,} {word}{'' if len(things) == 1 else 's'}"
