"""How long training steps take: measured on the data, on this machine, for a given recipe."""

import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import torch
from torch import nn

from turnwise.data import Examples
from turnwise.data.batches import TrainingBatches
from turnwise.geometry.warps import choose_fill
from turnwise.training.optim import make_optimiser
from turnwise.training.recipe import Recipe

STEPS = 3  # timed, after one that is not
PART = 8  # the first steps have a batch that is so many times smaller


def seconds_per_step(
    model: nn.Module, recipe: Recipe, examples: Examples, device: torch.device, limit: float
) -> float:
    """Return the duration of a training step, augmentation and optimiser included.

    A model for which a part of a batch already takes longer than `limit` seconds is not timed any
    further: the result is then a lower bound.
    """
    size = recipe.optimisation.batch_size
    model = model.to(device).train()
    least = min(_durations(model, recipe, examples, device, max(2, size // PART), 1))
    if least > limit:
        return least
    durations = sorted(_durations(model, recipe, examples, device, size, STEPS))
    return durations[len(durations) // 2]


def _durations(
    model: nn.Module,
    recipe: Recipe,
    examples: Examples,
    device: torch.device,
    size: int,
    steps: int,
) -> list[float]:
    """Time `steps` steps after one that is not timed."""
    part = replace(recipe.optimisation, batch_size=size)
    count = (steps + 1) * size
    chosen = torch.arange(count) % len(examples)
    batches = TrainingBatches(
        examples.take(chosen), size, seed=recipe.seed, device=device,
        augmentation=recipe.augmentation(model.group),  # type: ignore[arg-type]
        fill=choose_fill(recipe.data.fill, examples.images),
    )  # fmt: skip
    optimiser = make_optimiser(model, part, fused=device.type == "cuda")
    found, begun = list[float](), time.perf_counter()
    for images, _ in batches:
        with _precision(recipe, device):
            outputs = model(model.preprocess(images))  # type: ignore[operator]
        optimiser.zero_grad()
        outputs.float().square().mean().backward()
        optimiser.step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        now = time.perf_counter()
        found.append(now - begun)
        begun = now
    return found[1:]


def _precision(recipe: Recipe, device: torch.device) -> AbstractContextManager[object]:
    if recipe.trainer.precision == "bf16-mixed":
        return torch.autocast(device.type, torch.bfloat16)
    return nullcontext()
