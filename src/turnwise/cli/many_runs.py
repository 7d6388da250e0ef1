"""turnwise test --recursive and --output: many runs, and the table of them."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from turnwise.cli.notes import tell
from turnwise.errors import InputError

Result = dict[str, Any]


def test_below(args: argparse.Namespace, evaluate: Callable[[argparse.Namespace], Result]) -> int:
    """Test every run below a folder; 1 if one cannot be tested, and its reason on stderr.

    `evaluate` is told of one run as if it alone had been asked for.
    """
    import torch

    from turnwise.cli.devices import chosen_device
    from turnwise.evaluation.elsewhere import result_folder
    from turnwise.evaluation.run_table import failed_row, run_row, runs_below, write_run_table
    from turnwise.files import require_writable
    from turnwise.reports.tables import UNDEFINED, format_percent, text_table

    chosen_device(args.device)  # what is wrong for all runs is no fault of any
    if args.output:
        require_writable(Path(args.output))
    if args.data is not None:
        result_folder(args.run, args.data)
    rows, lines = [], []
    for run in runs_below(args.run):
        try:
            row = run_row(run, _result(run, args, evaluate))
        except (InputError, torch.OutOfMemoryError) as error:
            tell(f"turnwise test: {run}: {error}")
            rows.append(failed_row(run, str(error)))
            continue
        rows.append(row)
        shares = (row.get(key) for key in ("val_accuracy", "test_accuracy"))
        said = (UNDEFINED if s is None else format_percent(s, digits=2) for s in shares)
        lines.append([str(run), row["model.name"], row["test_data"], *said])
    if args.output:  # before anything is printed: who reads that may leave
        write_run_table(rows, args.output)
    print(text_table(["run", "model", "data", "validation", "test"], lines))
    if args.output:
        print(f"\nwritten to {args.output}")
    return int(len(lines) < len(rows))


def _result(
    run: Path, args: argparse.Namespace, evaluate: Callable[[argparse.Namespace], Result]
) -> Result:
    """The figures that the run keeps, unless it has none or is to be tested again."""
    from turnwise.evaluation import read_evaluation
    from turnwise.evaluation.elsewhere import result_folder

    place = run if args.data is None else result_folder(run, args.data)
    kept = None if args.again else read_evaluation(place)
    if kept is not None:
        return kept
    tell(f"testing {run}")
    return evaluate(argparse.Namespace(**{**vars(args), "run": str(run)}))


def write_rows(results: Sequence[tuple[str, Result]], output: str) -> None:
    """The table of these runs and their figures."""
    from turnwise.evaluation.run_table import run_row, write_run_table

    write_run_table([run_row(run, result) for run, result in results], output)
