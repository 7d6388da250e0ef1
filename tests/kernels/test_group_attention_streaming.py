"""Little memory, the same numbers: output, gradients and dropout are those of the formula."""

import pytest
import torch

from turnwise.attention.group import Encodings, attend_from_frames
from turnwise.geometry.neighbourhoods import Neighbourhood, find_sources
from turnwise.groups import PlanarGroup
from turnwise.kernels import group_attention_streaming as streaming

CASES = {  # group, queries, neighbourhood, rows, cols, crop, dropout, lifting
    "all": ("C4", "all", Neighbourhood(3), 4, 5, 0, 0.3, False),
    "all, D4, disc": ("D4", "all", Neighbourhood(3, "disc"), 5, 4, 0, 0.0, False),
    "all, whole picture": ("C4", "all", Neighbourhood(0), 3, 4, 0, 0.2, False),
    "own, cropped": ("C4", "own", Neighbourhood(3), 5, 6, 1, 0.3, False),
    "own, D3, whole picture": ("D3", "own", Neighbourhood(0), 3, 4, 0, 0.2, False),
    "lifting": ("D4", "all", Neighbourhood(3), 4, 5, 0, 0.3, True),
    "lifting, whole picture": ("C4", "all", Neighbourhood(0), 3, 5, 0, 0.0, True),
    "one pose": ("C1", "all", Neighbourhood(5), 4, 5, 0, 0.0, False),
}


def tensors(group, sources, lifting, dtype=torch.float64):
    poses, dim, pixels = group.order, 5, sources.view.rows * sources.view.cols
    asking, place_dim = (1, dim) if lifting else (poses, 2)
    shapes = [(2, asking, n, 2, dim) for n in (len(sources.pixel), pixels, pixels)]
    shapes += [(poses, len(sources.view.offsets()), place_dim), (asking, dim - place_dim)]
    table = torch.randint(0, asking, (poses, asking, asking))  # any table, equivariant or not
    return [torch.randn(s, dtype=dtype, requires_grad=True) for s in shapes], table


def outcome(case, backend, dtype=torch.float64, scale=1.0):
    name, queries, neighbourhood, rows, cols, crop, dropout, lifting = CASES[case]
    torch.manual_seed(0)
    sources = find_sources(neighbourhood, rows, cols, crop)
    given, table = tensors(PlanarGroup.named(name), sources, lifting, dtype)
    given = [scale * x for x in given]
    encodings = Encodings(given[3], given[4], table)
    torch.manual_seed(1)
    output = attend_from_frames(
        *given[:3], encodings, sources, queries=queries, dropout=dropout, backend=backend
    )
    torch.manual_seed(2)
    weight = torch.randn(output.shape, dtype=dtype)
    grads = torch.autograd.grad((output * weight).sum(), given, allow_unused=True)
    return [output.detach(), *(g for g in grads if g is not None and g.numel())]


@pytest.mark.parametrize("case", CASES)
def test_outputs_and_gradients_are_those_of_the_formula(case, monkeypatch):
    monkeypatch.setattr(streaming, "AT_ONCE", 500)  # several chunks, one of them not full
    for got, right in zip(outcome(case, "streaming"), outcome(case, "plain"), strict=True):
        torch.testing.assert_close(got, right, atol=1e-11, rtol=1e-10)


@pytest.mark.parametrize("case", CASES)
def test_images_weighed_whole_have_the_same_outputs_and_gradients(case, monkeypatch):
    monkeypatch.setattr(streaming, "_too_small", lambda total: True)
    for got, right in zip(outcome(case, "streaming"), outcome(case, "plain"), strict=True):
        torch.testing.assert_close(got, right, atol=1e-11, rtol=1e-10)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("dtype", "scale"), [(torch.float64, 40.0), (torch.float32, 12.0)])
def test_scores_that_are_far_apart_lose_nothing(case, dtype, scale):
    """Largest in content, in place and in pose at different sources: every product is 0."""
    found = [outcome(case, backend, dtype, scale) for backend in ("streaming", "plain")]
    precision = 1e-9 if dtype is torch.float64 else 2e-3  # of scores of hundreds in 24 bits
    for got, right in zip(*found, strict=True):
        assert (got - right).abs().max() <= precision * right.abs().max()


def test_single_precision_agrees_to_one_in_a_hundred_thousand():
    found = (outcome("all", backend, torch.float32) for backend in ("streaming", "plain"))
    for got, right in zip(*found, strict=True):
        assert (got - right).abs().max() <= 1e-5 * right.abs().max()


def test_chunks_do_not_change_a_bit(monkeypatch):
    whole = outcome("own, cropped", "streaming")
    monkeypatch.setattr(streaming, "AT_ONCE", 1)
    torch.testing.assert_close(outcome("own, cropped", "streaming"), whole, atol=1e-13, rtol=1e-12)


def test_run_twice_same_bits():
    for first, second in zip(*(outcome("all", "streaming") for _ in range(2)), strict=True):
        assert torch.equal(first, second)


def test_control_another_seed_drops_others():
    torch.manual_seed(7)
    case = CASES["all"]
    sources = find_sources(*case[2:6])
    given, table = tensors(PlanarGroup.named("C4"), sources, lifting=False)
    draws = [
        attend_from_frames(
            *given[:3], Encodings(*given[3:], table), sources, dropout=0.5, backend="streaming"
        )
        for _ in range(2)
    ]
    assert (draws[0] - draws[1]).abs().max() > 0.01


def test_sixteen_bits_come_back_as_sixteen_bits():
    sources = find_sources(Neighbourhood(3), 4, 4)
    given, table = tensors(PlanarGroup.named("C4"), sources, False, torch.bfloat16)
    output = attend_from_frames(
        *given[:3], Encodings(*given[3:], table), sources, backend="streaming"
    )
    assert output.dtype is torch.bfloat16
    assert all(g.dtype is torch.bfloat16 for g in torch.autograd.grad(output.sum(), given[:3]))
