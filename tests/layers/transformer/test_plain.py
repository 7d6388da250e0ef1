"""Without positions the block commutes with every shuffling of its tokens."""

import pytest
import torch

from turnwise.errors import InputError
from turnwise.layers.transformer.plain import DropPath, SelfAttention, TransformerBlock


def tokens():
    return torch.randn(2, 7, 12, dtype=torch.float64)


@pytest.mark.parametrize("layer", [SelfAttention(12, 3), TransformerBlock(12, 3)])
def test_shuffled_tokens_give_shuffled_answers(layer):
    layer, x, order = layer.double(), tokens(), torch.randperm(7)
    torch.testing.assert_close(layer(x[:, order]), layer(x)[:, order])
    assert (layer(x[:, order]) - layer(x)).abs().max() > 0.01


def test_tokens_do_look_at_each_other():
    layer, x = SelfAttention(12, 3).double(), tokens()
    moved = x.clone()
    moved[:, 0] += 1
    assert (layer(moved) - layer(x))[:, 1:].abs().max() > 1e-3


def test_definition():
    """x + attention(norm(x)), then + mlp(norm(x)), spelled out."""
    block, x = TransformerBlock(12, 3).double(), tokens()
    between = x + block.attention(block.norm_attention(x))
    torch.testing.assert_close(block(x), between + block.mlp(block.norm_mlp(between)))


def test_drop_path_keeps_the_mean_and_drops_whole_samples():
    drop, x = DropPath(0.25).train(), torch.ones(4000, 1, 2)
    kept = drop(x)
    assert kept.unique().tolist() == [0.0, pytest.approx(4 / 3)]
    assert kept.mean() == pytest.approx(1.0, abs=0.05)
    assert torch.equal(kept[..., 0], kept[..., 1])
    assert torch.equal(drop.eval()(x), x)


def test_width_must_split_over_heads():
    message = r"width = 10 must be a multiple of 4 \(it is split over 4 heads\); try 8 or 12\."
    with pytest.raises(InputError, match=message):
        SelfAttention(10, 4)
