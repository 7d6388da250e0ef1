"""Read one image from a PNG, JPEG, TIFF, BMP or WebP file, with palette or transparency.

16-bit grey is scaled to 8 bits (65,535 becomes 255).  Transparent pixels become black, as padding
is elsewhere.  A photograph is rotated according to its EXIF tag.
"""

import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import UInt8
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor

from turnwise.data.limits import require_small_image
from turnwise.data.transforms import check_image_options, fit_images
from turnwise.errors import InputError

KINDS = "PNG, JPEG, TIFF, BMP or WebP"
SUFFIXES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".webp")
FORMATS = ("PNG", "JPEG", "TIFF", "BMP", "WEBP")
_QUARTER = 64  # of 255: the brightest value of 14 bits stored in 16
_GREY = ("1", "L", "LA", "La", "I", "I;16", "I;16B", "I;16L", "F")


def image_files_below(folder: Path) -> list[Path]:
    """List the image files in and below a folder, by their suffix, without hidden ones.

    Hidden names begin with a dot, such as the `._1.png` that macOS writes beside `1.png`.
    """
    paths = [p for p in folder.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file()]
    return sorted(
        p for p in paths if not any(x.startswith(".") for x in p.relative_to(folder).parts)
    )


@contextmanager
def no_pillow_warnings() -> Iterator[None]:
    """Ignore warnings about odd metadata, which do no harm.

    Warning filters belong to the process: enter this once around the threads that decode.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def open_image(path: Path) -> Iterator[Image.Image]:
    """Open the file as a Pillow image; any failure becomes an `InputError` of one sentence."""
    try:
        with Image.open(path, formats=FORMATS) as image:
            require_small_image(path, image)
            yield image
    except FileNotFoundError:
        raise InputError(f"there is no image {path}; give the path of a {KINDS}.") from None
    except Image.DecompressionBombError:
        raise InputError(
            f"{path} has more than {Image.MAX_IMAGE_PIXELS:,} pixels and is not opened; make it "
            "smaller."
        ) from None
    except InputError:
        raise
    except Exception as error:  # for a damaged file, the parsers raise many kinds of exceptions
        reason = (
            " ".join(str(error).split()).removesuffix(f" {str(path)!r}") or type(error).__name__
        )
        raise InputError(
            f"the image {path} cannot be read ({reason}); remove it or repair it."
        ) from None


def _has_colour(image: Image.Image) -> bool:
    if image.mode in ("P", "PA"):
        pixels = np.asarray(image.convert("RGB"))
        return bool((pixels != pixels[..., :1]).any())
    return image.mode not in _GREY


class FileInfo(NamedTuple):
    """What the header of an image file says."""

    rows: int
    cols: int
    colour: bool
    bits: int  # per channel


def describe(path: Path) -> FileInfo:
    """Read the header, and the pixels of images with a palette alone."""
    with open_image(path) as image:
        cols, rows = image.size
        return FileInfo(rows, cols, _has_colour(image), _bits_per_channel(image, path))


def _scale_deep_grey(image: Image.Image, path: Path) -> NDArray[np.uint8]:
    values = np.asarray(image).astype(np.float64)
    if image.mode == "F" or values.min() < 0 or values.max() > 65535:
        raise InputError(
            f"the image {path} has values outside 0 to 65,535 or fractions; "
            "save it with 8 or 16 bits per pixel."
        )
    return np.rint(values * (255 / 65535)).astype(np.uint8)


def _composite_on_black(image: Image.Image) -> Image.Image:
    flat = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", flat.size, (0, 0, 0, 255)), flat).convert("RGB")


def decode(path: Path) -> UInt8[Tensor, "channel row col"]:
    """Decode all pixels of the file, into one channel for grey and three for colour."""
    with open_image(path) as opened:
        colour = _has_colour(opened)
        transparent = (
            "A" in opened.getbands() or "a" in opened.getbands() or "transparency" in opened.info
        )
        image = ImageOps.exif_transpose(opened)
        if image.mode in ("I", "F") or image.mode.startswith("I;16"):
            pixels = _scale_deep_grey(image, path)
        elif transparent:
            pixels = np.array(_composite_on_black(image))
            pixels = pixels if colour else pixels[..., 0]
        elif colour:
            pixels = np.array(image.convert("RGB"))
        else:
            pixels = np.array(image.convert("L"))
    tensor = torch.from_numpy(np.ascontiguousarray(pixels))
    return tensor.unsqueeze(0) if tensor.ndim == 2 else tensor.permute(2, 0, 1).contiguous()


def warn_about_bit_depth(paths: Sequence[Path]) -> None:
    """Warn if 16-bit files seem to hold 10, 12 or 14 bits: few of their grey levels remain.

    Files are decoded until one is bright.  If all are black, nothing is printed.
    """
    deep, brightest = 0, 0
    for path in paths:
        if brightest <= _QUARTER and describe(path).bits > 8:
            deep += 1
            brightest = max(brightest, int(decode(path).max()))
    if 0 < brightest <= _QUARTER:
        print(
            f"none of {deep:,} images of 16 bits is brighter than a quarter of 65,535, as if "
            "they held 12 or 14 bits: most of their grey levels are lost. Multiply them so that "
            "white is 65,535.",
            file=sys.stderr,
        )


def _bits_per_channel(image: Image.Image, path: Path) -> int:
    """Return the bits stored in the file; Pillow decodes colour to 8."""
    if image.format == "PNG":
        with path.open("rb") as file:
            return file.read(25)[24]  # the header always comes first
    if image.format == "TIFF":
        return max(image.tag_v2.get(258, (8,)))  # type: ignore[attr-defined]
    return 8


def read_image(
    path: str | Path, image_size: int | None = None, channels: int | None = None
) -> UInt8[Tensor, "channel row col"]:
    """Read an image, crop it to its central square and resample it to `image_size`.

    Without `image_size` and `channels` the pixels are those of the file.
    """
    check_image_options(image_size, channels, None)
    with no_pillow_warnings():
        return fit_images(decode(Path(path)).unsqueeze(0), image_size, channels, None)[0]
