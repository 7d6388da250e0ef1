"""The Triton kernels on a GPU against the plain formula in float64; what CI cannot run.

    python benchmarks/kernel_check.py

For every form, group and precision: the relative error of the output and of every gradient, whether
two runs give the same bits, and that empty memory, which is filled with NaN here, is overwritten.
Exit status 0 if all hold; a record of each form goes to benchmarks/kernel_check.jsonl.  The
counterpart on the CPU is tests/kernels/test_group_attention.py, in Triton's interpreter.
"""

import argparse
import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from records import append_record

from turnwise.attention.group import Encodings, attend_from_frames
from turnwise.geometry.neighbourhoods import Neighbourhood, find_sources
from turnwise.groups import PlanarGroup
from turnwise.layers.gsa.published import key_seen_from_output, query_between_output_and_key
from turnwise.reports.tables import format_error, text_table

HERE = Path(__file__).parent
LIMITS = {torch.float32: 1e-3, torch.bfloat16: 2e-2, torch.float16: 5e-3}
NAMES = ("output", "query", "key", "value", "place", "pose")
FORMS = [  # group, queries, neighbourhood, rows, cols, crop, dropout, dim, lifting
    ("C1", "all", Neighbourhood(5), 9, 9, 0, 0.0, 10, False),
    ("D1", "all", Neighbourhood(3), 7, 6, 0, 0.1, 10, False),
    ("C4", "all", Neighbourhood(5), 9, 9, 2, 0.1, 10, False),
    ("C4", "own", Neighbourhood(5), 9, 9, 1, 0.1, 10, False),
    ("C4", "own", Neighbourhood(5, "disc"), 8, 11, 0, 0.0, 6, False),
    ("D4", "all", Neighbourhood(3), 7, 7, 0, 0.1, 10, False),
    ("C8", "all", Neighbourhood(3), 7, 7, 0, 0.1, 10, False),
    ("D4", "own", Neighbourhood(5), 9, 9, 0, 0.1, 10, False),
    ("C8", "own", Neighbourhood(0), 6, 5, 0, 0.1, 16, False),
    ("C12", "own", Neighbourhood(3), 6, 6, 0, 0.0, 6, False),
    ("C4", "all", Neighbourhood(5), 9, 9, 0, 0.1, 10, True),
    ("C16", "all", Neighbourhood(5), 7, 7, 0, 0.0, 6, True),
    ("D4", "all", Neighbourhood(0), 6, 7, 0, 0.1, 32, True),
]


def outcome(form, backend: str, given: list[torch.Tensor], weight: torch.Tensor):
    """The output and the gradients, those that exist."""
    name, queries, neighbourhood, rows, cols, crop, dropout, _, lifting = form
    group = PlanarGroup.named(name)
    sources = find_sources(neighbourhood, rows, cols, crop).to("cuda")
    if lifting:
        table = torch.zeros(group.order, 1, 1, dtype=torch.long)
    else:
        table = (query_between_output_and_key if group.reflections else key_seen_from_output)(group)
    leaves = [x.requires_grad_() for x in given]
    torch.manual_seed(1)
    output = attend_from_frames(
        *leaves[:3], Encodings(*leaves[3:], table.contiguous()), sources, queries=queries,
        dropout=dropout, backend=backend,
    )  # fmt: skip
    grads = torch.autograd.grad((output.double() * weight).sum(), leaves, allow_unused=True)
    return [output.detach(), *grads]


def check(form, kind: torch.dtype) -> tuple[dict[str, float], bool]:
    """Relative errors by tensor, and whether two runs agree to the last bit."""
    name, _, neighbourhood, rows, cols, crop, _, dim, lifting = form
    torch.manual_seed(0)
    poses = PlanarGroup.named(name).order
    tokens, pixels = (rows - 2 * crop) * (cols - 2 * crop), rows * cols
    asking, place = (1, dim) if lifting else (poses, 2 * (dim // 3))
    shapes = [(2, asking, n, 3, dim) for n in (tokens, pixels, pixels)]
    shapes += [(poses, len(neighbourhood.offsets(rows, cols)), place), (asking, dim - place)]
    rounded = [torch.randn(shape, device="cuda").to(kind) for shape in shapes]
    weight = torch.randn(2, poses, tokens, 3, dim, device="cuda", dtype=torch.float64)
    right = outcome(form, "plain", [x.double() for x in rounded], weight)
    got, again = (outcome(form, "triton", [x.clone() for x in rounded], weight) for _ in range(2))
    errors = {
        tensor: float((a - b.double()).abs().max() / a.abs().max())
        for tensor, a, b in zip(NAMES, right, got, strict=True)
        if a is not None and a.numel() and a.abs().max() > 1e-6
    }
    pairs = [(a, b) for a, b in zip(got, again, strict=True) if a is not None]
    return errors, all(torch.equal(a, b) for a, b in pairs)


def one(task: tuple[int, torch.dtype]) -> tuple[dict[str, float], bool]:
    """One form in one precision; empty memory is filled with NaN."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    return check(FORMS[task[0]], task[1])


def main() -> int:
    """One record for each form, as soon as it is known: what a time limit cuts off is the rest."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--forms", type=int, nargs="+", default=list(range(len(FORMS))), help="by their numbers"
    )
    forms = parser.parse_args().forms
    tasks = [(number, kind) for number in forms for kind in LIMITS]
    rows, fine = [], True
    context = multiprocessing.get_context("spawn")  # side by side: compiling is most of the time
    with ProcessPoolExecutor(min(12, os.cpu_count() or 1), context) as pool:
        answers = pool.map(one, tasks)
        for number in forms:
            results = [outcome_of(number, kind, *next(answers)) for kind in LIMITS]
            holds = all(result["holds"] for result in results)
            fine &= holds
            rows += [row_of(result) for result in results]
            print("\n".join("  ".join(row) for row in rows[-len(results) :]), flush=True)
            command = f"python benchmarks/kernel_check.py --forms {number}"
            figures = {"holds": holds, "results": results}
            append_record(HERE / "kernel_check.jsonl", command, figures)
    print(text_table(["form", "type", "largest error", "of", "same bits", ""], rows))
    return 0 if fine else 1


def outcome_of(
    number: int, kind: torch.dtype, errors: dict[str, float], same: bool
) -> dict[str, Any]:
    """What one form came to in one precision, ready for JSON."""
    group, queries, neighbourhood, *_, lifting = FORMS[number]
    words = f"{group} {queries} {neighbourhood}{' lifting' if lifting else ''}"
    holds = same and max(errors.values()) <= LIMITS[kind]
    return {"form": words, "type": str(kind)[6:], "errors": errors, "same_bits": same,
            "holds": holds}  # fmt: skip


def row_of(result: dict[str, Any]) -> list[str]:
    errors = result["errors"]
    worst = max(errors, key=errors.__getitem__)
    return [result["form"], result["type"], format_error(errors[worst]), worst,
            "yes" if result["same_bits"] else "NO",
            "holds" if result["holds"] else "FAILS"]  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
