"""Your own images in an .npz file of plain arrays.

    images          uint8, (n, rows, cols) or (n, rows, cols, 3)
    labels          whole numbers are classes, fractions numbers; (n, k) of 0 and 1 several labels
    classes         the names of the classes, or of the columns (default: their numbers)
    splits groups names    texts, one per image

The arrays of the three splits may also be given apart, as `train_images`, `train_labels`, …
Nothing is unpickled.
"""

from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turnwise.data.dataset import SPLITS, Examples
from turnwise.data.readers import damaged, to_pixels
from turnwise.data.readers.npz import Arrays, read_arrays, require_array
from turnwise.data.readers.table import Rows, groups_of
from turnwise.data.readers.targets import read_targets
from turnwise.data.reading import Reading
from turnwise.errors import require

_COLUMNS = ("names", "groups")


def read_table(path: Path, reading: Reading) -> Rows:
    """Read all examples of the file."""
    require(path.is_file(), f"there is no file {path}; give an .npz file.")
    arrays = read_arrays(path)
    splits: tuple[str, ...] = ()
    if "train_images" in arrays:
        arrays, splits = _joined(arrays, path)
    elif "splits" in arrays:
        splits = _texts(arrays, "splits", path)
        require(
            {"train", "test"} <= set(splits) <= set(SPLITS),
            f"the array 'splits' of {path} must hold train, test and, if there is one, val.",
        )
    cells = _cells(arrays, path)
    images = to_pixels(require_array(arrays, "images", path), path)
    if "classes" in arrays and not reading.classes:
        names = _texts(arrays, "classes", path)
        if set(names) == {text for column in cells.values() for text in column}:
            reading = replace(reading, classes=names)
    target, values = read_targets(cells, reading, path)
    columns = {name: _texts(arrays, name, path) if name in arrays else () for name in _COLUMNS}
    counts = {"images": len(images), "labels": len(values)}
    counts |= {name: len(column) for name, column in columns.items() if column}
    counts |= {"splits": len(splits)} if splits else {}
    if len(set(counts.values())) > 1:
        found = ", ".join(f"{count} {name}" for name, count in counts.items())
        raise damaged(path, f"it must have one entry per image, and has {found}")
    if reading.group_by and reading.group_by != "groups":
        require(
            bool(columns["names"]),
            f"group_by = {reading.group_by} needs the array 'names' in {path}; add it, or add "
            "'groups'.",
        )
        columns["groups"] = groups_of([PurePath(n) for n in columns["names"]], reading.group_by)
    return Rows(Examples(images, values, **columns), target, splits, f"in {path}")


def _joined(arrays: Arrays, path: Path) -> tuple[Arrays, tuple[str, ...]]:
    """Join `train_images`, `val_images`, … into one array each, and return the splits."""
    given = [split for split in SPLITS if f"{split}_images" in arrays]
    require("test" in given, f"{path} has 'train_images' and must have 'test_images', too.")
    keys = ["images", "labels", *(k for k in _COLUMNS if f"train_{k}" in arrays)]
    parts = {k: [require_array(arrays, f"{s}_{k}", path) for s in given] for k in keys}
    if len({part.shape[1:] for part in parts["images"]}) > 1:
        raise damaged(path, "the images of all splits must have one shape")
    joined = {key: np.concatenate(found) for key, found in parts.items()}
    if "classes" in arrays:
        joined["classes"] = arrays["classes"]
    splits = [s for s, part in zip(given, parts["images"], strict=True) for _ in part]
    return joined, tuple(splits)


def _texts(arrays: Arrays, name: str, path: Path) -> tuple[str, ...]:
    array = require_array(arrays, name, path)
    if array.ndim != 1 or array.dtype.kind not in "Uiu":
        raise damaged(path, f"{name!r} must be a row of texts, got {array.dtype} of {array.shape}")
    return tuple(map(str, array.tolist()))


def _cells(arrays: Arrays, path: Path) -> dict[str, list[str]]:
    """Return the labels as columns of texts, with the names of the classes where they are given."""
    labels = require_array(arrays, "labels", path)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim not in (1, 2) or 0 in labels.shape or labels.dtype.kind not in "Uiufb":
        raise damaged(
            path, f"'labels' must be numbers or texts, got {labels.dtype} of {labels.shape}"
        )
    names = _texts(arrays, "classes", path) if "classes" in arrays else ()
    if labels.ndim == 1:
        return {"label": [str(label) for label in _named(labels, names, path).tolist()]}
    names = names or tuple(str(i) for i in range(labels.shape[1]))
    if len(names) != labels.shape[1]:
        raise damaged(path, f"'labels' has {labels.shape[1]} columns, and 'classes' {len(names)}")
    return {name: [str(v) for v in labels[:, i].tolist()] for i, name in enumerate(names)}


def _named(labels: NDArray[Any], names: tuple[str, ...], path: Path) -> NDArray[Any]:
    if not names or labels.dtype.kind not in "iu":
        return labels
    if labels.min() < 0 or labels.max() >= len(names):
        raise damaged(
            path, f"labels must be 0 to {len(names) - 1}, as there are names in 'classes'"
        )
    return np.asarray(names)[labels]
