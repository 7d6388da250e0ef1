"""turnwise test: evaluate runs on their test split, which training and selection never use."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnwise.cli.terminal import add_data_dir, add_device, chosen_device, note
from turnwise.errors import InputError, require

FACTS = ("test_data", "test_fill")  # columns of a table of runs that are no scores

if TYPE_CHECKING:
    from turnwise.runs.run import Run


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run", metavar="RUN", help="a run folder, or the name of pretrained weights"
    )
    parser.add_argument(
        "--data",
        help="the test split of another data set with the same training images, such as "
        "mnist_rotated for a run on mnist (default: the run's own)",
    )
    parser.add_argument(
        "--recursive", action="store_true", help="test every run in the folder RUN, at any depth"
    )
    parser.add_argument(
        "--output", metavar="FILE", help="CSV file with recipe and figures, one row per run"
    )
    parser.add_argument("--again", action="store_true", help="repeat the test; it is counted")
    add_data_dir(parser)
    add_device(parser, "auto")


def test(args: argparse.Namespace) -> int:
    """Evaluate a run on its test split: upright, rotated over 360°, and over its group. The test
    split is used once: a second call prints the stored result, unless --again is given."""
    from turnwise.files import require_writable
    from turnwise.models.weights import pretrained_folder
    from turnwise.runs.run import Run

    folder = None if args.recursive else pretrained_folder(args.run)
    if folder is not None:
        return _show_card(folder, args)
    if args.output:
        require_writable(Path(args.output), "choose another --output")
    return _test_many(args) if args.recursive else _test_one(Run(args.run), args)


def _test_one(run: "Run", args: argparse.Namespace) -> int:
    from turnwise.evaluation.evaluate import run_row, write_run_table
    from turnwise.reports.evaluations import evaluation_text

    stored = None if args.again else run.evaluation(args.data)
    result, file = stored or _evaluate(run, args), run.evaluation_file(args.data)
    try:
        text = evaluation_text(result)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{file} is damaged; remove it to test again.") from error
    if args.output:  # written first: the reader of the output may have gone
        write_run_table([run_row(run, result)], args.output)
    if stored is not None:
        print("already tested; this is the stored result (--again repeats the test):")
    print(f"{text}\n\nstored in {file}")
    if args.output:
        print(f"written to {args.output}")
    return 0


def _test_many(args: argparse.Namespace) -> int:
    """Test every run in a folder; return 1 if one cannot be tested, with the reason on stderr."""
    import torch

    from turnwise.evaluation.evaluate import failed_row, run_row, write_run_table
    from turnwise.reports.tables import text_table
    from turnwise.runs.find import find_runs
    from turnwise.runs.run import Run

    chosen_device(args.device)  # raises once, not for each run
    Run(args.run).evaluation_file(args.data)
    rows, lines = [], []
    for run in find_runs(args.run):
        try:
            stored = None if args.again else run.evaluation(args.data)
            if stored is None:
                note(f"testing {run.path}")
            row = run_row(run, stored or _evaluate(run, args))
        except (InputError, torch.OutOfMemoryError) as error:
            note(f"turnwise test: {run.path}: {error}")
            rows.append(failed_row(run, str(error)))
            continue
        rows.append(row)
        lines.append([str(run.path), row["model.name"], row["test_data"], *_scores(run, row)])
    if args.output:  # written first: the reader of the output may have gone
        write_run_table(rows, args.output)
    print(text_table(["run", "model", "data", "validation", "test"], lines))
    if args.output:
        print(f"\nwritten to {args.output}")
    return int(len(lines) < len(rows))


def _scores(run: "Run", row: dict[str, Any]) -> list[str]:
    """Return the validation score that selected the epoch, and the main score of the test."""
    from turnwise.reports.tables import UNDEFINED, format_score
    from turnwise.runs.selection import selecting_score, target_kind

    kind, shown = target_kind(run), []
    tested = [key for key in row if key.startswith("test_") and key not in FACTS]
    for key in (f"val_{selecting_score(run)}", *tested[:1]):
        value, name = row.get(key), key.partition("_")[2]
        shown.append(UNDEFINED if value is None else format_score(kind, name, value, digits=2))
    return shown


def _evaluate(run: "Run", args: argparse.Namespace) -> dict[str, Any]:
    from turnwise.evaluation import evaluate_run

    return evaluate_run(
        run, args.data, data_dir=args.data_dir, device=chosen_device(args.device),
        progress=sys.stderr.isatty(),
    )  # fmt: skip


def _show_card(folder: Path, args: argparse.Namespace) -> int:
    """Print the card of pretrained weights, which holds their test result."""
    from turnwise.models.weights import read_card
    from turnwise.reports.model_card import card_page

    given = [flag for flag in ("data", "output", "again") if getattr(args, flag)]
    require(
        not given,
        f"{folder.name} is not tested again, because it is no run; leave "
        f"--{given[0] if given else ''} out, or train a run of your own (turnwise train).",
    )
    print("tested before it was published; this is its card:\n")
    print(card_page(read_card(folder)), end="")
    return 0
