"""Your own images in folders, one class per folder, with the groups and splits in folders, too.

shapes/circle/1.png                    layout class
scans/patient7/benign/1.png            layout group/class
scans/benign/patient7/1.png            layout class/group
shapes/train/circle/1.png              any layout inside train, test and val: splits as given
cells/images/1.png cells/masks/1.png   masks (`own_masks`)

The layout is recognised.  Where both readings of nested folders make sense, it must be stated.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

import torch

from turnwise.data.dataset import Target
from turnwise.data.readers.image_files import KINDS, image_files_below
from turnwise.data.readers.own_masks import MASK_KINDS, has_pairs, list_pairs
from turnwise.data.readers.table import Table, groups_of
from turnwise.data.readers.targets import order_classes
from turnwise.data.reading import Reading
from turnwise.data.sources import FOLDER
from turnwise.errors import InputError, require

MIN_IMAGES = 3  # per class: one for each split
_VAL_NAMES = ("val", "valid", "validation")
# common names of splits, in any capitalisation
_SPLIT_NAMES = (("train", "training"), ("test", "testing"), (*_VAL_NAMES, "dev"))


@dataclass(frozen=True)
class _Listed:
    """An image file, and its path below the folder of its split."""

    file: Path
    below: PurePath
    split: str


def read_table(path: Path, reading: Reading) -> Table:
    """List the images of a folder with their classes, groups and splits."""
    require(
        path.is_dir() and path != Path(),
        f"there is no folder {str(path) if path != Path() else ''!r}; write {FOLDER} and a folder "
        "with one sub-folder per class.",
    )
    given = _find_splits(path)
    folders = given or {"": path}
    if has_pairs(folders):
        return list_pairs(folders, path, reading)
    require(
        reading.target not in MASK_KINDS,
        f"target = {reading.target} needs {path / 'images'} with images and {path / 'masks'} with "
        "masks of the same names; add them, or write a table with the columns path and mask.",
    )
    listed = [
        _Listed(file, file.relative_to(folder), split)
        for split, folder in folders.items()
        for file in image_files_below(folder)
        if file.parent != folder
    ]
    for folder in folders.values():
        _require_no_inner_splits(folder)
        _require_images(folder, listed)
    layout = reading.layout
    if layout == "auto":
        layout = _recognise(path, [row.below for row in listed])
    depth = layout.split("/").index("class")
    for row in listed:
        require(
            len(row.below.parts) > layout.count("/") + 1,
            f"{row.file} does not lie in folders of the layout {layout}; move it, or set layout.",
        )
    names = [row.below.parts[depth] for row in listed]
    if layout == "class":
        _require_filled(folders, listed)
    _require_same_classes(folders, listed, names)
    classes = _ordered_classes(path, sorted(set(names)), reading)
    if not given:
        _require_enough(names)
    groups: tuple[str, ...] = ()
    if reading.group_by:
        groups = groups_of([row.below for row in listed], reading.group_by)
    elif layout != "class":
        groups = tuple(row.below.parts[1 - depth] for row in listed)
    kind = "ordinal" if reading.target == "ordinal" else "class"
    return Table(
        files=tuple(row.file for row in listed),
        values=torch.tensor([classes.index(name) for name in names], dtype=torch.int64),
        target=Target(kind, classes),
        splits=tuple(row.split for row in listed) if given else (),
        groups=groups,
        origin=f"in {path}" + ("" if layout == "class" else f", read as {layout}"),
    )


def _sub_folders(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def _find_splits(folder: Path) -> dict[str, Path]:
    """Return the folders of train, val and test; none if the folder holds classes."""
    names = {sub.name: sub for sub in _sub_folders(folder)}
    if "train" not in names or not set(names) <= {"train", "test", *_VAL_NAMES}:
        _require_no_split_names(folder, list(names))
        return {}
    require(
        "test" in names,
        f"{folder} has a folder train but no folder test; add one, or put the classes directly "
        f"into {folder}.",
    )
    val = [names[name] for name in _VAL_NAMES if name in names]
    require(
        len(val) < 2,
        f"{folder} has {len(val)} folders of validation images, "
        f"{' and '.join(sub.name for sub in val)}, and must have one or none; keep one of them.",
    )
    return {"train": names["train"], "test": names["test"]} | ({"val": val[0]} if val else {})


def _require_no_split_names(folder: Path, names: Sequence[str]) -> None:
    """Raise for sub-folders that look like splits; as classes, test images would be trained on.

    One such name may be a class, a train beside a bus; two of them mean splits.
    """
    found = [[name for name in names if name.casefold() in words] for words in _SPLIT_NAMES]
    splits = [name for group in found for name in group]
    others = [name for name in names if name not in splits]
    beside = f" beside {others[0]!r}" if others else ""
    require(
        sum(map(bool, found)) < 2,
        f"{folder} has {' and '.join(map(repr, splits))}{beside}, which is no valid split; name "
        "the folders train, test and, if there is one, val, and keep nothing else there; if they "
        "are classes, give them other names.",
    )


def _require_no_inner_splits(folder: Path) -> None:
    for sub in _sub_folders(folder):
        _require_no_split_names(sub, [part.name for part in _sub_folders(sub)])


def _require_images(folder: Path, listed: Sequence[_Listed]) -> None:
    require(
        any(row.file.is_relative_to(folder) for row in listed),
        f"there are no images in {folder}; put {KINDS} files into one sub-folder per class.",
    )


def _require_filled(folders: dict[str, Path], listed: Sequence[_Listed]) -> None:
    """Raise for class folders without images, and for a single class."""
    filled = {(row.split, row.below.parts[0]) for row in listed}
    for split, folder in folders.items():
        subs = _sub_folders(folder)
        empty = [sub for sub in subs if (split, sub.name) not in filled]
        require(
            not empty,
            f"the folder {''.join(map(str, empty[:1]))} has no {KINDS} in it; fill or remove it.",
        )
        require(
            len(subs) >= 2,
            f"{folder} has one class only, {subs[0].name!r}; put the images of at least two "
            "classes into sub-folders of their own.",
        )


def _recognise(folder: Path, paths: Sequence[PurePath]) -> str:
    """Return the layout of the sub-folders.

    Groups are more numerous than classes, and a class is in several groups.  So folders whose
    sub-folders have names of their own are classes; otherwise the level with at least twice as many
    names holds the groups.
    """
    nested = [path.parts[:2] for path in paths if len(path.parts) > 2]
    outer, inner = sorted({pair[0] for pair in nested}), sorted({pair[1] for pair in nested})
    if len(inner) < 2:
        return "class"
    pairs = set(nested)
    repeated = [name for name in inner if sum(pair[1] == name for pair in pairs) > 1]
    if len(nested) < len(paths):
        if not repeated:
            return "class"
    elif not repeated or len(inner) >= 2 * len(outer):
        return "class/group"
    elif len(outer) >= 2 * len(inner):
        return "group/class"
    raise InputError(
        f"{folder} has the folders {_some(outer)}, and in them {_some(inner)}: set "
        f"layout=group/class if {inner[0]!r} is a class and {outer[0]!r} a group, such as a "
        f"patient, class/group if {outer[0]!r} is a class and {inner[0]!r} a group, or class if "
        f"{outer[0]!r} is a class and the folders in it mean nothing."
    )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" … ({len(names)})" if len(names) > 3 else "")


def _require_same_classes(
    folders: dict[str, Path], listed: Sequence[_Listed], names: Sequence[str]
) -> None:
    """Raise unless all splits have the same classes."""
    found: dict[str, set[str]] = {split: set() for split in folders}
    for row, name in zip(listed, names, strict=True):
        found[row.split].add(name)
    first, *others = folders
    for split in others:
        if differ := sorted(found[split] ^ found[first]):
            raise InputError(
                f"{folders[split]} and {folders[first]} must have the same classes, but "
                f"{differ[0]!r} is in only one of them; add or remove its folder."
            )


def _ordered_classes(folder: Path, found: list[str], reading: Reading) -> tuple[str, ...]:
    """Return the classes in the order of the setting, or sorted."""
    require(
        reading.target in ("auto", "class", "ordinal"),
        f"target = {reading.target} needs a table: folders give each image one class; write a CSV "
        "or Parquet file with the columns path and label.",
    )
    require(
        len(found) >= 2,
        f"{folder} has one class only, {found[0]!r}; put the images of at least two classes into "
        "sub-folders of their own.",
    )
    return order_classes(found, reading, str(folder))


def _require_enough(names: Sequence[str]) -> None:
    for name, count in sorted(Counter(names).items()):
        require(
            count >= MIN_IMAGES,
            f"class {name!r} has {count} images and must have at least {MIN_IMAGES}, one for "
            "each of train, val and test; add images or remove the class.",
        )
