"""Streamed FAVOR+ attention computes the values and gradients of the formula, and stores less."""

from functools import partial

import pytest
import torch

from turnwise.attention.favor import attend_by_favor, feature_count, orthogonal_projection
from turnwise.kernels import favor_streaming
from turnwise.kernels.favor_streaming import stream_favor

EPSILON = 1e-6
FORMULA = partial(attend_by_favor, backend="plain")


def stream(query, key, value, projection):
    return stream_favor(query, key, value, projection, EPSILON, FORMULA)


IMPLEMENTATIONS = {"plain": FORMULA, "streaming": stream}


def tensors(batch=2, heads=3, tokens=7, dim=4, dim_out=5, std=1.0):
    """Queries, keys and values as layers make them: heads split from channels, not contiguous."""
    sizes = (dim, dim, dim_out)
    made = (torch.randn(batch, tokens, heads, size, dtype=torch.float64) for size in sizes)
    return [std * x.transpose(1, 2) for x in made]


def rows(dim=4):
    generator = torch.Generator().manual_seed(0)
    return orthogonal_projection(feature_count(dim), dim, generator)


def output_and_gradients(name, given, projection):
    """Return the output, and the gradients of a sum in which every entry has another weight."""
    leaves = [x.clone().requires_grad_() for x in given]
    mixed = IMPLEMENTATIONS[name](*leaves, projection)
    weights = torch.linspace(-1, 1, mixed.numel(), dtype=mixed.dtype).view(mixed.shape)
    return mixed.detach(), *torch.autograd.grad((mixed * weights).sum(), leaves)


@pytest.mark.parametrize("max_features", [1, 50, 1 << 19])
@pytest.mark.parametrize("std", [0.1, 1.0, 5.0])
def test_streamed_and_plain_agree_forward_and_backward(monkeypatch, max_features, std):
    """For chunks of any size."""
    monkeypatch.setattr(favor_streaming, "MAX_FEATURES", max_features)
    given, projection = tensors(std=std), rows()
    plain, streamed = (output_and_gradients(n, given, projection) for n in IMPLEMENTATIONS)
    for one, other in zip(plain, streamed, strict=True):
        assert one.abs().max() > 1e-6
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_chunks_cover_the_batch_once(monkeypatch):
    (_, key, _), projection = tensors(batch=5), rows()
    for images in (1, 2, 5):
        monkeypatch.setattr(favor_streaming, "MAX_FEATURES", images * 3 * 7 * len(projection))
        chunks = favor_streaming._chunks(key, projection)
        assert len(chunks) == -(-5 // images)
        assert torch.equal(torch.cat([key[chunk] for chunk in chunks]), key)


def test_definition():
    """The formula as loops."""
    (query, key, value), projection = tensors(batch=1, heads=1), rows()
    scale = 4**-0.25
    of_queries, of_keys = (
        [
            [float(w @ (x * scale) - (x * scale).square().sum() / 2) for w in projection]
            for x in side[0, 0]
        ]
        for side in (query, key)
    )
    top = max(max(row) for row in of_keys)
    keys = [[torch.tensor(e - top).exp().item() + EPSILON for e in row] for row in of_keys]
    found = stream(query, key, value, projection)
    for token, row in enumerate(of_queries):
        features = [torch.tensor(e - max(row)).exp().item() for e in row]
        weight = [sum(a * b for a, b in zip(features, other, strict=True)) for other in keys]
        expected = sum(w * v for w, v in zip(weight, value[0, 0], strict=True)) / sum(weight)
        torch.testing.assert_close(found[0, 0, token], expected, rtol=1e-6, atol=1e-8)


def stored_numbers(call):
    stored = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda x: stored.append(x.numel()) or x, lambda x: x
    ):
        call()
    return sum(stored)


def test_it_stores_the_features_once_and_nothing_else_of_their_size():
    """The inputs, the output, the features and sums: at most two thirds of the formula."""
    given, projection = [x.requires_grad_() for x in tensors(tokens=50)], rows()
    plain, streamed = (
        stored_numbers(lambda run=run: run(*given, projection)) for run in IMPLEMENTATIONS.values()
    )
    heads, features, dim_out = 2 * 3, 5, 5
    state, totals, epsilons = heads * features * (dim_out + 1), heads * 50, heads
    known = sum(x.numel() for x in (*given, projection)) + heads * 50 * dim_out
    assert streamed == known + 2 * heads * 50 * features + state + totals + epsilons
    assert streamed < 0.67 * plain
    with torch.no_grad():
        assert stored_numbers(lambda: stream(*given, projection)) == 0


@pytest.mark.parametrize("max_features", [1, 1 << 19])
def test_there_may_be_fewer_queries_than_keys(monkeypatch, max_features):
    monkeypatch.setattr(favor_streaming, "MAX_FEATURES", max_features)
    (query, key, value), projection = tensors(), rows()
    given = (query[:, :, :1], key, value)
    plain, streamed = (output_and_gradients(n, given, projection) for n in IMPLEMENTATIONS)
    for one, other in zip(plain, streamed, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_gradients_can_be_differentiated_again():
    given = [x.clone().requires_grad_() for x in tensors(batch=1, heads=1, tokens=3)]
    projection = rows()
    assert torch.autograd.gradcheck(lambda *x: stream(*x, projection), given)
    assert torch.autograd.gradgradcheck(lambda *x: stream(*x, projection), given)


def test_a_batch_of_gradients_is_computed_at_once():
    """As `torch.autograd.functional.jacobian(..., vectorize=True)` does."""
    (query, key, value), projection = tensors(batch=1, heads=1, tokens=3), rows()
    jacobians = {
        name: torch.autograd.functional.jacobian(
            lambda x, run=run: run(x, key, value, projection), query, vectorize=True
        )
        for name, run in IMPLEMENTATIONS.items()
    }
    assert jacobians["plain"].abs().max() > 1e-3
    torch.testing.assert_close(jacobians["streaming"], jacobians["plain"])


def test_the_heads_of_a_token_are_adjacent():
    """The layer merges them without a copy."""
    mixed = stream(*tensors(), rows())
    assert mixed.transpose(1, 2).is_contiguous()


def test_half_precision_is_summed_in_single():
    given, projection = tensors(tokens=40), rows()
    exact = FORMULA(*given, projection)
    coarse = stream(*(x.bfloat16() for x in given), projection)
    assert coarse.dtype == torch.bfloat16
    assert (coarse - exact).norm() / exact.norm() < 0.02


def test_images_of_a_batch_do_not_affect_each_other():
    given, projection = tensors(), rows()
    together = stream(*given, projection)
    alone = stream(*(x[:1] for x in given), projection)
    torch.testing.assert_close(together[:1], alone)
    assert not torch.equal(together[0], together[1])
