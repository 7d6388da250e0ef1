"""Run the Triton kernels of irreps in Triton's interpreter, against the formula in float64.

A program for the reasons given in group_attention_in_interpreter.py.  It prints one JSON object:
for each case the relative error of every output and gradient in float32, and other measurements.
"""

import copy
import json
from functools import partial

import torch
from torch._dynamo.testing import CompileCounter

from turnwise.groups import PlanarGroup
from turnwise.groups.representations import regular_basis
from turnwise.kernels import irreps_launch
from turnwise.layers.transformer import block as group_transformer
from turnwise.layers.transformer import irreps as irrep_layers
from turnwise.layers.transformer.block import GroupTransformerBlock, TokenNorm
from turnwise.layers.transformer.irreps import (
    IrrepBasis,
    Irreps,
    from_irreps,
    gelu_of_irreps,
    to_irreps,
)
from turnwise.layers.transformer.linear import GroupLinear
from turnwise.layers.transformer.rotary import GroupRotaryAttention

COMPILED = "D4, compiled, before any other case"
CASES = {  # group, tokens, channels: fewer, as many and more than one program handles
    COMPILED: ("D4", 5, 8),
    "D4, one program": ("D4", 5, 8),
    "D4, several programs, the last not full": ("D4", 9, 96),
    "C1, one 1-D irrep": ("C1", 3, 8),
    "D2, only 1-D irreps": ("D2", 4, 16),
    "D3, odd order, odd channels": ("D3", 7, 5),
    "C5, 2-D irreps of kind complex": ("C5", 4, 6),
    "D8, three 2-D irreps": ("D8", 3, 8),
}
NAMES = (
    "1-D", "2-D", "regular", "regular plus residual", "gelu 1-D", "gelu 2-D", "norm 1-D",
    "norm 2-D", "d x", "d bias", "d residual", "d weight of the norm", "d bias of the norm",
)  # fmt: skip


def all_operations(x, bias, residual, norm, basis, backend):
    """Return the outputs of every operation with a kernel."""
    irreps = to_irreps(x, basis, backend)
    return [
        *irreps,
        from_irreps(irreps, basis, bias, backend=backend),
        from_irreps(irreps, basis, None, residual, backend),
        *gelu_of_irreps(irreps, bias, basis, backend),
        *norm.to_irreps(3 * x + 1, basis, backend),
    ]


def errors(name, tokens, channels, by_kernels=all_operations):
    """Return the relative error of each output and gradient."""
    torch.manual_seed(0)
    group = PlanarGroup.named(name)
    basis = IrrepBasis.of(group, regular_basis(group).matrix)
    tensors = [torch.randn(tokens, group.order, channels) for _ in range(2)]
    norm = TokenNorm(channels)
    for parameter in norm.parameters():
        torch.nn.init.normal_(parameter)
    bias, found = torch.randn(channels), []
    plain = (all_operations, "plain", torch.float64)
    for run, backend, dtype in (plain, (by_kernels, "triton", torch.float32)):
        x, residual, b = (y.to(dtype).requires_grad_() for y in (*tensors, bias))
        cast_norm = copy.deepcopy(norm).to(dtype)
        results = run(x, b, residual, cast_norm, basis._replace(matrix=basis.matrix.to(dtype)),
                      backend)  # fmt: skip
        torch.manual_seed(1)
        total = sum((y * torch.randn(y.shape)).sum() for y in results)
        grads = torch.autograd.grad(total, (x, b, residual, *cast_norm.parameters()))
        found.append([*(y.detach() for y in results), *grads])
    return {name: relative_error(*pair) for name, *pair in zip(NAMES, *found, strict=True)}


def relative_error(expected, found):
    assert expected.shape == found.shape
    if not expected.numel():
        return 0.0
    return float((expected - found).abs().max() / expected.abs().max())


def block_errors():
    """Compare a whole compiled block with the formulas: its output and all gradients."""
    torch.manual_seed(0)
    linear = partial(GroupLinear, basis="irreps")
    attention = GroupRotaryAttention("D4", 8, 1, linear=linear)
    block = GroupTransformerBlock("D4", 8, attention, linear=linear, layer_scale=0.5)
    compiled = torch.compile(copy.deepcopy(block), backend="aot_eager", fullgraph=True)
    x, found = torch.randn(2, 8, 8, 2, 3), []
    for model, by_kernel in ((block.double(), False), (compiled, True)):
        choose = partial(lambda chosen, x, backend: chosen, by_kernel)
        irrep_layers.by_kernel = group_transformer.by_kernel = choose
        out = model(x if by_kernel else x.double())
        grads = torch.autograd.grad(out.square().sum(), list(model.parameters()))
        found.append([out.detach(), *grads])
    names = ["output", *(name for name, _ in block.named_parameters())]
    return {name: relative_error(*pair) for name, *pair in zip(names, *found, strict=True)}


def add_to_finer_residual():
    """Add irreps in bfloat16, as autocast makes them, to a residual in float32."""
    torch.manual_seed(0)
    basis = IrrepBasis.of("D4", regular_basis("D4").matrix.float())
    rows = [torch.randn(4, 5, 8, dtype=torch.bfloat16), torch.randn(2, 5, 2, 8).bfloat16()]
    leaves = [x.requires_grad_() for x in (*rows, torch.randn(5, 8, 8))]
    found = []
    for backend in ("triton", "plain"):
        out = from_irreps(Irreps(*leaves[:2]), basis, None, leaves[2], backend)
        found.append([out.detach(), *torch.autograd.grad(out.square().sum(), leaves)])
    pairs = zip(*found, strict=True)
    differences = [relative_error(plain.float(), kernel.float()) for kernel, plain in pairs]
    return {"dtypes": [str(x.dtype) for x in found[0]], "errors": differences}


def count_graphs():
    """Count the graphs that five numbers of tokens need in a dynamic compilation."""
    basis = IrrepBasis.of("D4", regular_basis("D4").matrix.float())
    counter, norm, bias = CompileCounter(), TokenNorm(8), torch.randn(8)
    torch.compiler.reset()
    work = torch.compile(all_operations, backend=counter, fullgraph=True, dynamic=True)
    with torch.no_grad():
        for tokens in range(3, 8):
            x = torch.randn(tokens, 8, 8)
            work(x, bias, x, norm, basis, "triton")
    return counter.frame_count


if __name__ == "__main__":
    irreps_launch.MAX_PARTIAL_SUMS = 4  # so that a program handles several tokens
    compiled = torch.compile(all_operations, backend="aot_eager", fullgraph=True)
    cases = {
        case: errors(*values, compiled if case == COMPILED else all_operations)
        for case, values in CASES.items()
    }
    found = {"cases": cases, "block": block_errors(), "residual": add_to_finer_residual()}
    print(json.dumps(found | {"graphs": count_graphs()}))
