"""Records of measurements: the figures, the command, the commit, the machine and the date.

A record is one line of JSON in a .jsonl file of this folder; the tables of README and docs are made
from them.  Lines are only appended, never changed.
"""

import errno
import json
import os
import platform
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from turnwise.errors import InputError, require
from turnwise.files import cannot_write, to_json_value

Record = dict[str, Any]
FIELDS = ("command", "commit", "machine", "date", "figures")


def append_record(path: Path, command: str, figures: Mapping[str, Any]) -> Record:
    """Append one record to the file, and return it.

    Figures are JSON values; NaN and infinity become the strings "nan" and "inf".  The line is
    written in one call, so that two processes may share a file.
    """
    record: Record = {
        "command": command,
        "commit": code_version(Path(__file__).parent),
        "machine": machine_description(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "figures": to_json_value(dict(figures)),
    }
    line = json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _append_whole(path, line.encode())
    except OSError as error:
        raise cannot_write(path, error) from error
    return record


def read_records(path: Path) -> list[Record]:
    """Return all records of a file, oldest first."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InputError(
            f"cannot read the records {path}: {reason}; name a .jsonl file."
        ) from error
    numbered = [(n, line) for n, line in enumerate(lines, start=1) if line.strip()]
    return [_parse(line, f"{path}, line {n}") for n, line in numbered]


def machine_description() -> str:
    """Return what a speed depends on: processor, cores, GPU and version of torch."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    parts = [_processor(), f"{cores} cores" if cores > 1 else "1 core"]
    if torch.cuda.is_available():
        parts.append(torch.cuda.get_device_name())
    return ", ".join([*parts, f"torch {torch.__version__}"])


def code_version(folder: Path) -> str:
    """Return the commit of the checkout that tracks `folder`, with `+changes` if its tree differs.

    The result is "unknown" if nothing tracks the folder, as in an installed package, unless the
    environment variable TURNWISE_COMMIT gives it.  Records do not count as changes.
    """
    if given := os.environ.get("TURNWISE_COMMIT"):
        return given
    if not _git(folder, "ls-files", "--", "."):
        return "unknown"
    commit = _git(folder, "rev-parse", "--short=12", "HEAD")
    if not commit:
        return "unknown"
    changes = _git(folder, "status", "--porcelain", "--", ":/", ":(exclude,top)*.jsonl")
    return commit + ("+changes" if changes else "")


def _git(folder: Path, *arguments: str) -> str:
    """Return the output of git, empty if git is not installed or fails.

    Inside a hook git sets variables that point it to another repository, so they are dropped.  It
    takes no locks, because others may be working in the tree.
    """
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=clean, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(iter(models), platform.processor() or platform.machine() or "unknown processor")


def _append_whole(path: Path, line: bytes) -> None:
    """Append in one write; undo it if a full disk cut it short."""
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        before = os.fstat(descriptor).st_size
        if before and os.pread(descriptor, 1, before - 1) != b"\n":
            line = b"\n" + line  # edited by hand, without a last line break
        if os.write(descriptor, line) < len(line):
            os.ftruncate(descriptor, before)
            raise OSError(errno.ENOSPC, "No space left on device")
    finally:
        os.close(descriptor)


def _parse(line: str, source: str) -> Record:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise InputError(
            f"{source}: not a record ({error.msg} at column {error.colno}); "
            "repair or delete the line."
        ) from error
    missing = [f for f in FIELDS if f not in record] if isinstance(record, dict) else list(FIELDS)
    require(
        not missing,
        f"{source}: not a record ({', '.join(missing)} missing); repair or delete the line.",
    )
    return record
