"""turnwise: train, test, certify and use image models that do not care how the picture is turned.

Each command is one function: parsed arguments in, exit status out; its docstring is its help.
0 = done, 1 = the answer is no, 2 = the question was wrong (one line on stderr).
"""

import argparse
import io
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from turnwise import __version__
from turnwise.cli import (
    certify,
    demo,
    imports,
    listing,
    orbit,
    predict,
    report,
    serve,
    shifted,
    show,
    test,
    train,
    verify,
)
from turnwise.cli.memory import keep_memory
from turnwise.cli.model_words import hyphened, spelled_out
from turnwise.cli.notes import tell
from turnwise.errors import InputError

COMMANDS = (
    train.train, test.test, certify.certify, verify.verify, predict.predict, imports.import_,
    listing.models, listing.datasets, listing.groups, demo.demo, orbit.orbit, show.show,
    report.report, serve.serve, shifted.test_shifted,
)  # fmt: skip
ARGUMENTS = {
    "train": train.arguments,
    "test": test.arguments,
    "test-shifted": shifted.arguments,
    "certify": certify.arguments,
    "verify": verify.arguments,
    "predict": predict.arguments,
    "import": imports.arguments,
    "orbit": orbit.arguments,
    "models": listing.model_arguments,
    "datasets": listing.dataset_arguments,
    "demo": demo.arguments,
    "show": show.arguments,
    "report": report.arguments,
    "serve": serve.arguments,
}


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = argparse.ArgumentParser(prog="turnwise", description=(__doc__ or "").splitlines()[0])
    top.add_argument("--version", action="version", version=f"turnwise {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for run in COMMANDS:
        text = " ".join((run.__doc__ or "").split())
        sub = commands.add_parser(run.__name__, help=text.split(". ")[0], description=text)
        sub.set_defaults(perform=run)
        ARGUMENTS.get(run.__name__, lambda sub: None)(sub)
    return top


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The arguments; key=value may stand before and after --flags, which argparse alone refuses."""
    top, words = parser(), list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["train"]:
        words[1:] = spelled_out(words[1:])
    typed = {hyphened(word): word for word in words}
    args, rest = top.parse_known_args([hyphened(word) for word in words])
    rest = [typed.get(word, word) for word in rest]
    strange = [word for word in rest if word.startswith("-") or "=" not in word]
    if strange or (rest and not hasattr(args, "settings")):
        top.error(f"unrecognized arguments: {' '.join(strange or rest)}")
    if rest:
        args.settings = [*args.settings, *rest]
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; what the user got wrong becomes one line, never a traceback.

    0: done; 1: the answer is no; 2: bad input; 130: interrupted; 141: nobody read what was said;
    70: a fault of ours.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever called
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115
    command = "train"  # the only one whose words are looked at so early that they can be wrong
    try:
        _prepare()  # before torch is imported, which some words of `train` need
        args = parse(argv)
        command = args.command
        status = int(args.perform(args))
        sys.stdout.flush()
        return status
    except InputError as error:
        return _say(command, str(error), 2)
    except KeyboardInterrupt as stop:  # with what to do next, where that is known
        return _say(command, "; ".join(["interrupted", *map(str, stop.args)]), 130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as error:
        if _is_out_of_memory(error):
            return _say(command, "out of memory; take fewer or smaller.", 2)
        with suppress(OSError):
            traceback.print_exc()
        return _say(command, "this is a fault of turnwise; please report it.", 70)


def _prepare() -> None:
    # OpenMP threads spin for about a millisecond before they sleep; where another program wants the
    # same cores they starve each other, and two demos at once took many times twice as long
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    keep_memory()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without ° or ≤ shows a question mark


def _say(command: str, line: str, status: int) -> int:
    tell(f"turnwise {command}: {line}")
    return status


def _is_out_of_memory(error: BaseException) -> bool:
    """torch says so in several ways, on the CPU and on a GPU."""
    words = ("out of memory", "can't allocate memory")
    return isinstance(error, MemoryError) or any(word in str(error) for word in words)
