"""Definition of the change of basis, of the products and of gelu in irreps; their precision.

Letters:  g, m elements;  row, col entries of Q.
"""

import pytest
import torch
import torch.nn.functional as F

from turnwise.errors import InputError
from turnwise.groups import PlanarGroup, act_on_regular
from turnwise.groups.representations import irreps, regular_basis
from turnwise.layers.transformer.irreps import (
    Irreps,
    MultiplyBlocks,
    PoseBasis,
    from_irreps,
    gelu_of_irreps,
    multiply,
    multiply_blocks,
    rounded_by_autocast,
    to_irreps,
)

GROUPS = pytest.mark.parametrize("name", ["C1", "C2", "C4", "C5", "D1", "D3", "D4", "D8"])


def basis_of(name):
    return PoseBasis.of(name, regular_basis(name).matrix)


def features(name, tokens=4, width=3):
    return torch.randn(tokens, PlanarGroup.named(name).order, width, dtype=torch.float64)


def as_rows(parts):
    """(token, row, channel), rows as in Q."""
    rows = [*parts.numbers, *(plane[:, b] for plane in parts.planes for b in range(2))]
    return torch.stack(rows, dim=1)


def assert_near(left, right, atol=1e-12):
    torch.testing.assert_close(left, right, rtol=0, atol=atol)


@GROUPS
def test_definition_of_the_change_of_basis(name):
    """Row by row as loops, and where each row lies; the way back undoes it."""
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
    moved = gelu_of_irreps(to_irreps(x, basis), bias + 1, basis)
    assert (moved.numbers - to_irreps(found, basis).numbers).abs().max() > 0.1


@pytest.mark.parametrize("name", ["D3", "D4", "C5"])
def test_law_of_gelu(name):
    """A turn of the poses turns the planes and the numbers' signs, before and after alike."""
    group, basis, x, bias = PlanarGroup.named(name), basis_of(name), features(name), torch.randn(3)
    outcome = gelu_of_irreps(to_irreps(x, basis), bias.double(), basis)
    for g in range(group.order):
        turned = to_irreps(act_on_regular(group, g, x), basis)
        expected = act_on_regular(group, g, from_irreps(outcome, basis))
        found = from_irreps(gelu_of_irreps(turned, bias.double(), basis), basis)
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
    number, plane = 0, 0
    for irrep in irreps(name):
        if irrep.dim == 1:
            assert_near(found.numbers[number], inside.numbers[number] @ weights[0][number].T)
            number += 1
            continue
        for _ in range(irrep.copies):
            weight = weights[1][plane // irrep.copies]
            expected = inside.planes[plane].flatten(1) @ weight.T
            assert_near(found.planes[plane].flatten(1), expected)
            plane += 1
    assert (number, plane) == (len(found.numbers), len(found.planes))


@pytest.mark.parametrize("tokens", [32, 7])
def test_products_whose_gradient_is_summed_in_shares(tokens):
    """32 tokens are cut into 16 shares, 7 are not; first and second gradients by differences."""
    x = torch.randn(2, tokens, 3, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(2, 4, 3, dtype=torch.float64, requires_grad=True)
    assert_near(MultiplyBlocks.apply(x, weight), multiply(x, weight))
    assert torch.autograd.gradcheck(MultiplyBlocks.apply, (x, weight))
    assert torch.autograd.gradgradcheck(MultiplyBlocks.apply, (x, weight))


def test_autocast_rounds_before_the_basis_changes():
    """As a matrix product would; float64, which autocast leaves alone, is left alone."""
    basis = PoseBasis.of("D4", regular_basis("D4").matrix.float())
    x = torch.randn(4, 8, 3)
    assert to_irreps(x, basis).numbers.dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert to_irreps(x, basis).planes.dtype == torch.bfloat16
        assert multiply(torch.randn(1, 2, 3), torch.randn(1, 4, 3)).dtype == torch.bfloat16
        assert rounded_by_autocast(x.double()).dtype == torch.float64


def test_parts_are_laid_out_as_products_take_them():
    found = multiply_blocks(
        Irreps(torch.randn(4, 5, 3), torch.randn(2, 5, 2, 3)),
        [torch.randn(4, 6, 3), torch.randn(1, 12, 6)],
        PoseBasis.of("D4", regular_basis("D4").matrix.float()),
    )
    assert found.numbers.shape == (4, 5, 6)
    assert found.planes.shape == (2, 5, 2, 6)
    assert all(part.is_contiguous() for part in found)


def test_unknown_backend():
    with pytest.raises(InputError, match=r"unknown backend 'tritn'. Did you mean 'triton'"):
        to_irreps(torch.zeros(1, 8, 3), basis_of("D4"), backend="tritn")
