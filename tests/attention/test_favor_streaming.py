"""The streamed form gives the numbers and the gradients of the plain one, and keeps little."""

import pytest
import torch

from turnwise.attention import favor_streaming
from turnwise.attention.favor import feature_count, orthogonal_projection
from turnwise.attention.favor_streaming import attend_by_favor
from turnwise.errors import InputError


def tensors(batch=2, heads=3, tokens=7, dim=4, dim_out=5, spread=1.0):
    """Queries, keys and values as layers make them: heads split from channels, not contiguous."""
    torch.manual_seed(0)
    sizes = (dim, dim, dim_out)
    made = (torch.randn(batch, tokens, heads, size, dtype=torch.float64) for size in sizes)
    return [spread * x.transpose(1, 2) for x in made]


def rows(dim=4):
    generator = torch.Generator().manual_seed(0)
    return orthogonal_projection(feature_count(dim), dim, generator)


def answers(backend, given, projection):
    """The output, and the gradients of a sum that weighs every entry differently."""
    leaves = [x.clone().requires_grad_() for x in given]
    mixed = attend_by_favor(*leaves, projection, backend=backend)
    weights = torch.linspace(-1, 1, mixed.numel(), dtype=mixed.dtype).view(mixed.shape)
    return mixed.detach(), *torch.autograd.grad((mixed * weights).sum(), leaves)


@pytest.mark.parametrize("at_once", [1, 50, 1 << 19])
@pytest.mark.parametrize("spread", [0.1, 1.0, 5.0])
def test_streamed_and_plain_agree_forward_and_backward(monkeypatch, at_once, spread):
    """However many lanes are taken at a time."""
    monkeypatch.setattr(favor_streaming, "AT_ONCE", at_once)
    given, projection = tensors(spread=spread), rows()
    plain, streamed = (answers(b, given, projection) for b in ("plain", "streaming"))
    for one, other in zip(plain, streamed, strict=True):
        assert one.abs().max() > 1e-6
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_definition():
    """The formula as loops, on queries of another number of tokens than would hide a transpose."""
    (query, key, value), projection = tensors(batch=1, heads=1), rows()
    scale = 4**-0.25
    exponents = [
        [
            [float(w @ (x * scale) - (x * scale).square().sum() / 2) for w in projection]
            for x in side
        ]
        for side in (query[0, 0], key[0, 0])
    ]
    top = max(max(row) for row in exponents[1])
    asked = [[torch.tensor(e - top).exp().item() + 1e-6 for e in row] for row in exponents[1]]
    found = attend_by_favor(query, key, value, projection, backend="streaming")
    for token, row in enumerate(exponents[0]):
        asking = [torch.tensor(e - max(row)).exp().item() for e in row]
        weight = [sum(a * b for a, b in zip(asking, other, strict=True)) for other in asked]
        expected = sum(w * v for w, v in zip(weight, value[0, 0], strict=True)) / sum(weight)
        torch.testing.assert_close(found[0, 0, token], expected, rtol=1e-6, atol=1e-8)


def kept_numbers(call):
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda x: kept.append(x.numel()) or x, lambda x: x
    ):
        call()
    return sum(kept)


def test_of_the_size_of_the_features_nothing_else_is_kept():
    """What came in, what goes out, the features, and sums: two thirds of the plain way, or less."""
    given, projection = [x.requires_grad_() for x in tensors(tokens=50)], rows()
    streamed, plain = (
        kept_numbers(lambda b=b: attend_by_favor(*given, projection, backend=b))
        for b in ("streaming", "plain")
    )
    lanes, features, dim_out = 2 * 3, 5, 5
    state, totals, epsilons = lanes * features * (dim_out + 1), lanes * 50, lanes
    known = sum(x.numel() for x in (*given, projection)) + lanes * 50 * dim_out
    assert streamed == known + 2 * lanes * 50 * features + state + totals + epsilons
    assert streamed < 0.67 * plain
    with torch.no_grad():
        assert kept_numbers(lambda: attend_by_favor(*given, projection)) == 0


@pytest.mark.parametrize("at_once", [1, 1 << 19])
def test_fewer_tokens_may_ask_than_answer(monkeypatch, at_once):
    monkeypatch.setattr(favor_streaming, "AT_ONCE", at_once)
    (query, key, value), projection = tensors(), rows()
    given = (query[:, :, :1], key, value)
    plain, streamed = (answers(b, given, projection) for b in ("plain", "streaming"))
    for one, other in zip(plain, streamed, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_gradients_can_be_differentiated_again():
    given = [x.clone().requires_grad_() for x in tensors(batch=1, heads=1, tokens=3)]
    projection = rows()
    assert torch.autograd.gradgradcheck(lambda *x: attend_by_favor(*x, projection), given)


def test_the_heads_of_a_token_lie_side_by_side():
    """As the layer that follows wants them: merged without a copy."""
    mixed = attend_by_favor(*tensors(), rows())
    assert mixed.transpose(1, 2).is_contiguous()


def test_half_precision_is_summed_in_single():
    given, projection = tensors(tokens=40), rows()
    truth = attend_by_favor(*given, projection, backend="plain")
    coarse = attend_by_favor(*(x.bfloat16() for x in given), projection, backend="streaming")
    assert coarse.dtype == torch.bfloat16
    assert (coarse - truth).norm() / truth.norm() < 0.02


def test_pictures_do_not_hear_each_other():
    given, projection = tensors(), rows()
    together = attend_by_favor(*given, projection)
    alone = attend_by_favor(*(x[:1] for x in given), projection)
    torch.testing.assert_close(together[:1], alone)
    assert not torch.equal(together[0], together[1])


def test_auto_streams_on_a_cpu(monkeypatch):
    given, projection = tensors(), rows()
    monkeypatch.setattr(favor_streaming, "favor_features", None)  # a call would fail
    attend_by_favor(*given, projection)
    with pytest.raises(InputError, match="unknown backend 'lean'"):
        attend_by_favor(*given, projection, backend="lean")
