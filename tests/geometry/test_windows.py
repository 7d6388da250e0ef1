"""Windows are those of a loop, and their basis of irreps gives all rotated responses."""

import shutil
import subprocess
import sys

import pytest
import torch

from turnwise.errors import InputError
from turnwise.geometry.windows import tiles_of, window_basis, windows_of
from turnwise.groups import GRID_GROUPS, PlanarGroup, act_on_image
from turnwise.groups.representations import irreps

SIZES = pytest.mark.parametrize(("side", "stride"), [(1, 1), (2, 2), (3, 1), (3, 2), (4, 3)])


def maps():
    return torch.randn(2, 3, 7, 9, dtype=torch.float64)


@SIZES
@pytest.mark.parametrize("requires_grad", [False, True])
def test_windows_are_those_of_a_loop(side, stride, requires_grad):
    x = maps().requires_grad_(requires_grad)
    found = windows_of(x, side, stride)
    assert found.shape == (2, 3, (7 - side) // stride + 1, (9 - side) // stride + 1, side, side)
    for row in range(found.shape[2]):
        for col in range(found.shape[3]):
            top, left = row * stride, col * stride
            expected = x[:, :, top : top + side, left : left + side]
            assert torch.equal(found[:, :, row, col], expected)


@SIZES
def test_gradients_of_windows(side, stride):
    x = maps()[:1, :1].requires_grad_()
    assert torch.autograd.gradcheck(lambda x: windows_of(x, side, stride), [x])


def test_an_empty_batch_has_no_windows():
    assert windows_of(torch.rand(0, 3, 5, 5), 3, 2).shape == (0, 3, 2, 2, 3, 3)


@SIZES
def test_tiles_are_windows_with_their_channels_last(side, stride):
    x = maps()
    tiles = tiles_of(x.permute(0, 2, 3, 1), side, stride)
    assert torch.equal(tiles, windows_of(x, side, stride).permute(0, 2, 3, 4, 5, 1))
    assert tiles.is_contiguous()


@SIZES
def test_first_and_second_gradients_of_tiles(side, stride):
    x = maps()[:1, :2].permute(0, 2, 3, 1).contiguous().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: tiles_of(x, side, stride), [x])
    assert torch.autograd.gradgradcheck(lambda x: tiles_of(x, side, stride).square(), [x])


def test_tiles_under_torch_func():
    x = maps().permute(0, 2, 3, 1).contiguous()

    def loss(x):
        return tiles_of(x, 3, 2).square().sum()

    y = x.clone().requires_grad_()
    torch.testing.assert_close(torch.func.grad(loss)(x), torch.autograd.grad(loss(y), y)[0])
    alone = torch.func.vmap(lambda one: tiles_of(one[None], 3, 2)[0])(x)
    assert torch.equal(alone, tiles_of(x, 3, 2))


COMPILED = """
import torch
from turnwise.geometry.windows import tiles_of, windows_of

def loss(x):
    taps = windows_of(x, 3, 2).permute(4, 5, 0, 2, 3, 1).flatten(2, 4).flatten(0, 1)
    return (taps @ product).square().sum()

product = torch.randn(3, 2, dtype=torch.float64)
x = torch.randn(2, 3, 7, 9, dtype=torch.float64, requires_grad=True)
(plain,) = torch.autograd.grad(loss(x), x)
(compiled,) = torch.autograd.grad(torch.compile(loss)(x), x)
torch.testing.assert_close(compiled, plain, rtol=1e-12, atol=1e-12)

def transposed(x):  # the shape for which torch's compiler wrote out of bounds
    wide = torch.nn.functional.pad(x, (0, 0, 2, 2, 2, 2))
    tiles = tiles_of(wide, 12, 8).flatten(3, 4).flatten(0, 2)
    return (tiles.mT @ tiles).square().sum()

x = torch.randn(3, 8, 8, 8, dtype=torch.float64, requires_grad=True)
(plain,) = torch.autograd.grad(transposed(x), x)
(compiled,) = torch.autograd.grad(torch.compile(transposed)(x), x)
torch.testing.assert_close(compiled, plain, rtol=1e-12, atol=1e-12)
"""


@pytest.mark.skipif(
    not shutil.which("c++") or " " in torch.__file__,
    reason="torch.compile needs a C++ compiler, and torch in a path without spaces",
)
def test_compiled_gradients_of_windows():
    """Those of `Tensor.unfold` are wrong.  (The type checks of the tests break compiling.)"""
    subprocess.run([sys.executable, "-c", COMPILED], check=True)


KERNELS = [1, 2, 3, 4, 5, 8]


def irrep_matrices(basis):
    """Return the irreps of the rows as block-diagonal matrices, (group, row, row)."""
    blocks, at = [], 0
    for dim, copies in basis.blocks:
        rho = basis.responses[:, at : at + dim**2].unflatten(1, (dim, dim))
        same = torch.eye(copies, dtype=torch.float64)
        blocks.append([torch.kron(matrix.contiguous(), same) for matrix in rho])
        at += dim**2
    return torch.stack([torch.block_diag(*matrices) for matrices in zip(*blocks, strict=True)])


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", GRID_GROUPS)
def test_coefficients_of_windows_are_equivariant(name, kernel):
    basis, group = window_basis(name, kernel), PlanarGroup.named(name)
    window = torch.randn(1, kernel, kernel, dtype=torch.float64)
    for g, rho in enumerate(irrep_matrices(basis)):
        rotated = act_on_image(group, g, window).flatten()
        expected = rho @ basis.for_window @ window.flatten()
        torch.testing.assert_close(basis.for_window @ rotated, expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", GRID_GROUPS)
def test_rows_are_integers_and_the_rows_of_the_filter_invert_them(name, kernel):
    basis = window_basis(name, kernel)
    assert set(basis.for_window.unique().tolist()) <= {-1.0, 0.0, 1.0}
    assert torch.equal(basis.for_filter.T @ basis.for_window, torch.eye(kernel**2).double())
    halves = basis.for_filter[basis.for_filter > 0].log2()
    assert torch.equal(halves, halves.round()), "powers of two are exact in every precision"


def test_multiplications_are_those_of_the_reference():
    """1.5 k² for even sides under D4, 1.5 k² − 0.5 for odd ones; only 1-D irreps cost k²."""
    blocks = {k: [copies for _, copies in window_basis("D4", k).blocks] for k in (4, 7, 8)}
    assert blocks == {4: [3, 1, 1, 3, 4], 7: [10, 3, 6, 6, 12], 8: [10, 6, 6, 10, 16]}
    assert [window_basis("D4", k).multiplications for k in (2, 3, 4, 7)] == [6, 13, 24, 73]
    assert window_basis("D2", 4).multiplications == 16


def test_an_irrep_that_the_window_does_not_contain_costs_nothing():
    assert len(irreps("D4")) == 5
    assert window_basis("D4", 1).blocks == ((1, 1),)
    assert window_basis("D4", 2).blocks == ((1, 1), (1, 1), (2, 1))


def test_control_the_basis_of_another_group_is_not_equivariant():
    matrix = window_basis("D2", 2).for_window
    window = torch.randn(1, 2, 2, dtype=torch.float64)
    rotated = act_on_image("D4", 1, window).flatten()
    ratio = (matrix @ rotated) / (matrix @ window.flatten())
    assert (ratio.abs() - 1).abs().max() > 0.1, "a rotation by 90° mixes rows that D2 does not"


def test_a_group_that_does_not_preserve_the_grid_is_rejected():
    with pytest.raises(InputError, match="C8 does not map pixels to pixels"):
        window_basis("C8", 3)
    with pytest.raises(InputError, match="kernel = 0 must be at least 1"):
        window_basis("C4", 0)
