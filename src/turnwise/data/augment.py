"""Random rotations, shifts, scales, crops, flips, distortions, colours, erased squares and noise.

Everything runs on the device of the images.  One generator makes all draws for a batch: the same
state gives the same images.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from turnwise.data.appearance import Appearance, change_appearance
from turnwise.data.masks import ignore_corners, warp_masks
from turnwise.errors import require, require_known
from turnwise.geometry.warps import keep_disc, rotation_matrices, warp_images
from turnwise.groups import PlanarGroup

Images = Float[Tensor, "batch channel row col"]
Masks = Shaped[Tensor, "batch row col"]
Pairs = tuple[  # of images and masks; windows are smaller than what they are cut from
    Float[Tensor, "batch channel newrow newcol"], Shaped[Tensor, "batch newrow newcol"]
]
# the values that a policy gives to options that are not set; None: from the symmetry of the model
POLICIES: Mapping[str, Mapping[str, Any]] = {
    "none": {},
    "standard": {
        "rotation": None, "mirror": None, "crop": 0.7, "scale": 0.1,
        "brightness": 0.2, "contrast": 0.2, "saturation": 0.2, "hue": 10.0, "gamma": 0.2,
    },
    "randaugment": {
        "rotation": None, "mirror": None, "crop": 0.5, "stretch": 0.3, "operations": 2,
        "brightness": 0.9, "contrast": 0.9, "saturation": 0.9, "hue": 30.0, "gamma": 0.9,
        "blur": 1.0,
    },
}  # fmt: skip
UPRIGHT = 15.0  # degrees of rotation for images with an up
ASPECT = 4 / 3  # of a crop, at most
ERASED = (0.15, 0.5)  # side of an erased square, as a share of the image's shorter side
KNOT_DISTANCE = 7  # pixels between two drawn displacements


@dataclass(frozen=True)
class Augmentation(Appearance):
    """The ranges of random augmentation; the default changes nothing.

    Attributes:
        policy: the name of the policy that chose the options which were not set.
        share: the share of images that are warped at all.  Warping blurs; test images are sharp.
        rotation: by up to this many degrees in either direction (180 = any angle); None is chosen
            by `for_group`.
        shift: by up to this many pixels along each axis.
        whole: shift by whole pixels only, which does not blur.
        scale: by a factor from 1/(1 + scale) to 1 + scale.
        crop: the smallest share of the image's area in a random crop, which is resized to the
            whole image; 1 is no crop.
        mirror: flip half of the images horizontally; None is chosen by `for_group`.
        stretch: by a factor of up to 1 + stretch along a random axis, and its inverse across it.
        elastic: the standard deviation, in pixels, of a smooth random displacement field.
        erase: the share of images in which a square of random size and position is set to 0.
        sharp: interpolate by cubics, which blur less than linear interpolation.
        noise: the standard deviation of normal noise, for images from 0 to 1.
        window: train on squares of so many pixels out of images with masks, at whole pixels; every
            position is equally likely, and so is the position that a rotation or a flip maps it to.
    """

    policy: str = "none"
    share: float = 1.0
    rotation: float | None = 0.0
    shift: float = 0.0
    whole: bool = False
    scale: float = 0.0
    crop: float = 1.0
    mirror: bool | None = False
    stretch: float = 0.0
    elastic: float = 0.0
    erase: float = 0.0
    sharp: bool = False
    noise: float = 0.0
    window: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require_known(self.policy, POLICIES, "policy")
        require(
            self.rotation is None or 0 <= self.rotation <= 180,
            f"rotation = {self.rotation} must be 0 to 180 degrees.",
        )
        require(
            0 < self.crop <= 1, f"crop = {self.crop} is a share of the area, above 0, at most 1."
        )
        for what in ("shift", "scale", "stretch", "elastic", "noise"):
            value = getattr(self, what)
            require(0 <= value < math.inf, f"{what} = {value} must be finite and not negative.")
        require(
            not self.whole or not 0 < self.shift < 1,
            f"shift = {self.shift} is less than a whole pixel; set whole to false, or shift to 1.",
        )
        require(
            self.window is None or self.window >= 1,
            f"window = {self.window} must be at least 1 pixel; try 128.",
        )
        for what in ("share", "erase"):
            value = getattr(self, what)
            require(0 <= value <= 1, f"{what} = {value} is a share of the images, 0 to 1.")

    @property
    def warps(self) -> bool:
        """Whether images are resampled."""
        moved = self.rotation or self.shift or self.scale or self.mirror or self.stretch
        return bool(moved or self.elastic or self.crop < 1)

    def for_group(self, own: PlanarGroup, wanted: PlanarGroup) -> "Augmentation":
        """Return the augmentation with the rotations and flips that a model has to learn.

        Args:
            own: the group under which the model is exact.
            wanted: the symmetry of the images, the group of the recipe.

        A model that is exact under rotations by 90° sees every rotation if images are rotated by up
        to 45°; a model without symmetry needs 180°, and flips if the images may be flipped.  Images
        that have an up, because `wanted` has no rotations, are rotated by 15°.

        >>> plain, d4 = PlanarGroup.named("C1"), PlanarGroup.named("D4")
        >>> how = Augmentation(rotation=None, mirror=None)
        >>> how.for_group(d4, d4).rotation, how.for_group(plain, d4).rotation
        (45.0, 180.0)
        """
        exact = math.gcd(own.rotations, 4)  # rotations that the pixel grid has
        angle = 180 / exact if wanted.rotations > 1 else UPRIGHT
        return replace(
            self,
            rotation=angle if self.rotation is None else self.rotation,
            mirror=wanted.reflections and not own.reflections
            if self.mirror is None
            else self.mirror,
        )


def with_policy(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of an augmentation, those that are not set as its policy has them."""
    name = values.get("policy", "none")
    require_known(name, POLICIES, "data.augment.policy")
    return {**POLICIES[name], **values}


def augment(
    images: Images, how: Augmentation, generator: torch.Generator, fill: str = "zeros"
) -> Images:
    """Warp each image by its own random x -> A x + t, change its appearance, erase a square, and
    add noise.

    `fill` is one of `geometry.warps.FILLS`; with "disc" every image, warped or not, is its disc.
    """
    require(how.window is None, f"window = {how.window} is for images with masks; leave it out.")
    return _augment(images, draw_warp(images, how, generator), how, generator, fill)


def augment_pairs(
    images: Images, masks: Masks, how: Augmentation, generator: torch.Generator, fill: str = "zeros"
) -> Pairs:
    """Augment images as `augment` does, and warp their masks by the same draws.

    A warped mask takes the nearest value; pixels from outside the image are reflected as those of
    the image are, or do not count where the fill mode invents them.
    """
    warp = draw_warp(images, how, generator)
    if warp is not None:
        masks = warp_masks(masks, lambda values, outside: warp(values, "nearest", outside), fill)
    elif fill == "disc":
        masks = ignore_corners(masks)
    images = _augment(images, warp, how, generator, fill)
    return (
        (images, masks) if how.window is None else cut_windows(images, masks, how.window, generator)
    )


def cut_windows(images: Images, masks: Masks, side: int, generator: torch.Generator) -> Pairs:
    """Return a square of each pair, at a position that is uniform over all whole pixels."""
    count, (rows, cols) = len(images), images.shape[-2:]
    require(
        side <= min(rows, cols),
        f"window = {side} is more than the {min(rows, cols)} pixels of the images.",
    )
    draw = torch.rand(count, 2, 1, generator=generator, device=generator.device).to(images.device)
    steps = torch.arange(side, device=images.device)
    top, left = (
        (draw[:, axis] * (length - side + 1)).long().clamp(max=length - side) + steps
        for axis, length in enumerate((rows, cols))
    )
    number = torch.arange(count, device=images.device)[:, None, None]
    row, col = top[:, :, None], left[:, None, :]
    return images.movedim(1, -1)[number, row, col].movedim(-1, 1), masks[number, row, col]


def _augment(
    images: Images, warp: "Warp | None", how: Augmentation, generator: torch.Generator, fill: str
) -> Images:
    if fill == "disc":
        images = keep_disc(images)
    if warp is not None:
        images = warp(images, "bicubic" if how.sharp else "bilinear", fill)
    images = change_appearance(images, how, generator)
    if how.erase:
        images = erase_squares(images, how.erase, generator)
    if how.noise:
        noise = torch.randn(images.shape, generator=generator, device=generator.device)
        images = images + how.noise * noise.to(images)
    return images


@dataclass(frozen=True, eq=False)
class Warp:
    """What was drawn for a batch: x -> A x + t and a displacement, for the images `chosen`."""

    matrices: Float[Tensor, "batch 2 2"]
    shifts: Float[Tensor, "batch 2"]
    field: Float[Tensor, "batch 2 row col"] | None
    chosen: Bool[Tensor, "batch 1 1 1"] | None  # None: all

    def __call__(self, images: Images, mode: str, fill: str) -> Images:
        warped = warp_images(images, self.matrices, self.shifts, self.field, mode, fill)
        warped = warped.clamp(0, 1) if mode == "bicubic" else warped  # cubics overshoot
        return warped if self.chosen is None else torch.where(self.chosen, warped, images)


def draw_warp(images: Images, how: Augmentation, generator: torch.Generator) -> Warp | None:
    """Draw how each image is warped; None if none is."""
    if not how.warps:
        return None
    matrices, shifts = random_affine(len(images), how, generator)
    if how.crop < 1:
        zooms, centres = random_crops(images, how.crop, generator)
        matrices = matrices * zooms[:, None, :]
        shifts = shifts - (matrices @ centres[:, :, None])[:, :, 0]
    field = random_displacements(images, how.elastic, generator) if how.elastic else None
    chosen = None if how.share == 1 else random_choice(images, how.share, generator)
    return Warp(matrices.to(images), shifts.to(images), field, chosen)


def random_affine(
    count: int, how: Augmentation, generator: torch.Generator
) -> tuple[Float[Tensor, "count 2 2"], Float[Tensor, "count 2"]]:
    """Draw A = rotation · scale · flip · stretch, and t.

    Factors are log-uniform, everything else is uniform.
    """
    assert how.rotation is not None and how.mirror is not None, "`for_group` chooses them"
    draw = torch.rand(count, 5, generator=generator, device=generator.device) * 2 - 1
    angle, size, side, shift = draw[:, 0], draw[:, 1], draw[:, 2], draw[:, 3:]
    rotation = rotation_matrices(torch.deg2rad(angle * how.rotation))
    factor = torch.exp(size * math.log1p(how.scale))
    flip = torch.ones_like(shift)
    if how.mirror:
        flip[:, 0] = torch.where(side < 0, -1.0, 1.0)
    matrices = rotation * factor[:, None, None] * flip[:, None, :]
    if how.stretch:
        matrices = matrices @ random_stretches(count, how.stretch, generator)
    if how.whole:  # every number of pixels has the same probability
        most = int(how.shift)
        return matrices, ((shift + 1) / 2 * (2 * most + 1)).floor().clamp(max=2 * most) - most
    return matrices, shift * how.shift


def random_crops(
    images: Images, smallest: float, generator: torch.Generator
) -> tuple[Float[Tensor, "batch 2"], Float[Tensor, "batch 2"]]:
    """Draw crops inside the images: their magnification along x and y, and their centres in pixels.

    The share of the area is uniform from `smallest` to 1, the aspect ratio log-uniform.

    Paper:    Szegedy et al. 2015, "Going Deeper with Convolutions".
    Departs:  rotations are about the centre of the crop, and use pixels from outside it.
    """
    draw = torch.rand(len(images), 4, generator=generator, device=generator.device)
    area = smallest + (1 - smallest) * draw[:, 0]
    aspect = torch.exp((draw[:, 1] * 2 - 1) * math.log(ASPECT))
    sides = torch.stack([area * aspect, area / aspect], dim=1).sqrt().clamp(max=1)
    rows, cols = images.shape[-2:]
    centres = (draw[:, 2:] - 0.5) * (1 - sides)
    return 1 / sides, torch.stack([centres[:, 0] * cols, centres[:, 1] * rows], dim=1)


def random_choice(
    images: Images, share: float, generator: torch.Generator
) -> Bool[Tensor, "batch 1 1 1"]:
    """Choose about `share` of the images."""
    draw = torch.rand(len(images), 1, 1, 1, generator=generator, device=generator.device)
    return draw.to(images.device) < share


def random_stretches(
    count: int, most: float, generator: torch.Generator
) -> Float[Tensor, "count 2 2"]:
    """Draw R(φ) diag(s, 1/s) R(−φ), with φ uniform and |log s| uniform up to log(1 + most)."""
    draw = torch.rand(count, 2, generator=generator, device=generator.device) * 2 - 1
    axis = rotation_matrices(draw[:, 0] * math.pi / 2)
    factor = torch.exp(draw[:, 1] * math.log1p(most))
    return axis @ torch.diag_embed(torch.stack([factor, 1 / factor], dim=-1)) @ axis.mT


def random_displacements(
    images: Images, std: float, generator: torch.Generator
) -> Float[Tensor, "batch 2 row col"]:
    """Draw normal displacements on a coarse grid, and interpolate them by cubics.

    Paper:    Simard, Steinkraus & Platt 2003, "Best Practices for Convolutional Neural Networks".
    Departs:  the paper blurs a field that is drawn at every pixel.
    """
    rows, cols = images.shape[-2:]
    coarse = (len(images), 2, max(2, rows // KNOT_DISTANCE), max(2, cols // KNOT_DISTANCE))
    knots = torch.randn(coarse, generator=generator, device=generator.device).to(images)
    return std * F.interpolate(knots, (rows, cols), mode="bicubic", align_corners=True)


def erase_squares(images: Images, share: float, generator: torch.Generator) -> Images:
    """Set a square of uniform size and position to 0 in about `share` of the images.

    Paper:    Zhong et al. 2020, "Random Erasing Data Augmentation".
    Departs:  squares, not rectangles, and zeros, not noise.
    """
    rows, cols = images.shape[-2:]
    draw = torch.rand(len(images), 4, 1, generator=generator, device=generator.device)
    chosen, size, down, right = draw.to(images.device).unbind(1)
    side = (ERASED[0] + (ERASED[1] - ERASED[0]) * size) * min(rows, cols)
    inside = [
        (first <= centres) & (centres < first + side)  # (batch, row or col)
        for count, position in ((rows, down), (cols, right))
        for first in [position * (count - side)]
        for centres in [torch.arange(count, device=images.device) + 0.5]
    ]
    square = inside[0][:, :, None] & inside[1][:, None] & (chosen < share)[:, :, None]
    return images.masked_fill(square[:, None], 0.0)
