"""turnwise completion: a script that lets a shell complete commands, flags and file names."""

import argparse
from typing import Any

from turnwise.errors import import_extra

SHELLS = ("bash", "zsh", "tcsh")
FILES = ("FILE", "FOLDER", "RUN", "IMAGE", "IMAGES", "SOURCE", "TARGET", "CERTIFICATE", "QUERY")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))


def completion(args: argparse.Namespace) -> int:
    """Print a completion script. For bash: turnwise completion bash >
    ~/.local/share/bash-completion/completions/turnwise. For zsh: write it as _turnwise into a
    folder of $fpath. Needs pip install turnwise[completion]."""
    from turnwise.cli.main import whole_parser

    shtab = import_extra("shtab", "completion", "shell completion")
    parser = whole_parser()
    commands: Any = parser._subparsers._group_actions[0]  # type: ignore[union-attr]
    for each in commands.choices.values():
        for action in each._actions:
            names = action.metavar if isinstance(action.metavar, tuple) else (action.metavar,)
            if action.choices is not None:
                action.choices = list(action.choices)
            elif set(names) & set(FILES):
                action.complete = shtab.FILE
    print(shtab.complete(parser, args.shell))
    return 0
