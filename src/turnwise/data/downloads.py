"""Files from the network: resumed after a break, checked by md5, and put in place in one step."""

import hashlib
import http.client
import os
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from tqdm import tqdm

from turnwise.data.entries import Download
from turnwise.data.storage import ANOTHER_CACHE, Shelves, where_to_put
from turnwise.errors import InputError
from turnwise.files import cannot_write

TIMEOUT = 30.0  # seconds without a byte
ATTEMPTS = 3  # a cut connection is taken up again this often
_BLOCK = 1 << 18
_CUT = (http.client.HTTPException, ConnectionError, TimeoutError, ssl.SSLError)

if sys.platform != "win32":
    import fcntl


class _TransferError(Exception):
    """Why the file did not arrive, in half a sentence."""


def md5_of(path: Path) -> str:
    """The md5 of a file, in hexadecimal: a check against damage, not against malice."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _open(url: str, have: int) -> http.client.HTTPResponse:
    request = urllib.request.Request(url, headers={"User-Agent": "turnwise"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    return urllib.request.urlopen(request, timeout=TIMEOUT)


def _receive(response: http.client.HTTPResponse, part: Path, name: str) -> None:
    """Write the body to `part`: behind what is there, or from the start if not resumed."""
    resumed = response.status == http.HTTPStatus.PARTIAL_CONTENT
    have = part.stat().st_size if resumed else 0
    length = response.headers.get("Content-Length")
    total = None if length is None else have + int(length)
    with (
        part.open("ab" if resumed else "wb") as file,
        tqdm(
            desc=name,
            total=total,
            initial=have,
            unit="B",
            unit_scale=True,
            disable=not sys.stderr.isatty(),
        ) as bar,
    ):
        while block := response.read(_BLOCK):
            file.write(block)
            have += len(block)
            bar.update(len(block))
    if total is not None and have < total:
        raise _TransferError(
            f"the connection was cut after {have:,} of {total:,} bytes; run again to resume"
        )


def _attempt(url: str, part: Path, name: str) -> None:
    have = part.stat().st_size if part.exists() else 0
    try:
        response = _open(url, have)
    except urllib.error.HTTPError as error:
        if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise
        return  # nothing lies behind what we have; the checksum decides whether that is the file
    with response:
        _receive(response, part, name)


def _transfer(url: str, part: Path, name: str) -> None:
    """Fetch `url` into `part`, taking up a cut connection; the reason of a failure is one line."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return _attempt(url, part, name)
        except (_TransferError, *_CUT) as error:
            if attempt == ATTEMPTS:
                raise _TransferError(str(error) or type(error).__name__) from None
        except urllib.error.HTTPError as error:
            raise _TransferError(f"the server answers {error.code} {error.reason}") from None
        except urllib.error.URLError as error:
            raise _TransferError(f"no connection: {error.reason}") from None
        except OSError as error:
            part.unlink(missing_ok=True)
            raise cannot_write(part, error, ANOTHER_CACHE) from None
    return None


def fetch(download: Download, folder: Path, missing: Sequence[str] = ()) -> Path:
    """The file of `download` below `folder`, fetched unless it is there already.

    `missing` are all files that the user would have to put there if this fails.
    """
    path = folder / download.file
    if path.exists():
        return path
    with _alone(path):
        return path if path.exists() else _fetch(download, path, folder, missing)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """One process fetches, the others of a distributed run wait and then find the file."""
    place = path.with_name(f".{path.name}.lock")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        lock = _locked(place)
    except OSError as error:
        raise cannot_write(path, error, ANOTHER_CACHE) from None
    with lock:
        try:
            yield
        finally:
            place.unlink(missing_ok=True)  # while it is held, so that it is nobody else's


def _locked(place: Path) -> IO[str]:
    """The file at `place`, held by us alone.

    Whoever held it before removed it, and the next comer makes another: one who waited for the
    file that is gone holds nothing, and tries again.
    """
    while True:
        with ExitStack() as closing:
            lock = closing.enter_context(place.open("w"))
            if _is_taken(lock, place):
                closing.pop_all()
                return lock


def _is_taken(lock: IO[str], place: Path) -> bool:
    """Wait for the lock; whether it is then still the file at `place`."""
    if sys.platform == "win32":
        return True
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        return os.path.samestat(os.fstat(lock.fileno()), place.stat())
    except FileNotFoundError:
        return False


def _fetch(download: Download, path: Path, folder: Path, missing: Sequence[str]) -> Path:
    part = path.with_name(path.name + ".part")
    try:
        _transfer(download.url, part, path.name)
    except _TransferError as reason:
        raise InputError(
            f"could not download {path.name} from {download.url} ({reason}); "
            f"{where_to_put(missing or [download.file], folder)}."
        ) from None
    found = md5_of(part)
    if found != download.md5:
        part.unlink()
        raise InputError(
            f"{path.name} from {download.url} is damaged: its md5 must be {download.md5} and is "
            f"{found}, so it was removed; run again, or {where_to_put([download.file], folder)}."
        )
    part.replace(path)
    return path


def obtain(name: str, downloads: Sequence[Download], shelves: Shelves) -> list[Path]:
    """Download the files of data set `name` into the cache, or say where to put them."""
    files = [download.file for download in downloads]
    if not shelves.download:
        places = ", ".join(str(folder) for folder in shelves.folders)
        raise InputError(
            f"{name} is not in {places} and downloads are off; "
            f"{where_to_put(files, shelves.cache)}, or allow downloads."
        )
    found = [shelves.find(file) for file in files]
    missing = [file for file, there in zip(files, found, strict=True) if not there]
    return [
        there[0] if there else fetch(download, shelves.cache, missing)
        for there, download in zip(found, downloads, strict=True)
    ]
