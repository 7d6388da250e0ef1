"""What the catalogue knows of a data set before a single pixel is read.  Pure Python."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Download:
    """One file on the network: where it is, where it goes below a data folder, and its md5.

    `image_size` tells apart the files of a set that is published in several sizes.
    """

    url: str
    file: str
    md5: str
    image_size: int | None = None


@dataclass(frozen=True)
class Entry:
    """One data set of the catalogue.

    files: what is looked for below each data folder, the preferred first; " + " joins files that
        are needed together.
    image_size: the size without `image_size=`; `image_sizes` are those with a file of their own.
    official_val: the publisher (or the file) fixes the validation split, so none is cut from train.
    """

    name: str
    title: str
    classes: tuple[str, ...]
    channels: int
    image_size: int
    splits: str
    licence: str
    citation: str
    files: tuple[str, ...]
    downloads: tuple[Download, ...] = ()
    official_val: bool = True
    image_sizes: tuple[int, ...] = ()
    notes: str = ""

    def downloads_of(self, image_size: int | None = None) -> tuple[Download, ...]:
        """The files to fetch for one published size, or all where the set has only one size."""
        return tuple(d for d in self.downloads if d.image_size in (None, image_size))
