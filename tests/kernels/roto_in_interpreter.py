"""Run the Triton kernels of RotoConv2d in Triton's interpreter, against its formula in float64.

A program for the reasons given in group_attention_in_interpreter.py.  It prints one JSON object:
for each case the relative error of the output and of every gradient in float32.
"""

import copy
import json

import torch

from turnwise.geometry.sizes import Stage, remainder_of
from turnwise.kernels import roto_launch
from turnwise.layers.roto.conv import RotoConv2d

COMPILED = "D4, compiled, before any other case"
CASES = {  # group, algorithm, stage, rows, cols, channels in and out
    COMPILED: ("D4", "fourier", Stage(4, 2, 1), 6, 6, 16, 8),
    "D4, overlapping windows": ("D4", "fourier", Stage(4, 2, 1), 6, 6, 16, 8),
    "D4, patches, several programs": ("D4", "fourier", Stage(2, 2), 12, 12, 20, 24),
    "D4, a remainder, a rectangle": ("D4", "fourier", Stage(3, 2, 1), 8, 6, 3, 5),
    "D4, gaps between windows": ("D4", "fourier", Stage(2, 3), 8, 5, 4, 3),
    "D4, single pixels": ("D4", "fourier", Stage(1, 1), 4, 4, 5, 6),
    "C4, a 2-D irrep of kind complex": ("C4", "fourier", Stage(3, 1, 1), 5, 5, 3, 4),
    "D2, only 1-D irreps": ("D2", "fourier", Stage(4, 4), 8, 4, 3, 4),
    "C2, rotation by 180°": ("C2", "fourier", Stage(2, 2), 4, 6, 3, 4),
    "D1, a reflection": ("D1", "fourier", Stage(2, 1), 3, 4, 3, 4),
    "D4, bank": ("D4", "bank", Stage(8, 4, 2), 16, 16, 3, 8),
    "D4, bank with a remainder": ("D4", "bank", Stage(7, 4, 2), 16, 16, 3, 4),
    "C1, bank of one filter": ("C1", "bank", Stage(3, 2, 1), 7, 7, 3, 4),
}


def outcome(layer, maps, backend, compiled=False):
    """Return the output and all gradients."""
    layer.backend = backend
    maps = maps.clone().requires_grad_()
    run = torch.compile(layer, backend="aot_eager", fullgraph=True) if compiled else layer
    out = run(maps)
    torch.manual_seed(1)
    grads = torch.autograd.grad((out * torch.randn(out.shape)).sum(), [maps, *layer.parameters()])
    return [out.detach(), *grads]


def errors(case, group, algorithm, stage, rows, cols, in_channels, out_channels):
    """Return the relative error of each tensor."""
    torch.manual_seed(0)
    remainder = remainder_of(rows, stage)
    layer = RotoConv2d(
        group, in_channels, out_channels, *stage, remainder=remainder, algorithm=algorithm
    )
    maps = torch.randn(2, in_channels, rows, cols)
    expected = outcome(copy.deepcopy(layer).double(), maps.double(), "plain")
    found = outcome(layer, maps, "triton", case == COMPILED)
    names = ("output", "d maps", "d weight", "d bias")
    return dict(zip(names, map(relative_error, expected, found), strict=True))


def relative_error(expected, found):
    assert expected.shape == found.shape
    return float((expected - found).abs().max() / expected.abs().max())


def max_of_nan():
    """Return the maxima of 0 to 7, and of 8 to 15 with a NaN in position 3, and their indices."""
    products = torch.arange(16.0).view(2, 8)
    products[1, 3] = torch.nan
    best, which = roto_launch.max_response([products], "D4", roto_launch.BANK, 1)
    return [*map(str, best.flatten().tolist()), which.flatten().tolist()]


if __name__ == "__main__":
    roto_launch.SIZE = 64  # several programs, the last not full
    cases = {case: errors(case, *values) for case, values in CASES.items()}
    print(json.dumps({"cases": cases, "max of nan": max_of_nan()}))
