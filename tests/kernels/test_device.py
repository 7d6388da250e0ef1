"""Kernels run where their tensors are."""

import inspect
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import turnwise
from turnwise.kernels.device import on_its_device


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


def test_it_looks_as_before_so_that_torch_can_read_its_types():
    assert inspect.signature(on_its_device(doubled)) == inspect.signature(doubled)
    x = torch.ones(3)
    assert torch.equal(on_its_device(doubled)(x), 2 * x)  # on a CPU nothing is switched


@pytest.mark.parametrize("path", ["kernels/group_attention_launch.py", "kernels/irreps_launch.py"])
def test_every_operator_with_kernels_is_such_a_one(path):
    text = (Path(turnwise.__file__).parent / path).read_text(encoding="utf-8")
    assert text.count("@torch.library.custom_op(") == text.count("@on_its_device\n") > 0
