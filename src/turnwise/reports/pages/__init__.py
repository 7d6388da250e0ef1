"""Self-contained HTML pages: no network, no external fonts or scripts.

Small functions return pieces of HTML and `page` puts them together.  Text from outside (class
names, file names, captions) is escaped where it enters.  The style is in page.css.  A page may have
one script; its content security policy names the hash of that script and allows no other.
"""

import base64
import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path

from jaxtyping import UInt8
from PIL import Image
from torch import Tensor

from turnwise.errors import require
from turnwise.files import write_atomic
from turnwise.reports.tables import format_percent, numeric_columns

Pixels = UInt8[Tensor, "channel row col"]
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
SAME_SERVER = "; connect-src 'self'"
WASM = " 'wasm-unsafe-eval' blob:"  # compile WebAssembly, and import scripts that the page holds


@dataclass(frozen=True)
class Section:
    """A heading (plain text) and its content (HTML from the functions below).

    Content that is `folded` is hidden until the heading is clicked; it is printed all the same.
    """

    heading: str
    html: str
    folded: bool = False


@dataclass(frozen=True)
class LivePart:
    """The content of a section that runs models in the browser, and its script."""

    html: str
    script: str


@dataclass(frozen=True)
class Prediction:
    """What a model predicts for one image: the class, its probability, and if it is correct."""

    label: str
    probability: float
    correct: bool


def page(
    title: str,
    sections: Sequence[Section],
    *,
    summary: str = "",
    script: str = "",
    calls_server: bool = False,
    runs_models: bool = False,
) -> str:
    """Return the whole document.

    Args:
        title, summary: plain text; the summary stands under the title.
        sections: the content.
        script: runs once the page is loaded.
        calls_server: let the script send requests to the server that the page came from.
        runs_models: let the script run WebAssembly that the page holds.
    """
    policy = POLICY + (SAME_SERVER if calls_server else "")
    if script:
        script = f"\n{script.strip()}\n"
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        policy += f"; script-src 'sha256-{digest}'{WASM if runs_models else ''}"
        script = f"<script>{script}</script>\n"
    lead = f"<p>{escape(summary)}</p>" if summary else ""
    body = "\n".join(_section_html(i, section) for i, section in enumerate(sections, start=1))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{escape(title)}</title>
<style>
{read_assets("page.css")}</style>
</head>
<body>
<header><h1>{escape(title)}</h1>{lead}</header>
<main>
{body}
</main>
<footer>Made by Turnwise.</footer>
{script}</body>
</html>
"""


def read_assets(*names: str) -> str:
    """Return the text of style sheets or scripts of this package, one after the other."""
    folder = files(__name__)
    return "\n".join(folder.joinpath(name).read_text(encoding="utf-8") for name in names)


def write_page(path: Path, html: str) -> None:
    """Write the page atomically; missing folders are created."""
    write_atomic(path, html.encode("utf-8", errors="replace"))


def paragraph_html(text: str) -> str:
    """Return plain text as a paragraph."""
    return f"<p>{escape(text)}</p>"


def code_html(text: str) -> str:
    """Return commands or a file as preformatted text."""
    return f'<pre tabindex="0"><code>{escape(text)}</code></pre>'


def data_html(name: str, value: object) -> str:
    """Return data for the script as JSON that cannot close its own element."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    safe = text.replace("<", "\\u003c")
    return f'<script type="application/json" id="{escape(name)}">{safe}</script>'


def folded_html(title: str, html: str) -> str:
    """Return content that is hidden until its title is clicked."""
    return f"<details><summary>{escape(title)}</summary>{html}</details>"


def table_html(headers: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "") -> str:
    """Return a table; its first column names the rows, and numbers are flush right."""
    marks = [' class="number"' if right else "" for right in numeric_columns(headers, rows)]
    head = "".join(
        f'<th scope="col"{mark}>{escape(name)}</th>'
        for name, mark in zip(headers, marks, strict=True)
    )
    body = "\n".join(f"<tr>{_row_html(row, marks)}</tr>" for row in rows)
    return _scrollable(
        f"<table>{_caption(caption)}<thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table>",
        caption or f"table: {', '.join(headers)}",
    )


def figure_html(svg: str, caption: str, alt: str = "") -> str:
    """Return a plot on a white card; `alt` describes it, the caption by default.

    The SVG is embedded as an image, so that identifiers inside two plots cannot clash.
    """
    address = _data_address(svg.encode(), "image/svg+xml")
    return (
        f'<figure><div class="card"><img src="{address}" alt="{escape(alt or caption)}"></div>'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def image_html(image: Pixels, alt: str, scale: int = 3) -> str:
    """Return a grey or RGB image, each of its pixels `scale` pixels wide on the page."""
    channels, rows, cols = image.shape
    require(channels in (1, 3), f"an image has 1 or 3 channels, got {channels}; choose some.")
    address = _data_address(encode_png(image), "image/png")
    return (
        f'<img class="pixels" src="{address}" '
        f'width="{cols * scale}" height="{rows * scale}" alt="{escape(alt)}">'
    )


def encode_png(image: Pixels) -> bytes:
    """Return a grey or RGB image as a PNG file."""
    colours = image[0] if len(image) == 1 else image.movedim(0, -1)
    encoded = io.BytesIO()
    Image.fromarray(colours.cpu().contiguous().numpy()).save(encoded, format="PNG", optimize=True)
    return encoded.getvalue()


def film_strip(
    angles: Sequence[float],
    images: Sequence[Pixels],
    predictions: Mapping[str, Sequence[Prediction]],
    *,
    caption: str = "",
    scale: int = 3,
) -> str:
    """Return one image as it rotates: a column per angle, and below it every model's prediction.

    Correct and wrong predictions differ by symbol, by a word for screen readers, and by colour.
    """
    heads = "".join(f'<th scope="col">{angle:g}°</th>' for angle in angles)
    shown = "".join(
        f"<td>{image_html(image, f'the picture rotated by {angle:g}°', scale)}</td>"
        for angle, image in zip(angles, images, strict=True)
    )
    rows = "\n".join(
        f'<tr><th scope="row">{escape(model)}</th>{"".join(map(_prediction_html, predicted))}</tr>'
        for model, predicted in predictions.items()
    )
    return _scrollable(
        f'<table class="strip">{_caption(caption)}'
        f'<thead><tr><th scope="col">rotated by</th>{heads}</tr></thead>\n'
        f'<tbody><tr><th scope="row">picture</th>{shown}</tr>\n{rows}</tbody></table>',
        caption or "predictions as the picture rotates",
    )


def _section_html(number: int, section: Section) -> str:
    name = f"section-{number}"
    heading = f'<h2 id="{name}">{escape(section.heading)}</h2>'
    content = f"{heading}\n{section.html}"
    if section.folded:
        content = f"<details>\n<summary>{heading}</summary>\n{section.html}\n</details>"
    return f'<section aria-labelledby="{name}">\n{content}\n</section>'


def _row_html(row: Sequence[str], marks: Sequence[str]) -> str:
    first, *rest = row
    cells = [f"<td{mark}>{escape(cell)}</td>" for cell, mark in zip(rest, marks[1:], strict=True)]
    return f'<th scope="row"{marks[0]}>{escape(first)}</th>' + "".join(cells)


def _prediction_html(predicted: Prediction) -> str:
    kind, symbol = ("correct", "✓") if predicted.correct else ("wrong", "✗")
    return (
        f'<td><span class="prediction {kind}"><strong><span aria-hidden="true">{symbol} </span>'
        f"{escape(predicted.label)}</strong><small>{format_percent(predicted.probability)}</small>"
        f'<span class="unseen">, {kind}</span></span></td>'
    )


def _caption(text: str) -> str:
    return f"<caption>{escape(text)}</caption>" if text else ""


def _scrollable(html: str, name: str) -> str:
    """Return a frame that scrolls sideways, by keyboard too, on a narrow screen."""
    return f'<div class="wide" role="region" aria-label="{escape(name)}" tabindex="0">{html}</div>'


def _data_address(content: bytes, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"
