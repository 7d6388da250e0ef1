"""What a model answers: to pictures as they are, turned by angles, and moved by a group."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from tqdm import tqdm

from turnwise.data import Examples
from turnwise.data.batches import EvaluationBatches
from turnwise.geometry.warps import rotate_image
from turnwise.groups import PlanarGroup, act_on_image
from turnwise.inference.precision import full_precision

Move = Callable[[Tensor], Tensor]
Answers = Float[Tensor, "picture class"]


def device_of(model: nn.Module) -> torch.device:
    """Where the model's weights are."""
    return next((p.device for p in model.parameters()), torch.device("cpu"))


@torch.no_grad()
@full_precision()
def predict_probabilities(
    model: nn.Module, pictures: Examples, *, batch_size: int = 256, move: Move | None = None
) -> Float[Tensor, "picture class"]:
    """Class probabilities for each picture, after `move` if one is given."""
    was_training = model.training
    model.eval()
    answers = []
    for images, _ in EvaluationBatches(pictures, batch_size, device=device_of(model)):
        seen = images if move is None else move(images)
        answers.append(model(model.preprocess(seen)).float().softmax(dim=-1).cpu())  # type: ignore[operator]
    model.train(was_training)
    return torch.cat(answers)


def predict_over_angles(
    model: nn.Module,
    pictures: Examples,
    angles: Sequence[float],
    *,
    batch_size: int = 256,
    progress: bool = False,
    known: Mapping[float, Answers] | None = None,
) -> Float[Tensor, "angle picture class"]:
    """Class probabilities for every picture turned by every angle, in degrees.

    Angles that are `known` (see `by_angle`) are not asked again.
    """
    found = dict(known or {})
    for angle in tqdm(angles, desc="turning the pictures", disable=not progress, leave=False):
        if angle not in found:
            move = partial(rotate_image, degrees=angle)
            found[angle] = predict_probabilities(model, pictures, batch_size=batch_size, move=move)
    return torch.stack([found[angle] for angle in angles])


def predict_over_group(
    model: nn.Module, group: PlanarGroup, pictures: Examples, *, batch_size: int = 256
) -> Float[Tensor, "element picture class"]:
    """Class probabilities for every picture moved by every element that maps pixels to pixels."""
    moves = (partial(act_on_image, group, g) for g in group.grid_elements())
    answers = [
        predict_probabilities(model, pictures, batch_size=batch_size, move=move) for move in moves
    ]
    return torch.stack(answers)


def by_angle(
    group: PlanarGroup, moved: Float[Tensor, "element picture class"]
) -> dict[float, Answers]:
    """What `predict_over_group` found, by degrees, for the elements that are turns."""
    turns = [(g, row) for row, g in enumerate(group.grid_elements()) if not group.is_reflection(g)]
    return {360.0 * g / group.rotations: moved[row] for g, row in turns}


def equal_angles(count: int) -> list[float]:
    """`count` angles from 0° on, equally spaced over the full turn."""
    return [360.0 * k / count for k in range(count)]


def accuracy_by_view(
    probabilities: Float[Tensor, "view picture class"], labels: Int64[Tensor, " picture"]
) -> list[float]:
    """The share of right answers in each view of the pictures."""
    return (probabilities.argmax(-1) == labels).double().mean(dim=1).tolist()


def agreement(probabilities: Float[Tensor, "view picture class"]) -> float:
    """The share of pictures whose answer is the same in all views."""
    answers = probabilities.argmax(-1)
    return float((answers == answers[0]).all(dim=0).double().mean())
