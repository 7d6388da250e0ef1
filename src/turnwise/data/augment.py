"""Random turns, shifts, scales, mirrors and noise, on the device the pictures are on.

All draws for a batch come from one generator: the same state gives the same pictures.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from turnwise.checks import require
from turnwise.geometry.warps import rotation_matrices, warp_images

Images = Float[Tensor, "batch channel row col"]


@dataclass(frozen=True)
class Augmentation:
    """How far training pictures are moved at random; the default moves nothing.

    rotation: up to this many degrees either way (180 = any angle)
    shift:    up to this many pixels along each axis
    scale:    by a factor from 1/(1 + scale) to 1 + scale
    mirror:   left and right swapped, in half of the pictures
    noise:    spread of normal noise, where pictures run from 0 to 1
    """

    rotation: float = 0.0
    shift: float = 0.0
    scale: float = 0.0
    mirror: bool = False
    noise: float = 0.0

    def __post_init__(self) -> None:
        require(0 <= self.rotation <= 180, f"rotation = {self.rotation} must be 0 to 180 degrees.")
        for what in ("shift", "scale", "noise"):
            value = getattr(self, what)
            require(0 <= value < math.inf, f"{what} = {value} must be finite and not negative.")

    @property
    def moves(self) -> bool:
        """Whether pixels have to be sampled anew."""
        return bool(self.rotation or self.shift or self.scale or self.mirror)


def augment(images: Images, how: Augmentation, generator: torch.Generator) -> Images:
    """Move each picture by its own random x -> A x + t, then add noise."""
    if how.moves:
        matrices, shifts = random_moves(len(images), how, generator)
        images = warp_images(images, matrices.to(images), shifts.to(images))
    if how.noise:
        noise = torch.randn(images.shape, generator=generator, device=generator.device)
        images = images + how.noise * noise.to(images)
    return images


def random_moves(
    count: int, how: Augmentation, generator: torch.Generator
) -> tuple[Float[Tensor, "count 2 2"], Float[Tensor, "count 2"]]:
    """A = turn · scale · mirror, and t; scales are log-uniform, all else is uniform."""
    draw = torch.rand(count, 5, generator=generator, device=generator.device) * 2 - 1
    angle, size, side, shift = draw[:, 0], draw[:, 1], draw[:, 2], draw[:, 3:]
    turn = rotation_matrices(torch.deg2rad(angle * how.rotation))
    factor = torch.exp(size * torch.log1p(torch.tensor(how.scale, device=draw.device)))
    mirror = torch.ones_like(shift)
    if how.mirror:
        mirror[:, 0] = torch.where(side < 0, -1.0, 1.0)
    return turn * factor[:, None, None] * mirror[:, None, :], shift * how.shift
