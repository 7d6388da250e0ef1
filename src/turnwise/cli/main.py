"""Train, test, certify and use image models that are invariant under rotations and reflections.

Each command is one function: parsed arguments in, exit status out; its docstring is its help text.
"""

import argparse
import io
import os
import shlex
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from turnwise import __version__
from turnwise.cli import (
    certify,
    completion,
    convert,
    demo,
    embed,
    export,
    inspect,
    listing,
    neighbours,
    predict,
    serve,
    shifted,
    show,
    test,
    train,
)
from turnwise.cli.model_flags import hyphenate
from turnwise.cli.terminal import Parser, keep_memory, note
from turnwise.errors import InputError, UnfinishedRunError
from turnwise.signals import interrupt_on_termination

Command = Callable[[argparse.Namespace], int]
AddArguments = Callable[[argparse.ArgumentParser], None]
COMMANDS: dict[str, tuple[Command, AddArguments]] = {
    "train": (train.train, train.arguments),
    "test": (test.test, test.arguments),
    "test-shifted": (shifted.test_shifted, shifted.arguments),
    "inspect": (inspect.inspect, inspect.arguments),
    "certify": (certify.certify, certify.arguments),
    "verify": (certify.verify, certify.verify_arguments),
    "predict": (predict.predict, predict.arguments),
    "export": (export.export, export.arguments),
    "embed": (embed.embed, embed.arguments),
    "neighbours": (neighbours.neighbours, neighbours.arguments),
    "import": (convert.import_weights, convert.import_arguments),
    "orbit": (convert.make_orbit, convert.orbit_arguments),
    "show": (show.show, show.arguments),
    "report": (show.report, show.report_arguments),
    "serve": (serve.serve, serve.arguments),
    "models": (listing.models, listing.model_arguments),
    "datasets": (listing.datasets, listing.dataset_arguments),
    "groups": (listing.groups, lambda parser: None),
    "demo": (demo.demo, demo.arguments),
    "completion": (completion.completion, completion.arguments),
}
EARLIER_FLAGS = {"--picture": "--image", "--pictures": "--images"}  # of version 0.1, and now


def top_parser() -> argparse.ArgumentParser:
    """Return the parser of `turnwise` itself; commands have parsers of their own."""
    top = Parser(prog="turnwise", description=(__doc__ or "").splitlines()[0])
    top.add_argument("--version", action="version", version=f"turnwise {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in COMMANDS:
        commands.add_parser(name, help=help_text(name).split(". ")[0].removesuffix("."))
    return top


def whole_parser() -> argparse.ArgumentParser:
    """Return one parser with the arguments of every command, for shells that complete them."""
    top = Parser(prog="turnwise", description=(__doc__ or "").splitlines()[0])
    commands = top.add_subparsers(dest="command", metavar="COMMAND")
    for name, (_, add_arguments) in COMMANDS.items():
        summary = help_text(name).split(". ")[0].removesuffix(".")
        add_arguments(commands.add_parser(name, help=summary, description=summary))
    return top


def command_parser(name: str) -> argparse.ArgumentParser:
    """Return the parser of one command."""
    run, add_arguments = COMMANDS[name]
    parser = Parser(prog=f"turnwise {name}", description=help_text(name))
    parser.set_defaults(command=name, perform=run)
    add_arguments(parser)
    return parser


def help_text(name: str) -> str:
    return " ".join((COMMANDS[name][0].__doc__ or "").split())


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Parse a command line; key=value may come before and after flags."""
    name = words[0] if words else ""
    if name not in COMMANDS:
        return top_parser().parse_args(words)  # prints help, the version or an error, and exits
    parser = command_parser(name)
    if name == "train":
        return train.parse(parser, words[1:])
    typed = {_present_flag(word): word for word in words[1:]}
    args, rest = parser.parse_known_intermixed_args(list(map(_present_flag, words[1:])))
    if rest:
        parser.error(f"unrecognized arguments: {' '.join(typed.get(w, w) for w in rest)}")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status; an error of the user is one line on stderr.

    0: done; 1: not invariant, or not found; 2: bad input; 130: interrupted; 141: the reader of the
    output has gone; 70: a bug in turnwise.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # the caller has closed it
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115
    words = list(sys.argv[1:] if argv is None else argv)
    command = words[0] if words else ""
    try:
        _prepare()  # before torch is imported
        args = parse(words)
        with interrupt_on_termination():
            status = int(args.perform(args))
        sys.stdout.flush()
        return status
    except UnfinishedRunError as error:
        resume = shlex.join(["turnwise", "train", "--resume", str(error.folder)])
        return _fail(command, f"{error} Continue it with: {resume}")
    except InputError as error:
        return _fail(command, str(error))
    except KeyboardInterrupt as stop:  # its arguments say how to continue
        return _fail(command, "; ".join(["interrupted", *map(str, stop.args)]), 130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as error:
        if _is_out_of_memory(error):
            return _fail(command, "out of memory; use fewer or smaller images or batches.")
        with suppress(OSError):
            traceback.print_exc()
        return _fail(command, "this is a bug in turnwise; please report it.", 70)


def _present_flag(word: str) -> str:
    flag, equals, value = hyphenate(word).partition("=")
    return EARLIER_FLAGS.get(flag, flag) + equals + value


def _prepare() -> None:
    # OpenMP threads spin for about a millisecond before they sleep; two programs that share cores
    # starve each other, and two demos at once take many times as long as one after the other
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    keep_memory()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without ° or ≤ shows a question mark


def _fail(command: str, line: str, status: int = 2) -> int:
    note(f"turnwise {command}: {line}")
    return status


def _is_out_of_memory(error: BaseException) -> bool:
    """Return whether memory ran out; torch reports that in several ways."""
    words = ("out of memory", "can't allocate memory")
    return isinstance(error, MemoryError) or any(word in str(error) for word in words)
