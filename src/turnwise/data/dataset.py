"""A data set in memory: pictures as bytes, labels as numbers, three splits."""

import hashlib
from dataclasses import dataclass

from jaxtyping import Int64, UInt8
from torch import Tensor

from turnwise.errors import InputError


@dataclass(frozen=True, eq=False)
class Examples:
    """One split: `labels[i]` is the class of `images[i]`, whose values are 0 to 255."""

    images: UInt8[Tensor, "picture channel row col"]
    labels: Int64[Tensor, " picture"]

    def __post_init__(self) -> None:
        assert len(self.images) == len(self.labels), "readers check the counts"

    def __len__(self) -> int:
        return len(self.labels)

    def digest(self) -> str:
        """A hash of all pixels and labels, in order: equal for equal splits and no others."""
        content = hashlib.sha256(str(tuple(self.images.shape)).encode())
        for part in (self.images, self.labels):
            content.update(part.contiguous().numpy().data)
        return content.hexdigest()

    def take(self, index: Tensor) -> "Examples":
        """The pictures at `index`, in its order."""
        return Examples(self.images[index], self.labels[index])


@dataclass(frozen=True, eq=False)
class Dataset:
    """Three disjoint splits; `provenance` says in one line where exactly these pixels come from."""

    name: str
    classes: tuple[str, ...]
    train: Examples
    val: Examples
    test: Examples
    provenance: str
    licence: str

    def digests(self) -> dict[str, str]:
        """What tells whether two data sets are the same, split by split."""
        return {split: getattr(self, split).digest() for split in ("train", "val", "test")}

    @property
    def channels(self) -> int:
        return self.train.images.shape[1]

    @property
    def image_size(self) -> int:
        """The number of rows, which is the number of columns; a rectangle raises."""
        rows, cols = self.train.images.shape[2:]
        if rows != cols:
            raise InputError(
                f"{self.name} has pictures of {rows}×{cols} pixels, which are not square; "
                f"load it with image_size={min(rows, cols)}."
            )
        return rows
