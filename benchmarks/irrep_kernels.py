"""The kernels between poses and irreps on a GPU: against the formula, and beside a copy.

    python benchmarks/irrep_kernels.py

Right:  for groups and precisions, the largest relative error of any output or gradient against
        the formula in float64, and that of the formula in the same precision; exit status 1 if
        the kernels' is more than 16 steps of that precision.
Fast:   milliseconds of each kernel at the hidden width of a perceptron (64 pictures of 196 tokens,
        3072 channels, D4, bfloat16), forward and backward, beside what it must read and write.
One record goes to benchmarks/irrep_kernels.jsonl.  The counterpart on the CPU is
tests/kernels/test_irreps.py, in Triton's interpreter.
"""

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

import torch
from meters import ready
from records import append_record
from torch import Tensor

from turnwise.groups import PlanarGroup
from turnwise.groups.representations import regular_basis
from turnwise.kernels import irreps_launch as launch
from turnwise.layers.transformer.block import TokenNorm
from turnwise.layers.transformer.irreps import (
    IrrepBasis,
    from_irreps,
    gelu_of_irreps,
    to_irreps,
)
from turnwise.reports.tables import text_table

HERE = Path(__file__).parent
PRECISIONS = (torch.float32, torch.bfloat16, torch.float16)
MOST_STEPS = 16  # of the precision, between a kernel and float64
TOKENS, CHANNELS = 64 * 196, 384


def outcome(x: Tensor, bias: Tensor, group: str, backend: str) -> list[Tensor]:
    """There with a norm, gelu, and back onto a stream; and the gradients."""
    basis = IrrepBasis.of(group, regular_basis(group).matrix.to(x.device))
    norm = TokenNorm(x.shape[-1]).to(x)
    leaves = x.clone().requires_grad_(), bias.clone().requires_grad_(), *norm.parameters()
    start = norm.to_irreps(to_poses_and_back(leaves[0], basis, backend), basis, backend)
    active = gelu_of_irreps(start, leaves[1], basis, backend)
    output = from_irreps(active, basis, leaves[1], leaves[0], backend)
    weight = torch.linspace(-1, 1, output.numel(), device=x.device).view_as(output)
    grads = torch.autograd.grad((output * weight).sum(), leaves)
    return [output.detach(), *grads]


def to_poses_and_back(x: Tensor, basis: IrrepBasis, backend: str) -> Tensor:
    return from_irreps(to_irreps(x, basis, backend), basis, backend=backend)


def check(group: str, kind: torch.dtype, channels: int) -> dict[str, float]:
    """The errors of the kernels and of the formula."""
    torch.manual_seed(0)
    poses = PlanarGroup.named(group).order
    x = torch.randn(77, poses, channels, device="cuda").to(kind)
    bias = torch.randn(channels, device="cuda").to(kind)
    right = outcome(x.double(), bias.double(), group, "plain")
    return {backend: farthest(right, outcome(x, bias, group, backend))
            for backend in ("triton", "plain")}  # fmt: skip


def farthest(right: list[Tensor], got: list[Tensor]) -> float:
    """The largest relative error of any tensor; not a number if there is one that is none."""
    pairs = zip(right, got, strict=True)
    return float(
        torch.stack([(a - b.double()).abs().max() / a.abs().max() for a, b in pairs]).max()
    )


def milliseconds(work: Any, repeats: int = 20) -> float:
    """Recorded and replayed: an operator of ours takes the host about as long as the device."""
    work = ready(work, torch.device("cuda"))
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(repeats):
        work()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / repeats


def times(size: int, warps: int) -> dict[str, float]:
    """Each kernel alone; memory that is read and written once is beside them as a copy."""
    launch.SIZE, launch.WARPS = size, warps
    new = {"device": "cuda", "dtype": torch.bfloat16}
    x, bias = torch.randn(TOKENS, 8, CHANNELS, **new), torch.randn(CHANNELS, device="cuda")
    rows = launch.regular_to_irreps(x, "D4")
    norm = bias, bias, 1e-5, torch.bfloat16, "D4"
    kept = launch.norm_to_irreps(x, *norm)[2:]
    return {
        "copy": milliseconds(x.clone),
        "gelu": milliseconds(lambda: torch.nn.functional.gelu(x)),
        "to irreps": milliseconds(lambda: launch.regular_to_irreps(x, "D4")),
        "to poses": milliseconds(lambda: launch.irreps_to_regular(*rows, bias, None, "D4")),
        "onto a stream": milliseconds(lambda: launch.irreps_to_regular(*rows, bias, x, "D4")),
        "norm to irreps": milliseconds(lambda: launch.norm_to_irreps(x, *norm)),
        "gradient of the norm": milliseconds(
            lambda: launch.norm_to_irreps_backward(x, bias, *kept, *rows, "D4")
        ),
        "gelu in irreps": milliseconds(lambda: launch.gelu_in_irreps(*rows, bias, "D4")),
        "gradient of gelu": milliseconds(
            lambda: launch.gelu_in_irreps_backward(*rows, bias, *rows, "D4")
        ),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--sizes", nargs="+", default=["256:2"], help="channels of a program:warps")
    parser.add_argument("--records", type=Path, default=HERE / "irrep_kernels.jsonl")
    args = parser.parse_args()
    errors = {
        f"{group}, {channels} channels, {str(kind).removeprefix('torch.')}": check(
            group, kind, channels
        )
        for group, channels in (("D4", 96), ("C1", 8), ("D2", 24), ("D3", 5), ("C5", 6), ("D8", 32))
        for kind in PRECISIONS
    }
    rows = [[case, *(f"{error:.1e}" for error in both.values())] for case, both in errors.items()]
    print(text_table(["case", "kernels", "formula"], rows))
    speeds = {size: times(*map(int, size.split(":"))) for size in args.sizes}
    headers = ["channels:warps", *next(iter(speeds.values()))]
    print(
        text_table(headers, [[s, *(f"{t:.3f}" for t in ts.values())] for s, ts in speeds.items()])
    )
    command = shlex.join(["python", "benchmarks/irrep_kernels.py", *sys.argv[1:]])
    append_record(args.records, command, {"errors": errors, "milliseconds": speeds})
    steps = [both["triton"] / torch.finfo(getattr(torch, case.split()[-1])).eps
             for case, both in errors.items()]  # fmt: skip
    return int(not all(step <= MOST_STEPS for step in steps))  # and none is not a number


if __name__ == "__main__":
    sys.exit(main())
