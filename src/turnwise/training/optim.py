"""The optimiser and its learning-rate schedule."""

import math

from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from turnwise.models.contract import undecayed
from turnwise.training.recipe import OptimisationPart


def rate_factor(step: int, warmup: int, total: int, schedule: str) -> float:
    """Return what the learning rate is multiplied by at `step` of `total`.

    Paper:    Loshchilov & Hutter 2017, "SGDR" (one cycle, no restart); Vaswani et al. 2017,
              "Attention Is All You Need" ("noam", √(warmup / step) after the warm-up).
    Departs:  "noam" has the base rate as its peak, whatever the width, as Horn et al. 2021 do.
    """
    if schedule == "noam":
        warmup = max(1, warmup)  # with 0 steps the rate would be 0 throughout
        return min(step / warmup, math.sqrt(warmup / max(1, step)))
    if step < warmup:
        return (step + 1) / warmup
    if schedule in ("constant", "multistep"):
        return 1.0
    progress = (step - warmup) / max(1, total - warmup)
    return 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))


def make_optimiser(model: nn.Module, part: OptimisationPart, fused: bool = False) -> Optimizer:
    """Return the optimiser of a recipe; `fused` uses one kernel instead of many (on a GPU)."""
    decayed, others = split_by_decay(model)
    groups = [
        {"params": decayed, "weight_decay": part.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    if part.optimiser == "sgd":
        return SGD(groups, lr=part.learning_rate, momentum=0.9, nesterov=True, fused=fused)
    return AdamW(groups, lr=part.learning_rate, fused=fused)


def split_by_decay(model: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
    """Split the parameters into those that weight decay applies to, and all others.

    It applies to matrices and filters, not to parameters of fewer than two axes (biases, norms,
    layer scales) nor to what layers and models declare in `no_weight_decay`.
    """
    own = getattr(model, "no_weight_decay", set)
    excluded = undecayed(model) | set(own() if callable(own) else ())
    decayed, others = list[Tensor](), list[Tensor]()
    for name, parameter in model.named_parameters():
        applies = parameter.ndim >= 2 and name not in excluded
        (decayed if applies else others).append(parameter)
    return decayed, others


def make_schedule(
    optimiser: Optimizer, part: OptimisationPart, total: int, epochs: int
) -> LambdaLR:
    """Return the schedule, to be stepped after each of `total` steps."""
    warmup = part.warmup_steps or round(part.warmup_epochs * total / epochs)
    drops = [round(milestone * total / epochs) for milestone in part.milestones]

    def factor(step: int) -> float:
        passed = sum(step >= drop for drop in drops)
        return rate_factor(step, warmup, total, part.schedule) * part.decay**passed

    return LambdaLR(optimiser, factor)
