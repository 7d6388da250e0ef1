"""Dense attention: the formula as loops, and the fused kernels against it."""

import math

import pytest
import torch

from turnwise.attention.dense import attend
from turnwise.errors import InputError


def parts(bias=True, dtype=torch.float64):
    query, key = torch.randn(2, 3, 4, 5, dtype=dtype), torch.randn(2, 3, 6, 5, dtype=dtype)
    value = torch.randn(2, 3, 6, 7, dtype=dtype)
    return [query, key, value, torch.randn(1, 3, 4, 6, dtype=dtype) if bias else None]


@pytest.mark.parametrize("bias", [True, False])
def test_definition(bias):
    """softmax(q·k / √dim + bias) · v, one token at a time."""
    query, key, value, extra = parts(bias)
    out = attend(query, key, value, extra, backend="plain")
    for b, h, t in torch.cartesian_prod(*(torch.arange(n) for n in (2, 3, 4))).tolist():
        scores = [float(query[b, h, t] @ key[b, h, s]) / math.sqrt(5) for s in range(6)]
        if bias:
            scores = [score + float(extra[0, h, t, s]) for s, score in enumerate(scores)]
        weights = [math.exp(score) for score in scores]
        expected = sum(w * value[b, h, s] for s, w in enumerate(weights)) / sum(weights)
        torch.testing.assert_close(out[b, h, t], expected)


@pytest.mark.parametrize("bias", [True, False])
def test_fused_kernels_match_the_formula_forward_and_backward(bias):
    inputs = [x.requires_grad_() if x is not None else None for x in parts(bias)]
    given = [x for x in inputs if x is not None]
    out = {name: attend(*inputs, backend=name) for name in ("plain", "sdpa", "auto")}
    grads = {name: torch.autograd.grad(y.square().sum(), given) for name, y in out.items()}
    for name in ("sdpa", "auto"):
        torch.testing.assert_close(out[name], out["plain"])
        torch.testing.assert_close(grads[name], grads["plain"])


def test_an_unknown_backend_raises_an_error():
    with pytest.raises(InputError, match=r"unknown backend 'spda'\. Did you mean 'sdpa'\?"):
        attend(*parts(), backend="spda")
