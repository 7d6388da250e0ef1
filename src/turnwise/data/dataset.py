"""Data sets in memory: one table of examples, divided into three disjoint splits.

A row of the table is an image, its target, and where they are known the name of the example (a path
or a number) and its group (the patient, slide or field).  No group is in two splits.  Every reader,
of folders, manifests, npz files and the catalogue, fills the same columns:

    images    uint8, (image, channel, row, col), all of one size
    targets   one row per image; `Target` describes what it means:

        kind        targets                  names
        class       int64 (image,)           the classes; a label is their index
        ordinal     int64 (image,)           the classes in ascending order
        multilabel  float32 (image, name)    the labels; 1 where the image has it, else 0
        number      float32 (image, name)    the columns of numbers; `unit` is that of all
        mask        uint8 (image, row, col)  the classes of pixels
        instances   int16 (image, row, col)  INSTANCE_CLASSES (`data.masks` says more of both)

    names     one string per image, or none at all
    groups    one string per image, or none at all

Code for classes reads `examples.labels`, which raises for any other kind of target, and
`dataset.classes`.  Code for every kind reads `examples.targets` and `dataset.target`.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Int64, Shaped, UInt8
from torch import Tensor

from turnwise.data.targets import TargetKind, known_kinds, make_kind
from turnwise.errors import InputError, require_known
from turnwise.notebook import html_table

SPLITS = ("train", "val", "test")
MAX_COLUMNS = 20  # classes that a notebook shows one by one
Images = UInt8[Tensor, "image channel row col"]
Targets = Shaped[Tensor, "image *target"]
Labels = Int64[Tensor, " image"]


@dataclass(frozen=True)
class Target:
    """What a model predicts for an image.

    Attributes:
        kind: one of "class", "ordinal", "multilabel", "number", "mask", or of `data/targets/`.
        names: the classes, labels or columns of numbers, in the order of the model's outputs.
        unit: of numbers, such as "mm"; empty if there is none.

    >>> Target("multilabel", ("cyst", "stone")).has_classes
    False
    """

    kind: str
    names: tuple[str, ...]
    unit: str = ""

    def __post_init__(self) -> None:
        require_known(self.kind, known_kinds(), "kind of target")

    @property
    def has_classes(self) -> bool:
        """Whether each image has exactly one class, which may be ordered."""
        return self.kind in ("class", "ordinal")

    @property
    def has_masks(self) -> bool:
        """Whether each pixel has a value."""
        return self.kind in ("mask", "instances")

    def accepts(self, targets: Tensor) -> bool:
        """Return whether the targets have the type and the shape of this kind."""
        return make_kind(self.kind, self.names, self.unit).accepts(targets)


@dataclass(frozen=True, eq=False)
class Examples:
    """Rows of the table: `targets[i]`, `names[i]` and `groups[i]` belong to `images[i]`.

    `names` and `groups` are empty where they are not known.
    """

    images: Images
    targets: Targets
    names: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        count = len(self.images)
        assert len(self.targets) == count, "readers check the counts"
        assert len(self.names) in (0, count) and len(self.groups) in (0, count)

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def labels(self) -> Labels:
        """The class of each image; raises if the targets are of another kind."""
        if self.targets.dtype != torch.int64 or self.targets.ndim != 1:
            raise InputError(
                "these images have several labels, numbers or masks, and not one class each; use "
                "a data set of classes here."
            )
        return self.targets

    @property
    def group_count(self) -> int:
        """The number of different groups; 0 if they are not known."""
        return len(set(self.groups))

    def digest(self) -> str:
        """Return a SHA-256 hash of the shape, the pixels and the targets, in order."""
        content = hashlib.sha256(str(tuple(self.images.shape)).encode())
        for part in (self.images, self.targets):
            content.update(part.contiguous().numpy().data)
        return content.hexdigest()

    def take(self, positions: Int64[Tensor, " chosen"]) -> "Examples":
        """Return the examples at `positions`, in that order."""
        chosen = positions.tolist() if self.names or self.groups else []
        return Examples(
            self.images[positions],
            self.targets[positions],
            tuple(self.names[i] for i in chosen) if self.names else (),
            tuple(self.groups[i] for i in chosen) if self.groups else (),
        )

    def move(self, move: Callable[[Tensor], Tensor]) -> "Examples":
        """Return the examples with `move(tensor)` for both tensors, such as a copy on a GPU."""
        return replace(self, images=move(self.images), targets=move(self.targets))


def concatenate(parts: Sequence[Examples]) -> Examples:
    """Join examples of one image size, in order."""
    names, groups = (
        tuple(value for part in parts for value in getattr(part, column))
        if all(getattr(part, column) for part in parts)
        else ()
        for column in ("names", "groups")
    )
    images, targets = [part.images for part in parts], [part.targets for part in parts]
    return Examples(torch.cat(images), torch.cat(targets), names, groups)


@dataclass(frozen=True)
class Skipped:
    """A file that was left out, and the reason in one sentence."""

    file: str
    reason: str


@dataclass(frozen=True, eq=False)
class Dataset:
    """Three disjoint splits; `provenance` describes in one line where these pixels come from."""

    name: str
    target: Target
    train: Examples
    val: Examples
    test: Examples
    provenance: str
    licence: str
    skipped: tuple[Skipped, ...] = ()

    def __post_init__(self) -> None:
        assert all(self.target.accepts(getattr(self, split).targets) for split in SPLITS)

    def digests(self) -> dict[str, str]:
        """Return the hash of every split: equal hashes mean equal data."""
        return {split: getattr(self, split).digest() for split in SPLITS}

    def group_counts(self) -> dict[str, int]:
        """Return the number of groups in every split; 0 where groups are not known."""
        return {split: getattr(self, split).group_count for split in SPLITS}

    def _repr_html_(self) -> str:
        """Return what a notebook displays: the size of each split, by class where there are any."""
        named = self.target.has_classes and len(self.classes) <= MAX_COLUMNS
        rows = []
        for split in SPLITS:
            part = getattr(self, split)
            shape = "×".join(map(str, part.images.shape[1:]))
            count = part.labels.bincount(minlength=len(self.classes)).tolist() if named else []
            rows.append([split, f"{len(part):,}", shape, *map(str, count)])
        title = f"{self.name}: {self.provenance} ({self.target.kind})"
        headers = ["split", "images", "channels×rows×cols", *(self.classes if named else ())]
        return html_table(title, headers, rows)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the model's outputs: classes, labels or columns of numbers."""
        return self.target.names

    @property
    def target_kind(self) -> TargetKind:
        """The kind of target, fitted to the training targets."""
        target = self.target
        return make_kind(target.kind, target.names, target.unit).fit(self.train.targets)

    @property
    def channels(self) -> int:
        return self.train.images.shape[1]

    @property
    def image_size(self) -> int:
        """The side of the images in pixels; raises if they are not square."""
        rows, cols = self.train.images.shape[2:]
        if rows != cols:
            raise InputError(
                f"{self.name} has images of {rows}×{cols} pixels, which are not square; "
                f"load it with image_size={min(rows, cols)}."
            )
        return rows
