"""The names of data sets: `folder:PATH`, the path of a file, or a name of the catalogue.

Imports no library at the top, so that the help of the command line stays instant.
"""

from pathlib import Path

FOLDER = "folder:"
# the modules of readers/ that read a user's images, by what the name begins or ends with
READERS = {FOLDER: "folders", ".csv": "manifests", ".parquet": "manifests", ".npz": "arrays"}


def own_reader(name: str) -> str | None:
    """Return the module that reads `name`; None for a name of the catalogue.

    >>> own_reader("folder:x.csv"), own_reader("slides/Table.CSV"), own_reader("mnist")
    ('folders', 'manifests', None)
    """
    if name.startswith(FOLDER):
        return READERS[FOLDER]
    return READERS.get(Path(name).suffix.lower())


def own_path(name: str) -> Path:
    """Return the path of a user's own images, with ~ replaced."""
    from turnwise.data.storage import expand_home

    path = name.removeprefix(FOLDER)
    return expand_home(path, f"the folder {path!r}" if name.startswith(FOLDER) else f"{path!r}")


def with_full_path(name: str) -> str:
    """Return the name such that it means the same in every working folder."""
    if own_reader(name) is None:
        return name
    path = str(own_path(name).resolve())
    return FOLDER + path if name.startswith(FOLDER) else path


def short_name(name: str) -> str:
    """Return a name for folders of runs.

    >>> short_name("folder:images/shapes"), short_name("slides/table.csv"), short_name("mnist")
    ('shapes', 'table', 'mnist')
    """
    path = Path(name.removeprefix(FOLDER))
    return path.name if name.startswith(FOLDER) or own_reader(name) is None else path.stem
