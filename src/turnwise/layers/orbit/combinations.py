"""Combine the outputs for all views of an image into one that does not depend on their order.

Rotating the image by g permutes its views, F(h) -> F(g⁻¹h), so any function of the orbit as a set
is exactly invariant.  Logits are (batch, group, num_classes, *space), features (batch, group,
width); the results are logits whose softmax is the combined probability.

Letters:  z_h are logits of view h, p_h = softmax(z_h), e_h the input vector of the classifier.
Paper:    Basu et al. 2023, "Equi-Tuning" (mean), and "Equivariant Few-Shot Learning from Pretrained
          Models" (weights λ); the others as in the blog of WouterBant/GEVit-DL2-Project.
"""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from turnwise.errors import require_divisible, require_known, require_positive
from turnwise.layers.transformer.plain import TransformerBlock

OrbitLogits = Float[Tensor, "batch group num_classes *space"]
Logits = Float[Tensor, "batch num_classes *space"]
OrbitFeatures = Float[Tensor, "batch group width"]
Features = Float[Tensor, "batch width"]


def combine_mean(logits: OrbitLogits) -> Logits:
    """Return 1/|G| Σ_h z_h."""
    return logits.mean(dim=1)


def combine_sum(logits: OrbitLogits) -> Logits:
    """Return Σ_h z_h."""
    return logits.sum(dim=1)


def combine_max(logits: OrbitLogits) -> Logits:
    """Return max_h z_h, class by class."""
    # not amax: its gradient compares with the maximum, which a compiled graph may recompute in
    # another precision, and 0 / 0 is not a number
    return logits.max(dim=1).values


def combine_mean_probability(logits: OrbitLogits) -> Logits:
    """Return log 1/|G| Σ_h p_h, computed in log space."""
    logs = logits.log_softmax(dim=2)
    return torch.logsumexp(logs, dim=1) - math.log(logits.shape[1])


def combine_most_likely(logits: OrbitLogits) -> Logits:
    """Return log Π_h p_h, normalised.

    Departs:  in log space, where the published product of 16 small numbers became 0 / 0; and
              without a temperature.  Its largest class is always that of the mean.
    """
    return logits.log_softmax(dim=2).sum(dim=1).log_softmax(dim=1)


def combine_most_certain(logits: OrbitLogits) -> Logits:
    """Return z_h of the view with the largest max_c p_h(c), or the mean of such views.

    Departs:  by the published formula, not the program, which chooses a view for each class.
              Certainty is compared as log-odds: probabilities round to 1 for several views, and the
              first of them would depend on the orientation of the image.
    """
    fixed = logits.detach()
    best = fixed.max(dim=2, keepdim=True)
    others = fixed.scatter(2, best.indices, -torch.inf).logsumexp(dim=2, keepdim=True)
    certainty = best.values - others
    chosen = certainty == certainty.max(dim=1, keepdim=True).values
    total = torch.where(chosen, logits, torch.zeros_like(logits)).sum(dim=1)
    return total / chosen.sum(dim=1)  # if some logit is NaN, none is chosen: 0 / 0


class LearnedWeights(nn.Module):
    """Σ_h w_h e_h with learned weights w = softmax_h(W₂ gelu(W₁ e_h + b)).

    Departs:  softmax keeps weights positive with sum 1; the published λ_h / Σ λ may divide by zero.
              W₂ starts at 0: before training this is the mean.
    """

    def __init__(self, width: int, hidden: int = 128) -> None:
        super().__init__()
        require_positive(width=width, hidden=hidden)
        last = nn.Linear(hidden, 1, bias=False)  # a constant has no effect under softmax
        nn.init.zeros_(last.weight)
        self.score = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), last)

    def weights(self, features: OrbitFeatures) -> Float[Tensor, "batch group"]:
        return self.score(features).squeeze(-1).softmax(dim=1)

    def forward(self, features: OrbitFeatures) -> Features:
        return torch.einsum("bh,bhw->bw", self.weights(features), features)


class LearnedAttention(nn.Module):
    """mean_h e_h + W norm(c), where c is a class token that has attended to all views.

    Tokens without positions are a set, so the class token does not depend on their order.

    Departs:  ordinary transformer blocks instead of two attentions without an MLP; the mean is
              added and W starts at 0, so that before training this is the mean.
    """

    no_weight_decay = ("token",)

    def __init__(self, width: int, heads: int = 4, depth: int = 2) -> None:
        super().__init__()
        require_positive(width=width, heads=heads, depth=depth)
        require_divisible(width, heads, "width", f"it is split over {heads} heads")
        self.token = nn.Parameter(0.02 * torch.randn(width))
        blocks = (TransformerBlock(width, heads, mlp_ratio=2.0) for _ in range(depth))
        self.blocks, self.norm = nn.Sequential(*blocks), nn.LayerNorm(width)
        self.correct = nn.Linear(width, width)
        nn.init.zeros_(self.correct.weight)
        nn.init.zeros_(self.correct.bias)

    def forward(self, features: OrbitFeatures) -> Features:
        token = self.token.expand(features.shape[0], 1, -1)
        first = self.blocks(torch.cat([token, features], dim=1))[:, 0]
        return features.mean(dim=1) + self.correct(self.norm(first))


class PublishedWeights(nn.Module):
    """Σ_h λ_h e_h / Σ_h λ_h, with λ_h = W₂ gelu(W₁ e_h + b₁) + b₂, as the program has it.

    Kept for its checkpoints: the sum of the λ may be zero, so train `LearnedWeights` instead.
    """

    def __init__(self, width: int, hidden: int = 128) -> None:
        super().__init__()
        require_positive(width=width, hidden=hidden)
        self.score = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, 1))

    def forward(self, features: OrbitFeatures) -> Features:
        weight = self.score(features)
        return (weight / weight.sum(dim=1, keepdim=True) * features).sum(dim=1)


class _PublishedBlock(nn.Module):
    """x ← x + attend₁(norm₁(x));  x ← relu(norm₂(x));  x ← x + attend₂(x)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.layer_norm_1, self.layer_norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn1, self.attn2 = (
            nn.MultiheadAttention(width, heads, batch_first=True) for _ in range(2)
        )

    def forward(
        self, tokens: Float[Tensor, "batch token width"]
    ) -> Float[Tensor, "batch token width"]:
        normed = self.layer_norm_1(tokens)
        tokens = tokens + self.attn1(normed, normed, normed, need_weights=False)[0]
        tokens = torch.relu(self.layer_norm_2(tokens))
        return tokens + self.attn2(tokens, tokens, tokens, need_weights=False)[0]


class PublishedAttention(nn.Module):
    """A class token that has attended to all views, as the program has it.

    Kept for its checkpoints: the first residual sum is lost in a norm and a ReLU.
    """

    no_weight_decay = ("token",)

    def __init__(self, width: int, heads: int = 4, depth: int = 2) -> None:
        super().__init__()
        require_positive(width=width, heads=heads, depth=depth)
        require_divisible(width, heads, "width", f"it is split over {heads} heads")
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.blocks = nn.Sequential(*(_PublishedBlock(width, heads) for _ in range(depth)))

    def forward(self, features: OrbitFeatures) -> Features:
        token = self.token.expand(features.shape[0], -1, -1)
        return self.blocks(torch.cat([token, features], dim=1))[:, 0]


class Combination(nn.Module):
    """One of the functions of this module, as a layer without parameters."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, logits: OrbitLogits) -> Logits:
        return self.function(logits)

    def extra_repr(self) -> str:
        return self.function.__name__


OF_LOGITS = {
    "mean": combine_mean,
    "max": combine_max,
    "sum": combine_sum,
    "mean_probability": combine_mean_probability,
    "most_likely": combine_most_likely,
    "most_certain": combine_most_certain,
}
OF_FEATURES = {
    "mean_features": combine_mean,
    "max_features": combine_max,
    "sum_features": combine_sum,
}
LEARNED: dict[str, Callable[..., nn.Module]] = {
    "learned_weights": LearnedWeights,
    "learned_attention": LearnedAttention,
    "published_weights": PublishedWeights,
    "published_attention": PublishedAttention,
}
COMBINATIONS = (*OF_LOGITS, *OF_FEATURES, *LEARNED)


def takes_features(combine: str) -> bool:
    """Return whether the combination takes the inputs of the classifier, not logits."""
    require_known(combine, COMBINATIONS, "combination")
    return combine not in OF_LOGITS


def make_combination(combine: str, width: int = 0) -> nn.Module:
    """Make a combination by name; the learned ones need the `width` of the features."""
    require_known(combine, COMBINATIONS, "combination")
    if combine in ("learned_attention", "published_attention"):
        heads = next(heads for heads in (4, 2, 1) if width % heads == 0)
        return LEARNED[combine](width, heads)
    if combine in LEARNED:
        return LEARNED[combine](width)
    return Combination((OF_LOGITS | OF_FEATURES)[combine])
