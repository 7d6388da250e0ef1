"""Images of each class side by side, as one PNG or as a page that stands alone."""

import base64
import io
from collections.abc import Sequence
from contextlib import suppress
from html import escape
from pathlib import Path
from typing import NamedTuple

import matplotlib
from jaxtyping import UInt8
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from turnwise.data.inspection import Inspection
from turnwise.data.readers.image_files import read_image
from turnwise.data.transforms import convert_channels, crop_square, resize
from turnwise.errors import InputError, require
from turnwise.files import require_writable, write_atomic

FORMATS = (".png", ".html")
EACH, MOST = 10, 40  # images of a class, and classes
SIDE, GAP, LABEL = 96, 6, 190  # pixels
_INK, _PAPER = (26, 26, 26), (255, 255, 255)


class Row(NamedTuple):
    """A class, the number of its images, and some of them."""

    name: str
    total: int
    files: list[str]
    images: list[Image.Image]


def require_sheet(path: Path) -> None:
    """Raise before any work is done if the sheet could not be written."""
    require(
        path.suffix.lower() in FORMATS,
        f"a contact sheet is a .png or .html file, got {path}; give such a name.",
    )
    require_writable(path)


def write_contact_sheet(found: Inspection, path: Path) -> None:
    """Write some images of every class, evenly chosen from all, at their own or a smaller size."""
    names = found.small.names or tuple(f"image {i}" for i in range(len(found.small)))
    rows = []
    for name, positions in list(found.strata.items())[:MOST]:
        chosen = _evenly(positions)
        rows.append(Row(
            name, len(positions), [names[i] for i in chosen],
            [_shown(names[i], found.pixels[i]) for i in chosen],
        ))  # fmt: skip
    hidden = len(found.strata) - len(rows)
    title = f"{found.source}: {len(found.small):,} images" + (
        f", {hidden:,} further classes not shown" if hidden else ""
    )
    page = path.suffix.lower() == ".html"
    write_atomic(path, _page(title, rows).encode() if page else _png(_draw(title, rows)))


def _evenly(positions: Tensor) -> list[int]:
    count = min(EACH, len(positions))
    return [int(positions[i * len(positions) // count]) for i in range(count)]


def _shown(name: str, pixels: UInt8[Tensor, "channel row col"]) -> Image.Image:
    """Return the central square of the image, read from its file if it has one."""
    if min(pixels.shape[1:]) > SIDE:
        pixels = resize(pixels.unsqueeze(0), SIDE)[0]
    pixels = convert_channels(crop_square(pixels.unsqueeze(0)), 3)[0]
    if Path(name).is_file():
        with suppress(InputError):  # it has changed meanwhile
            pixels = convert_channels(read_image(name, image_size=SIDE).unsqueeze(0), 3)[0]
    image = Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())
    return image if image.width == SIDE else image.resize((SIDE, SIDE), Image.Resampling.NEAREST)


def _draw(title: str, rows: Sequence[Row]) -> Image.Image:
    """Draw a row of images for each class, with its name and number of images on the left."""
    fonts = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"
    large, small = (ImageFont.truetype(str(fonts), size) for size in (16, 13))
    step, top = SIDE + GAP, 40
    width = LABEL + EACH * step + GAP
    sheet = Image.new("RGB", (width, top + len(rows) * step), _PAPER)
    draw = ImageDraw.Draw(sheet)
    draw.text((GAP, 10), _cut(draw, title, large, width - 2 * GAP), _INK, large)
    for number, row in enumerate(rows):
        y = top + number * step
        draw.text((GAP, y + 30), _cut(draw, row.name, large, LABEL - 2 * GAP), _INK, large)
        draw.text((GAP, y + 54), f"{row.total:,} images", _INK, small)
        for i, image in enumerate(row.images):
            sheet.paste(image, (LABEL + i * step, y))
    return sheet


def _cut(draw: ImageDraw.ImageDraw, text: str, font: ImageFont.FreeTypeFont, width: int) -> str:
    """Shorten the text to a width in pixels."""
    while draw.textlength(text, font) > width and len(text) > 2:
        text = f"{text[:-2]}…"
    return text


def _png(image: Image.Image) -> bytes:
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()


def _page(title: str, rows: Sequence[Row]) -> str:
    """Return a page with all images inside, and their file names as tooltips."""
    parts = []
    for row in rows:
        images = "".join(
            f'<img src="data:image/png;base64,{base64.b64encode(_png(image)).decode()}" '
            f'alt="{escape(file)}" title="{escape(file)}" width="{SIDE}" height="{SIDE}">'
            for file, image in zip(row.files, row.images, strict=True)
        )
        parts.append(
            f"<h2>{escape(row.name)} <small>{row.total:,} images</small></h2>\n<p>{images}</p>"
        )
    style = "body{font-family:sans-serif;margin:2em}img{margin:0 6px 6px 0}small{color:#555}"
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{style}</style>'
    body = "\n".join([f"<h1>{escape(title)}</h1>", *parts])
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}\n</body></html>\n'
