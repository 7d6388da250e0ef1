"""Where files lie: the given folder, TURNWISE_DATA, the user's cache."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from turnwise.errors import InputError

ANOTHER_CACHE = "free some space there, or set TURNWISE_CACHE to another folder"


def expand_home(path: str | Path, what: str) -> Path:
    """The path with the home folder in place of ~; `what` names it if there is no such home."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise InputError(
            f"{what} begins with a home folder that is not known here; write the whole path."
        ) from None


def cache_folder() -> Path:
    """$TURNWISE_CACHE, or `turnwise` in $XDG_CACHE_HOME, or in ~/.cache."""
    if own := os.environ.get("TURNWISE_CACHE"):
        return expand_home(own, f"TURNWISE_CACHE = {own}")
    shared = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return expand_home(shared, f"the cache folder {shared}") / "turnwise"


@dataclass(frozen=True)
class Shelves:
    """The folders that are searched, in order, and whether missing files may be downloaded."""

    folders: tuple[Path, ...]
    cache: Path
    download: bool = True

    def find(self, *names: str) -> list[Path] | None:
        """All of `names` in one folder, or None.

        A file named after its set, as `breastmnist/breastmnist.npz`, is also found in the folder
        itself; the idx files of MNIST and Fashion-MNIST are not, because their names are the same.
        """
        flat = [path.name for path in map(Path, names) if path.name.startswith(path.parts[0])]
        for folder in self.folders:
            for some in (names, flat):
                places = [folder / name for name in some]
                if len(places) == len(names) and all(place.exists() for place in places):
                    return places
        return None

    def find_any(self, *forms: Sequence[str]) -> list[Path] | None:
        """The first of `forms`, each a list of files, in the first folder that holds any of them.

        So a folder that was given counts before others, in whatever form it has the files.
        """
        for folder in self.folders:
            here = replace(self, folders=(folder,))
            if found := next(filter(None, (here.find(*names) for names in forms)), None):
                return found
        return None


def shelves(data_dir: str | Path | None = None, download: bool = True) -> Shelves:
    """The folders in the order of search: `data_dir`, $TURNWISE_DATA, the cache."""
    cache, folders = cache_folder(), []
    for source, folder in (
        ("data_dir", data_dir),
        ("TURNWISE_DATA", os.environ.get("TURNWISE_DATA")),
    ):
        if not folder:
            continue
        path = expand_home(folder, f"{source} = {folder}")
        if not path.is_dir():
            raise InputError(
                f"{source} = {path} is not a folder; give the folder that holds the data sets."
            )
        folders.append(path)
    return Shelves((*folders, cache), cache, download)


def where_to_put(files: Sequence[str], cache: Path) -> str:
    """The cure for a missing file, as half a sentence; `files` are relative to a data folder."""
    folder = Path(files[0]).parent
    names = ", ".join(Path(file).name for file in files)
    return (
        f"put {names} into {cache / folder}/, "
        f"or set TURNWISE_DATA to the folder that holds {folder}/"
    )
