"""What several commands share: common flags, notes on stderr, the device, and malloc's settings."""

import argparse
import ctypes
import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from difflib import get_close_matches
from typing import Any, NoReturn

from turnwise.errors import InputError

MODEL_HELP = "a run, a model folder, or the name of pretrained weights"
OR_FILE = f"{MODEL_HELP}; or a file that turnwise export wrote"

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # as glibc's malloc.h numbers them
KEPT = 1 << 30  # bytes; a larger block, or more free memory than this, is returned
TUNING = ("GLIBC_TUNABLES", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")


class Parser(argparse.ArgumentParser):
    """A parser that suggests the nearest spelling of a mistyped command, flag or choice."""

    def error(self, message: str) -> NoReturn:
        wrong = re.match(r".*invalid choice: '([^']+)' \(choose from (.+)\)", message)
        if wrong:
            known = re.findall(r"[\w.-]+", wrong[2])
            message = f"{message.split(' (choose from')[0]}. {self._suggestion(wrong[1], known)}"
        elif message.startswith("unrecognized arguments: "):
            word = message.removeprefix("unrecognized arguments: ").split()[0].partition("=")[0]
            flags = [flag for action in self._actions for flag in action.option_strings]
            known = flags if word.startswith("-") else []
            message = f"{message}. {self._suggestion(word, known)}"
        super().error(message.rstrip())

    def _suggestion(self, word: str, known: Sequence[str]) -> str:
        near = get_close_matches(word.replace("_", "-"), known, n=1)
        help_command = f"`{self.prog} --help` lists what there is."
        return f"Did you mean {near[0]}?" if near else help_command


def add_data_dir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data-dir", metavar="FOLDER", help="where the data sets are (default: $TURNWISE_DATA)"
    )


def add_device(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument(
        "--device", default=default, metavar="NAME", help=f"auto, cpu, cuda (default: {default})"
    )


def note(line: str) -> None:
    """Print a line on stderr; a closed stream is no error."""
    with suppress(OSError):
        print(line, file=sys.stderr, flush=True)


def chosen_device(name: str) -> Any:
    """Return the device called `name`; "auto" is the GPU if there is one."""
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.empty(1, device=name).tolist()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise InputError(f"device {name!r} cannot be used here; try auto or cpu.") from error
    return torch.device(name)


def keep_memory() -> None:
    """Let malloc keep freed blocks for the next large tensor.

    By default glibc returns large blocks to the system as soon as they are free.  The system then
    hands them out again page by page, filled with zeros, which takes a good part of the time of a
    certificate on a CPU.  Nothing changes with another malloc, or if the user has tuned it.
    """
    if sys.platform != "linux" or any(name in os.environ for name in TUNING):
        return
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for threshold in (TRIM_THRESHOLD, MMAP_THRESHOLD):
            mallopt(threshold, KEPT)
