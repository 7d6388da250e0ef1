"""From the answers to all views of a picture to one answer that does not depend on their order.

Turning the picture by g reorders its views, F(h) -> F(g⁻¹h), so whatever takes the orbit as a set
is exactly invariant.  Answers are (batch, group, num_classes, *space), features (batch, group,
width); the results are logits whose softmax are the combined probabilities.

Letters:  z_h are logits of view h, p_h = softmax(z_h), e_h the vector before the classifier's head.
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

Answers = Float[Tensor, "batch group num_classes *space"]
Answer = Float[Tensor, "batch num_classes *space"]
Features = Float[Tensor, "batch group width"]
Feature = Float[Tensor, "batch width"]


def combine_mean(answers: Answers) -> Answer:
    """1/|G| Σ_h z_h."""
    return answers.mean(dim=1)


def combine_sum(answers: Answers) -> Answer:
    """Σ_h z_h."""
    return answers.sum(dim=1)


def combine_max(answers: Answers) -> Answer:
    """max_h z_h, class by class."""
    # not amax: its gradient compares with the maximum, which a compiled graph may compute again
    # in another precision, and 0 / 0 is not a number
    return answers.max(dim=1).values


def combine_mean_probability(answers: Answers) -> Answer:
    """log 1/|G| Σ_h p_h, by logarithms alone."""
    logs = answers.log_softmax(dim=2)
    return torch.logsumexp(logs, dim=1) - math.log(answers.shape[1])


def combine_most_likely(answers: Answers) -> Answer:
    """log Π_h p_h, up to the constant that makes it a probability: as likely as all views say.

    Departs:  in log space, where the published product of 16 small numbers became 0 / 0; and with
              no temperature.  Its largest class is always that of the mean.
    """
    return answers.log_softmax(dim=2).sum(dim=1).log_softmax(dim=1)


def combine_most_certain(answers: Answers) -> Answer:
    """z_h of the view with the largest max_c p_h(c); of several with the same, the mean.

    Departs:  by the published formula, not the program, which chooses a view for each class.
              Certainty is compared as log-odds: probabilities round to 1 for several views, and the
              first of them would depend on how the picture is turned.
    """
    known = answers.detach()
    best = known.max(dim=2, keepdim=True)
    others = known.scatter(2, best.indices, -torch.inf).logsumexp(dim=2, keepdim=True)
    certainty = best.values - others
    chosen = certainty == certainty.max(dim=1, keepdim=True).values
    total = torch.where(chosen, answers, torch.zeros_like(answers)).sum(dim=1)
    return total / chosen.sum(dim=1)  # none is chosen where some answer is not a number: 0 / 0


class LearnedWeights(nn.Module):
    """Σ_h w_h e_h with w = softmax_h(W₂ gelu(W₁ e_h + b)): how much each view is believed.

    Departs:  softmax keeps weights positive and their sum 1; the published λ_h / Σ λ may divide by
              zero.  W₂ starts at 0: before training this is the mean.
    """

    def __init__(self, width: int, hidden: int = 128) -> None:
        super().__init__()
        require_positive(width=width, hidden=hidden)
        last = nn.Linear(hidden, 1, bias=False)  # softmax forgets a constant
        nn.init.zeros_(last.weight)
        self.score = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), last)

    def weights(self, features: Features) -> Float[Tensor, "batch group"]:
        return self.score(features).squeeze(-1).softmax(dim=1)

    def forward(self, features: Features) -> Feature:
        return torch.einsum("bh,bhw->bw", self.weights(features), features)


class LearnedAttention(nn.Module):
    """mean_h e_h + W norm(c), where c is a class token that has looked at all views.

    Without positions, tokens are a set, and what the class token becomes cannot depend on order.

    Departs:  ordinary transformer blocks, for two attentions without a perceptron; the mean is
              added and W starts at 0, so that before training this is the mean.
    """

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

    def forward(self, features: Features) -> Feature:
        token = self.token.expand(features.shape[0], 1, -1)
        seen = self.blocks(torch.cat([token, features], dim=1))[:, 0]
        return features.mean(dim=1) + self.correct(self.norm(seen))


class Combination(nn.Module):
    """One of the functions of this file, as a part without weights."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, answers: Answers) -> Answer:
        return self.function(answers)

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
LEARNED = ("learned_weights", "learned_attention")
COMBINATIONS = (*OF_LOGITS, *OF_FEATURES, *LEARNED)


def takes_features(combine: str) -> bool:
    """Whether the combination looks at the vectors before the head, not at logits."""
    require_known(combine, COMBINATIONS, "combination")
    return combine not in OF_LOGITS


def orbit_readout(combine: str, width: int = 0) -> nn.Module:
    """The combination of that name; the learned ones need the `width` of the features."""
    require_known(combine, COMBINATIONS, "combination")
    if combine == "learned_weights":
        return LearnedWeights(width)
    if combine == "learned_attention":
        heads = next(heads for heads in (4, 2, 1) if width % heads == 0)
        return LearnedAttention(width, heads)
    return Combination((OF_LOGITS | OF_FEATURES)[combine])
