"""When lean ways may be taken, and what gradients they give where these are differentiated."""

import torch
from torch.autograd import forward_ad

from turnwise.attention.lean import gradients_of, may_be_lean, must_be_plain


def test_on_a_cpu_and_where_nothing_is_traced():
    x = torch.ones(2)
    assert may_be_lean(x)
    assert not may_be_lean(torch.ones(2, device="meta"))
    seen = []
    torch.func.vmap(lambda row: seen.append(may_be_lean(row)) or row)(x)
    assert seen == [False]
    with forward_ad.dual_level():
        assert not may_be_lean(x)
    assert may_be_lean(x)
    exported = torch.export.export(Asking(), (x,))
    assert torch.equal(exported.module()(x), 2 * x), "it was told no while it was exported"


class Asking(torch.nn.Module):
    def forward(self, x):
        return x if may_be_lean(x) else 2 * x


def test_backward_passes_that_must_be_plain():
    seen = []

    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, gradient):
            seen.append(must_be_plain(gradient))
            return 2 * gradient

    x = torch.ones(3, requires_grad=True)
    for how in ({}, {"create_graph": True}, {"is_grads_batched": True}):
        gradient = torch.eye(3) if "is_grads_batched" in how else torch.ones(3)
        torch.autograd.grad(Doubled.apply(x), x, gradient, **how)
    assert seen == [False, True, True]


def test_gradients_of_what_wants_them():
    x, y, unused = (torch.tensor(v) for v in (2.0, 3.0, 5.0))
    x.requires_grad_(), unused.requires_grad_()
    found = gradients_of(lambda x, y, unused: x**2 * y, (x, y, unused), torch.tensor(1.0))
    assert found[1] is None and found[2] is None
    assert found[0] == 12
    assert torch.autograd.grad(found[0], x)[0] == 6, "and can be differentiated again"
