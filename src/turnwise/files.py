"""Writing results so that a reader never meets half a file."""

import json
import math
import os
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from turnwise.checks import InputError

ANOTHER_OUTPUT = "choose another place with --output"


def write_whole(path: Path, content: bytes) -> None:
    """Write all of `content` or nothing; folders are made as needed, and unmade on failure."""

    def write(beside: Path) -> None:
        with beside.open("wb") as file:
            file.write(content)
            file.flush()
            if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                os.fsync(file.fileno())  # a full disk may say so only now

    fill_whole(path, write)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a value that any reader of JSON can read: see `sayable`."""
    text = json.dumps(sayable(value), indent=2, ensure_ascii=False, allow_nan=False)
    write_whole(path, (text + "\n").encode())


def sayable(value: Any) -> Any:
    """The same value in words that JSON has: NaN and infinity become "nan" and "inf"."""
    if isinstance(value, Mapping):
        return {str(key): sayable(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [sayable(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def fill_whole(path: Path, fill: Callable[[Path], None], cure: str = ANOTHER_OUTPUT) -> None:
    """Let `fill` write a temporary file beside `path`, which then takes its name in one step.

    A link is followed, and what is no file (a pipe, /dev/null) is written to, not replaced.  `cure`
    says what the user can do where that place cannot be written.
    """
    path = path.resolve() if path.is_symlink() else path
    if path.exists() and not path.is_file() and not path.is_dir():
        fill(path)
        return
    beside = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    missing = [folder for folder in path.parents if not folder.exists()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fill(beside)
        beside.replace(path)
    except OSError as error:
        _remove(beside, missing)
        raise cannot_write(path, error, cure) from error
    except BaseException:
        _remove(beside, missing)
        raise


def cannot_write(path: Path, error: OSError, cure: str = ANOTHER_OUTPUT) -> InputError:
    """The one line a user reads when a result could not be kept."""
    reason = (error.strerror or str(error)).lower()
    return InputError(f"cannot write {path}: {reason}; {cure}.")


def _remove(file: Path, folders: list[Path]) -> None:
    """Nothing is left behind, except folders that others have used meanwhile."""
    with suppress(OSError):
        file.unlink(missing_ok=True)
        for folder in folders:  # innermost first
            folder.rmdir()
