"""The Triton kernels against the plain formula, run by Triton's interpreter on the CPU.

Run as a program of its own (TRITON_INTERPRET must be set before Triton is imported, and the type
checks of the test suite rewrite functions, which kernels do not survive).  Prints one JSON object:
for each case the relative error of the output and of every gradient.
"""

import json
import warnings

import torch

from turnwise.attention.group import Encodings, attend_from_frames
from turnwise.geometry.neighbourhoods import Neighbourhood, find_sources
from turnwise.groups import PlanarGroup
from turnwise.layers.gsa.published import key_seen_from_output, query_between_output_and_key

NAMES = ("output", "query", "key", "value", "place", "pose")
CASES = {  # group, queries, window, rows, cols, crop, dropout, dim, lifting
    "all queries, two frames": ("D3", "all", 3, 2, 3, 0, 0.2, 4, False),
    "lifting, two frames": ("C6", "all", 3, 3, 2, 0, 0.0, 4, True),
    "all queries": ("C2", "all", 3, 3, 4, 0, 0.3, 5, False),
    "all queries, related by queries": ("D2", "all", 3, 3, 3, 0, 0.0, 4, False),
    "own queries, cropped": ("C4", "own", 3, 4, 5, 1, 0.3, 5, False),
    "own queries, two frames": ("C8", "own", 3, 3, 3, 0, 0.2, 4, False),
    "lifting": ("C4", "all", 3, 3, 4, 0, 0.3, 5, True),
    "whole picture": ("C2", "own", 0, 2, 3, 0, 0.2, 4, False),
}


def errors(group, queries, window, rows, cols, crop, dropout, dim, lifting):  # noqa: PLR0913
    """The relative error of the kernels' output and gradients."""
    torch.manual_seed(0)
    group = PlanarGroup.named(group)
    sources = find_sources(Neighbourhood(window), rows, cols, crop)
    poses, place_dim = (1, dim) if lifting else (group.order, 2 * (dim // 3))
    table = torch.zeros(group.order, 1, 1, dtype=torch.long)
    if not lifting:
        by_query = group.reflections
        table = (query_between_output_and_key if by_query else key_seen_from_output)(group)
    shapes = [(2, poses, n, 2, dim) for n in (len(sources.pixel), rows * cols, rows * cols)]
    shapes += [(group.order, len(sources.view.offsets()), place_dim), (poses, dim - place_dim)]
    given = [torch.randn(shape, requires_grad=True) for shape in shapes]
    found = []
    for backend in ("plain", "triton"):
        torch.manual_seed(1)
        encodings = Encodings(*given[3:], table.contiguous())
        output = attend_from_frames(
            *given[:3], encodings, sources, queries=queries, dropout=dropout, backend=backend
        )
        weight = torch.randn(output.shape, generator=torch.Generator().manual_seed(2))
        grads = torch.autograd.grad((output * weight).sum(), given, allow_unused=True)
        found.append([output.detach(), *grads])
    pairs = zip(NAMES, *found, strict=True)
    return {name: gap(right, got) for name, right, got in pairs if right is not None}


def gap(right, got):
    return float((right - got).abs().max() / right.abs().max()) if right.numel() else 0.0


if __name__ == "__main__":
    warnings.filterwarnings("ignore", category=RuntimeWarning)  # idle lanes take log2 of 0
    print(json.dumps({name: errors(*case) for name, case in CASES.items()}))
