"""Your own images: a folder with one sub-folder per class, or with train, val and test in it.

shapes/circle/1.png  shapes/square/7.jpg                 split 70 / 15 / 15 by the seed
shapes/train/circle/1.png  shapes/test/square/7.jpg      split as given; val is held out from train
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from tqdm import tqdm

from turnwise.data.dataset import SPLITS, Dataset, Examples, Target
from turnwise.data.readers.image_files import (
    KINDS,
    describe,
    image_files_below,
    read_image,
    warn_about_bit_depth,
)
from turnwise.data.splits import (
    TEST_SHARE,
    VAL_SHARE,
    find_duplicates,
    split_by_content,
    val_count,
)
from turnwise.data.storage import expand_home
from turnwise.errors import InputError, require

PREFIX = "folder:"
MIN_IMAGES = 3  # per class: one for each split
_SHOW_PROGRESS = 500
_VAL_NAMES = ("val", "valid", "validation")
# common names of splits, in any capitalisation
_SPLIT_NAMES = (("train", "training"), ("test", "testing"), (*_VAL_NAMES, "dev"))

Classes = dict[str, list[Path]]


@dataclass(frozen=True)
class _Format:
    """What all images are converted to."""

    image_size: int | None
    channels: int


def read_folder(
    name: str,
    image_size: int | None,
    channels: int | None,
    val_fraction: float | None,
    seed: int,
) -> Dataset:
    """Read the data set called `folder:PATH`."""
    path = name.removeprefix(PREFIX)
    folder = expand_home(path, f"the folder {path!r}")
    require(
        bool(path) and folder.is_dir(),
        f"there is no folder {path!r}; write {PREFIX} and a folder with one sub-folder per class.",
    )
    given = _find_splits(folder)
    _require_no_val(given, val_fraction)
    folders = given or {"all": folder}
    listed = {split: _list_classes(path) for split, path in folders.items()}
    classes = _require_same_classes(folders, listed)
    paths = [path for groups in listed.values() for group in groups.values() for path in group]
    chosen = _choose_format(paths, image_size, channels)
    if given:
        parts, note = _read_given(listed, chosen, val_fraction, seed)
    else:
        parts, note = _split_all(listed["all"], chosen, val_fraction, seed)
    provenance = f"{sum(map(len, parts.values())):,} images in {folder}, {note}"
    return Dataset(
        name=name,
        target=Target("class", classes),
        **parts,
        provenance=provenance,
        licence="as the images in the folder",
    )


def _sub_folders(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def _find_splits(folder: Path) -> dict[str, Path]:
    """Return the folders of train, val and test; none if the folder holds classes."""
    names = {sub.name: sub for sub in _sub_folders(folder)}
    if "train" not in names or not set(names) <= {"train", "test", *_VAL_NAMES}:
        _require_classes_only(folder, list(names))
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


def _require_classes_only(folder: Path, names: Sequence[str]) -> None:
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


def _list_classes(folder: Path) -> Classes:
    """List the images of every class below `folder`; raise for classes without images."""
    for sub in _sub_folders(folder):
        _require_classes_only(sub, [part.name for part in _sub_folders(sub)])
    listed = {sub.name: image_files_below(sub) for sub in _sub_folders(folder)}
    require(
        any(listed.values()),
        f"there are no images in {folder}; put {KINDS} files into one sub-folder per class.",
    )
    empty = [name for name, paths in listed.items() if not paths]
    require(
        not empty,
        f"the folder {folder / ''.join(empty[:1])} has no {KINDS} in it; fill or remove it.",
    )
    require(
        len(listed) >= 2,
        f"{folder} has one class only, {next(iter(listed))!r}; put the images of at least two "
        "classes into sub-folders of their own.",
    )
    return listed


def _require_same_classes(folders: dict[str, Path], listed: dict[str, Classes]) -> tuple[str, ...]:
    """Return the classes, which all splits must share."""
    first, *others = listed
    for split in others:
        if differ := sorted(set(listed[split]) ^ set(listed[first])):
            raise InputError(
                f"{folders[split]} and {folders[first]} must have the same classes, but "
                f"{differ[0]!r} is in only one of them; add or remove its folder."
            )
    return tuple(listed[first])


def _require_no_val(given: dict[str, Path], val_fraction: float | None) -> None:
    require(
        val_fraction is None or "val" not in given,
        f"val_fraction = {val_fraction} does not apply, because {given.get('val')} holds the "
        "validation images; leave it out.",
    )


def _progress(paths: Sequence[Path], what: str) -> "tqdm[Path]":
    quiet = len(paths) <= _SHOW_PROGRESS or not sys.stderr.isatty()
    return tqdm(paths, desc=what, unit=" images", disable=quiet)


def _choose_format(paths: Sequence[Path], image_size: int | None, channels: int | None) -> _Format:
    """Choose size and channels from the headers, before any image is decoded."""
    described = [describe(path) for path in _progress(paths, "inspecting")]
    if channels is None:
        channels = 3 if any(colour for _, _, colour in described) else 1
    sizes = sorted({(rows, cols) for rows, cols, _ in described}, key=lambda s: (s[0] * s[1], s))
    if image_size is None and (len(sizes) > 1 or sizes[0][0] != sizes[0][1]):
        (small, large), side = (sizes[0], sizes[-1]), min(min(size) for size in sizes)
        found = f"{small[0]}×{small[1]}"
        if small != large:
            found += f" (smallest) to {large[0]}×{large[1]} (largest)"
        raise InputError(
            f"the images have {found} pixels, rows × cols, and must be squares of one size; "
            f"write image_size={side}, and they are centre-cropped and resampled."
        )
    warn_about_bit_depth(paths)
    return _Format(image_size, channels)


def _read(listed: Classes, chosen: _Format) -> Examples:
    paths = [path for group in listed.values() for path in group]
    images = [
        read_image(p, chosen.image_size, chosen.channels) for p in _progress(paths, "reading")
    ]
    labels = [label for label, group in enumerate(listed.values()) for _ in group]
    names = tuple(map(str, paths))
    return Examples(torch.stack(images), torch.tensor(labels, dtype=torch.int64), names)


def _val_share(examples: Examples, default: float, val_fraction: float | None) -> float:
    if val_fraction is None:
        return default
    return val_count(len(examples), 0, val_fraction) / len(examples)


def _split_all(
    listed: Classes, chosen: _Format, val_fraction: float | None, seed: int
) -> tuple[dict[str, Examples], str]:
    """Read all images and split them by the seed."""
    for name, paths in listed.items():
        require(
            len(paths) >= MIN_IMAGES,
            f"class {name!r} has {len(paths)} images and must have at least {MIN_IMAGES}, one for "
            "each of train, val and test; add images or remove the class.",
        )
    examples = _read(listed, chosen)
    kept = 1 - TEST_SHARE
    val = kept * _val_share(examples, VAL_SHARE / kept, val_fraction)
    parts = split_by_content(examples, list(listed), (kept - val, val, TEST_SHARE), seed)
    splits = {split: examples.take(part) for split, part in zip(SPLITS, parts, strict=True)}
    return splits, f"split by seed {seed}, equal images together"


def _read_given(
    listed: dict[str, Classes], chosen: _Format, val_fraction: float | None, seed: int
) -> tuple[dict[str, Examples], str]:
    """Read the given splits; hold out val from train if it is missing."""
    splits = {split: _read(groups, chosen) for split, groups in listed.items()}
    _require_disjoint(splits, listed)
    if "val" in splits:
        return splits, "split as given"
    train = splits["train"]
    val = _val_share(train, VAL_SHARE, val_fraction)
    kept, held_out = split_by_content(train, list(listed["train"]), (1 - val, val), seed)
    splits |= {"train": train.take(kept), "val": train.take(held_out)}
    return splits, f"test as given, val held out from train by seed {seed}"


def _require_disjoint(splits: dict[str, Examples], listed: dict[str, Classes]) -> None:
    """Raise if two splits share an image, compared by content."""
    origin = [
        (split, path) for split in splits for group in listed[split].values() for path in group
    ]
    for group in find_duplicates(torch.cat([part.images for part in splits.values()])):
        (first, one), others = origin[group[0]], [origin[position] for position in group[1:]]
        leaks = [path for split, path in others if split != first]
        require(
            not leaks,
            f"{one} and {''.join(map(str, leaks[:1]))} are the same image in two splits; "
            "remove one of them, and any other that is in both.",
        )
