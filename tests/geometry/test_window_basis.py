"""The taps of a window fall apart into irreps, whose products give all turned answers."""

import pytest
import torch

from turnwise.errors import InputError
from turnwise.geometry.window_basis import window_basis
from turnwise.groups import GRID_GROUPS, PlanarGroup, act_on_image
from turnwise.groups.representations import irreps

KERNELS = [1, 2, 3, 4, 5, 8]


def of_irreps(basis):
    """The products' irreps as block-diagonal matrices, one for each element: (group, row, row)."""
    blocks, at = [], 0
    for dim, copies in basis.blocks:
        rho = basis.answers[:, at : at + dim**2].unflatten(1, (dim, dim))
        same = torch.eye(copies, dtype=torch.float64)
        blocks.append([torch.kron(matrix.contiguous(), same) for matrix in rho])
        at += dim**2
    return torch.stack([torch.block_diag(*matrices) for matrices in zip(*blocks, strict=True)])


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", GRID_GROUPS)
def test_law_turned_windows_have_turned_coefficients(name, kernel):
    basis, group = window_basis(name, kernel), PlanarGroup.named(name)
    window = torch.randn(1, kernel, kernel, dtype=torch.float64)
    for g, rho in enumerate(of_irreps(basis)):
        turned = act_on_image(group, g, window).flatten()
        expected = rho @ basis.for_window @ window.flatten()
        torch.testing.assert_close(basis.for_window @ turned, expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", GRID_GROUPS)
def test_rows_are_whole_numbers_and_the_filters_rows_undo_them(name, kernel):
    basis = window_basis(name, kernel)
    assert set(basis.for_window.unique().tolist()) <= {-1.0, 0.0, 1.0}
    assert torch.equal(basis.for_filter.T @ basis.for_window, torch.eye(kernel**2).double())
    halves = basis.for_filter[basis.for_filter > 0].log2()
    assert torch.equal(halves, halves.round()), "powers of two are exact in every precision"


def test_multiplications_are_those_of_the_reference():
    """1.5 k² for even sides under D4, half a product less for odd ones; numbers alone cost k²."""
    blocks = {k: [copies for _, copies in window_basis("D4", k).blocks] for k in (4, 7, 8)}
    assert blocks == {4: [3, 1, 1, 3, 4], 7: [10, 3, 6, 6, 12], 8: [10, 6, 6, 10, 16]}
    assert [window_basis("D4", k).multiplications for k in (2, 3, 4, 7)] == [6, 13, 24, 73]
    assert window_basis("D2", 4).multiplications == 16


def test_an_irrep_that_the_window_lacks_costs_nothing():
    assert len(irreps("D4")) == 5
    assert window_basis("D4", 1).blocks == ((1, 1),)
    assert window_basis("D4", 2).blocks == ((1, 1), (1, 1), (2, 1))


def test_control_the_basis_of_another_group_does_not_serve():
    matrix = window_basis("D2", 2).for_window
    window = torch.randn(1, 2, 2, dtype=torch.float64)
    turned = act_on_image("D4", 1, window).flatten()
    ratio = (matrix @ turned) / (matrix @ window.flatten())
    assert (ratio.abs() - 1).abs().max() > 0.1, "a turn mixes rows that D2 keeps apart"


def test_a_group_off_the_grid_is_refused():
    with pytest.raises(InputError, match="C8 does not map pixels to pixels"):
        window_basis("C8", 3)
    with pytest.raises(InputError, match="kernel = 0 must be at least 1"):
        window_basis("C4", 0)
