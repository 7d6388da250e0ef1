"""Attention by relative position: the formula as loops, circular shifts, gradients, backends."""

import itertools

import pytest
import torch

from turnwise.attention.clipped import (
    attend_by_position,
    gather_in_tiles,
    gather_near,
    near_steps,
)
from turnwise.errors import InputError

WRAP = pytest.mark.parametrize("wrap", [False, True])


def inputs(rows=5, cols=6, reach=2, dim=3, features=4):
    steps = near_steps(reach)
    query = torch.rand(2, 2, rows, cols, features, dtype=torch.float64)
    near = torch.rand(len(steps), features, dtype=torch.float64)
    far = torch.rand(features, dtype=torch.float64)
    value = torch.randn(2, 2, rows, cols, dim + 1, dtype=torch.float64)
    value[..., -1] = 1
    return query, near, far, value, steps


def attend(query, near, far, value, steps, wrap, backend="auto"):
    everything = value.sum(dim=(2, 3))
    return attend_by_position(
        query, near, far, value, steps, everything=everything, wrap=wrap, backend=backend
    )


@pytest.mark.parametrize(("reach", "count"), [(1, 1), (2, 5), (3, 13), (8, 113)])
def test_near_steps(reach, count):
    steps = near_steps(reach)
    assert len(set(steps)) == len(steps) == count == 2 * reach**2 - 2 * reach + 1
    assert all(abs(row) + abs(col) < reach for row, col in steps)


@WRAP
@pytest.mark.parametrize("backend", ["plain", "tiles"])
def test_definition(wrap, backend):
    """Pair by pair, on a rectangle."""
    query, near, far, value, steps = inputs()
    out = attend(query, near, far, value, steps, wrap, backend)
    table = dict(zip(steps, near, strict=True))
    pixels = list(itertools.product(range(5), range(6)))
    for row, col in pixels:
        above, below = 0.0, 0.0
        for r, c in pixels:
            step = (r - row, c - col)
            if wrap:
                step = ((step[0] + 2) % 5 - 2, (step[1] + 3) % 6 - 3)
            weight = query[:, :, row, col] @ table.get(step, far)
            above = above + weight[..., None] * value[:, :, r, c, :-1]
            below = below + weight[..., None]
        torch.testing.assert_close(out[:, :, row, col], above / below)


@pytest.mark.parametrize("backend", ["plain", "tiles"])
def test_equivariance_to_circular_shifts_and_control_without_wrapping(backend):
    query, near, far, value, steps = inputs()
    for wrap, exact in ((True, True), (False, False)):
        out = attend(query, near, far, value, steps, wrap, backend)
        rolled = [x.roll((2, -1), dims=(2, 3)) for x in (query, value, out)]
        shifted = attend(rolled[0], near, far, rolled[1], steps, wrap, backend)
        assert ((shifted - rolled[2]).abs().max() < 1e-12) == exact


def test_witness_the_output_depends_on_the_direction_of_a_step():
    query, near, far, value, steps = inputs()
    out = attend(query, near, far, value, steps, True)
    reversed_steps = attend(query, near.flip(0), far, value, steps, True)
    assert (out - reversed_steps).abs().max() > 1e-3


@WRAP
def test_gradients_match_finite_differences(wrap):
    query, near, far, value, steps = inputs(3, 4)
    given = [x.clone().requires_grad_() for x in (query[:1, :1], near, far, value[:1, :1])]
    assert torch.autograd.gradcheck(lambda *tensors: attend(*tensors, steps, wrap), given)


@WRAP
@pytest.mark.parametrize("shape", [(5, 6), (8, 8), (9, 17), (24, 13)])
@pytest.mark.parametrize("reach", [1, 2, 4])
def test_tiles_match_shifted_products_forward_and_backward(shape, reach, wrap):
    query, near, _, value, steps = inputs(*shape, reach=reach)
    given = [x.requires_grad_() for x in (query, near, value)]
    plain = gather_near(query @ near.mT, value, steps, wrap=wrap)
    tiled = gather_in_tiles(query, near, value, steps, wrap=wrap)
    torch.testing.assert_close(tiled, plain, rtol=1e-12, atol=1e-12)
    gradient = torch.randn_like(plain)
    for a, b in zip(
        torch.autograd.grad(tiled, given, gradient),
        torch.autograd.grad(plain, given, gradient),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)


def test_other_lists_of_steps_use_shifted_products():
    query, near, far, value, steps = inputs()
    expected = attend(query, near, far, value, steps, True)
    order = torch.randperm(len(steps)).tolist()
    shuffled = (query, near[order], far, value, [steps[n] for n in order])
    torch.testing.assert_close(attend(*shuffled, True), expected)
    with pytest.raises(InputError, match="all near steps, in order"):
        attend(*shuffled, True, "tiles")


def test_an_unknown_backend_raises_an_error():
    with pytest.raises(InputError, match="backend"):
        attend(*inputs(), True, "fast")


def test_shifted_products_store_nothing_of_size_tokens_times_steps_times_channels():
    steps = near_steps(4)
    weight = torch.rand(1, 1, 8, 8, len(steps), requires_grad=True)
    value = torch.rand(1, 1, 8, 8, 16, requires_grad=True)
    storages = {}

    def note(tensor):
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        gather_near(weight, value, steps, wrap=True)
    assert sum(storages.values()) < 4 * 64 * len(steps) * 16 / 4
