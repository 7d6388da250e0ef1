"""What is chosen on validation images: a temperature, and a threshold of decisions.

Paper:    Guo et al. 2017, "On Calibration of Modern Neural Networks": temperature, reliability
          diagram and expected calibration error (ECE).
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from turnwise.errors import require

BINS = 15
COLDEST, HOTTEST = 0.05, 20.0
STEPS = 60  # of bisection


def fit_temperature(slope: Callable[[float], float]) -> float:
    """Return the temperature T that minimises a loss which is convex in 1/T.

    `slope(1/T)` is the derivative of the loss by 1/T.  Bisection in log(1/T) finds its zero; the
    result is at most `HOTTEST` and at least `COLDEST`, where images are separated perfectly.
    """
    low, high = math.log(1 / HOTTEST), math.log(1 / COLDEST)
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if slope(math.exp(middle)) > 0 else (middle, high)
    return math.exp(-(low + high) / 2)


def choose_threshold(
    probability: Float[Tensor, " image"],
    positive: Bool[Tensor, " image"],
    *,
    sensitivity: float | None = None,
    specificity: float | None = None,
) -> float:
    """Return the threshold t, with positive decisions where p ≥ t, of an operating point.

    For a sensitivity it is the highest threshold that reaches it on these images, for a
    specificity the lowest.
    """
    if sensitivity is not None:
        wanted, falling = sensitivity, probability[positive].double().sort(descending=True).values
        require(len(falling) > 0, "no validation image is positive; a sensitivity needs some.")
        return float(falling[max(1, math.ceil(wanted * len(falling) - 1e-9)) - 1])
    assert specificity is not None, "one of the two is given"
    rising = probability[~positive].double().sort().values
    require(len(rising) > 0, "no validation image is negative; a specificity needs some.")
    last = rising[max(1, math.ceil(specificity * len(rising) - 1e-9)) - 1]  # must be negative
    above = probability.double()[probability.double() > last]
    return float((last + above.min()) / 2) if len(above) else math.nextafter(float(last), math.inf)


def reliability(
    confidence: Float[Tensor, " image"], right: Bool[Tensor, " image"], bins: int = BINS
) -> dict[str, Any]:
    """Return the ECE and, for bins of equal width, the count, mean confidence and accuracy.

    Bins without an image are left out.
    """
    confidence, hits = confidence.double(), right.double()
    number = (confidence * bins).ceil().long().sub(1).clamp(0, bins - 1)
    counts = torch.bincount(number, minlength=bins).double()
    sums = torch.zeros(2, bins, dtype=torch.float64)
    sums[0].index_add_(0, number, confidence)
    sums[1].index_add_(0, number, hits)
    used = counts > 0
    mean, accuracy = (sums[:, used] / counts[used]).unbind()
    gap = (mean - accuracy).abs()
    return {
        "ece": float((gap * counts[used]).sum() / len(confidence)),
        "bins": [
            {"count": int(c), "confidence": m, "accuracy": a}
            for c, m, a in zip(counts[used].tolist(), mean.tolist(), accuracy.tolist(), strict=True)
        ],
    }
