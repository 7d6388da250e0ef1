"""FAVOR+ against the softmax it estimates, waves against their formula, and the backends."""

import math

import pytest
import torch
from torch.autograd import forward_ad

from turnwise.attention import favor
from turnwise.attention.dense import attend
from turnwise.attention.favor import (
    attend_by_favor,
    attend_by_features,
    attend_by_waves,
    favor_exponents,
    favor_features,
    feature_count,
    orthogonal_projection,
)
from turnwise.attention.linear import elu_features
from turnwise.errors import InputError

STABILISERS = pytest.mark.parametrize("stabiliser", ["sample", "published"])


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def heads(tokens=7, dim=8, batch=2, scale=1.0):
    return (scale * torch.randn(3, batch, 2, tokens, dim, dtype=torch.float64)).unbind()


# FAVOR+


@pytest.mark.parametrize(("dim", "count"), [(32, 110), (48, 185), (1, 1), (2, 1)])
def test_published_number_of_features(dim, count):
    assert feature_count(dim) == count


@pytest.mark.parametrize("fix_signs", [True, False])
def test_rows_are_orthogonal_in_blocks_and_as_long_as_normal_vectors(fix_signs):
    rows = orthogonal_projection(19, 8, seeded(), fix_signs=fix_signs)
    assert rows.shape == (19, 8)
    for start in (0, 8, 16):
        block = torch.nn.functional.normalize(rows[start : start + 8], dim=-1)
        torch.testing.assert_close(block @ block.mT, torch.eye(len(block), dtype=torch.float64))
    many = orthogonal_projection(4000, 8, seeded(), fix_signs=fix_signs)
    assert many.square().mean().item() == pytest.approx(1, abs=0.03)
    between = rows[0] @ rows[8] / rows[0].norm() / rows[8].norm()
    assert abs(between) > 1e-3, "blocks are independent, not orthogonal"


def test_rows_depend_on_the_seed():
    again = orthogonal_projection(19, 8, seeded(3))
    assert torch.equal(orthogonal_projection(19, 8, seeded(3)), again)
    assert not torch.equal(orthogonal_projection(19, 8, seeded(4)), again)


def test_fixed_signs_make_the_rows_uniform():
    """Published rows are biased: the first entry of the factor Q of a QR is never positive."""
    free = [orthogonal_projection(4, 4, seeded(s), fix_signs=False)[0, 0] for s in range(40)]
    fixed = [orthogonal_projection(4, 4, seeded(s))[0, 0] for s in range(40)]
    assert all(entry <= 0 for entry in free)
    assert 8 < sum(entry > 0 for entry in fixed) < 32


def test_kernel_estimates_the_softmax_without_bias():
    """Within three standard errors over redraws."""
    query, key = torch.randn(2, 8, generator=seeded(5), dtype=torch.float64) / 2
    estimates = []
    for seed in range(600):
        rows = orthogonal_projection(16, 8, seeded(seed))
        (a, b), (c, d) = favor_exponents(query, rows), favor_exponents(key, rows)
        estimates.append((a - b + c - d).exp().mean())
    found = torch.stack(estimates)
    exact = math.exp(query @ key / math.sqrt(8))
    assert abs(found.mean() - exact) < 3 * found.std() / math.sqrt(600)
    assert found.std() / math.sqrt(600) < 0.02 * exact


def test_definition_of_the_published_features():
    x, rows = heads()[0], orthogonal_projection(5, 8, seeded())
    z = x / 8**0.25
    along = torch.einsum("bhtd,md->bhtm", z, rows)
    half = z.square().sum(-1, keepdim=True) / 2
    for of_keys, most in ((True, along.max()), (False, along.max(dim=-1, keepdim=True).values)):
        expected = ((along - half - most).exp() + 1e-4) / math.sqrt(5)
        found = favor_features(x, rows, of_keys=of_keys, stabiliser="published")
        torch.testing.assert_close(found, expected)


def test_definition_of_the_features_per_sample():
    """Of a query they sum to 1; of the keys of a sample and head the largest is 1, plus epsilon."""
    x, rows = heads(scale=3.0)[0], orthogonal_projection(5, 8, seeded())
    along, half = favor_exponents(x, rows)
    keys, queries = (favor_features(x, rows, of_keys=of_keys) for of_keys in (True, False))
    for sample in range(2):
        for head in range(2):
            exponent = (along - half)[sample, head]
            expected = (exponent - exponent.max()).exp() + 1e-6
            torch.testing.assert_close(keys[sample, head], expected)
            for token in range(7):
                shares = (along - half)[sample, head, token].exp()
                torch.testing.assert_close(queries[sample, head, token], shares / shares.sum())
    torch.testing.assert_close(keys.amax(dim=(-2, -1)), torch.full((2, 2), 1 + 1e-6).double())
    assert keys.min() > 0


def favor_attention(query, key, value, rows, stabiliser, backend="auto"):
    features = (
        favor_features(query, rows, of_keys=False, stabiliser=stabiliser),
        favor_features(key, rows, of_keys=True, stabiliser=stabiliser),
    )
    return attend_by_features(*features, value, backend=backend)


@STABILISERS
def test_the_state_matches_the_formula_forward_and_backward(stabiliser):
    given = [x.requires_grad_() for x in heads()]
    rows, out, grads = orthogonal_projection(16, 8, seeded()), {}, {}
    for backend in ("plain", "state"):
        out[backend] = favor_attention(*given, rows, stabiliser, backend)
        grads[backend] = torch.autograd.grad(out[backend].square().sum(), given)
    torch.testing.assert_close(out["state"], out["plain"])
    torch.testing.assert_close(grads["state"], grads["plain"])
    assert all(grad.abs().max() > 1e-3 for grad in grads["plain"])


def test_features_per_sample_approximate_the_softmax():
    """With many features; the published epsilon dominates where scores are large."""
    query, key, value = heads(tokens=12, scale=0.9)
    rows = orthogonal_projection(40_000, 8, seeded())
    exact = attend(query, key, value, backend="plain")
    mean = value.mean(dim=2, keepdim=True)
    error = (favor_attention(query, key, value, rows, "sample") - exact).norm()
    published = (favor_attention(query, key, value, rows, "published") - exact).norm()
    assert error < 0.25 * (mean - exact).norm()
    assert error < published


def test_a_sample_does_not_depend_on_the_rest_of_its_batch():
    query, key, value = heads()
    rows = orthogonal_projection(16, 8, seeded())
    larger = torch.cat([key[:1], 5 * key[1:]])
    for stabiliser, same in (("sample", True), ("published", False)):
        alone = favor_attention(query, key, value, rows, stabiliser)[0]
        beside = favor_attention(query, larger, value, rows, stabiliser)[0]
        assert ((alone - beside).abs().max() < 1e-12) == same


def test_gradients_do_not_pass_through_the_stabiliser_per_sample():
    """Its factor divides out, so the gradient is that of the formula without it."""
    query, key, value = (x.requires_grad_() for x in heads(scale=0.5))
    rows = orthogonal_projection(16, 8, seeded())
    weight = (
        sum(favor_exponents(query, rows)[i] * (1, -1)[i] for i in (0, 1)).exp()
        @ sum(favor_exponents(key, rows)[i] * (1, -1)[i] for i in (0, 1)).exp().mT
    )
    plain = (weight @ value / weight.sum(-1, keepdim=True)).square().sum()
    ours = favor_attention(query, key, value, rows, "sample").square().sum()
    for a, b in zip(
        torch.autograd.grad(ours, (query, key)), torch.autograd.grad(plain, (query, key)),
        strict=True,
    ):  # fmt: skip
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-3)  # epsilon is 1e-6


def test_there_may_be_fewer_queries_than_keys():
    query, key, value = heads()
    rows = orthogonal_projection(16, 8, seeded())
    for backend in ("plain", "state"):
        every = favor_attention(query, key, value, rows, "sample", backend)
        few = favor_attention(query[:, :, :2], key, value, rows, "sample", backend)
        torch.testing.assert_close(few, every[:, :, :2])


def test_in_sixteen_bits_sums_stay_in_single_precision():
    rounded = [x.bfloat16() for x in heads(tokens=64)]
    rows = orthogonal_projection(16, 8, seeded())
    query = favor_features(rounded[0].double(), rows, of_keys=False)
    key = favor_features(rounded[1].double(), rows, of_keys=True)
    exact = attend_by_features(query, key, rounded[2].double())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = attend_by_features(query.float(), key.float(), rounded[2])
    assert out.dtype == torch.bfloat16
    assert (out - exact).abs().max() / exact.abs().max() < 4e-3


def projection_and_heads():
    return orthogonal_projection(feature_count(8), 8, seeded()), heads()


def test_every_backend_of_favor_attention_computes_the_same():
    rows, given = projection_and_heads()
    expected = favor_attention(*given, rows, "sample", "plain")
    for backend in favor.FAVOR_BACKENDS:
        found = attend_by_favor(*given, rows, backend=backend)
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_auto_streams_on_a_cpu_where_nothing_is_traced(monkeypatch):
    rows, given = projection_and_heads()
    calls, stream = [], favor.stream_favor
    monkeypatch.setattr(favor, "stream_favor", lambda *x: calls.append(x) or stream(*x))
    attend_by_favor(*given, rows)
    assert len(calls) == 1
    attend_by_favor(*given, rows, backend="plain")
    torch.func.grad(lambda x: attend_by_favor(x, *given[1:], rows).sum())(given[0])
    assert len(calls) == 1


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # within torch
def test_favor_attention_under_torch_func_and_forward_mode():
    rows, (query, key, value) = projection_and_heads()

    def loss(x, backend="auto"):
        return attend_by_favor(x, key, value, rows, backend=backend).square().sum()

    leaf = query.clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss(leaf), leaf)
    torch.testing.assert_close(torch.func.grad(loss)(query), expected)
    with forward_ad.dual_level():
        dual = loss(forward_ad.make_dual(query, key))
        slope = forward_ad.unpack_dual(dual).tangent
    torch.testing.assert_close(slope, (expected * key).sum())


# Positions.


def relative_kernel(positions, rows):
    """Return the products and kernels of one query and one key at many positions.

    In the published order: positions enter the vectors, then the feature map.  The key is (3, −2)
    from the query.
    """
    generator = seeded(1)
    content = torch.randn(2, 32, generator=generator, dtype=torch.float64) / math.sqrt(3)
    alpha, beta = torch.randn(2, 2, 4, generator=generator, dtype=torch.float64)
    frequency = 64.0 ** (-torch.arange(4, dtype=torch.float64) / 4)
    step = torch.tensor([3.0, -2.0], dtype=torch.float64)

    def waves(at):
        phase = at[:, :, None] * frequency
        return phase.sin(), phase.cos()

    (s, c), (s2, c2) = waves(positions), waves(positions + step)
    rotated = torch.stack([alpha * s - beta * c, beta * s + alpha * c], dim=-1).flatten(1)
    query = torch.cat([content[0].expand(len(positions), -1), rotated], dim=-1)
    key = torch.stack([s2, c2], dim=-1).flatten(1)
    key = torch.cat([content[1].expand(len(positions), -1), key], dim=-1)
    (a, b), (c, d) = favor_exponents(query, rows), favor_exponents(key, rows)
    return (query * key).sum(-1), (a - b + c - d).exp().mean(dim=-1)


def test_control_the_published_kernel_is_relative_only_in_expectation():
    """Its standard deviation over positions is about 0.4 of its mean at 185 features (the reference
    gives 0.435) and falls with the square root of their number."""
    positions = 199 * torch.rand(400, 2, generator=seeded(2), dtype=torch.float64)
    deviation = {}
    for features in (185, 10_000):
        found = []
        for seed in range(3):
            rows = orthogonal_projection(features, 48, seeded(seed))
            dot, kernel = relative_kernel(positions, rows)
            found.append(float(kernel.std() / kernel.mean()))
        deviation[features] = sum(found) / 3
    assert dot.max() - dot.min() < 1e-12, "the dot product itself is relative"
    assert 0.2 < deviation[185] < 0.8
    assert deviation[10_000] < 0.4 * deviation[185]


def wave_inputs(tokens=6, free=1):
    query, key, value = heads(tokens=tokens + free)
    phases = 3 * torch.randn(2, tokens, 8, dtype=torch.float64)
    return elu_features(query), elu_features(key), value, phases, torch.randn(2, 8).double()


def test_waves_are_exactly_relative():
    """A shift of all positions changes no weight; unit vectors as values give the weights."""
    query, key, _, _, lead = wave_inputs()
    frequency, positions = torch.randn(2, 8, 2).double(), torch.randn(6, 2).double()
    unit = torch.eye(7, dtype=torch.float64).expand(2, 2, 7, 7)

    def kernel(positions):
        phases = torch.einsum("hfx,px->hpf", frequency, positions)
        return attend_by_waves(query, key, unit, phases, lead)

    here, there = kernel(positions), kernel(positions + torch.tensor([100.0, -31.0]))
    assert (here - there).abs().max() < 1e-12
    assert (kernel(2 * positions) - here).abs().max() > 1e-2
    swapped = kernel(positions[[1, 0, 2, 3, 4, 5]])
    assert torch.equal(swapped[:, :, 0], here[:, :, 0]), "a token without a position uses content"


def test_definition_of_waves():
    query, key, value, phases, lead = wave_inputs(tokens=3)
    out = attend_by_waves(query, key, value, phases, lead)
    for n in range(2):
        for t in range(4):
            above, below = 0.0, 0.0
            for s in range(4):
                product = query[0, n, t] * key[0, n, s]
                phase = torch.zeros(8, dtype=torch.float64)
                if t and s:
                    phase = phases[n, s - 1] - phases[n, t - 1] + lead[n]
                above = above + (product * phase.cos()).sum() * value[0, n, s]
                below = below + product.sum()
            torch.testing.assert_close(out[0, n, t], above / below)


@pytest.mark.parametrize("free", [0, 1, 2])
def test_the_state_of_waves_matches_the_formula_forward_and_backward(free):
    given = [x.requires_grad_() for x in wave_inputs(free=free)]
    out, grads = {}, {}
    for backend in ("plain", "state"):
        out[backend] = attend_by_waves(*given, backend=backend)
        grads[backend] = torch.autograd.grad(out[backend].square().sum(), given)
    torch.testing.assert_close(out["state"], out["plain"])
    torch.testing.assert_close(grads["state"], grads["plain"])
    assert all(grad.abs().max() > 1e-4 for grad in grads["plain"])


def test_absolute_weights_of_waves_sum_to_at_most_one():
    query, key, _, phases, lead = wave_inputs()
    unit = torch.eye(7, dtype=torch.float64).expand(2, 2, 7, 7)
    weight = attend_by_waves(query, key, unit, phases, lead).abs().sum(dim=-1)
    assert weight.max() <= 1 + 1e-12
    torch.testing.assert_close(weight[:, :, 0], torch.ones(2, 2).double())


def test_unknown_names_raise_errors():
    query, key, value = heads()
    with pytest.raises(InputError, match="unknown stabiliser 'samples'"):
        favor_features(query, orthogonal_projection(3, 8, seeded()), of_keys=True,
                       stabiliser="samples")  # fmt: skip
    with pytest.raises(InputError, match=r"unknown backend 'sdpa'"):
        attend_by_features(query, key, value, backend="sdpa")
    with pytest.raises(InputError, match="unknown backend 'lean'"):
        attend_by_favor(query, key, value, orthogonal_projection(3, 8, seeded()), backend="lean")
    with pytest.raises(InputError, match="features = 0 must be at least 1"):
        orthogonal_projection(0, 8, seeded())
