"""The plain transformer: patch embedding, self-attention, and the block around it.

x ← x + drop(attention(norm(x)))
x ← x + drop(mlp(norm(x)))
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from turnwise.attention.dense import BACKENDS, attend
from turnwise.errors import require_divisible, require_known
from turnwise.geometry.sizes import Stage
from turnwise.layers.declarations import AttentionTaps


class PatchEmbedding(nn.Module):
    """One token per patch: a convolution whose stride is its kernel.

    Paper:    Dosovitskiy et al. 2021, "An Image Is Worth 16x16 Words".
    """

    feature_layout = "plain_tokens"

    def __init__(self, in_chans: int, width: int, patch: int) -> None:
        super().__init__()
        self.stages = (Stage(patch, patch),)
        self.project = nn.Conv2d(in_chans, width, kernel_size=patch, stride=patch)

    def forward(
        self, images: Float[Tensor, "batch channel row col"]
    ) -> Float[Tensor, "batch token width"]:
        return self.project(images).flatten(2).transpose(1, 2)


Tokens = Float[Tensor, "batch token width"]


class SelfAttention(nn.Module):
    """Multi-head self-attention without positions: equivariant to permutations of the tokens.

    With `qk_norm`, queries and keys are normalised in each head, which bounds the scores: without,
    they can grow until lower precision cannot represent their differences.

    Paper:    Vaswani et al. 2017, "Attention Is All You Need"; Henry et al. 2020, "Query-Key
              Normalization for Transformers".
    Departs:  RMSNorm with a learned weight per channel, not the Euclidean norm with one scale.
    """

    def __init__(
        self, width: int, heads: int, backend: str = "auto", *, qk_norm: bool = False
    ) -> None:
        super().__init__()
        require_divisible(width, heads, "width", f"it is split over {heads} heads")
        require_known(backend, BACKENDS, "backend")
        self.heads, self.backend = heads, backend
        self.to_query_key_value = nn.Linear(width, 3 * width)
        self.to_output = nn.Linear(width, width)
        self.norm_query = nn.RMSNorm(width // heads) if qk_norm else None
        self.norm_key = nn.RMSNorm(width // heads) if qk_norm else None

    def attention_taps(self) -> AttentionTaps:
        first, heads = 2 * self.to_output.in_features, self.heads
        return AttentionTaps(self.to_query_key_value, first, self.to_output, heads, "plain_tokens")

    def forward(self, tokens: Tokens) -> Tokens:
        return self.attend(tokens)

    def attend(
        self, tokens: Tokens, bias: Float[Tensor, "#batch #head token source"] | None = None
    ) -> Tokens:
        """Return the output for tokens, with a bias added to the scores."""
        split = self.to_query_key_value(tokens).unflatten(-1, (3, self.heads, -1))
        query, key, value = split.permute(2, 0, 3, 1, 4)  # each (batch, head, token, dim)
        query, key = normalised(self.norm_query, query), normalised(self.norm_key, key)
        mixed = attend(query, key, value, bias, backend=self.backend)
        return self.to_output(mixed.transpose(1, 2).flatten(2))


def normalised(norm: nn.RMSNorm | None, x: Tensor) -> Tensor:
    """Normalise in the precision of the norm's weight, which autocast does not ensure."""
    return x if norm is None else norm(x.to(norm.weight.dtype))


class DropPath(nn.Module):
    """Drop a residual branch for random samples of the batch, and scale up the others.

    Paper:    Huang et al. 2016, "Deep Networks with Stochastic Depth".
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, branch: Float[Tensor, "batch *rest"]) -> Float[Tensor, "batch *rest"]:
        if self.rate == 0.0 or not self.training:
            return branch
        keep = torch.rand(len(branch), device=branch.device) >= self.rate
        return branch * keep.view(-1, *[1] * (branch.ndim - 1)) / (1 - self.rate)

    def extra_repr(self) -> str:
        return f"rate={self.rate}"


class TransformerBlock(nn.Module):
    """Attention and an MLP, each with a norm before it and a residual connection."""

    feature_layout = "plain_tokens"

    def __init__(
        self,
        width: int,
        heads: int,
        mlp_ratio: float = 4.0,
        drop_path: float = 0.0,
        backend: str = "auto",
        qk_norm: bool = False,
    ) -> None:
        super().__init__()
        hidden = int(width * mlp_ratio)
        self.norm_attention = nn.LayerNorm(width)
        self.attention = SelfAttention(width, heads, backend, qk_norm=qk_norm)
        self.norm_mlp = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))
        self.drop_path = DropPath(drop_path)

    def forward(self, tokens: Tokens) -> Tokens:
        tokens = tokens + self.drop_path(self.attention(self.norm_attention(tokens)))
        return tokens + self.drop_path(self.mlp(self.norm_mlp(tokens)))
