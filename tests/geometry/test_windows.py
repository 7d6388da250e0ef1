"""Windows are those of the loops, and their compiled gradients those of the formula."""

import shutil
import subprocess
import sys

import pytest
import torch

from turnwise.geometry.windows import tiles_of, windows_of

SIZES = pytest.mark.parametrize(("side", "stride"), [(1, 1), (2, 2), (3, 1), (3, 2), (4, 3)])


def maps():
    return torch.randn(2, 3, 7, 9, dtype=torch.float64)


@SIZES
@pytest.mark.parametrize("trained", [False, True])
def test_definition(side, stride, trained):
    x = maps().requires_grad_(trained)
    found = windows_of(x, side, stride)
    assert found.shape == (2, 3, (7 - side) // stride + 1, (9 - side) // stride + 1, side, side)
    for row in range(found.shape[2]):
        for col in range(found.shape[3]):
            top, left = row * stride, col * stride
            expected = x[:, :, top : top + side, left : left + side]
            assert torch.equal(found[:, :, row, col], expected)


@SIZES
def test_gradients(side, stride):
    x = maps()[:1, :1].requires_grad_()
    assert torch.autograd.gradcheck(lambda x: windows_of(x, side, stride), [x])


def test_no_maps_no_windows():
    assert windows_of(torch.rand(0, 3, 5, 5), 3, 2).shape == (0, 3, 2, 2, 3, 3)


@SIZES
def test_tiles_are_windows_with_their_channels_last(side, stride):
    x = maps()
    tiles = tiles_of(x.permute(0, 2, 3, 1), side, stride)
    assert torch.equal(tiles, windows_of(x, side, stride).permute(0, 2, 3, 4, 5, 1))
    assert tiles.is_contiguous()


@SIZES
def test_gradients_of_tiles_and_of_these(side, stride):
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

def answer(x):
    taps = windows_of(x, 3, 2).permute(4, 5, 0, 2, 3, 1).flatten(2, 4).flatten(0, 1)
    return (taps @ product).square().sum()

product = torch.randn(3, 2, dtype=torch.float64)
x = torch.randn(2, 3, 7, 9, dtype=torch.float64, requires_grad=True)
(plain,) = torch.autograd.grad(answer(x), x)
(compiled,) = torch.autograd.grad(torch.compile(answer)(x), x)
torch.testing.assert_close(compiled, plain, rtol=1e-12, atol=1e-12)

def transposed(x):  # the shape in which torch's compiler wrote past the end of a scattered sum
    wide = torch.nn.functional.pad(x, (0, 0, 2, 2, 2, 2))
    tiles = tiles_of(wide, 12, 8).flatten(3, 4).flatten(0, 2)
    return (tiles.mT @ tiles).square().sum()

x = torch.randn(3, 8, 8, 8, dtype=torch.float64, requires_grad=True)
(plain,) = torch.autograd.grad(transposed(x), x)
(compiled,) = torch.autograd.grad(torch.compile(transposed)(x), x)
torch.testing.assert_close(compiled, plain, rtol=1e-12, atol=1e-12)
"""


@pytest.mark.skipif(not shutil.which("c++"), reason="torch.compile needs a compiler here")
def test_compiled_gradients_of_a_product_of_windows():
    """Where those of `Tensor.unfold` are wrong.  Without the type checks of the tests, as always
    where something is compiled."""
    subprocess.run([sys.executable, "-c", COMPILED], check=True)
