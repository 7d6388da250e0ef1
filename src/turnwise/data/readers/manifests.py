"""Your own images in a CSV or Parquet table: one row per image, with its path and its labels.

    path,label,split,patient
    images/1.png,benign,train,p7

A column mask holds the paths of masks instead (`own_masks`).  Paths are relative to the table.  The
usual names of the columns are below; `Columns` maps others.  Only this module imports pyarrow.
"""

import csv
import io
from collections import Counter
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Any

import torch

from turnwise.data.dataset import Target
from turnwise.data.readers.own_masks import MASK_KINDS
from turnwise.data.readers.table import LEVEL, Table, groups_of
from turnwise.data.readers.targets import read_targets
from turnwise.data.reading import Reading
from turnwise.errors import InputError, require

PATHS = ("path", "file", "filename", "file_name", "image", "image_path")
MASKS = ("mask", "mask_path", "segmentation")
LABELS = ("label", "labels", "class", "target")
SPLIT = ("split",)
GROUPS = ("group", "patient", "patient_id", "subject", "subject_id", "slide", "slide_id")
_SPLITS = {"train": "train", "training": "train", "test": "test", "testing": "test",
           "val": "val", "valid": "val", "validation": "val", "dev": "val"}  # fmt: skip

Sheet = dict[str, list[str]]  # cells as text, by column


def read_table(path: Path, reading: Reading) -> Table:
    """Read a manifest: files, targets, splits and groups."""
    require(path.is_file(), f"there is no table {path}; give a CSV or Parquet file.")
    sheet = read_parquet(path) if path.suffix.lower() == ".parquet" else read_csv(path)
    _require_rows(sheet, path)
    paths = _column(sheet, reading.columns.path, PATHS, "path", path)
    assert paths is not None, "the column is needed"
    written = [PurePath(text) for text in _filled(sheet, paths, path)]
    _require_unique(written, path)
    common: dict[str, Any] = {
        "files": tuple(path.parent / name for name in written),
        "splits": _splits(sheet, reading, path),
        "groups": _groups(sheet, written, reading, path),
        "origin": f"listed in {path}",
    }
    if masks := _mask_column(sheet, reading, path):
        files = tuple(path.parent / text for text in _filled(sheet, masks, path))
        nothing = torch.zeros(len(files), dtype=torch.int64)
        return Table(values=nothing, target=Target("mask", ()), masks=files, **common)
    labels = reading.columns.label or (_column(sheet, "", LABELS, "label", path) or "",)
    for name in labels:
        _require_column(sheet, name, path)
    kind = reading.target
    single = kind == "multilabel" and len(labels) == 1  # an empty cell is an image without labels
    cells = {name: sheet[name] if single else _filled(sheet, name, path) for name in labels}
    target, values = read_targets(cells, reading, path)
    return Table(values=values, target=target, **common)


def _mask_column(sheet: Sheet, reading: Reading, path: Path) -> str:
    """Return the column of masks; empty if the table is read for its labels."""
    wanted = bool(reading.columns.mask) or reading.target in MASK_KINDS
    labelled = bool(reading.columns.label) or any(name.lower() in LABELS for name in sheet)
    if not wanted and (labelled or reading.target != "auto"):
        return ""
    usual = any(name.lower() in MASKS for name in sheet)
    if not (wanted or usual):
        return ""
    return _column(sheet, reading.columns.mask, MASKS, "mask", path) or ""


def read_csv(path: Path) -> Sheet:
    """Read a table with a header line, separated by commas, semicolons or tabs."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        header = text.partition("\n")[0]
        delimiter = max(",;\t", key=header.count)
        lines = [row for row in csv.reader(io.StringIO(text), delimiter=delimiter) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or "it is no text in UTF-8"
        reason = str(error) if isinstance(error, csv.Error) else reason
        raise InputError(f"cannot read the table {path} ({reason}); save it as CSV.") from None
    require(bool(lines), f"the table {path} is empty; its first line must name the columns.")
    names, *rows = [[cell.strip() for cell in row] for row in lines]
    for number, row in enumerate(rows, start=1):
        require(
            len(row) == len(names),
            f"{path}, row {number}: it has {len(row)} cells, and the header has {len(names)}; "
            "quote cells that hold the separator.",
        )
    _require_header(names, path)
    return {name: [row[i] for row in rows] for i, name in enumerate(names)}


def read_parquet(path: Path) -> Sheet:
    """Read a Parquet file with pyarrow; lists in cells are joined by |."""
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise InputError(
            f"{path} is a Parquet file, which needs pyarrow; run pip install 'turnwise[parquet]', "
            "or save it as CSV."
        ) from None
    try:
        columns = parquet.ParquetFile(path).read().to_pydict()
    except (ArrowException, OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"cannot read the table {path} ({reason}); write it again.") from None
    _require_header(list(columns), path)
    return {name: [_text(cell) for cell in column] for name, column in columns.items()}


def _text(cell: Any) -> str:
    if isinstance(cell, list | tuple):
        return "|".join(map(_text, cell))
    return "" if cell is None else str(cell).strip()


def _require_header(names: Sequence[str], path: Path) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    require(
        not twice,
        f"the table {path} has the column {''.join(twice[:1])!r} twice; rename one of them.",
    )


def _require_rows(sheet: Sheet, path: Path) -> None:
    rows = len(next(iter(sheet.values()), []))
    require(rows > 0, f"the table {path} has no rows; write one for each image.")


def _require_column(sheet: Sheet, name: str, path: Path) -> None:
    require(
        name in sheet,
        f"the table {path} has no column {name!r}; it has {', '.join(map(repr, sheet))}.",
    )


def _column(sheet: Sheet, wanted: str, usual: Sequence[str], what: str, path: Path) -> str | None:
    """Return the column that the setting names, or the one with a usual name."""
    if wanted:
        _require_column(sheet, wanted, path)
        return wanted
    found = [name for name in sheet if name.lower() in usual]
    require(
        len(found) < 2,
        f"the table {path} has the columns {' and '.join(found)}, and one of them must be chosen; "
        f"set columns.{what}.",
    )
    require(
        bool(found) or what == "split",
        f"the table {path} has no column {what!r}, only {', '.join(map(repr, sheet))}; set "
        f"columns.{what} to one of them.",
    )
    return found[0] if found else None


def _filled(sheet: Sheet, name: str, path: Path) -> list[str]:
    """Return a column without empty cells."""
    for row, cell in enumerate(sheet[name]):
        require(
            bool(cell),
            f"{path}, row {row + 1}: the column {name!r} is empty; fill it, or remove the row.",
        )
    return sheet[name]


def _require_unique(paths: Sequence[PurePath], path: Path) -> None:
    first: dict[PurePath, int] = {}
    for row, name in enumerate(paths):
        other = first.setdefault(name, row)
        require(
            other == row, f"{path} names {name} in row {other + 1} and in row {row + 1}; keep one."
        )


def _splits(sheet: Sheet, reading: Reading, path: Path) -> tuple[str, ...]:
    """Return the split of every row; none if the table does not state them."""
    name = _column(sheet, reading.columns.split, SPLIT, "split", path)
    if name is None:
        return ()
    splits = []
    for row, cell in enumerate(_filled(sheet, name, path)):
        require(
            cell.lower() in _SPLITS,
            f"{path}, row {row + 1}: {name} = {cell!r} must be train, val or test; correct it.",
        )
        splits.append(_SPLITS[cell.lower()])
    for split in ("train", "test"):
        require(
            split in splits,
            f"the column {name!r} of {path} has no {split!r}; add some, or leave the column out "
            "and have the images split.",
        )
    return tuple(splits)


def _groups(
    sheet: Sheet, paths: Sequence[PurePath], reading: Reading, path: Path
) -> tuple[str, ...]:
    """Return the group of every row: of a column, a folder, or part of the file name."""
    if reading.group_by in sheet:
        return tuple(_filled(sheet, reading.group_by, path))
    if reading.group_by:
        is_word = reading.group_by.isidentifier()
        require(
            not is_word,
            f"group_by = {reading.group_by} is no column of {path}, which has "
            f"{', '.join(map(repr, sheet))}.",
        )
        return groups_of(paths, reading.group_by)
    found = [name for name in sheet if name.lower() in GROUPS]
    require(
        len(found) < 2,
        f"the table {path} has the columns {' and '.join(found)}; set group_by to the one that "
        f"must not be in two splits, or to one of {LEVEL}N and a regular expression.",
    )
    return tuple(_filled(sheet, found[0], path)) if found else ()
