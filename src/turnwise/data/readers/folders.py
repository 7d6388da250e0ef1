"""Examples of your own: a folder with one sub-folder per class, or with train, val and test in it.

shapes/circle/1.png  shapes/square/7.jpg                 split 70 / 15 / 15 by the seed
shapes/train/circle/1.png  shapes/test/square/7.jpg      split as given; val is cut from train
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from tqdm import tqdm

from turnwise.data.dataset import Dataset, Examples
from turnwise.data.readers.image_files import (
    KINDS,
    describe,
    image_files_below,
    read_image,
    warn_of_depth,
)
from turnwise.data.splits import TEST_SHARE, VAL_SHARE, cut_by_content, same_content, val_count
from turnwise.data.storage import expand_home
from turnwise.errors import InputError, require

PREFIX = "folder:"
LEAST = 3  # pictures per class: one for each split
_SHOW_PROGRESS = 500
_VAL_NAMES = ("val", "valid", "validation")
# what people call the parts of a split, in capitals or not
_WORDS = (("train", "training"), ("test", "testing"), (*_VAL_NAMES, "dev"))


@dataclass(frozen=True)
class _Form:
    image_size: int | None
    channels: int


def _sub_folders(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def _list_classes(folder: Path) -> dict[str, list[Path]]:
    """The pictures of every class below `folder`; folders without pictures are an error."""
    for sub in _sub_folders(folder):
        _require_classes_alone(sub, [part.name for part in _sub_folders(sub)])
    listed = {sub.name: image_files_below(sub) for sub in _sub_folders(folder)}
    require(
        any(listed.values()),
        f"there are no pictures in {folder}; put {KINDS} files into one sub-folder per class.",
    )
    empty = [name for name, paths in listed.items() if not paths]
    require(
        not empty,
        f"the folder {folder / ''.join(empty[:1])} has no {KINDS} in it; fill or remove it.",
    )
    require(
        len(listed) >= 2,
        f"{folder} has one class only, {next(iter(listed))!r}; put the pictures of at least two "
        "classes into sub-folders of their own.",
    )
    return listed


def _progress(paths: Sequence[Path], what: str) -> "tqdm[Path]":
    quiet = len(paths) <= _SHOW_PROGRESS or not sys.stderr.isatty()
    return tqdm(paths, desc=what, unit=" pictures", disable=quiet)


def _choose_form(paths: Sequence[Path], image_size: int | None, channels: int | None) -> _Form:
    """What all pictures are brought to, decided from sizes and colours before decoding them."""
    described = [describe(path) for path in _progress(paths, "looking")]
    if channels is None:
        channels = 3 if any(colour for _, _, colour in described) else 1
    sizes = sorted({(rows, cols) for rows, cols, _ in described}, key=lambda s: (s[0] * s[1], s))
    if image_size is None and (len(sizes) > 1 or sizes[0][0] != sizes[0][1]):
        (small, large), side = (sizes[0], sizes[-1]), min(min(size) for size in sizes)
        found = f"{small[0]}×{small[1]}"
        if small != large:
            found += f" (smallest) to {large[0]}×{large[1]} (largest)"
        raise InputError(
            f"the pictures have {found} pixels, rows × cols, and must be squares of one size; "
            f"write image_size={side}, and they are centre-cropped and resampled."
        )
    warn_of_depth(paths)
    return _Form(image_size, channels)


def _read(listed: dict[str, list[Path]], form: _Form) -> Examples:
    paths = [path for group in listed.values() for path in group]
    images = torch.stack(
        [read_image(path, form.image_size, form.channels) for path in _progress(paths, "reading")]
    )
    labels = [label for label, group in enumerate(listed.values()) for _ in group]
    return Examples(images, torch.tensor(labels, dtype=torch.int64))


def _val_share(pictures: Examples, default: float, val_fraction: float | None) -> float:
    if val_fraction is None:
        return default
    return val_count(len(pictures), 0, val_fraction) / len(pictures)


def _cut_all(
    listed: dict[str, list[Path]], form: _Form, val_fraction: float | None, seed: int
) -> tuple[list[Examples], str]:
    for name, paths in listed.items():
        require(
            len(paths) >= LEAST,
            f"class {name!r} has {len(paths)} pictures and must have at least {LEAST}, one for "
            "each of train, val and test; add pictures or remove the class.",
        )
    pictures = _read(listed, form)
    kept = 1 - TEST_SHARE
    val = kept * _val_share(pictures, VAL_SHARE / kept, val_fraction)
    parts = cut_by_content(
        pictures.images, pictures.labels, list(listed), (kept - val, val, TEST_SHARE), seed
    )
    return [pictures.take(part) for part in parts], f"split by seed {seed}, equal pictures together"


def _require_classes_alone(folder: Path, names: Sequence[str]) -> None:
    """Refuse what is nearly a split, or test pictures would be trained on.

    One such word may be a class, a train beside a bus; two of them mean a split.
    """
    meant = [[name for name in names if name.casefold() in words] for words in _WORDS]
    parts = [name for found in meant for name in found]
    others = [name for name in names if name not in parts]
    beside = f" beside {others[0]!r}" if others else ""
    require(
        sum(map(bool, meant)) < 2,
        f"{folder} has {' and '.join(map(repr, parts))}{beside}, which is no split; call its parts "
        "train, test and, if there is one, val, and move all else away; if they are classes, give "
        "them other names.",
    )


def _given_splits(folder: Path) -> dict[str, Path] | None:
    """The folders of train, val and test, if the folder is divided so."""
    names = {sub.name: sub for sub in _sub_folders(folder)}
    if "train" not in names or not set(names) <= {"train", "test", *_VAL_NAMES}:
        _require_classes_alone(folder, list(names))
        return None
    require(
        "test" in names,
        f"{folder} has a folder train but no folder test; add one, or put the classes directly "
        f"into {folder}.",
    )
    val = [names[name] for name in _VAL_NAMES if name in names]
    require(
        len(val) < 2,
        f"{folder} has {len(val)} folders of validation pictures, "
        f"{' and '.join(sub.name for sub in val)}, and must have one or none; keep one of them.",
    )
    return {"train": names["train"], "test": names["test"]} | ({"val": val[0]} if val else {})


def _require_disjoint(parts: dict[str, Examples], listed: dict[str, dict[str, list[Path]]]) -> None:
    """Refuse splits that share a picture, by content: a model would be tested on what it knows."""
    origin = [
        (split, path) for split in parts for group in listed[split].values() for path in group
    ]
    for group in same_content(torch.cat([part.images for part in parts.values()])):
        (first, one), others = origin[group[0]], [origin[position] for position in group[1:]]
        leaks = [path for split, path in others if split != first]
        require(
            not leaks,
            f"{one} and {''.join(map(str, leaks[:1]))} are the same picture in two splits; "
            "remove one of them, and any other that is in both.",
        )


def _read_given(
    found: dict[str, Path],
    wishes: tuple[int | None, int | None],
    val_fraction: float | None,
    seed: int,
) -> tuple[tuple[str, ...], list[Examples], str]:
    require(
        val_fraction is None or "val" not in found,
        f"val_fraction = {val_fraction} does not apply, because {found.get('val')} holds the "
        "validation pictures; leave it out.",
    )
    listed = {split: _list_classes(path) for split, path in found.items()}
    classes = tuple(listed["train"])
    for split, groups in listed.items():
        differ = sorted(set(groups) ^ set(classes))
        if differ:
            raise InputError(
                f"{found[split]} and {found['train']} must have the same classes, but "
                f"{differ[0]!r} is in only one of them; add or remove its folder."
            )
    form = _choose_form(
        [p for groups in listed.values() for g in groups.values() for p in g], *wishes
    )
    parts = {split: _read(groups, form) for split, groups in listed.items()}
    _require_disjoint(parts, listed)
    if "val" not in parts:
        train = parts["train"]
        val = _val_share(train, VAL_SHARE, val_fraction)
        kept, held = cut_by_content(train.images, train.labels, classes, (1 - val, val), seed)
        parts |= {"train": train.take(kept), "val": train.take(held)}
    ordered = [parts[split] for split in ("train", "val", "test")]
    how = (
        "split as given" if "val" in found else f"test as given, val cut from train by seed {seed}"
    )
    return classes, ordered, how


def read_folder(
    name: str,
    image_size: int | None,
    channels: int | None,
    val_fraction: float | None,
    seed: int,
) -> Dataset:
    """The data set called `folder:PATH`."""
    path = name.removeprefix(PREFIX)
    folder = expand_home(path, f"the folder {path!r}")
    require(
        bool(path) and folder.is_dir(),
        f"there is no folder {path!r}; write {PREFIX} and a folder with one sub-folder per class.",
    )
    found = _given_splits(folder)
    if found is None:
        listed = _list_classes(folder)
        form = _choose_form([p for group in listed.values() for p in group], image_size, channels)
        parts, how = _cut_all(listed, form, val_fraction, seed)
        classes = tuple(listed)
    else:
        classes, parts, how = _read_given(found, (image_size, channels), val_fraction, seed)
    train, val, test = parts
    count = len(train) + len(val) + len(test)
    provenance = f"{count:,} pictures in {folder}, {how}"
    return Dataset(name, classes, train, val, test, provenance, "as the pictures in the folder")
