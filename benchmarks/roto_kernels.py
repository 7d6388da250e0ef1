"""The kernels of RotoConv on a GPU against its formulas, at the shapes of a Roto-MetaFormer.

    python benchmarks/roto_kernels.py

For each convolution (by geometry): the largest relative error of the output or any gradient in
float32, and of the output in bfloat16, where another answer may win than in float64 and has another
gradient; beside it that of the formula in the same precision.  Exit status 1 if the kernels' is
more than three times as large.  Times are in benchmarks/roto_conv.py.  One record goes to
benchmarks/roto_kernels.jsonl.  The counterpart on the CPU is tests/kernels/test_roto.py, in
Triton's interpreter.
"""

import argparse
import shlex
import sys
from copy import deepcopy
from pathlib import Path

import torch
from irrep_kernels import farthest
from records import append_record
from roto_conv import layer_shapes
from torch import Tensor

from turnwise.geometry.sizes import Stage, remainder_of
from turnwise.inference.predictor import full_precision
from turnwise.layers.roto.conv import RotoConv2d
from turnwise.models.metaformer import GEOMETRIES
from turnwise.reports.tables import text_table

HERE = Path(__file__).parent
COMPARED = {torch.float32: 3, torch.bfloat16: 1}  # tensors of an outcome
SIZE = 64


def outcome(layer: RotoConv2d, maps: Tensor, kind: torch.dtype, backend: str) -> list[Tensor]:
    """The output, and the gradients of maps and weights."""
    layer = deepcopy(layer).to(kind)
    layer.backend = backend
    maps = maps.to(kind).requires_grad_()
    out = layer(maps)
    weight = torch.linspace(-1, 1, out.numel(), device=out.device, dtype=kind).view_as(out)
    return [out.detach(), *torch.autograd.grad((out * weight).sum(), [maps, layer.weight])]


@full_precision()
def check(shape: tuple[int, int, Stage, int], kind: torch.dtype) -> dict[str, float]:
    """The errors of the kernels and of the formula."""
    torch.manual_seed(0)
    old, new, stage, size = shape
    layer = RotoConv2d("D4", old, new, *stage, remainder=remainder_of(size, stage)).to("cuda", kind)
    maps = torch.randn(4, old, size, size, device="cuda").to(kind)
    many = COMPARED[kind]
    right = outcome(layer, maps, torch.float64, "plain")[:many]
    return {
        backend: farthest(right, outcome(layer, maps, kind, backend)[:many])
        for backend in ("triton", "plain")
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--records", type=Path, default=HERE / "roto_kernels.jsonl")
    args = parser.parse_args()
    errors = {
        f"{old}→{new} {'/'.join(map(str, stage))} @{size}, {str(kind).removeprefix('torch.')}":
        check((old, new, stage, size), kind)
        for geometry in GEOMETRIES
        for old, new, stage, size in layer_shapes(geometry, SIZE, narrow=False)
        for kind in COMPARED
    }  # fmt: skip
    rows = [[case, *(f"{error:.1e}" for error in both.values())] for case, both in errors.items()]
    print(text_table(["case", "kernels", "formula"], rows))
    command = shlex.join(["python", "benchmarks/roto_kernels.py", *sys.argv[1:]])
    append_record(args.records, command, {"errors": errors})
    return int(not all(both["triton"] <= 3 * both["plain"] for both in errors.values()))


if __name__ == "__main__":
    sys.exit(main())
