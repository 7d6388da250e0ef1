"""Patches, attention and block of the plain transformer: permutations of tokens, definitions."""

import pytest
import torch

from turnwise.errors import InputError
from turnwise.layers.transformer.plain import (
    DropPath,
    PatchEmbedding,
    SelfAttention,
    TransformerBlock,
)


def tokens():
    return torch.randn(2, 7, 12, dtype=torch.float64)


@pytest.mark.parametrize("layer", [SelfAttention(12, 3), TransformerBlock(12, 3)])
def test_layers_are_equivariant_to_permutations_of_the_tokens(layer):
    layer, x, order = layer.double(), tokens(), torch.randperm(7)
    torch.testing.assert_close(layer(x[:, order]), layer(x)[:, order])
    assert (layer(x[:, order]) - layer(x)).abs().max() > 0.01


def test_witness_tokens_attend_to_each_other():
    layer, x = SelfAttention(12, 3).double(), tokens()
    other = x.clone()
    other[:, 0] += 1
    assert (layer(other) - layer(x))[:, 1:].abs().max() > 1e-3


def test_control_a_position_breaks_the_symmetry():
    layer, x, order = SelfAttention(12, 3).double(), tokens(), torch.randperm(7)
    position = torch.randn(7, 12, dtype=torch.float64)
    assert (layer(x[:, order] + position) - layer(x + position)[:, order]).abs().max() > 0.01


def test_definition_of_the_block():
    """x + attention(norm(x)), then + mlp(norm(x)), step by step."""
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


def test_the_width_must_be_a_multiple_of_the_heads():
    message = r"width = 10 must be a multiple of 4 \(it is split over 4 heads\); try 8 or 12\."
    with pytest.raises(InputError, match=message):
        SelfAttention(10, 4)


def test_definition_of_the_patch_embedding():
    """One linear map, the same for every patch."""
    layer = PatchEmbedding(2, 5, patch=3).double()
    images = torch.randn(1, 2, 6, 9, dtype=torch.float64)
    embedded = layer(images)
    assert embedded.shape == (1, 6, 5)
    matrix = layer.project.weight.flatten(1)
    for token, (row, col) in enumerate((r, c) for r in (0, 3) for c in (0, 3, 6)):
        patch = images[0, :, row : row + 3, col : col + 3].flatten()
        torch.testing.assert_close(embedded[0, token], matrix @ patch + layer.project.bias)
