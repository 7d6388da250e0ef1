"""The data sets that `load_dataset` knows by name, read from catalogue.yaml.

Imports neither torch nor numpy, so that listing the data sets is instant.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

import yaml

from turnwise.errors import InputError, require, require_known

PATH = Path(__file__).with_name("catalogue.yaml")


@dataclass(frozen=True)
class Download:
    """A file to download.

    Attributes:
        url: its address.
        file: its path below a data folder.
        md5: its checksum, in hexadecimal.
        image_size: the size of its images, if the set is published in several sizes.
        sha256: its checksum against malice, where one is published; md5 finds damage alone.
    """

    url: str
    file: str
    md5: str
    image_size: int | None = None
    sha256: str = ""

    def __post_init__(self) -> None:
        require(
            is_secure(self.url),
            f"{self.file}: {self.url!r} is not a web address that begins with https.",
        )
        valid = re.fullmatch("[0-9a-f]{32}", self.md5) is not None
        require(valid, f"{self.file}: {self.md5!r} is not an md5 checksum.")
        valid = re.fullmatch("([0-9a-f]{64})?", self.sha256) is not None
        require(valid, f"{self.file}: {self.sha256!r} is not a SHA-256 checksum.")


def is_secure(url: str) -> bool:
    """Return whether an address is encrypted, or on this machine."""
    parts = urlsplit(url)
    return parts.scheme == "https" or (
        parts.scheme == "http" and parts.hostname in ("localhost", "127.0.0.1", "::1")
    )


@dataclass(frozen=True)
class Entry:
    """A data set of the catalogue.

    Attributes:
        splits: how many images train, val and test have, and who made the splits.
        files: the forms to look for below each data folder, the preferred one first; a form is one
            or more files that are needed together.
        image_size: the size that is loaded unless another one is requested.
        image_sizes: the sizes that have a file of their own.
        official_val: whether the validation split is published; if not, it is held out from train.
        options: settings for the reader.
        target: the kind of target (`data.dataset`); the classes are those of the outputs.
    """

    name: str
    title: str
    reader: str
    classes: tuple[str, ...]
    channels: int
    image_size: int
    splits: str
    licence: str
    citation: str
    files: tuple[tuple[str, ...], ...] = ()
    downloads: tuple[Download, ...] = ()
    official_val: bool = True
    image_sizes: tuple[int, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    notes: str = ""
    target: str = "class"

    def __post_init__(self) -> None:
        classes = self.classes
        require(
            len(set(classes)) == len(classes) >= 2,
            f"data set {self.name} must have two or more different class names, got {classes}.",
        )
        require(self.channels in (1, 3), f"data set {self.name} must have 1 or 3 channels.")
        require(
            not self.image_sizes or self.image_size in self.image_sizes,
            f"data set {self.name} has no file for its image_size = {self.image_size}.",
        )

    def downloads_of(self, image_size: int | None = None) -> tuple[Download, ...]:
        """Return the files to download for one published size, or all if there is only one."""
        return tuple(d for d in self.downloads if d.image_size in (None, image_size))


def read_catalogue(path: Path) -> dict[str, Entry]:
    """Read and check a catalogue file."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times faster, where it is built
    content = yaml.load(path.read_text(encoding="utf-8"), loader)
    return {name: _make_entry(name, **fields) for name, fields in content["datasets"].items()}


def _make_entry(
    name: str,
    *,
    classes: Sequence[Any],
    files: Sequence[str | Sequence[str]] = (),
    url: str = "",
    downloads: Sequence[Mapping[str, Any]] = (),
    image_sizes: Sequence[int] = (),
    **fields: Any,
) -> Entry:
    require(
        all(isinstance(c, str) for c in classes),
        f"data set {name} must have class names that are texts, got {classes}; quote them in YAML.",
    )
    found = tuple(
        Download(
            url=url.format(file=PurePosixPath(download["file"]).name),
            **{**download, "md5": str(download["md5"])},  # YAML reads digits as a number
        )
        for download in downloads
    )
    forms = files or [download.file for download in found]
    return Entry(
        name=name,
        classes=tuple(classes),
        files=tuple((form,) if isinstance(form, str) else tuple(form) for form in forms),
        downloads=found,
        image_sizes=tuple(image_sizes),
        **fields,
    )


CATALOGUE: dict[str, Entry] = read_catalogue(PATH)


def entry(name: str) -> Entry:
    """Return the entry called `name`; the error for an unknown name suggests the nearest one.

    >>> entry("breastmnist").classes
    ('malignant', 'normal, benign')
    """
    try:
        require_known(name, CATALOGUE, "data set")
    except InputError as error:
        raise InputError(f"{error} For images of your own write folder:PATH.") from None
    return CATALOGUE[name]
