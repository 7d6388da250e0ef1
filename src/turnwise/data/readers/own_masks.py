"""Masks of your own images: files of numbers, of two levels or of colours, and what they mean.

    cells/images/1.png    cells/masks/1.png      pairs of one name; the suffixes may differ
    cells/train/images/…  cells/train/masks/…    the same in train, test and val: splits as given
    a table with a column mask                   any paths

    mask       the class of each pixel.  Every value or colour is a class, in ascending order, so
               black, or 0, is the first; files with a palette hold its indices.
    instances  the number, or the colour, of the instance of each pixel; 0, or black, is outside.

Two values, a palette or colours are read as classes.  Grey files of more values could mean either,
so the setting `target` must say which.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Int64, Shaped
from torch import Tensor

from turnwise.data.dataset import Target
from turnwise.data.masks import IGNORED, INSTANCE_CLASSES, fit_masks
from turnwise.data.readers.image_files import KINDS, image_files_below
from turnwise.data.readers.masks import MaskFile, read_mask
from turnwise.data.readers.table import Table, groups_of
from turnwise.data.reading import Reading
from turnwise.errors import InputError, require

IMAGES, MASKS = "images", ("masks", "labels")  # folders
MASK_KINDS = ("mask", "instances")
BINARY_CLASSES = ("background", "foreground")
MOST_CLASSES, MOST_INSTANCES = 255, 2**15 - 1


@dataclass(frozen=True, eq=False)
class FittedMask:
    """The codes of a mask at the size of the examples, and all that the file holds."""

    codes: Int64[Tensor, "row col"]
    values: tuple[int, ...]
    style: str  # as in MaskFile


def has_pairs(folders: Mapping[str, Path]) -> bool:
    """Return whether every folder has one of images and one of masks."""
    return all(
        (folder / IMAGES).is_dir() and any((folder / name).is_dir() for name in MASKS)
        for folder in folders.values()
    )


def list_pairs(folders: Mapping[str, Path], path: Path, reading: Reading) -> Table:
    """List the images of `folders`, by split ("" for none), with the masks of the same names."""
    files, masks, splits, below = list[Path](), list[Path](), list[str](), list[Path]()
    for split, folder in folders.items():
        found = [folder / name for name in MASKS if (folder / name).is_dir()]
        require(len(found) == 1, f"{folder} has {' and '.join(MASKS)}; keep one of them.")
        by_name = _by_name(found[0])
        for file in image_files_below(folder / IMAGES):
            inner = file.relative_to(folder / IMAGES)
            require(
                inner.with_suffix("") in by_name,
                f"the image {file} has no mask in {found[0]}; add one of the same name, or remove "
                "the image.",
            )
            files.append(file)
            masks.append(by_name[inner.with_suffix("")])
            splits.append(split)
            below.append(inner)
        require(
            any(file.is_relative_to(folder) for file in files),
            f"there are no images in {folder / IMAGES}; put {KINDS} files there.",
        )
    return Table(
        files=tuple(files),
        values=torch.zeros(len(files), dtype=torch.int64),
        target=Target("mask", ()),
        splits=tuple(splits) if any(splits) else (),
        groups=groups_of(below, reading.group_by) if reading.group_by else (),
        origin=f"in {path}",
        masks=tuple(masks),
    )


def _by_name(folder: Path) -> dict[Path, Path]:
    found = dict[Path, Path]()
    for file in image_files_below(folder):
        name = file.relative_to(folder).with_suffix("")
        require(
            name not in found,
            f"{file} and {found.get(name)} are masks of one name; keep one of them.",
        )
        found[name] = file
    require(
        bool(found),
        f"there are no masks in {folder}; put files there with the names of the images.",
    )
    return found


def read_fitted(path: Path, rows: int, cols: int, image_size: int | None) -> FittedMask:
    """Read a mask for an image of rows × cols pixels, and fit it as the image is."""
    found: MaskFile = read_mask(path)
    require(
        found.codes.shape == (rows, cols),
        f"the mask {path} has {found.codes.shape[0]}×{found.codes.shape[1]} pixels and its image "
        f"{rows}×{cols}; they must agree.",
    )
    codes = fit_masks(found.codes[None], image_size, None)[0]
    return FittedMask(codes, tuple(found.codes.unique().tolist()), found.style)


def to_targets(
    masks: Sequence[FittedMask], reading: Reading, origin: str
) -> tuple[Target, Shaped[Tensor, "image row col"]]:
    """Return what the masks mean, and the targets in the form of `data.masks`."""
    styles = {mask.style for mask in masks}
    require(
        len(styles - {"binary"}) <= 1,
        f"the masks {origin} are {' and '.join(sorted(styles))} files; save them alike.",
    )
    values = sorted({value for mask in masks for value in mask.values})
    ignored = _ignored(reading.ignore)
    known = [value for value in values if value != ignored]
    kind = reading.target
    if kind == "auto":
        kind = "mask"
        require(
            len(known) <= 2 or styles & {"colour", "palette"} != set(),
            f"the masks {origin} have {len(known)} values; set target=mask if each is a class, or "
            "target=instances if each is one object.",
        )
    codes = torch.stack([mask.codes for mask in masks])
    if kind == "instances":
        require(not reading.classes, "instances have no classes; leave classes out.")
        return Target("instances", INSTANCE_CLASSES), _instances(codes, ignored)
    require(
        len(known) >= 2,
        f"the masks {origin} have one value only, {_shown(known[:1], styles)}; two classes or more "
        "are needed.",
    )
    require(
        len(known) <= MOST_CLASSES,
        f"the masks {origin} have {len(known)} values, and there are {MOST_CLASSES} classes at "
        "most; set target=instances if each value is one object.",
    )
    index = torch.searchsorted(torch.tensor(known), codes).clamp(max=len(known) - 1)
    targets = index.to(torch.uint8)
    if ignored is not None:
        targets[codes == ignored] = IGNORED[torch.uint8]
    return Target("mask", _class_names(known, styles, reading, origin)), targets


def _class_names(
    known: Sequence[int], styles: set[str], reading: Reading, origin: str
) -> tuple[str, ...]:
    if reading.classes:
        require(
            len(reading.classes) == len(known),
            f"classes = {', '.join(reading.classes)} must name the {len(known)} values of the "
            f"masks {origin}, in this order: {_shown(known, styles)}.",
        )
        return reading.classes
    if len(known) == 2:
        return BINARY_CLASSES
    return tuple(_shown([value], styles) for value in known)


def _shown(values: Sequence[int], styles: set[str]) -> str:
    return ", ".join(f"#{value:06x}" if "colour" in styles else str(value) for value in values)


def _ignored(text: str) -> int | None:
    """Return the code of pixels that do not count: a number, or a colour such as #ffffff."""
    if not text:
        return None
    try:
        return int(text[1:], 16) if text.startswith("#") else int(text)
    except ValueError:
        raise InputError(
            f"ignore = {text!r} must be a value of the masks, such as 255, or a colour, such as "
            "#ffffff."
        ) from None


def _instances(
    codes: Int64[Tensor, "image row col"], ignored: int | None
) -> Shaped[Tensor, "image row col"]:
    """Number the instances of each image from 1, by ascending code; 0 stays the background."""
    targets = torch.empty(codes.shape, dtype=torch.int16)
    for target, image in zip(targets, codes, strict=True):
        names = image.unique()
        own = names[(names != 0) & (names != (-1 if ignored is None else ignored))]
        require(
            len(own) <= MOST_INSTANCES,
            f"a mask has {len(own)} instances; the limit is {MOST_INSTANCES}.",
        )
        numbers = torch.searchsorted(own, image) + 1 if len(own) else torch.zeros_like(image)
        target[:] = torch.where(torch.isin(image, own), numbers, 0).short()
        if ignored is not None:
            target[image == ignored] = IGNORED[torch.int16]
    return targets
