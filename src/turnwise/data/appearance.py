"""Random changes of colour and sharpness, such as brightness, hue, blur and histological stain.

Every image of a batch has its own random strengths, and each kind of change is one operation on the
whole batch.  Brightness, contrast, saturation and hue together are one affine map of colours.
"""

import math
from dataclasses import dataclass
from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor

from turnwise.errors import require

Images = Float[Tensor, "batch channel row col"]
PerImage = Float[Tensor, " batch"]
Matrix = Float[Tensor, "3 3"]
LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601
# the axes of YIQ that carry colour; each row adds up to 0, so grey has none
CHROMA = ((0.596, -0.274, -0.322), (0.211, -0.523, 0.312))
# how much red, green and blue light hematoxylin, eosin and DAB absorb
STAINS = ((0.65, 0.70, 0.29), (0.07, 0.99, 0.11), (0.27, 0.57, 0.78))
DARKEST = 1 / 255  # optical density is infinite at 0
FACTORS = ("brightness", "contrast", "saturation", "gamma")
NAMES = (*FACTORS, "hue", "blur", "stain")
COLOUR_ONLY = ("saturation", "hue", "stain")


@dataclass(frozen=True)
class Appearance:
    """The ranges of random changes of colour and sharpness; the default changes nothing.

    Attributes:
        brightness: multiply by a factor from 1/(1 + brightness) to 1 + brightness.
        contrast: multiply the difference from the image's mean by such a factor.
        saturation: multiply the difference from grey by such a factor (colour images only).
        hue: rotate colours by up to this many degrees (colour images only).
        gamma: raise to a power from 1/(1 + gamma) to 1 + gamma.
        blur: blur by a Gaussian with a standard deviation of up to this many pixels.
        stain: change the amount of each histological stain by up to this share (colour images
            only).
        operations: how many of the changes above, drawn at random, each image gets; None is all.
    """

    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0
    gamma: float = 0.0
    blur: float = 0.0
    stain: float = 0.0
    operations: int | None = None

    def __post_init__(self) -> None:
        for what in NAMES:
            value = getattr(self, what)
            require(0 <= value < math.inf, f"{what} = {value} must be finite and not negative.")
        require(self.hue <= 180, f"hue = {self.hue} must be 0 to 180 degrees.")
        require(self.stain < 1, f"stain = {self.stain} is a share, from 0 to below 1.")
        require(
            self.operations is None or self.operations >= 1,
            f"operations = {self.operations} must be at least 1; null applies all.",
        )


def change_appearance(images: Images, how: Appearance, generator: torch.Generator) -> Images:
    """Blur, stain, recolour and brighten each image by its own random strengths.

    Paper:    Cubuk et al. 2020, "RandAugment", for `operations`.
    Departs:  the order is fixed, and strengths are uniform between the identity and the range.
    """
    colour = images.shape[1] == 3
    active = [n for n in NAMES if getattr(how, n) and (colour or n not in COLOUR_ONLY)]
    if not active:
        return images
    drawn = draw_strengths(len(images), how.operations, active, generator)
    strength = {name: values.to(images) for name, values in drawn.items()}
    factor = {name: torch.exp(strength[name] * math.log1p(getattr(how, name))) for name in FACTORS}
    if "blur" in active:
        images = blur(images, how.blur * strength["blur"].abs())
    if "stain" in active:
        images = change_stains(images, 1 + how.stain * strength["stain"])
    if not {"brightness", "contrast", "saturation", "hue"}.isdisjoint(active):
        hue = strength["hue"] * math.radians(how.hue)
        images = recolour(
            images, factor["brightness"], factor["contrast"], factor["saturation"], hue
        )
    if "gamma" in active:
        images = images.clamp(0, 1) ** factor["gamma"][:, None, None, None]
    return images.clamp(0, 1)


def draw_strengths(
    count: int, operations: int | None, active: list[str], generator: torch.Generator
) -> dict[str, Float[Tensor, "count *stain"]]:
    """Draw numbers from −1 to 1 for each of `NAMES`: three per image for the stains, else one.

    0 is the identity: what an image does not get, because it is not among its `operations`.
    """
    kinds = len(NAMES)
    draw = torch.rand(count, 2 * kinds + 2, generator=generator, device=generator.device)
    strengths: list[Tensor] = [*(draw[:, : kinds - 1] * 2 - 1).unbind(1)]
    found = dict(zip(NAMES, [*strengths, draw[:, kinds - 1 : kinds + 2] * 2 - 1], strict=True))
    if operations is None or operations >= len(active):
        return found
    keys = dict(zip(NAMES, draw[:, kinds + 2 :].unbind(1), strict=True))
    ranks = torch.stack([keys[name] for name in active], dim=1).argsort(dim=1).argsort(dim=1)
    for name, chosen in zip(active, (ranks < operations).unbind(1), strict=True):
        found[name] = found[name] * (chosen[:, None] if name == "stain" else chosen)
    return found


def recolour(
    images: Images,
    brightness: PerImage,
    contrast: PerImage,
    saturation: PerImage,
    hue: PerImage,
) -> Images:
    """Apply brightness, contrast, saturation and a rotation of the hue by `hue` radians.

    With P the projection on grey, the colour x and the mean grey m of its image become
    b c (P + s cos h (1 − P) + s sin h J) x + b (1 − c) m, where J rotates the plane of equal luma
    by 90°.  Images without three channels have brightness and contrast only.
    """
    shape, flat = images.shape, images.flatten(2)
    if shape[1] == 3:
        grey, colour, turned = colour_projections(images.device, images.dtype)
        luma = flat.mean(dim=2) @ grey[0]
        same, across = saturation * hue.cos(), saturation * hue.sin()
        colours = grey + same[:, None, None] * colour + across[:, None, None] * turned
        mapped = ((brightness * contrast)[:, None, None] * colours) @ flat
    else:
        luma = flat.mean(dim=(1, 2))
        mapped = (brightness * contrast)[:, None, None] * flat
    return (mapped + (brightness * (1 - contrast) * luma)[:, None, None]).view(shape)


@cache
def colour_projections(device: torch.device, dtype: torch.dtype) -> tuple[Matrix, Matrix, Matrix]:
    """Return the projection P on grey, 1 − P, and the rotation J by 90° in the plane of colours."""
    yiq = torch.tensor((LUMA, *CHROMA), dtype=torch.float64)
    back = torch.linalg.inv(yiq)
    turn = torch.tensor([[0, 0, 0], [0, 0, -1], [0, 1, 0]], dtype=torch.float64)
    grey = back[:, :1] @ yiq[:1]
    colour, turned = torch.eye(3, dtype=torch.float64) - grey, back @ turn @ yiq
    return grey.to(device, dtype), colour.to(device, dtype), turned.to(device, dtype)


def change_stains(images: Images, factors: Float[Tensor, "batch 3"]) -> Images:
    """Multiply the amounts of hematoxylin, eosin and DAB in every pixel by `factors`.

    The optical density −log x is the sum of the amounts times what each stain absorbs.

    Paper:    Ruifrok & Johnston 2001, "Quantification of Histochemical Staining by Color
              Deconvolution"; Tellez et al. 2018, "Whole-Slide Mitosis Detection in H&E Breast
              Histology Using PHH3 as a Reference".
    Departs:  no constant is added to the amounts, so that white stays white.
    """
    absorbed, amounts = stain_matrices(images.device, images.dtype)
    mixed = absorbed @ (factors[:, :, None] * amounts)  # (batch, 3, 3)
    density = -images.clamp(DARKEST, 1).log().flatten(2)
    return torch.exp(-(mixed @ density)).view(images.shape)


@cache
def stain_matrices(device: torch.device, dtype: torch.dtype) -> tuple[Matrix, Matrix]:
    """Return the map from amounts of stains to optical densities of colours, and its inverse."""
    vectors = torch.tensor(STAINS, dtype=torch.float64)
    absorbed = (vectors / vectors.norm(dim=1, keepdim=True)).T
    return absorbed.to(device, dtype), torch.linalg.inv(absorbed).to(device, dtype)


def blur(images: Images, std: PerImage) -> Images:
    """Blur by Gaussians of these standard deviations, in pixels; weights inside the image sum to 1.

    Two matrix products per image, one along each axis, whatever the standard deviation.
    """
    rows, cols = images.shape[-2:]
    down, along = _smoothing(rows, std), _smoothing(cols, std)
    return down[:, None] @ images @ along.mT[:, None]


def _smoothing(count: int, std: PerImage) -> Float[Tensor, "batch count count"]:
    place = torch.arange(count, device=std.device, dtype=std.dtype)
    distance = (place[:, None] - place[None, :]).square()
    tiny = torch.finfo(std.dtype).tiny
    weights = torch.exp(-distance / (2 * std.square() + tiny)[:, None, None])
    return weights / weights.sum(dim=2, keepdim=True)
