"""Views of a picture, turned and shifted, and what a model says to each of them.

Quarter turns and shifts by whole pixels move pixels exactly; other angles are interpolated.
"""

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from turnwise.data.batches import to_unit
from turnwise.evaluation.rotations import device_of
from turnwise.geometry.warps import rotate_image

Views = Float[Tensor, "view channel row col"]
Picture = UInt8[Tensor, "channel row col"]
AT_ONCE = 128


def rotated_views(picture: Picture, angles: Sequence[float]) -> Views:
    """The picture, from 0 to 1, turned counter-clockwise by each angle in degrees."""
    image = to_unit(picture[None])
    return torch.cat([rotate_image(image, angle) for angle in angles])


def shift_image(images: Views, right: int, up: int) -> Views:
    """f(x − t): moved by whole pixels, with zeros where nothing came from."""
    rows, cols = images.shape[-2:]
    # what is padded on one side is cut off on the other: a negative padding cuts
    return F.pad(images, (right, -right, -up, up)).reshape(*images.shape[:2], rows, cols)


def steps_around(reach: int) -> list[tuple[int, int]]:
    """All shifts (right, up) by at most `reach` pixels, from the upper left, row by row."""
    span = range(-reach, reach + 1)
    return [(right, -down) for down in span for right in span]


def shifted_views(picture: Picture, steps: Sequence[tuple[int, int]]) -> Views:
    """The picture, from 0 to 1, shifted by each of the steps (right, up)."""
    image = to_unit(picture[None])
    return torch.cat([shift_image(image, right, up) for right, up in steps])


def answers_to(model: nn.Module, views: Views) -> Float[Tensor, "view class"]:
    """The probabilities of all classes for pictures from 0 to 1, with dropout off."""
    return torch.cat([_widened(logits).softmax(dim=-1) for logits in _logits(model, views)])


def scores_of(model: nn.Module, views: Views) -> Float[Tensor, "view class"]:
    """The logits themselves, of which a change is visible before it reaches a probability."""
    return torch.cat(list(_logits(model, views)))


def _logits(model: nn.Module, views: Views) -> Iterator[Tensor]:
    was_training, device = model.training, device_of(model)
    model.eval()
    for part in views.split(AT_ONCE):
        with torch.no_grad():
            logits = model(model.preprocess(part.to(device)))  # type: ignore[operator]
        yield logits.cpu()
    model.train(was_training)


def _widened(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32))
