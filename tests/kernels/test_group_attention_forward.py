"""The layout that the kernels read, made by ordinary operations: tested where Triton is installed.

That the kernels read it as it is written is tested by all their results.
"""

import pytest
import torch


@pytest.mark.parametrize(("dtype", "in_word"), [(torch.float32, 2), (torch.bfloat16, 4)])
def test_tiles_hold_every_number_once_and_zeros_beside_them(dtype, in_word):
    launch = pytest.importorskip("turnwise.kernels.group_attention_launch", exc_type=ImportError)
    x = torch.randn(2, 4, 35, 3, 5).to(dtype)  # batch, pose, pixel, head, dim
    tiles = launch.tiled(x, parts=2)
    words = -(-10 // in_word)
    assert tiles.shape == (2 * 3 * 2, 2, words, 32, in_word)
    by_token = tiles.transpose(2, 3).flatten(3).flatten(1, 2).unflatten(0, (2, 3, 2))
    assert torch.equal(by_token[1, 2, 0, 33, :10], x[1, :2, 33, 2].flatten())
    assert torch.equal(by_token[0, 1, 1, 4, :10], x[0, 2:, 4, 1].flatten())
    assert by_token[:, :, :, 35:].abs().max() == 0
    assert by_token[..., 10:].numel() == 0 or by_token[..., 10:].abs().max() == 0


def test_what_was_laid_out_comes_back():
    launch = pytest.importorskip("turnwise.kernels.group_attention_launch", exc_type=ImportError)
    x = torch.randn(2, 4, 35, 3, 5)
    shape = launch.Shape(
        all_queries=0, outs=2, asking=2, poses=4, relations=4, width=5, place_width=2, frames=2,
        rows=5, cols=7, crop=0,
    )  # fmt: skip
    assert torch.equal(launch.untiled(launch.tiled(x, parts=2), 2, 3, shape), x)
