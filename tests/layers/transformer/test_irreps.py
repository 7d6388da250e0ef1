"""Features in irreps: definition of the change of basis, products and GELU; precision.

Letters:  g, m elements;  row, col entries of Q.
"""

import pytest
import torch
import torch.nn.functional as F

from turnwise.errors import InputError
from turnwise.groups import PlanarGroup, act_on_regular
from turnwise.groups.representations import irreps, regular_basis
from turnwise.layers.transformer.irreps import (
    IrrepBasis,
    Irreps,
    MultiplyBlocks,
    from_irreps,
    gelu_of_irreps,
    multiply,
    multiply_blocks,
    rounded_by_autocast,
    to_irreps,
)

GROUPS = pytest.mark.parametrize("name", ["C1", "C2", "C4", "C5", "D1", "D3", "D4", "D8"])


def basis_of(name):
    return IrrepBasis.of(name, regular_basis(name).matrix)


def features(name, tokens=4, width=3):
    return torch.randn(tokens, PlanarGroup.named(name).order, width, dtype=torch.float64)


def as_rows(parts):
    """Return (token, row, channel), with rows as in Q."""
    rows = [*parts.dim1, *(row[:, b] for row in parts.dim2 for b in range(2))]
    return torch.stack(rows, dim=1)


def assert_near(left, right, atol=1e-12):
    torch.testing.assert_close(left, right, rtol=0, atol=atol)


@GROUPS
def test_definition_of_the_change_of_basis(name):
    """Row by row as loops; `from_irreps` is its inverse, and lengths stay the same."""
    basis, x = basis_of(name), features(name)
    expected = torch.zeros_like(x)
    for row, coefficients in enumerate(basis.matrix):
        for g, coefficient in enumerate(coefficients):
            expected[:, row] += coefficient * x[:, g]
    found = to_irreps(x, basis)
    assert_near(as_rows(found), expected)
    assert_near(from_irreps(found, basis), x)
    assert_near(sum(part.square().sum() for part in found), x.square().sum(), 1e-10)


@GROUPS
def test_definition_of_gelu(name):
    basis, x, bias = basis_of(name), features(name), torch.randn(3).double()
    found = from_irreps(gelu_of_irreps(to_irreps(x, basis), bias, basis), basis)
    assert_near(found, F.gelu(x + bias))
    other = gelu_of_irreps(to_irreps(x, basis), bias + 1, basis)
    assert (other.dim1 - to_irreps(found, basis).dim1).abs().max() > 0.1


@pytest.mark.parametrize("name", ["D3", "D4", "C5"])
def test_equivariance_of_gelu(name):
    group, basis, x, bias = PlanarGroup.named(name), basis_of(name), features(name), torch.randn(3)
    outcome = gelu_of_irreps(to_irreps(x, basis), bias.double(), basis)
    for g in range(group.order):
        transformed = to_irreps(act_on_regular(group, g, x), basis)
        expected = act_on_regular(group, g, from_irreps(outcome, basis))
        found = from_irreps(gelu_of_irreps(transformed, bias.double(), basis), basis)
        assert_near(found, expected)


@GROUPS
def test_definition_of_the_products(name):
    """ŷ[ρ, a, c] = Σ_b Ŵ[ρ, c, b] x̂[ρ, a, b], irrep by irrep and row by row."""
    basis, x = basis_of(name), features(name)
    inside = to_irreps(x, basis)
    weights = [
        torch.randn(block.count, block.dim * 2, block.dim * 3, dtype=torch.float64)
        for block in basis.blocks
    ]
    found = multiply_blocks(inside, weights, basis)
    first, second = 0, 0  # 1-D irreps, and rows of 2-D irreps
    for irrep in irreps(name):
        if irrep.dim == 1:
            assert_near(found.dim1[first], inside.dim1[first] @ weights[0][first].T)
            first += 1
            continue
        for _ in range(irrep.copies):
            weight = weights[1][second // irrep.copies]
            expected = inside.dim2[second].flatten(1) @ weight.T
            assert_near(found.dim2[second].flatten(1), expected)
            second += 1
    assert (first, second) == (len(found.dim1), len(found.dim2))


@pytest.mark.parametrize("tokens", [32, 7])
def test_gradients_of_products_match_finite_differences(tokens):
    """First and second; the weight gradient of 32 tokens is summed in 16 splits, of 7 in one."""
    x = torch.randn(2, tokens, 3, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(2, 4, 3, dtype=torch.float64, requires_grad=True)
    assert_near(MultiplyBlocks.apply(x, weight), multiply(x, weight))
    assert torch.autograd.gradcheck(MultiplyBlocks.apply, (x, weight))
    assert torch.autograd.gradgradcheck(MultiplyBlocks.apply, (x, weight))


def test_autocast_casts_before_the_change_of_basis():
    """As for a matrix product; float64, which autocast does not cast, stays."""
    basis = IrrepBasis.of("D4", regular_basis("D4").matrix.float())
    x = torch.randn(4, 8, 3)
    assert to_irreps(x, basis).dim1.dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert to_irreps(x, basis).dim2.dtype == torch.bfloat16
        assert multiply(torch.randn(1, 2, 3), torch.randn(1, 4, 3)).dtype == torch.bfloat16
        assert rounded_by_autocast(x.double()).dtype == torch.float64


def test_products_return_contiguous_irreps():
    found = multiply_blocks(
        Irreps(torch.randn(4, 5, 3), torch.randn(2, 5, 2, 3)),
        [torch.randn(4, 6, 3), torch.randn(1, 12, 6)],
        IrrepBasis.of("D4", regular_basis("D4").matrix.float()),
    )
    assert found.dim1.shape == (4, 5, 6)
    assert found.dim2.shape == (2, 5, 2, 6)
    assert all(part.is_contiguous() for part in found)


def test_an_unknown_backend_raises_an_error():
    with pytest.raises(InputError, match=r"unknown backend 'tritn'. Did you mean 'triton'"):
        to_irreps(torch.zeros(1, 8, 3), basis_of("D4"), backend="tritn")
