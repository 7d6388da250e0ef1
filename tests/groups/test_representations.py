"""Irreps are irreducible and complete, and their basis block-diagonalises convolutions.

Letters:  g, m, u elements;  a row, b and c columns of an irrep's matrices.
"""

import itertools

import pytest
import torch

from turnwise.groups import PlanarGroup
from turnwise.groups.representations import irreps, regular_basis

NAMES = [f"C{n}" for n in range(1, 17)] + [f"D{n}" for n in range(1, 9)]


@pytest.fixture(params=NAMES)
def group(request):
    return PlanarGroup.named(request.param)


def assert_near(left, right):
    torch.testing.assert_close(left, right, rtol=0, atol=1e-12)


def identity(size):
    return torch.eye(size, dtype=torch.float64)


def characters(group):
    """Return the trace of every matrix of every irrep."""
    return torch.stack([i.matrices.diagonal(dim1=1, dim2=2).sum(dim=1) for i in irreps(group)])


def in_basis(basis, table, weight):
    """Return the matrix [g, m] -> W[table[g, m]] in the basis; a convolution has g⁻¹m."""
    return basis @ weight[table] @ basis.T


def by_blocks(group, weight):
    """Return the matrix with Σ_u W[u] ρ(u)[c, b] at row (ρ, a, c) and column (ρ, a, b), else 0."""
    out, first = torch.zeros(group.order, group.order, dtype=torch.float64), 0
    for irrep in irreps(group):
        for _ in range(irrep.copies):
            for c, b in itertools.product(range(irrep.dim), repeat=2):
                out[first + c, first + b] = sum(
                    weight[u] * irrep.matrices[u, c, b] for u in range(group.order)
                )
            first += irrep.dim
    assert first == group.order
    return out


def random_weight(group):
    return torch.randn(group.order, dtype=torch.float64)


def test_matrices_multiply_as_the_elements_do(group):
    for irrep in irreps(group):
        products = irrep.matrices[:, None] @ irrep.matrices[None, :]
        assert_near(irrep.matrices[group.product()], products)


def test_matrices_are_orthogonal(group):
    for irrep in irreps(group):
        assert_near(
            irrep.matrices @ irrep.matrices.mT, identity(irrep.dim).expand(group.order, -1, -1)
        )


def test_irreps_are_irreducible_and_inequivalent(group):
    """⟨χ, χ'⟩ is 0 for two irreps; for one, the dimension of its commutant, 1 or 2."""
    trace, kinds = characters(group), {"real": 1.0, "complex": 2.0}
    expected = torch.tensor([kinds[irrep.kind] for irrep in irreps(group)]).double()
    assert_near(trace @ trace.T / group.order, expected.diag())


def test_irreps_are_complete(group):
    """Σ dim² / (1 real | 2 complex) = |G|"""
    kinds = {"real": 1, "complex": 2}
    assert sum(i.dim**2 // kinds[i.kind] for i in irreps(group)) == group.order
    assert sum(i.dim * i.copies for i in irreps(group)) == group.order


def test_the_trivial_irrep_comes_first(group):
    assert torch.equal(irreps(group)[0].matrices, torch.ones(group.order, 1, 1).double())
    constant = regular_basis(group).matrix.sum(dim=1)
    assert_near(constant, group.order**0.5 * identity(group.order)[0])


def test_irreps_of_small_groups_are_those_of_character_tables():
    """Names by the signs of r and s."""
    names = {"C1": "A", "C2": "A B", "D1": "A1 A2", "D2": "A1 A2 B1 B2", "D3": "A1 A2 E1"}
    names |= {"D4": "A1 A2 B1 B2 E1", "C4": "A B E1", "C5": "A E1 E2", "D6": "A1 A2 B1 B2 E1 E2"}
    assert {n: " ".join(irrep.name for irrep in irreps(n)) for n in names} == names
    *irreps_1d, irrep_2d = irreps("D4")
    signs = {i.name: (i.matrices[1].item(), i.matrices[4].item()) for i in irreps_1d}
    assert signs == {"A1": (1, 1), "A2": (1, -1), "B1": (-1, 1), "B2": (-1, -1)}
    assert torch.equal(irrep_2d.matrices, PlanarGroup.named("D4").matrices())


def test_basis_is_orthogonal(group):
    basis = regular_basis(group).matrix
    assert_near(basis @ basis.T, identity(group.order))


def test_rows_of_the_basis_are_coefficients(group):
    """√(dim / |G|) ρ(m)[a, b], in the order of the blocks."""
    basis, left = regular_basis(group), iter(irreps(group))
    for block in basis.blocks:
        rows = basis.matrix[block.rows].unflatten(0, (block.count, block.copies, block.dim))
        for rows_of_irrep in rows:
            matrices = next(left).matrices
            for a, b in itertools.product(range(block.copies), range(block.dim)):
                assert_near(
                    rows_of_irrep[a, b], (block.dim / group.order) ** 0.5 * matrices[:, a, b]
                )
    assert not list(left)


def test_convolutions_are_block_diagonal_in_the_basis(group):
    basis, weight = regular_basis(group).matrix, random_weight(group)
    assert_near(in_basis(basis, group.relative(), weight), by_blocks(group, weight))


def test_control_other_tables_are_not_block_diagonal():
    """Neither m·g⁻¹, the convolution from the right, nor g·m."""
    group = PlanarGroup.named("D3")
    basis, weight = regular_basis(group).matrix, random_weight(group)
    from_the_right = group.product()[:, group.inverse()].T
    for wrong in (from_the_right, group.product()):
        difference = in_basis(basis, wrong, weight) - by_blocks(group, weight)
        assert difference.abs().max() > 0.1


def test_control_a_basis_of_inverses_does_not_block_diagonalise():
    """ρ(m⁻¹) instead of ρ(m) exchanges rows with columns, and copies with blocks."""
    group = PlanarGroup.named("D4")
    basis = regular_basis(group).matrix[:, group.inverse()]
    weight = random_weight(group)
    difference = in_basis(basis, group.relative(), weight) - by_blocks(group, weight)
    assert difference.abs().max() > 0.1


def test_multiplications_of_the_blocks():
    counts = {"C1": 1, "C4": 6, "C8": 14, "D1": 2, "D3": 10, "D4": 12, "D8": 28}
    found = {n: sum(b.multiplications for b in regular_basis(n).blocks) for n in counts}
    assert found == counts


def test_tables_are_cached_and_usable_in_training():
    with torch.inference_mode():
        basis = regular_basis("C13")
    assert regular_basis(PlanarGroup(13)) is basis
    assert irreps("p13") is irreps("C13")
    assert not basis.matrix.is_inference()
    assert not irreps("C13")[0].matrices.is_inference()
