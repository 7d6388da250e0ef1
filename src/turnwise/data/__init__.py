"""Data sets, splits and pictures.  Names are imported at first use: listing stays cheap."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from turnwise.data.catalogue import CATALOGUE as CATALOGUE
    from turnwise.data.catalogue import entry as entry
    from turnwise.data.dataset import Dataset as Dataset
    from turnwise.data.dataset import Pictures as Pictures
    from turnwise.data.entries import Download as Download
    from turnwise.data.entries import Entry as Entry
    from turnwise.data.load import load_dataset as load_dataset
    from turnwise.data.readers.image_files import read_picture as read_picture

_HOME = {
    "CATALOGUE": "catalogue",
    "Dataset": "dataset",
    "Download": "entries",
    "Entry": "entries",
    "Pictures": "dataset",
    "entry": "catalogue",
    "load_dataset": "load",
    "read_picture": "readers.image_files",
}

__all__ = [
    "CATALOGUE",
    "Dataset",
    "Download",
    "Entry",
    "Pictures",
    "entry",
    "load_dataset",
    "read_picture",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
