"""Random turns, shifts, scales, mirrors, bends, holes and noise, on the device the pictures are on.

All draws for a batch come from one generator: the same state gives the same pictures.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from turnwise.errors import require
from turnwise.geometry.warps import rotation_matrices, warp_images

Images = Float[Tensor, "batch channel row col"]
ERASED = (0.15, 0.5)  # side of an erased square, of the picture's shorter one
KNOTS = 7  # pixels between two steps that are drawn


@dataclass(frozen=True)
class Augmentation:
    """How far training pictures are moved at random; the default moves nothing.

    share:    of the pictures that are moved at all; what is sampled anew is blurred, as pictures
              to be judged later are not
    rotation: up to this many degrees either way (180 = any angle)
    shift:    up to this many pixels along each axis
    whole:    shifts by whole pixels only, which alone blur nothing
    scale:    by a factor from 1/(1 + scale) to 1 + scale
    mirror:   left and right swapped, in half of the pictures
    stretch:  longer by a factor of up to 1 + stretch along one line, shorter by it across
    elastic:  spread, in pixels, of a smooth field of steps that bends the picture
    erase:    the share of pictures in which a square of random size and place is set to 0
    sharp:    moved pictures are sampled by cubics, which blur less than straight lines
    noise:    spread of normal noise, where pictures run from 0 to 1
    """

    share: float = 1.0
    rotation: float = 0.0
    shift: float = 0.0
    whole: bool = False
    scale: float = 0.0
    mirror: bool = False
    stretch: float = 0.0
    elastic: float = 0.0
    erase: float = 0.0
    sharp: bool = False
    noise: float = 0.0

    def __post_init__(self) -> None:
        require(0 <= self.rotation <= 180, f"rotation = {self.rotation} must be 0 to 180 degrees.")
        for what in ("shift", "scale", "stretch", "elastic", "noise"):
            value = getattr(self, what)
            require(0 <= value < math.inf, f"{what} = {value} must be finite and not negative.")
        require(
            not self.whole or not 0 < self.shift < 1,
            f"shift = {self.shift} is less than a whole pixel; set whole to false, or shift to 1.",
        )
        for what in ("share", "erase"):
            value = getattr(self, what)
            require(0 <= value <= 1, f"{what} = {value} is a share of the pictures, 0 to 1.")

    @property
    def moves(self) -> bool:
        """Whether pixels have to be sampled anew."""
        return bool(
            self.rotation or self.shift or self.scale or self.mirror or self.stretch or self.elastic
        )


def augment(images: Images, how: Augmentation, generator: torch.Generator) -> Images:
    """Move each picture by its own random x -> A x + t, then erase a square, then add noise."""
    if how.moves:
        matrices, shifts = random_moves(len(images), how, generator)
        bends = random_bends(images, how.elastic, generator) if how.elastic else None
        mode = "bicubic" if how.sharp else "bilinear"
        moved = warp_images(images, matrices.to(images), shifts.to(images), bends, mode)
        moved = moved.clamp(0, 1) if how.sharp else moved  # cubics overshoot
        images = moved if how.share == 1 else for_a_share(how.share, moved, images, generator)
    if how.erase:
        images = erase_squares(images, how.erase, generator)
    if how.noise:
        noise = torch.randn(images.shape, generator=generator, device=generator.device)
        images = images + how.noise * noise.to(images)
    return images


def random_moves(
    count: int, how: Augmentation, generator: torch.Generator
) -> tuple[Float[Tensor, "count 2 2"], Float[Tensor, "count 2"]]:
    """A = turn · scale · mirror · stretch, and t; factors are log-uniform, the rest is uniform."""
    draw = torch.rand(count, 5, generator=generator, device=generator.device) * 2 - 1
    angle, size, side, shift = draw[:, 0], draw[:, 1], draw[:, 2], draw[:, 3:]
    turn = rotation_matrices(torch.deg2rad(angle * how.rotation))
    factor = torch.exp(size * torch.log1p(torch.tensor(how.scale, device=draw.device)))
    mirror = torch.ones_like(shift)
    if how.mirror:
        mirror[:, 0] = torch.where(side < 0, -1.0, 1.0)
    matrices = turn * factor[:, None, None] * mirror[:, None, :]
    if how.stretch:
        matrices = matrices @ random_stretches(count, how.stretch, generator)
    if how.whole:  # each number of pixels as often as the others
        most = int(how.shift)
        return matrices, ((shift + 1) / 2 * (2 * most + 1)).floor().clamp(max=2 * most) - most
    return matrices, shift * how.shift


def for_a_share(share: float, moved: Images, still: Images, generator: torch.Generator) -> Images:
    """About `share` of the pictures moved; the others as they are, to the bit."""
    draw = torch.rand(len(still), 1, 1, 1, generator=generator, device=generator.device)
    return torch.where(draw.to(still.device) < share, moved, still)


def random_stretches(
    count: int, most: float, generator: torch.Generator
) -> Float[Tensor, "count 2 2"]:
    """R(φ) diag(s, 1/s) R(−φ), log s uniform up to log(1 + most) either way, φ uniform."""
    draw = torch.rand(count, 2, generator=generator, device=generator.device) * 2 - 1
    line = rotation_matrices(draw[:, 0] * math.pi / 2)
    factor = torch.exp(draw[:, 1] * math.log1p(most))
    return line @ torch.diag_embed(torch.stack([factor, 1 / factor], dim=-1)) @ line.mT


def random_bends(
    images: Images, spread: float, generator: torch.Generator
) -> Float[Tensor, "batch 2 row col"]:
    """Normal steps on a coarse grid, a knot for every `KNOTS` pixels, smoothly joined.

    Paper:    Simard, Steinkraus & Platt 2003, "Best Practices for Convolutional Neural Networks".
    Departs:  the field is joined by cubics; there it is blurred.
    """
    rows, cols = images.shape[-2:]
    coarse = (len(images), 2, max(2, rows // KNOTS), max(2, cols // KNOTS))
    steps = torch.randn(coarse, generator=generator, device=generator.device).to(images)
    return spread * F.interpolate(steps, (rows, cols), mode="bicubic", align_corners=True)


def erase_squares(images: Images, share: float, generator: torch.Generator) -> Images:
    """Set a square to 0 in about `share` of the pictures; its size and place are uniform.

    Paper:    Zhong et al. 2020, "Random Erasing Data Augmentation".
    Departs:  squares, not rectangles, and zeros, not noise.
    """
    rows, cols = images.shape[-2:]
    draw = torch.rand(len(images), 4, 1, generator=generator, device=generator.device)
    chosen, size, down, right = draw.to(images.device).unbind(1)
    side = (ERASED[0] + (ERASED[1] - ERASED[0]) * size) * min(rows, cols)
    held = [
        (first <= centres) & (centres < first + side)  # (batch, row or col)
        for count, place in ((rows, down), (cols, right))
        for first in [place * (count - side)]
        for centres in [torch.arange(count, device=images.device) + 0.5]
    ]
    hole = held[0][:, :, None] & held[1][:, None] & (chosen < share)[:, :, None]
    return images.masked_fill(hole[:, None], 0.0)
