"""The Triton kernels of RotoConv against its formulas, run by Triton's interpreter on the CPU.

Run as a program of its own, as irreps_in_interpreter.py is.  Prints one JSON object: for each case
the relative error of the output and of every gradient.
"""

import json

import torch

from turnwise.geometry.sizes import Stage, remainder_of
from turnwise.layers.roto.conv import RotoConv

CASES = {  # group, algorithm, stage, rows, cols, channels in and out
    "D4, compiled, before any other has run": ("D4", "fourier", Stage(4, 2, 1), 6, 6, 16, 8),
    "D4, windows that overlap": ("D4", "fourier", Stage(4, 2, 1), 6, 6, 16, 8),
    "D4, patches, several programs": ("D4", "fourier", Stage(2, 2), 12, 12, 20, 24),
    "D4, a remainder, a rectangle": ("D4", "fourier", Stage(3, 2, 1), 8, 6, 3, 5),
    "D4, gaps between windows": ("D4", "fourier", Stage(2, 3), 8, 5, 4, 3),
    "D4, single pixels": ("D4", "fourier", Stage(1, 1), 4, 4, 5, 6),
    "C4, a plane of kind complex": ("C4", "fourier", Stage(3, 1, 1), 5, 5, 3, 4),
    "D2, numbers alone": ("D2", "fourier", Stage(4, 4), 8, 4, 3, 4),
    "C2, half turns": ("C2", "fourier", Stage(2, 2), 4, 6, 3, 4),
    "D1, mirrors": ("D1", "fourier", Stage(2, 1), 3, 4, 3, 4),
    "D4, bank": ("D4", "bank", Stage(8, 4, 2), 16, 16, 3, 8),
    "D4, bank with a remainder": ("D4", "bank", Stage(7, 4, 2), 16, 16, 3, 4),
    "C1, bank of one": ("C1", "bank", Stage(3, 2, 1), 7, 7, 3, 4),
}


def outcome(layer, maps, backend, compiled=False):
    layer.backend = backend
    work = torch.compile(layer, backend="aot_eager", fullgraph=True) if compiled else layer
    out = work(maps)
    torch.manual_seed(1)
    grads = torch.autograd.grad((out * torch.randn(out.shape)).sum(), [maps, *layer.parameters()])
    return [out.detach(), *grads]


def errors(case, group, algorithm, stage, rows, cols, width, new_width):
    torch.manual_seed(0)
    rest = remainder_of(rows, stage)
    layer = RotoConv(group, width, new_width, stage, remainder=rest, algorithm=algorithm)
    maps = torch.randn(2, width, rows, cols, requires_grad=True)
    got = outcome(layer, maps, "triton", "compiled" in case)
    right = outcome(layer, maps, "plain")
    return dict(zip(("output", "d maps", "d weight", "d bias"), map(gap, right, got), strict=True))


def gap(right, got):
    assert right.shape == got.shape
    return float((right - got).abs().max() / right.abs().max())


def not_a_number_wins():
    """As in torch.max: one answer that is not a number makes the greatest one so."""
    from turnwise.kernels.roto_launch import BANK, greatest_answer

    products = torch.arange(16.0).view(2, 8)
    products[1, 3] = torch.nan
    best, which = greatest_answer([products], "D4", BANK, 1)
    return [str(float(best[0, 0])), str(float(best[1, 0])), which.flatten().tolist()]


if __name__ == "__main__":
    from turnwise.kernels import roto_launch as triton_roto_launch

    triton_roto_launch.SIZE = 64  # several programs, the last not full
    cases = {case: errors(case, *values) for case, values in CASES.items()}
    print(json.dumps({"cases": cases, "not a number": not_a_number_wins()}))
