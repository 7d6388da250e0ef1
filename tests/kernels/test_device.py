"""Kernels run on the device of their tensors, and CPU implementations where nothing is traced."""

import inspect
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch.autograd import forward_ad

import turnwise
from turnwise.kernels.device import (
    is_eager_on_cpu,
    is_transformed,
    needs_plain_backward,
    on_its_device,
    plain_gradients,
)


def doubled(x: torch.Tensor, times: int = 1) -> torch.Tensor:
    return x * 2**times


def test_the_operator_runs_with_the_device_of_its_first_tensor(monkeypatch):
    seen = []

    @contextmanager
    def device_of(tensor):
        seen.append(tensor)
        yield
        seen.append("left")

    monkeypatch.setattr(torch.cuda, "device_of", device_of)
    x = torch.ones(3)
    assert torch.equal(on_its_device(doubled)(x, times=2), 4 * x)
    assert seen[0] is x
    assert seen[1:] == ["left"]


def test_the_signature_is_kept_so_that_torch_can_read_its_types():
    assert inspect.signature(on_its_device(doubled)) == inspect.signature(doubled)
    x = torch.ones(3)
    assert torch.equal(on_its_device(doubled)(x), 2 * x)  # on a CPU nothing is switched


@pytest.mark.parametrize("operation", ["group_attention", "irreps", "roto"])
def test_every_operator_that_launches_kernels_sets_the_device(operation):
    path = Path(turnwise.__file__).parent / "kernels" / f"{operation}_launch.py"
    text = path.read_text(encoding="utf-8")
    assert text.count("@torch.library.custom_op(") == text.count("@on_its_device\n") > 0


class DoublesWhenTraced(torch.nn.Module):
    def forward(self, x):
        return x if is_eager_on_cpu(x) else 2 * x


def test_eager_on_cpu_is_false_elsewhere_and_where_operations_are_traced():
    x = torch.ones(2)
    assert is_eager_on_cpu(x) and not is_transformed()
    assert not is_eager_on_cpu(torch.ones(2, device="meta"))
    seen = []
    torch.func.vmap(lambda row: seen.append((is_eager_on_cpu(row), is_transformed())) or row)(x)
    assert seen == [(False, True)]
    with forward_ad.dual_level():
        assert is_transformed() and not is_eager_on_cpu(x)
    assert is_eager_on_cpu(x) and not is_transformed()
    exported = torch.export.export(DoublesWhenTraced(), (x,))
    assert torch.equal(exported.module()(x), 2 * x), "false during the export"


def test_a_backward_pass_that_is_differentiated_or_batched_must_be_plain():
    seen = []

    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, gradient):
            seen.append(needs_plain_backward(gradient))
            return 2 * gradient

    x = torch.ones(3, requires_grad=True)
    for how in ({}, {"create_graph": True}, {"is_grads_batched": True}):
        gradient = torch.eye(3) if "is_grads_batched" in how else torch.ones(3)
        torch.autograd.grad(Doubled.apply(x), x, gradient, **how)
    assert seen == [False, True, True]
    with torch.no_grad():
        assert not needs_plain_backward(x)
        with forward_ad.dual_level():
            assert needs_plain_backward(x)


def test_plain_gradients_can_be_differentiated_again_and_skip_what_needs_none():
    x, y, unused = (torch.tensor(v) for v in (2.0, 3.0, 5.0))
    x.requires_grad_(), unused.requires_grad_()
    found = plain_gradients(lambda x, y, unused: x**2 * y, (x, y, unused), torch.tensor(1.0))
    assert found[1] is None and found[2] is None
    assert found[0] == 12
    assert torch.autograd.grad(found[0], x)[0] == 6
