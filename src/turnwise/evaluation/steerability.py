"""How far a model is from following rotations that the pixel grid does not have.

Images of smooth spots on black are rotated in two ways: drawn again at the angle ("redrawn"), so
that nothing is interpolated, and by interpolating their pixels ("interpolated", with zeros outside,
as the background is).  What changes when the image is redrawn is due to the network alone: its grid
and its neighbourhoods do not rotate by 45°.

A change is the mean |Φ(rotated f) − Φ(f)|, over the standard deviation of Φ between images: 1 is a
change as large as to another image.  Φ are the logits, or the invariant features before the
classifier.
"""

import math
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from turnwise.geometry.grids import pixel_centres
from turnwise.geometry.warps import rotate_image, rotation_matrices
from turnwise.inference.predictor import Predictor

Images = Float[Tensor, "batch channel row col"]
Output = Callable[[Images], Tensor]
WAYS = ("redrawn", "interpolated")
FILL = "zeros"  # of interpolated spots
OFF_GRID = tuple(float(angle) for angle in range(5, 90, 5))  # those of the first quarter


def spots(count: int, channels: int, size: int, degrees: float) -> Images:
    """Return images of five smooth spots inside the largest circle, drawn at this angle."""
    random = torch.Generator().manual_seed(0)
    radius = 0.33 * size * torch.rand(count, 5, generator=random, dtype=torch.float64).sqrt()
    around = 2 * math.pi * torch.rand(count, 5, generator=random, dtype=torch.float64)
    centres = torch.stack([radius * around.cos(), radius * around.sin()], dim=-1)
    angle = torch.full((1,), math.radians(degrees), dtype=torch.float64)
    centres = centres @ rotation_matrices(angle)[0].T
    distance = (pixel_centres(size, size)[None, None] - centres[:, :, None, None]).square().sum(-1)
    image = (-distance / (2 * (0.045 * size) ** 2)).exp().sum(dim=1).clamp(0, 1)
    return image[:, None].expand(-1, channels, -1, -1).float()


def change_over_angles(
    output: Output, channels: int, size: int, angles: Sequence[float], *, count: int = 12
) -> dict[str, list[float]]:
    """Return the change of `output` at each angle, for spots that are redrawn and interpolated."""
    upright = spots(count, channels, size, 0.0)
    before = output(upright)
    std = before.std(dim=0).mean().clamp_min(torch.finfo(before.dtype).tiny)
    rotated = {
        "redrawn": (spots(count, channels, size, angle) for angle in angles),
        "interpolated": (rotate_image(upright, angle, FILL) for angle in angles),
    }
    return {
        way: [float((output(views) - before).abs().mean() / std) for views in views_of]
        for way, views_of in rotated.items()
    }


def outputs_of(model: nn.Module) -> dict[str, Output]:
    """Return the functions from images in [0, 1] to the logits and to the pooled features."""
    predictor = Predictor(model)

    def features(images: Images) -> Tensor:
        return predictor.run(images, outputs=("embedding",))["embedding"].double()

    return {"logits": predictor.logits, "features": features}


def steerability(
    model: nn.Module, channels: int, size: int, angles: Sequence[float], *, count: int = 12
) -> dict[str, dict[str, list[float]]]:
    """Return the changes of logits and features at each angle, by output and way of rotating."""
    return {
        name: change_over_angles(output, channels, size, angles, count=count)
        for name, output in outputs_of(model).items()
    }
