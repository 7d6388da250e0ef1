"""Run the Triton kernels of group attention in Triton's interpreter, against the plain formula.

    TRITON_INTERPRET=1 python group_attention_in_interpreter.py CASE ...

This is a program because TRITON_INTERPRET must be set before Triton is imported, and because the
type checks of the test suite rewrite functions, which breaks kernels.  It prints one JSON object:
for each case the relative errors of the float32 output and gradients, against float64.
"""

import json
import sys
import warnings
from typing import NamedTuple

import torch

from turnwise.attention.group import Encodings, attend_from_frames
from turnwise.geometry.neighbourhoods import Neighbourhood, find_sources
from turnwise.groups import PlanarGroup
from turnwise.layers.gsa.published import key_seen_from_output, query_between_output_and_key

NAMES = ("output", "query", "key", "value", "position", "orientation")


class Case(NamedTuple):
    group: str
    queries: str = "all"
    window: int = 3
    rows: int = 3
    cols: int = 3
    crop: int = 0
    dropout: float = 0.0
    dim: int = 4
    lifting: bool = False
    batch: int = 2
    heads: int = 2


# groups of more than 4 elements are processed in chunks, and their relations in memory
CASES = {
    "all queries": Case("C2", cols=4, dropout=0.3, dim=5),
    "own queries, cropped": Case("C4", "own", rows=4, cols=5, crop=1, dropout=0.3, dim=5),
    "lifting": Case("C4", cols=4, dropout=0.3, dim=5, lifting=True),
    "all queries, chunks, one row": Case("D3", rows=1, cols=2, dropout=0.2, batch=1, heads=1),
    "own queries, chunks, one row": Case("C8", "own", rows=1, dropout=0.2, batch=1, heads=1),
    "all queries, chunks": Case("D3", rows=2, dropout=0.2),
    "own queries, chunks": Case("C8", "own", dropout=0.2),
    "all queries, relations by query": Case("D2"),
    "lifting, chunks": Case("C6", cols=2, lifting=True),
    "whole image": Case("C2", "own", window=0, rows=2, dropout=0.2),
}


def errors(case):
    """Return the relative error of each tensor."""
    torch.manual_seed(0)
    group = PlanarGroup.named(case.group)
    sources = find_sources(Neighbourhood(case.window), case.rows, case.cols, case.crop)
    elements = 1 if case.lifting else group.order
    position_dim = case.dim if case.lifting else 2 * (case.dim // 3)
    if case.lifting:
        table = torch.zeros(group.order, 1, 1, dtype=torch.long)
    elif group.reflections:
        table = query_between_output_and_key(group)
    else:
        table = key_seen_from_output(group)
    pixels = case.rows * case.cols
    shapes = [
        (case.batch, elements, count, case.heads, case.dim)
        for count in (len(sources.pixel), pixels, pixels)
    ]
    shapes += [(group.order, len(sources.view.offsets()), position_dim)]
    shapes += [(elements, case.dim - position_dim)]
    tensors = [torch.randn(shape) for shape in shapes]
    found = []
    for backend, dtype in (("plain", torch.float64), ("triton", torch.float32)):
        leaves = [x.to(dtype).requires_grad_() for x in tensors]
        torch.manual_seed(1)  # the same dropout
        output = attend_from_frames(
            *leaves[:3], Encodings(*leaves[3:], table.contiguous()), sources,
            queries=case.queries, dropout=case.dropout, backend=backend,
        )  # fmt: skip
        weight = torch.randn(output.shape, generator=torch.Generator().manual_seed(2))
        grads = torch.autograd.grad((output * weight).sum(), leaves, allow_unused=True)
        found.append([output.detach(), *grads])
    return {
        name: relative_error(*pair)
        for name, *pair in zip(NAMES, *found, strict=True)
        if pair[0] is not None and pair[0].numel()
    }


def relative_error(expected, found):
    return float((expected - found).abs().max() / expected.abs().max())


if __name__ == "__main__":
    warnings.filterwarnings("ignore", category=RuntimeWarning)  # padding computes log2(0)
    print(json.dumps({name: errors(CASES[name]) for name in sys.argv[1:]}))
