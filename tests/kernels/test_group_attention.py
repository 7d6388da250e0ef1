"""Group attention in chunks and by Triton kernels: the same numbers as the plain formula."""

import importlib
import sys
from pathlib import Path

import pytest
import torch

from turnwise.attention import group as group_attention
from turnwise.attention.group import Encodings, attend_from_frames
from turnwise.geometry.neighbourhoods import Neighbourhood, find_sources
from turnwise.groups import PlanarGroup
from turnwise.kernels import group_attention_streaming as streaming

PROGRAM = Path(__file__).parent / "group_attention_in_interpreter.py"
QUICK = [  # seconds each, together every kernel and every branch of them
    "all queries", "own queries, cropped", "lifting", "all queries, chunks, one row",
    "own queries, chunks, one row",
]  # fmt: skip
SLOW = [
    "all queries, chunks", "own queries, chunks", "all queries, relations by query",
    "lifting, chunks", "whole image",
]  # fmt: skip


@pytest.fixture(scope="module")
def kernel_errors(in_interpreter):
    """Case -> tensor -> relative error of the kernels against the plain formula in float64."""
    return in_interpreter(PROGRAM, *QUICK)


def assert_small(errors, cases):
    """All tensors of all cases were compared, and agree to rounding error of float32."""
    assert list(errors) == cases
    for case, found in errors.items():
        orientation = set() if "lifting" in case else {"orientation"}
        assert set(found) == {"output", "query", "key", "value", "position"} | orientation
        assert 0 < max(found.values()) < 2e-5, (case, found)


def test_kernels_have_the_outputs_and_gradients_of_the_formula(kernel_errors):
    assert_small(kernel_errors, QUICK)


@pytest.mark.slow
@pytest.mark.parametrize("case", SLOW)
def test_kernels_in_every_form_have_the_outputs_and_gradients_of_the_formula(in_interpreter, case):
    assert_small(in_interpreter(PROGRAM, case), [case])


@pytest.fixture
def launch():
    pytest.importorskip("triton", reason="Triton, which has wheels for Linux, is not installed")
    return importlib.import_module("turnwise.kernels.group_attention_launch")


@pytest.mark.parametrize(("dtype", "in_word"), [(torch.float32, 2), (torch.bfloat16, 4)])
def test_tiles_hold_every_number_once_padded_with_zeros(launch, dtype, in_word):
    x = torch.randn(2, 4, 35, 3, 5).to(dtype)  # batch, element, pixel, head, dim
    tiles = launch.to_tiles(x, parts=2)
    words = -(-10 // in_word)
    assert tiles.shape == (2 * 3 * 2, 2, words, 32, in_word)
    by_token = tiles.transpose(2, 3).flatten(3).flatten(1, 2).unflatten(0, (2, 3, 2))
    assert torch.equal(by_token[1, 2, 0, 33, :10], x[1, :2, 33, 2].flatten())
    assert torch.equal(by_token[0, 1, 1, 4, :10], x[0, 2:, 4, 1].flatten())
    assert by_token[:, :, :, 35:].abs().max() == 0
    assert by_token[..., 10:].numel() == 0 or by_token[..., 10:].abs().max() == 0


def test_tiles_convert_back(launch):
    x = torch.randn(2, 4, 35, 3, 5)
    shape = launch.Shape(
        all_queries=0, outputs=2, queries=2, keys=4, relations=4, head_dim=5, position_dim=2,
        chunks=2, rows=5, cols=7, crop=0,
    )  # fmt: skip
    assert torch.equal(launch.from_tiles(launch.to_tiles(x, parts=2), 2, 3, shape), x)


def query(dtype=torch.float32, device="meta"):
    return torch.zeros(1, 4, 9, 1, 4, dtype=dtype, device=device)


def test_a_cpu_gets_the_streaming_backend_without_a_warning():
    assert not group_attention._triton_supports(query(device="cpu"))
    assert group_attention._best_backend(query(device="cpu")) == "streaming"


@pytest.mark.parametrize(
    ("dtype", "supported"), [(torch.float32, True), (torch.bfloat16, True), (torch.float64, False)]
)
def test_a_gpu_gets_kernels_in_32_and_16_bits(monkeypatch, dtype, supported):
    monkeypatch.setattr(group_attention, "HAS_TRITON", True)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True, raising=False)
    assert group_attention._triton_supports(query(dtype)) is supported


def test_a_gpu_without_triton_warns_and_gets_the_streaming_backend(monkeypatch):
    monkeypatch.delitem(sys.modules, "turnwise.kernels.group_attention_launch", raising=False)
    monkeypatch.setattr(group_attention, "HAS_TRITON", False)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True, raising=False)
    with pytest.warns(UserWarning, match="Triton is not installed"):
        assert group_attention._best_backend(query()) == "streaming"
    assert "turnwise.kernels.group_attention_launch" not in sys.modules


CASES = {  # group, queries, neighbourhood, rows, cols, crop, dropout, lifting
    "all": ("C4", "all", Neighbourhood(3), 4, 5, 0, 0.3, False),
    "all, D4, disc": ("D4", "all", Neighbourhood(3, "disc"), 5, 4, 0, 0.0, False),
    "all, whole image": ("C4", "all", Neighbourhood(0), 3, 4, 0, 0.2, False),
    "own, cropped": ("C4", "own", Neighbourhood(3), 5, 6, 1, 0.3, False),
    "own, D3, whole image": ("D3", "own", Neighbourhood(0), 3, 4, 0, 0.2, False),
    "lifting": ("D4", "all", Neighbourhood(3), 4, 5, 0, 0.3, True),
    "lifting, whole image": ("C4", "all", Neighbourhood(0), 3, 5, 0, 0.0, True),
    "one element": ("C1", "all", Neighbourhood(5), 4, 5, 0, 0.0, False),
}


def make_tensors(group, sources, lifting, dtype=torch.float64):
    elements, dim = (1 if lifting else group.order), 5
    pixels, position_dim = sources.view.rows * sources.view.cols, dim if lifting else 2
    shapes = [(2, elements, n, 2, dim) for n in (len(sources.pixel), pixels, pixels)]
    shapes += [(group.order, len(sources.view.offsets()), position_dim)]
    shapes += [(elements, dim - position_dim)]
    table = torch.randint(0, elements, (group.order, elements, elements))  # equivariant or not
    return [torch.randn(s, dtype=dtype, requires_grad=True) for s in shapes], table


def outcome(case, backend, dtype=torch.float64, scale=1.0):
    """Return the output and all gradients."""
    name, queries, neighbourhood, rows, cols, crop, dropout, lifting = CASES[case]
    torch.manual_seed(0)
    sources = find_sources(neighbourhood, rows, cols, crop)
    tensors, table = make_tensors(PlanarGroup.named(name), sources, lifting, dtype)
    tensors = [scale * x for x in tensors]
    torch.manual_seed(1)
    output = attend_from_frames(
        *tensors[:3], Encodings(*tensors[3:], table), sources, queries=queries, dropout=dropout,
        backend=backend,
    )  # fmt: skip
    torch.manual_seed(2)
    weight = torch.randn(output.shape, dtype=dtype)
    grads = torch.autograd.grad((output * weight).sum(), tensors, allow_unused=True)
    return [output.detach(), *(g for g in grads if g is not None and g.numel())]


@pytest.mark.parametrize("case", CASES)
def test_streaming_has_the_outputs_and_gradients_of_the_formula(case, monkeypatch):
    monkeypatch.setattr(streaming, "CHUNK_ENTRIES", 500)  # several chunks, one of them not full
    for found, expected in zip(outcome(case, "streaming"), outcome(case, "plain"), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-11, rtol=1e-10)


@pytest.mark.parametrize("case", CASES)
def test_weights_computed_without_factorising_give_the_same(case, monkeypatch):
    monkeypatch.setattr(streaming, "_underflows", lambda total: True)
    for found, expected in zip(outcome(case, "streaming"), outcome(case, "plain"), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-11, rtol=1e-10)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("dtype", "scale"), [(torch.float64, 40.0), (torch.float32, 12.0)])
def test_scores_that_are_far_apart_lose_no_precision(case, dtype, scale):
    """The largest content, position and orientation have different sources: products are 0."""
    outcomes = [outcome(case, backend, dtype, scale) for backend in ("streaming", "plain")]
    precision = 1e-9 if dtype is torch.float64 else 2e-3  # of scores of hundreds in 24 bits
    for found, expected in zip(*outcomes, strict=True):
        assert (found - expected).abs().max() <= precision * expected.abs().max()


def test_single_precision_agrees_to_one_in_a_hundred_thousand():
    outcomes = (outcome("all", backend, torch.float32) for backend in ("streaming", "plain"))
    for found, expected in zip(*outcomes, strict=True):
        assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_chunks_do_not_change_the_result(monkeypatch):
    whole = outcome("own, cropped", "streaming")
    monkeypatch.setattr(streaming, "CHUNK_ENTRIES", 1)
    torch.testing.assert_close(outcome("own, cropped", "streaming"), whole, atol=1e-13, rtol=1e-12)


def test_two_runs_give_identical_bits():
    for first, second in zip(*(outcome("all", "streaming") for _ in range(2)), strict=True):
        assert torch.equal(first, second)


def test_control_another_seed_drops_other_entries():
    torch.manual_seed(7)
    sources = find_sources(*CASES["all"][2:6])
    tensors, table = make_tensors(PlanarGroup.named("C4"), sources, lifting=False)
    outputs = [
        attend_from_frames(
            *tensors[:3], Encodings(*tensors[3:], table), sources, dropout=0.5, backend="streaming"
        )
        for _ in range(2)
    ]
    assert (outputs[0] - outputs[1]).abs().max() > 0.01


def test_sixteen_bit_inputs_give_sixteen_bit_outputs_and_gradients():
    sources = find_sources(Neighbourhood(3), 4, 4)
    tensors, table = make_tensors(PlanarGroup.named("C4"), sources, False, torch.bfloat16)
    output = attend_from_frames(
        *tensors[:3], Encodings(*tensors[3:], table), sources, backend="streaming"
    )
    assert output.dtype is torch.bfloat16
    assert all(g.dtype is torch.bfloat16 for g in torch.autograd.grad(output.sum(), tensors[:3]))
