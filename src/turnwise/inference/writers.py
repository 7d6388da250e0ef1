"""Write the columns of a job as CSV, Parquet, or HDF5 in the layout of CLAM and TRIDENT.

Every writer takes the columns chunk by chunk, so that memory is bounded by a chunk, and its file is
complete or absent.
"""

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from turnwise.data.targets import TargetKind, make_kind
from turnwise.errors import InputError, import_extra, require, require_known
from turnwise.files import fill_atomic

Columns = Mapping[str, NDArray[Any]]
Chunks = Iterable[Columns]
VALUES = ("probabilities", "predictions")  # the second for kinds of target without probabilities
WIDE = (*VALUES, "embedding")  # columns of one vector per row
INTERNAL = ("tile",)  # used for maps only
EMPTY = "nothing is left to write: no image could be read, or all tiles are background."


@runtime_checkable
class Writable(Protocol):
    def write(self, text: str, /) -> Any: ...


@dataclass(frozen=True)
class Table:
    """What the columns mean.

    classes    names of the columns of probabilities, or of numbers
    kind       the kind of target, which decides; None is classes
    constants  columns with one value for all rows, such as the hash of the weights
    facts      stored once with the table, where the format allows it
    """

    classes: tuple[str, ...] = ()
    constants: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    kind: TargetKind | None = None

    def labels(self, columns: Columns) -> list[str]:
        """Return the decision in each row: the class, by default, or the labels."""
        kind = (self.kind or make_kind("class")).named(self.classes)
        return [kind.describe(row) for row in torch.from_numpy(np.array(columns["probabilities"]))]


def plain_columns(columns: Columns) -> dict[str, NDArray[Any]]:
    """Return the columns of one value per row that every format has."""
    return {name: column for name, column in columns.items() if name not in (*WIDE, *INTERNAL)}


def print_csv(stream: Writable, chunks: Chunks, table: Table) -> None:
    """Write rows of text: probabilities with 4 decimals, embeddings with 9 digits."""
    writer, begun = csv.writer(stream, lineterminator="\n"), False
    for columns in chunks:
        plain = plain_columns(columns)
        parts: list[Any] = [column.tolist() for column in plain.values()]
        header = list(plain)
        if "probabilities" in columns:
            parts.append(table.labels(columns))
            parts += [[f"{p:.4f}" for p in column] for column in columns["probabilities"].T]
            header += ["label", *table.classes]
        if "predictions" in columns:
            parts += [[f"{value:.6g}" for value in column] for column in columns["predictions"].T]
            header += table.classes
        if "embedding" in columns:
            parts += [[f"{e:.9g}" for e in column] for column in columns["embedding"].T]
            header += [f"e{i}" for i in range(columns["embedding"].shape[1])]
        if not begun:
            writer.writerow(header)
            begun = True
        writer.writerows(zip(*parts, strict=True))


def write_csv(path: Path, chunks: Chunks, table: Table) -> None:
    def fill(temporary: Path) -> None:
        with temporary.open("w", encoding="utf-8", newline="") as stream:
            print_csv(stream, chunks, table)

    fill_atomic(path, fill)


def write_parquet(path: Path, chunks: Chunks, table: Table) -> None:
    """Write one row group for each chunk; vectors are lists of a fixed size."""
    arrow, parquet = (
        import_extra(name, "parquet", "Parquet") for name in ("pyarrow", "pyarrow.parquet")
    )

    def batch(columns: Columns) -> Any:
        found = {name: arrow.array(column) for name, column in plain_columns(columns).items()}
        if "probabilities" in columns:
            found["label"] = arrow.array(table.labels(columns)).dictionary_encode()
        for name in WIDE:
            if name in columns:
                wide = np.ascontiguousarray(columns[name], dtype=np.float32)
                flat = arrow.array(wide.ravel())
                found[name] = arrow.FixedSizeListArray.from_arrays(flat, wide.shape[1])
        count = len(next(iter(columns.values())))
        for name, value in table.constants.items():
            found[name] = arrow.array([value] * count)
        return arrow.table(found)

    def fill(temporary: Path) -> None:
        batches = map(batch, chunks)
        first = next(batches)
        about = {"turnwise": json.dumps({"classes": table.classes, **table.facts})}
        schema = first.schema.with_metadata(about)
        with parquet.ParquetWriter(temporary, schema) as writer:
            for found in chain([first], batches):
                writer.write_table(found.cast(schema))

    fill_atomic(path, fill)


def write_hdf5(path: Path, chunks: Chunks, table: Table) -> None:
    """Write `features` and, for tiles, `coords` (x, y of level 0), as CLAM and TRIDENT do.

    Such a file holds one slide; images of files have a data set `image` instead of `coords`.
    """
    h5py = import_extra("h5py", "pcam", "HDF5")

    def append(
        file: Any, name: str, values: NDArray[Any], about: Mapping[str, Any] | None = None
    ) -> None:
        if name not in file:
            text = values.dtype.kind == "U"
            file.create_dataset(
                name, data=values.astype(object) if text else values,
                maxshape=(None, *values.shape[1:]), chunks=True,
                dtype=h5py.string_dtype() if text else values.dtype,
            )  # fmt: skip
            file[name].attrs.update(about or {})
            return
        data, count = file[name], len(file[name])
        data.resize(count + len(values), axis=0)
        data[count:] = values

    def fill(temporary: Path) -> None:
        slides = set[str]()
        with h5py.File(temporary, "w") as file:
            file.attrs.update({**table.constants, "classes": json.dumps(table.classes)})
            for columns in chunks:
                slides |= set(columns.get("slide", np.asarray([], dtype=str)).tolist())
                require(
                    len(slides) < 2,
                    "an HDF5 file in the layout of CLAM holds one slide; give a folder instead.",
                )
                for name, stored in (("embedding", "features"), *((v, v) for v in VALUES)):
                    if name in columns:
                        append(file, stored, columns[name].astype(np.float32))
                if "slide" in columns:
                    coords = np.stack([columns["x"], columns["y"]], axis=1).astype(np.int64)
                    stem = Path(next(iter(slides))).stem
                    about = {"name": stem, **_patch_attributes(columns, table)}
                    append(file, "coords", coords, about)
                else:
                    append(file, "image", columns["image"])

    fill_atomic(path, fill)


def _patch_attributes(columns: Columns, table: Table) -> dict[str, Any]:
    """Return CLAM's patch_size and patch_level, and TRIDENT's patch_size_level0 and overlap."""
    known = {name: table.facts[name] for name in ("patch_size", "overlap") if name in table.facts}
    return {**known, "patch_level": int(columns["level"][0]), "mpp": float(columns["mpp"][0])}


def write_hdf5_folder(path: Path, chunks: Chunks, table: Table) -> None:
    """Write one HDF5 file for each slide, named after it."""
    for slide, own in _by_slide(chunks):
        write_hdf5(path / f"{Path(slide).stem}.h5", own, table)


def _by_slide(chunks: Chunks) -> Iterator[tuple[str, Iterator[Columns]]]:
    """Yield each slide with its chunks; the rows of a slide follow each other."""
    pieces = (piece for columns in chunks for piece in _cut(columns))
    waiting = next(pieces, None)

    def own(slide: str) -> Iterator[Columns]:
        nonlocal waiting
        while waiting is not None and waiting[0] == slide:
            yield waiting[1]
            waiting = next(pieces, None)

    while waiting is not None:
        slide = waiting[0]
        yield slide, own(slide)


def _cut(columns: Columns) -> Iterator[tuple[str, Columns]]:
    names = columns["slide"]
    edges = [0, *(np.flatnonzero(names[1:] != names[:-1]) + 1).tolist(), len(names)]
    for start, end in pairwise(edges):
        if start < end:
            yield str(names[start]), {name: c[start:end] for name, c in columns.items()}


WRITERS: dict[str, Callable[[Path, Chunks, Table], None]] = {
    "csv": write_csv,
    "parquet": write_parquet,
    "h5": write_hdf5,
    "hdf5": write_hdf5,
    "": write_hdf5_folder,
}


def _kind(path: Path) -> str:
    return path.suffix.lower().removeprefix(".")


def require_writer(path: Path, slides: list[str]) -> None:
    """Raise before any work if the output's format is unknown, or its package is missing."""
    suffix = _kind(path)
    require_known(suffix or "a folder", [*filter(None, WRITERS), "a folder"], "kind of output")
    if suffix == "parquet":
        import_extra("pyarrow", "parquet", "Parquet")
    if suffix in ("h5", "hdf5", ""):
        import_extra("h5py", "pcam", "HDF5")
    require(
        suffix != "" or bool(slides),
        f"{path} is a folder, which takes the tiles of slides; end it in .csv, .parquet or .h5.",
    )
    require(
        suffix not in ("h5", "hdf5") or len(slides) < 2,
        f"an HDF5 file holds one slide, but there are {len(slides)}; give a folder, or .parquet.",
    )
    stems = [Path(slide).stem for slide in slides]
    twice = sorted({stem for stem in stems if stems.count(stem) > 1}) if suffix == "" else []
    require(not twice, f"several slides are called {''.join(twice[:1])!r}; write a .parquet file.")


def write_output(path: Path, chunks: Chunks, table: Table) -> None:
    """Write a file, or a folder of files, in the format of its suffix."""
    filled = (columns for columns in chunks if len(next(iter(columns.values()), ())) > 0)
    first = next(filled, None)
    if first is None:
        raise InputError(EMPTY)
    WRITERS[_kind(path)](path, chain([first], filled), table)
