"""Mixup and cutmix: images combined in pairs, each with the last-to-first image of its batch."""

import math

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

Images = Float[Tensor, "batch channel row col"]


def mix_images(
    images: Images, mixup: float, cutmix: float, generator: np.random.Generator
) -> tuple[Images, Float[Tensor, ""]]:
    """Combine image i with image n − 1 − i; return also the share that image i keeps.

    The share λ is drawn from Beta(α, α), once per batch.  Where both α are above 0, half of the
    batches are mixed in each way.

    Paper:    Zhang et al. 2018, "mixup: Beyond Empirical Risk Minimization"; Yun et al. 2019,
              "CutMix: Regularization Strategy to Train Strong Classifiers".
    """
    cuts = cutmix > 0 and (mixup == 0 or generator.random() < 0.5)
    alpha = cutmix if cuts else mixup
    share = generator.beta(alpha, alpha)
    if not cuts:
        weight = torch.tensor(share, device=images.device, dtype=images.dtype)
        return torch.lerp(images.flip(0), images, weight), weight
    rows, cols = images.shape[-2:]
    (top, bottom), (left, right) = (
        _interval(n, math.sqrt(1 - share), generator) for n in (rows, cols)
    )
    mixed = images.clone()
    mixed[..., top:bottom, left:right] = images.flip(0)[..., top:bottom, left:right]
    kept = 1 - (bottom - top) * (right - left) / (rows * cols)
    return mixed, torch.tensor(kept, device=images.device, dtype=images.dtype)


def _interval(count: int, share: float, generator: np.random.Generator) -> tuple[int, int]:
    """Draw an interval of `share` of the pixels about a uniform centre, cut off at the border."""
    centre, half = generator.integers(count), count * share / 2
    return max(0, round(centre - half)), min(count, round(centre + half))
