"""A patch embedding is one linear map, the same for every patch."""

import torch

from turnwise.layers.transformer.plain import PatchEmbedding


def test_definition():
    layer = PatchEmbedding(2, 5, patch=3).double()
    images = torch.randn(1, 2, 6, 9, dtype=torch.float64)
    tokens = layer(images)
    assert tokens.shape == (1, 6, 5)
    matrix = layer.project.weight.flatten(1)
    for token, (row, col) in enumerate((r, c) for r in (0, 3) for c in (0, 3, 6)):
        patch = images[0, :, row : row + 3, col : col + 3].flatten()
        torch.testing.assert_close(tokens[0, token], matrix @ patch + layer.project.bias)
