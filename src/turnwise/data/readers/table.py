"""The rows of a user's data set before and after its files are decoded, and how groups are named.

A reader lists files with their targets, splits and groups (`Table`); `decoding` turns them into
`Rows`; `own` turns rows into a data set.  A reader of arrays returns `Rows` at once.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

import torch
from torch import Tensor

from turnwise.data.dataset import Examples, Skipped, Target
from turnwise.errors import InputError, require

LEVEL = "level:"


@dataclass(frozen=True, eq=False)
class Table:
    """Files and what belongs to them.

    Attributes:
        files: the image files.
        values: their targets, as in `Examples`.
        target: what the targets mean.
        splits: "train", "val" or "test" of each file; empty if they are not given.
        groups: the group of each file; empty if they are not known.
        origin: where the files come from, for the provenance.
        masks: the mask of each file; then `values` and `target` follow from their pixels.
    """

    files: tuple[Path, ...]
    values: Tensor
    target: Target
    splits: tuple[str, ...]
    groups: tuple[str, ...]
    origin: str
    masks: tuple[Path, ...] = ()

    def take(self, images: Tensor, positions: Sequence[int]) -> "Rows":
        """Return the rows at `positions`, with their images."""
        return Rows(
            Examples(
                images,
                self.values[torch.tensor(positions)],
                tuple(str(self.files[i]) for i in positions),
                tuple(self.groups[i] for i in positions) if self.groups else (),
            ),
            self.target,
            tuple(self.splits[i] for i in positions) if self.splits else (),
            self.origin,
        )


@dataclass(frozen=True, eq=False)
class Rows:
    """Decoded examples in one table, with their splits if they are given."""

    examples: Examples
    target: Target
    splits: tuple[str, ...]
    origin: str
    skipped: tuple[Skipped, ...] = ()


def groups_of(paths: Sequence[PurePath], group_by: str) -> tuple[str, ...]:
    """Return the group of each path, by a folder level or a regular expression.

    >>> groups_of([PurePath("a/p1/x.png"), PurePath("b/p2/y.png")], "level:2")
    ('p1', 'p2')
    >>> groups_of([PurePath("p1_x.png"), PurePath("p2_y.png")], "^(p[0-9]+)_")
    ('p1', 'p2')
    """
    if group_by.startswith(LEVEL):
        return tuple(_folder_at(path, group_by) for path in paths)
    try:
        pattern = re.compile(group_by)
    except re.error as error:
        raise InputError(
            f"group_by = {group_by!r} is no regular expression ({error}); write one such as "
            "^(patient[0-9]+)_, or level:1 for the first folder."
        ) from None
    return tuple(_matched(path, pattern) for path in paths)


def _folder_at(path: PurePath, group_by: str) -> str:
    text, folders = group_by.removeprefix(LEVEL), path.parts[:-1]
    require(
        re.fullmatch("-?[1-9][0-9]{0,3}", text) is not None,
        f"group_by = {group_by} must name a level, 1 for the first folder or -1 for the last; "
        "try level:1.",
    )
    level = int(text)
    require(
        abs(level) <= len(folders),
        f"group_by = {group_by} does not apply to {path}, which lies in {len(folders)} folders; "
        "move it, or choose another level.",
    )
    return folders[level - 1 if level > 0 else level]


def _matched(path: PurePath, pattern: "re.Pattern[str]") -> str:
    found = pattern.search(path.name)
    group = found and (found[1] if pattern.groups else found[0])
    if not group:
        raise InputError(
            f"group_by = {pattern.pattern!r} finds nothing in the file name {path.name}; it must "
            "match the name of every image."
        )
    return group
