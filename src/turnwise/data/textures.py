"""Textures with a known direction at every pixel, and how far a field of axes is from the truth.

A texture is a sum of plane waves, whose wave vectors are across the stripes up to a few degrees.
It is a function of the plane, so any angle is as exact as any other: nothing is interpolated.  A
field of axes has the components (cos 2φ, sin 2φ) for stripes along the angle φ, like the output of
`layers.FieldHead`.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from turnwise.geometry.grids import pixel_centres

WAVES = 24
FREQUENCIES = (0.08, 0.2)  # cycles per pixel
SPREAD = 3.0  # degrees, the standard deviation of the directions of the waves
NOISE = 0.05  # standard deviation of each pixel

Angles = Float[Tensor, " image"]
Fields = Float[Tensor, "image 2 row col"]


def oriented_textures(
    angles: Angles, size: int, generator: torch.Generator
) -> Float[Tensor, "image 1 {size} {size}"]:
    """Return one texture in [0, 1] for each angle, in degrees counter-clockwise from the x axis."""
    count = len(angles)
    normal = torch.randn(count, WAVES, generator=generator)
    uniform = torch.rand(count, WAVES, 2, generator=generator)
    low, high = FREQUENCIES
    across = torch.deg2rad(angles[:, None].cpu() + 90 + SPREAD * normal)
    frequency = 2 * math.pi * (low + (high - low) * uniform[..., 0])
    vectors = frequency[..., None] * torch.stack([across.cos(), across.sin()], dim=-1)
    x = pixel_centres(size, size).float()
    phase = torch.einsum("rcd,nwd->nwrc", x, vectors)
    waves = (phase + 2 * math.pi * uniform[..., 1, None, None]).cos().sum(1) / WAVES**0.5
    noisy = 0.5 + 0.18 * waves + NOISE * torch.randn(waves.shape, generator=generator)
    return noisy.clamp(0, 1)[:, None]


def axis_field(angles: Angles, size: int) -> Fields:
    """Return (cos 2φ, sin 2φ) at every pixel, for one angle per image in degrees."""
    double = 2 * torch.deg2rad(angles)
    axis = torch.stack([double.cos(), double.sin()], dim=-1)
    return axis[:, :, None, None].expand(-1, -1, size, size)


def axis_error(field: Fields, truth: Fields) -> Float[Tensor, "image row col"]:
    """Return the angle between the lines of two fields, from 0 to 90 degrees."""
    dot = (field * truth).sum(1)
    cross = field[:, 0] * truth[:, 1] - field[:, 1] * truth[:, 0]
    return torch.rad2deg(torch.atan2(cross.abs(), dot)) / 2
