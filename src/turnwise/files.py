"""Atomic writes: a file is complete or absent."""

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

ANOTHER_PATH = "choose another path"


def write_atomic(path: Path, content: bytes, hint: str = ANOTHER_PATH) -> None:
    """Write all of `content` or nothing; missing folders are created, and removed on failure."""

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                os.fsync(file.fileno())  # a full disk may be reported only here

    fill_atomic(path, write, hint)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write standard JSON, without NaN or infinity; see `to_json_value`."""
    text = json.dumps(to_json_value(value), indent=2, ensure_ascii=False, allow_nan=False)
    write_atomic(path, (text + "\n").encode())


def to_json_value(value: Any) -> Any:
    """Return the value with NaN and infinity replaced by the strings "nan" and "inf"."""
    if isinstance(value, Mapping):
        return {str(key): to_json_value(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [to_json_value(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def fill_atomic(path: Path, fill: Callable[[Path], None], hint: str = ANOTHER_PATH) -> None:
    """Let `fill` write a temporary file beside `path`, then rename it to `path`.

    Links are followed.  A path that exists and is no regular file (a pipe, /dev/null) is written
    directly.  `hint` ends the error message if the path cannot be written.
    """
    with _temporary_file(path, hint) as (target, temporary):
        fill(temporary)
        if temporary != target:
            temporary.replace(target)


def require_writable(path: Path, hint: str = ANOTHER_PATH) -> None:
    """Raise if `fill_atomic` could not write `path`, before any work is done."""
    with _temporary_file(path, hint) as (target, temporary):
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if temporary != target:
            temporary.touch()


@contextmanager
def _temporary_file(path: Path, hint: str) -> Iterator[tuple[Path, Path]]:
    """Yield the path with links resolved, and the temporary file beside it to write first.

    Both are `path` itself if it is no regular file.  Afterwards the temporary file is removed, and
    so are new folders that are still empty.
    """
    target, created = path, list[Path]()
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            # tested before the link is resolved: /dev/stdout may lead to pipe:[123], no path
            yield path, path
            return
        target = path.resolve() if path.is_symlink() else path
        temporary = target.with_name(f".{target.stem}.{os.getpid()}{target.suffix}")
        remove_leftovers(target)
        created = [temporary, *(folder for folder in target.parents if not folder.exists())]
        target.parent.mkdir(parents=True, exist_ok=True)
        yield target, temporary
    except BrokenPipeError:  # the reader has gone; the path is fine
        raise
    except OSError as error:
        raise cannot_write(target, error, hint) from error
    finally:
        _remove(created)


def remove_leftovers(path: Path) -> None:
    """Remove the temporary files that processes left when they were killed while writing `path`.

    Processes of another machine that shares the file system are seen as dead; two machines do not
    write the same file.
    """
    beginning = f".{path.stem}."
    with suppress(OSError):
        for other in path.parent.iterdir():
            number = other.name.removeprefix(beginning).removesuffix(path.suffix)
            named = other.name == f"{beginning}{number}{path.suffix}" and number.isdecimal()
            if named and not _is_alive(int(number)):
                other.unlink(missing_ok=True)


def _is_alive(process: int) -> bool:
    if os.name == "nt":  # os.kill would end the process
        return True
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


def cannot_write(path: Path, error: OSError, hint: str = ANOTHER_PATH) -> InputError:
    """Return the error to raise when a result could not be written."""
    reason = (error.strerror or str(error)).lower()
    return InputError(f"cannot write {path}: {reason}; {hint}.")


def _remove(created: list[Path]) -> None:
    """Remove a file and the folders around it, innermost first, unless they are in use."""
    with suppress(OSError):
        for path in created:
            path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
