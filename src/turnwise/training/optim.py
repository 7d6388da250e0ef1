"""How the learning rate changes: a linear warm-up, then constant, along half a cosine to zero, or
with one over the root of the step."""

import math

import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from turnwise.training.recipe import OptimisationPart

# what says where a token is, under any name: to pull it towards zero is to forget the place
POSITIONS = ("position", "pose", "frequency", "lead", "alpha", "beta", "table")


def rate_factor(step: int, warmup: int, total: int, schedule: str) -> float:
    """What the base learning rate is multiplied by at `step` of `total`.

    Paper:    Loshchilov & Hutter 2017, "SGDR" (one cycle, no restart); Vaswani et al. 2017,
              "Attention Is All You Need" ("noam", √(warmup / step) after the warm-up).
    Departs:  "noam" has the base rate as its peak, whatever the width, as Horn et al. 2021 do.
    """
    if schedule == "noam":
        warmup = max(1, warmup)  # of 0 steps the rate would be 0 throughout
        return min(step / warmup, math.sqrt(warmup / max(1, step)))
    if step < warmup:
        return (step + 1) / warmup
    if schedule == "constant":
        return 1.0
    progress = (step - warmup) / max(1, total - warmup)
    return 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))


def make_optimiser(model: nn.Module, how: OptimisationPart, fused: bool = False) -> Optimizer:
    """Weight decay pulls on matrices and filters alone, not on biases, norms or positions.

    With `fused`, one kernel does the work of many (on a GPU).
    """
    matrices = [p for name, p in model.named_parameters() if _decays(name, p)]
    others = [p for name, p in model.named_parameters() if not _decays(name, p)]
    groups = [
        {"params": matrices, "weight_decay": how.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    if how.optimiser == "sgd":
        return SGD(groups, lr=how.learning_rate, momentum=0.9, nesterov=True, fused=fused)
    return AdamW(groups, lr=how.learning_rate, fused=fused)


def make_schedule(optimiser: Optimizer, how: OptimisationPart, total: int, epochs: int) -> LambdaLR:
    """The factor as a scheduler that is moved on after each of `total` steps."""
    warmup = how.warmup_steps or round(how.warmup_epochs * total / epochs)
    return LambdaLR(optimiser, lambda step: rate_factor(step, warmup, total, how.schedule))


def _decays(name: str, parameter: torch.Tensor) -> bool:
    return parameter.ndim >= 2 and not name.endswith(POSITIONS)
