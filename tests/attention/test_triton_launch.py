"""Which forms the kernels take, and that nothing is lost on the way to them."""

import pytest
import torch

from turnwise.attention import frames
from turnwise.attention.frames import Encodings


def encodings(poses):
    table = torch.zeros(poses, poses, poses, dtype=torch.long)
    return Encodings(torch.zeros(poses, 9, 2), torch.zeros(poses, 2), table)


def test_a_cpu_gets_the_plain_formula():
    assert not frames._triton_can(torch.zeros(1, 4, 9, 1, 4), encodings(4), "own")


@pytest.mark.parametrize(
    ("poses", "queries", "taken"), [(4, "all", True), (8, "all", False), (8, "own", True)]
)
def test_all_queries_are_taken_up_to_four_poses(monkeypatch, poses, queries, taken):
    monkeypatch.setattr(frames, "HAS_TRITON", True)
    on_gpu = torch.zeros(1, poses, 9, 1, 4, device="meta")
    monkeypatch.setattr(torch.Tensor, "is_cuda", True, raising=False)
    assert frames._triton_can(on_gpu, encodings(poses), queries) is taken


def test_the_interpreter_ran_every_case(kernel_errors):
    assert len(kernel_errors) == 6
    assert {"output", "query", "key", "value", "place"} <= set(kernel_errors["lifting"])
