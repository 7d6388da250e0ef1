"""The planar frequencies of a layer, in periods across the picture.

"torus" ones are whole numbers, drawn once: circular shifts of the picture are exact, and no border
tells where anything is.  "free" ones are learned.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

FREQUENCIES = ("torus", "free")
REACHES = (1.0, 0.15)  # radians per pixel: of the sharpest waves, of the widest


def reaches(count: int) -> Float[Tensor, " {count}"]:
    """From the sharpest to the widest: sums of such waves are windows of about one over it."""
    sharpest, widest = (math.log(reach) for reach in REACHES)
    return torch.linspace(sharpest, widest, count).exp()


def set_frequency(
    layer: nn.Module, radians: Float[Tensor, "*many 2"], side: int, frequencies: str
) -> None:
    """`layer.frequency`, from radians per pixel of a picture of `side` pixels."""
    periods = radians * side / (2 * math.pi)
    if frequencies == "torus":
        layer.register_buffer("frequency", periods.round())
    else:
        layer.frequency = nn.Parameter(periods)
