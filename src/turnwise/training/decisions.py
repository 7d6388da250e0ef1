"""What is chosen on the validation images once training has ended: temperature and threshold."""

from collections.abc import Iterable
from typing import Any

import torch

from turnwise.data import Dataset
from turnwise.data.batches import EvaluationBatches
from turnwise.data.targets import TargetKind
from turnwise.training.module import SupervisedModule


def choose_decisions(
    module: SupervisedModule, dataset: Dataset, device: torch.device
) -> TargetKind:
    """Return the module's kind of target with the temperature and threshold of its recipe.

    The temperature is fitted first, so a threshold is one of calibrated probabilities.  The test
    images are not used.
    """
    recipe, kind = module.recipe, module.kind
    part = recipe.evaluation
    calibrates = part.calibrate and kind.calibrates
    if not (calibrates or part.sensitivity or part.specificity):
        return kind
    batches = EvaluationBatches(dataset.val, part.batch_size, device=device, fill=recipe.data.fill)
    outputs = predict_batches(module, batches, device)
    targets = dataset.val.targets
    if calibrates:
        kind = kind.calibrate(outputs, targets)
    if part.sensitivity or part.specificity:
        kind = kind.at_operating_point(
            kind.predict(outputs), targets, sensitivity=part.sensitivity,
            specificity=part.specificity, positive=part.positive,
        )  # fmt: skip
    return kind


def predict_batches(
    module: SupervisedModule, batches: Iterable[Any], device: torch.device
) -> torch.Tensor:
    """Return the outputs for all images, on the CPU; the module stays where it was."""
    before, model = module.device, module.model
    module.to(device).eval()
    with torch.no_grad():
        outputs = [model.forward(module.model.preprocess(images)).cpu() for images, _ in batches]  # type: ignore[operator]
    module.to(before)
    return torch.cat(outputs).float()
