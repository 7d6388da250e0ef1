"""A report as one HTML page that needs nothing but itself: no network, no font.

Small functions make pieces of HTML and `page` puts them together.  Whatever comes from outside
(class names, file names, captions) is escaped where it enters; the look is in page.css.  A page may
have one script of ours, which the browser knows by its hash and runs no other.
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

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image
from torch import Tensor

from turnwise.errors import require
from turnwise.files import write_atomic
from turnwise.reports.tables import format_percent, numeric_columns

Picture = UInt8[Tensor, "channel row col"] | UInt8[np.ndarray, "channel row col"]
# a browser that obeys this loads nothing from anywhere and runs nothing
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
SAME_SERVER = "; connect-src 'self'"  # for a page that asks the server it came from


@dataclass(frozen=True)
class Section:
    """A heading (plain text) and what stands under it (HTML, made by the functions below)."""

    heading: str
    html: str


@dataclass(frozen=True)
class Answer:
    """What a model said to one picture, how sure it was, and whether it was right."""

    label: str
    probability: float
    right: bool


def page(
    title: str,
    sections: Sequence[Section],
    *,
    summary: str = "",
    script: str = "",
    asks_server: bool = False,
) -> str:
    """The whole document; `summary` is a sentence of plain text under the title.

    `script` is run when the page is there; it can reach nothing but the page, or with `asks_server`
    the server that the page came from.
    """
    policy = POLICY + (SAME_SERVER if asks_server else "")
    if script:
        script = f"\n{script.strip()}\n"
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        policy += f"; script-src 'sha256-{digest}'"
        script = f"<script>{script}</script>\n"
    style = files("turnwise.reports.pages").joinpath("page.css").read_text(encoding="utf-8")
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
{style}</style>
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


def paragraph_html(text: str) -> str:
    """Plain text as a paragraph."""
    return f"<p>{escape(text)}</p>"


def code_html(text: str) -> str:
    """Commands or a file, as they are typed."""
    return f'<pre tabindex="0"><code>{escape(text)}</code></pre>'


def data_html(name: str, value: object) -> str:
    """Data for the page's script, as JSON that cannot end its own element."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    safe = text.replace("<", "\\u003c")
    return f'<script type="application/json" id="{escape(name)}">{safe}</script>'


def folded_html(title: str, html: str) -> str:
    """What is shown when its title is opened."""
    return f"<details><summary>{escape(title)}</summary>{html}</details>"


def table_html(headers: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "") -> str:
    """A table whose first column names its rows; numbers stand flush right."""
    marks = [' class="number"' if right else "" for right in numeric_columns(headers, rows)]
    head = "".join(
        f'<th scope="col"{mark}>{escape(name)}</th>'
        for name, mark in zip(headers, marks, strict=True)
    )
    body = "\n".join(f"<tr>{_row_html(row, marks)}</tr>" for row in rows)
    return _wide(
        f"<table>{_caption(caption)}<thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table>",
        caption or f"table: {', '.join(headers)}",
    )


def figure_html(svg: str, caption: str, alt: str = "") -> str:
    """A plot on a white card; `alt` says in words what it shows, the caption unless given.

    The SVG is embedded as an image of its own, so that the names inside two plots cannot clash.
    """
    address = _data_address(svg.encode(), "image/svg+xml")
    return (
        f'<figure><div class="card"><img src="{address}" alt="{escape(alt or caption)}"></div>'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def image_html(image: Picture, alt: str, scale: int = 3) -> str:
    """A grey or RGB picture, each of its pixels `scale` pixels wide on the page."""
    channels, rows, cols = image.shape
    require(channels in (1, 3), f"a picture has 1 or 3 channels, got {channels}; choose some.")
    array = image.cpu().numpy() if isinstance(image, torch.Tensor) else image
    colours = array[0] if channels == 1 else np.moveaxis(array, 0, -1)
    encoded = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(colours)).save(encoded, format="PNG", optimize=True)
    return (
        f'<img class="pixels" src="{_data_address(encoded.getvalue(), "image/png")}" '
        f'width="{cols * scale}" height="{rows * scale}" alt="{escape(alt)}">'
    )


def film_strip(
    angles: Sequence[float],
    pictures: Sequence[Picture],
    answers: Mapping[str, Sequence[Answer]],
    *,
    caption: str = "",
    scale: int = 3,
) -> str:
    """One picture as it turns: a column per angle, and under it what every model answers.

    Right and wrong answers differ by symbol, by a word for screen readers, and by colour.
    """
    heads = "".join(f'<th scope="col">{angle:g}°</th>' for angle in angles)
    shown = "".join(
        f"<td>{image_html(picture, f'the picture turned by {angle:g}°', scale)}</td>"
        for angle, picture in zip(angles, pictures, strict=True)
    )
    said = "\n".join(
        f'<tr><th scope="row">{escape(model)}</th>{"".join(map(_answer_html, given))}</tr>'
        for model, given in answers.items()
    )
    return _wide(
        f'<table class="strip">{_caption(caption)}'
        f'<thead><tr><th scope="col">turned by</th>{heads}</tr></thead>\n'
        f'<tbody><tr><th scope="row">picture</th>{shown}</tr>\n{said}</tbody></table>',
        caption or "answers as the picture turns",
    )


def write_page(path: Path, html: str) -> None:
    """Write the page whole or not at all; the folder is made where it is missing."""
    write_atomic(path, html.encode("utf-8", errors="replace"))


def _section_html(number: int, section: Section) -> str:
    name = f"section-{number}"
    return (
        f'<section aria-labelledby="{name}">\n<h2 id="{name}">{escape(section.heading)}</h2>\n'
        f"{section.html}\n</section>"
    )


def _row_html(row: Sequence[str], marks: Sequence[str]) -> str:
    first, *rest = row
    cells = [f"<td{mark}>{escape(cell)}</td>" for cell, mark in zip(rest, marks[1:], strict=True)]
    return f'<th scope="row"{marks[0]}>{escape(first)}</th>' + "".join(cells)


def _answer_html(answer: Answer) -> str:
    kind, symbol = ("right", "✓") if answer.right else ("wrong", "✗")
    return (
        f'<td><span class="answer {kind}"><strong><span aria-hidden="true">{symbol} </span>'
        f"{escape(answer.label)}</strong><small>{format_percent(answer.probability)}</small>"
        f'<span class="unseen">, {kind}</span></span></td>'
    )


def _caption(text: str) -> str:
    return f"<caption>{escape(text)}</caption>" if text else ""


def _wide(html: str, name: str) -> str:
    """A frame that scrolls sideways, by keyboard too, where the screen is narrower than this."""
    return f'<div class="wide" role="region" aria-label="{escape(name)}" tabindex="0">{html}</div>'


def _data_address(content: bytes, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"
