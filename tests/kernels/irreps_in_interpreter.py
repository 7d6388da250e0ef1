"""The Triton kernels of irreps against the formula, run by Triton's interpreter on the CPU.

Run as a program of its own (TRITON_INTERPRET must be set before Triton is imported, and the type
checks of the test suite rewrite functions, which kernels do not survive).  Prints one JSON object:
for each case the relative error of every output and of every gradient.
"""

import json
from functools import partial

import torch
from torch._dynamo.testing import CompileCounter

from turnwise.groups import PlanarGroup
from turnwise.groups.representations import regular_basis
from turnwise.layers.transformer import block as group_transformer
from turnwise.layers.transformer import irreps as irrep_blocks
from turnwise.layers.transformer.block import GroupTransformerBlock, TokenNorm
from turnwise.layers.transformer.irreps import (
    PoseBasis,
    from_irreps,
    gelu_of_irreps,
    to_irreps,
)
from turnwise.layers.transformer.linear import GroupLinear
from turnwise.layers.transformer.rotary import GroupRotaryAttention

CASES = {  # group, tokens, channels: below, at and above what one program takes
    "D4, compiled, before any other has run": ("D4", 5, 8),
    "D4, one program": ("D4", 5, 8),
    "D4, several programs, the last not full": ("D4", 9, 96),
    "C1, a number": ("C1", 3, 8),
    "D2, numbers alone": ("D2", 4, 16),
    "D3, an odd group, odd channels": ("D3", 7, 5),
    "C5, planes of kind complex": ("C5", 4, 6),
    "D8, three planes": ("D8", 3, 8),
}


def ways(x, bias, stream, norm, basis, backend):
    """What there is to compute, from features in poses."""
    irreps = to_irreps(x, basis, backend)
    return [
        *irreps,
        from_irreps(irreps, basis, bias, backend=backend),
        from_irreps(irreps, basis, None, stream, backend),
        *gelu_of_irreps(irreps, bias, basis, backend),
        *norm.to_irreps(3 * x + 1, basis, backend),
    ]


NAMES = (
    "numbers", "planes", "poses", "poses onto the stream", "active numbers", "active planes",
    "normed numbers", "normed planes", "d x", "d bias", "d stream", "d weight of the norm",
    "d bias of the norm",
)  # fmt: skip


def errors(name, tokens, channels, run=ways):
    torch.manual_seed(0)
    group = PlanarGroup.named(name)
    basis = PoseBasis.of(group, regular_basis(group).matrix.float())
    x, stream = (torch.randn(tokens, group.order, channels, requires_grad=True) for _ in range(2))
    bias, norm = torch.randn(channels, requires_grad=True), TokenNorm(channels)
    for parameter in norm.parameters():
        torch.nn.init.normal_(parameter)
    leaves = x, bias, stream, *norm.parameters()
    found = []
    for backend, work in (("triton", run), ("plain", ways)):
        results = work(x, bias, stream, norm, basis, backend)
        torch.manual_seed(1)
        total = sum((y * torch.randn(y.shape)).sum() for y in results)
        found.append([*(y.detach() for y in results), *torch.autograd.grad(total, leaves)])
    return {name: gap(*pair) for name, *pair in zip(NAMES, *found[::-1], strict=True)}


def gap(right, got):
    assert right.shape == got.shape
    return float((right - got).abs().max() / right.abs().max()) if right.numel() else 0.0


def block_errors():
    """A whole block, compiled, its kernels against its formulas: the output, and the gradients."""
    torch.manual_seed(0)
    group, linear = PlanarGroup.named("D4"), partial(GroupLinear, basis="irreps")
    attention = GroupRotaryAttention(group, 8, 1, linear=linear)
    block = GroupTransformerBlock(group, 8, attention, linear=linear, layer_scale=0.5)
    x, found = torch.randn(2, 6, 8, 8), []
    compiled = torch.compile(block, backend="aot_eager", fullgraph=True)
    for work, by_kernel in ((compiled, True), (block, False)):
        chosen = partial(lambda answer, x, backend: answer, by_kernel)
        irrep_blocks.by_kernel = group_transformer.by_kernel = chosen
        out = work(x, 2, 3)
        grads = torch.autograd.grad(out.square().sum(), list(block.parameters()))
        found.append([out.detach(), *grads])
    names = ["output", *(name for name, _ in block.named_parameters())]
    return {name: gap(*pair) for name, *pair in zip(names, *found[::-1], strict=True)}


def onto_a_finer_stream():
    """Irreps in bfloat16, as autocast makes them, onto a stream in float32: types and errors."""
    torch.manual_seed(0)
    basis = PoseBasis.of("D4", regular_basis("D4").matrix.float())
    rows = [torch.randn(4, 5, 8, dtype=torch.bfloat16), torch.randn(2, 5, 2, 8).bfloat16()]
    leaves = [x.requires_grad_() for x in (*rows, torch.randn(5, 8, 8))]
    found = []
    for backend in ("triton", "plain"):
        out = from_irreps(irrep_blocks.Irreps(*leaves[:2]), basis, None, leaves[2], backend)
        found.append([out, *torch.autograd.grad(out.square().sum(), leaves)])
    pairs = zip(*found, strict=True)
    errors = [gap(right.float(), got.float()) for got, right in pairs]
    return {"kinds": [str(x.dtype) for x in found[0]], "errors": errors}


def graphs_of_several_sizes():
    """How many graphs a compiler needs for five numbers of tokens that it was told may vary."""
    basis = PoseBasis.of("D4", regular_basis("D4").matrix.float())
    counter, norm = CompileCounter(), TokenNorm(8)
    bias = torch.randn(8)
    torch.compiler.reset()
    work = torch.compile(ways, backend=counter, fullgraph=True, dynamic=True)
    with torch.no_grad():
        for tokens in range(3, 8):
            x = torch.randn(tokens, 8, 8)
            work(x, bias, x, norm, basis, "triton")
    return counter.frame_count


if __name__ == "__main__":
    from turnwise.kernels import irreps_launch as triton_irrep_launch

    triton_irrep_launch.SHARES = 4  # programs that go over several tokens
    compiled = torch.compile(ways, backend="aot_eager", fullgraph=True)
    cases = {
        case: errors(*values, compiled if "compiled" in case else ways)
        for case, values in CASES.items()
    }
    found = {"cases": cases, "block": block_errors(), "finer stream": onto_a_finer_stream()}
    print(json.dumps(found | {"graphs": graphs_of_several_sizes()}))
