"""Data sets, splits and batches.  Names are imported at first use, so that listing stays cheap."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from turnwise.data.catalogue import CATALOGUE as CATALOGUE
    from turnwise.data.catalogue import Download as Download
    from turnwise.data.catalogue import Entry as Entry
    from turnwise.data.catalogue import entry as entry
    from turnwise.data.dataset import Dataset as Dataset
    from turnwise.data.dataset import Examples as Examples
    from turnwise.data.dataset import Target as Target
    from turnwise.data.load import load_dataset as load_dataset
    from turnwise.data.readers.image_files import read_image as read_image

_MODULES = {
    "CATALOGUE": "catalogue",
    "Dataset": "dataset",
    "Download": "catalogue",
    "Entry": "catalogue",
    "Examples": "dataset",
    "Target": "dataset",
    "entry": "catalogue",
    "load_dataset": "load",
    "read_image": "readers.image_files",
}

__all__ = [
    "CATALOGUE",
    "Dataset",
    "Download",
    "Entry",
    "Examples",
    "Target",
    "entry",
    "load_dataset",
    "read_image",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
