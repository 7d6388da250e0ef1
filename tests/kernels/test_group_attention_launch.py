"""When the kernels are taken, and how poses are shared out between programs."""

import sys

import pytest
import torch

from turnwise.attention import group as frames


def test_a_cpu_gets_the_plain_formula():
    assert not frames._triton_can(torch.zeros(1, 4, 9, 1, 4))


@pytest.mark.parametrize(
    ("dtype", "taken"), [(torch.float32, True), (torch.bfloat16, True), (torch.float64, False)]
)
def test_a_gpu_gets_them_in_32_and_16_bits(monkeypatch, dtype, taken):
    monkeypatch.setattr(frames, "HAS_TRITON", True)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True, raising=False)
    assert frames._triton_can(torch.zeros(1, 4, 9, 1, 4, dtype=dtype, device="meta")) is taken


def test_without_triton_a_gpu_warns_and_goes_on(monkeypatch):
    monkeypatch.setattr(frames, "HAS_TRITON", False)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True, raising=False)
    with pytest.warns(UserWarning, match="Triton is not installed"):
        assert frames._best_backend(torch.zeros(1, 4, 9, 1, 4, device="meta")) == "streaming"
    assert "turnwise.kernels.group_attention_launch" not in sys.modules


def test_a_cpu_does_not_warn():
    assert frames._best_backend(torch.zeros(1, 4, 9, 1, 4)) == "streaming"


def test_the_interpreter_ran_every_case(kernel_errors):
    assert len(kernel_errors) == 8
    assert {"output", "query", "key", "value", "place"} <= set(kernel_errors["lifting"])
