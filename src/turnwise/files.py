"""Writing results so that a reader never meets half a file."""

import errno
import json
import math
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from turnwise.errors import InputError

ANOTHER_OUTPUT = "choose another place with --output"


def write_atomic(path: Path, content: bytes, cure: str = ANOTHER_OUTPUT) -> None:
    """Write all of `content` or nothing; folders are made as needed, and unmade on failure."""

    def write(beside: Path) -> None:
        with beside.open("wb") as file:
            file.write(content)
            file.flush()
            if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                os.fsync(file.fileno())  # a full disk may say so only now

    fill_atomic(path, write, cure)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a value that any reader of JSON can read: see `to_json_value`."""
    text = json.dumps(to_json_value(value), indent=2, ensure_ascii=False, allow_nan=False)
    write_atomic(path, (text + "\n").encode())


def to_json_value(value: Any) -> Any:
    """The same value in words that JSON has: NaN and infinity become "nan" and "inf"."""
    if isinstance(value, Mapping):
        return {str(key): to_json_value(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [to_json_value(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def fill_atomic(path: Path, fill: Callable[[Path], None], cure: str = ANOTHER_OUTPUT) -> None:
    """Let `fill` write a temporary file beside `path`, which then takes its name in one step.

    A link is followed, and what is no file (a pipe, /dev/null) is written to, not replaced.  `cure`
    says what the user can do where that place cannot be written.
    """
    with _room_for(path, cure) as (target, beside):
        fill(beside)
        if beside != target:
            beside.replace(target)


def require_writable(path: Path, cure: str = ANOTHER_OUTPUT) -> None:
    """Raise where `fill_atomic` could not write, before the work; nothing is left behind."""
    with _room_for(path, cure) as (target, beside):
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if beside != target:
            beside.touch()


@contextmanager
def _room_for(path: Path, cure: str) -> Iterator[tuple[Path, Path]]:
    """What `path` means, and the file beside it to write first: the same where that is no file.

    The latter is gone afterwards, with the folders that were made and are still empty.
    """
    target, made = path, list[Path]()
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            # asked of the link: what /dev/stdout leads to, pipe:[123], has no path
            yield path, path
            return
        target = path.resolve() if path.is_symlink() else path
        beside = target.with_name(f".{target.stem}.{os.getpid()}{target.suffix}")
        made = [beside, *(folder for folder in target.parents if not folder.exists())]
        target.parent.mkdir(parents=True, exist_ok=True)
        yield target, beside
    except BrokenPipeError:  # nobody reads: no fault of the place
        raise
    except OSError as error:
        raise cannot_write(target, error, cure) from error
    finally:
        _remove(made)


def cannot_write(path: Path, error: OSError, cure: str = ANOTHER_OUTPUT) -> InputError:
    """The one line a user reads when a result could not be kept."""
    reason = (error.strerror or str(error)).lower()
    return InputError(f"cannot write {path}: {reason}; {cure}.")


def _remove(made: list[Path]) -> None:
    """Take away a file and the folders around it, innermost first, unless they are in use."""
    with suppress(OSError):
        for path in made:
            path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
