"""Find the files of data sets in the data folders, or download them into the cache.

A download resumes after an interruption, is checked by md5, and gets its final name only when it is
complete.  It is written by hand because pooch (1.9.0) does not resume: it deletes the temporary
file of an interrupted download and starts again, and PatchCamelyon has 8 GB.
"""

import hashlib
import http.client
import os
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from filelock import FileLock
from tqdm import tqdm

from turnwise.data.catalogue import Download, is_secure
from turnwise.errors import InputError
from turnwise.files import cannot_write

CACHE_HINT = "free some space there, or set TURNWISE_CACHE to another folder"
TIMEOUT = 30.0  # seconds without a byte
ATTEMPTS = 3  # how often an interrupted connection is opened again
_BLOCK = 1 << 18
_INTERRUPTED = (http.client.HTTPException, ConnectionError, TimeoutError, ssl.SSLError)


def expand_home(path: str | Path, what: str) -> Path:
    """Replace ~ by the home folder; `what` names the path in the error for an unknown user."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise InputError(
            f"{what} begins with a home folder that is not known here; write the whole path."
        ) from None


def cache_folder() -> Path:
    """Return $TURNWISE_CACHE, or `turnwise` in $XDG_CACHE_HOME, or in ~/.cache."""
    if own := os.environ.get("TURNWISE_CACHE"):
        return expand_home(own, f"TURNWISE_CACHE = {own}")
    shared = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return expand_home(shared, f"the cache folder {shared}") / "turnwise"


@dataclass(frozen=True)
class DataFolders:
    """The folders to search, in order, and whether missing files may be downloaded."""

    folders: tuple[Path, ...]
    cache: Path
    download: bool = True

    def find(self, *names: str) -> list[Path] | None:
        """Return the paths of `names` if one folder holds all of them.

        A file named after its set, such as `breastmnist/breastmnist.npz`, is also found in the data
        folder itself.  The idx files of MNIST and Fashion-MNIST are not: both have the same names.
        """
        flat = [path.name for path in map(Path, names) if path.name.startswith(path.parts[0])]
        for folder in self.folders:
            for some in (names, flat):
                paths = [folder / name for name in some]
                if len(paths) == len(names) and all(path.exists() for path in paths):
                    return paths
        return None

    def find_any(self, *forms: Sequence[str]) -> list[Path] | None:
        """Return the files of the first form found, in the first folder that holds any form.

        So a folder given by the user comes before others, whatever form its files have.
        """
        for folder in self.folders:
            here = replace(self, folders=(folder,))
            if found := next(filter(None, (here.find(*names) for names in forms)), None):
                return found
        return None

    def __str__(self) -> str:
        return ", ".join(map(str, self.folders))


def data_folders(data_dir: str | Path | None = None, download: bool = True) -> DataFolders:
    """Return the folders in the order of search: `data_dir`, $TURNWISE_DATA, the cache."""
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
    return DataFolders((*folders, cache), cache, download)


def where_to_put(files: Sequence[str], cache: Path) -> str:
    """Describe where the user can put missing files; `files` are relative to a data folder."""
    folder = Path(files[0]).parent
    names = ", ".join(Path(file).name for file in files)
    return (
        f"put {names} into {cache / folder}/, "
        f"or set TURNWISE_DATA to the folder that holds {folder}/"
    )


def find_or_download(name: str, downloads: Sequence[Download], folders: DataFolders) -> list[Path]:
    """Return the files of data set `name`, downloading those that no folder holds."""
    files = [download.file for download in downloads]
    if not folders.download:
        raise InputError(
            f"{name} is not in {folders} and downloads are off; "
            f"{where_to_put(files, folders.cache)}, or allow downloads."
        )
    found = [folders.find(file) for file in files]
    missing = [file for file, paths in zip(files, found, strict=True) if not paths]
    return [
        paths[0] if paths else fetch(download, folders.cache, missing)
        for paths, download in zip(found, downloads, strict=True)
    ]


def fetch(download: Download, folder: Path, missing: Sequence[str] = ()) -> Path:
    """Return the downloaded file below `folder`; an existing file is not downloaded again.

    Only one process of a distributed run downloads; the others wait and then find the file.
    `missing` are all files that the user would have to provide if the download fails.
    """
    path = folder / download.file
    if path.exists():
        return path
    lock_file = path.with_name(f".{path.name}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(lock_file).acquire()
    except OSError as error:
        raise cannot_write(path, error, CACHE_HINT) from None
    with lock:
        try:
            return path if path.exists() else _download(download, path, folder, missing)
        finally:
            with suppress(OSError):  # Windows removes the file when it is released
                lock_file.unlink()  # while it is held: a process that waited for it tries again


def _download(download: Download, path: Path, folder: Path, missing: Sequence[str]) -> Path:
    part = path.with_name(path.name + ".part")
    try:
        _transfer(download.url, part, path.name)
    except _TransferError as reason:
        raise InputError(
            f"could not download {path.name} from {download.url} ({reason}); "
            f"{where_to_put(missing or [download.file], folder)}."
        ) from None
    for kind in ("md5", "sha256"):
        wanted, found = getattr(download, kind), checksum(part, kind)
        if wanted and found != wanted:
            part.unlink()
            raise InputError(
                f"{path.name} from {download.url} is damaged: its {kind} must be {wanted} and is "
                f"{found}, so it was removed; run again, or "
                f"{where_to_put([download.file], folder)}."
            )
    part.replace(path)
    return path


def checksum(path: Path, kind: str) -> str:
    """Return the checksum of a file, in hexadecimal; md5 finds damage, but not malice."""
    with path.open("rb") as file:
        new = partial(hashlib.new, kind, usedforsecurity=kind != "md5")
        return hashlib.file_digest(file, new).hexdigest()


class _TransferError(Exception):
    """The reason of a failed download, in half a sentence."""


def _transfer(url: str, part: Path, name: str) -> None:
    """Download `url` into `part`, resuming after an interruption; raise `_TransferError`."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return _attempt(url, part, name)
        except (_TransferError, *_INTERRUPTED) as error:
            if attempt == ATTEMPTS:
                raise _TransferError(str(error) or type(error).__name__) from None
        except urllib.error.HTTPError as error:
            raise _TransferError(f"the server replied {error.code} {error.reason}") from None
        except urllib.error.URLError as error:
            raise _TransferError(f"no connection: {error.reason}") from None
        except OSError as error:
            part.unlink(missing_ok=True)
            raise cannot_write(part, error, CACHE_HINT) from None
    return None


def _attempt(url: str, part: Path, name: str) -> None:
    request = urllib.request.Request(url, headers={"User-Agent": "turnwise"})
    if part.exists() and (size := part.stat().st_size):
        request.add_header("Range", f"bytes={size}-")
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise
        return  # the server has no further bytes; the checksum decides whether the file is complete
    with response:
        if not is_secure(response.geturl()):
            raise _TransferError("the server led to an address that does not begin with https")
        _receive(response, part, name)


def _receive(response: http.client.HTTPResponse, part: Path, name: str) -> None:
    """Append the body to `part` if the server resumed the download; otherwise start anew."""
    resumed = response.status == http.HTTPStatus.PARTIAL_CONTENT
    size = part.stat().st_size if resumed else 0
    length = response.headers.get("Content-Length")
    total = None if length is None else size + int(length)
    quiet = not sys.stderr.isatty()
    with (
        part.open("ab" if resumed else "wb") as file,
        tqdm(desc=name, total=total, initial=size, unit="B", unit_scale=True, disable=quiet) as bar,
    ):
        while block := response.read(_BLOCK):
            file.write(block)
            size += len(block)
            bar.update(len(block))
    if total is not None and size < total:
        raise _TransferError(
            f"the connection broke after {size:,} of {total:,} bytes; run again to resume"
        )
