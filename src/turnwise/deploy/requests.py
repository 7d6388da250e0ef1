"""What clients send to POST /predict: one image or many, as a raw body, a form, or JSON.

image/png, …           the body is one image file; so is one of any other type
multipart/form-data    every file of the form is one image
application/json       {"images": ["<base64>", …]}, or {"image": "<base64>"}
"""

import base64
import binascii
import json
import math
from collections.abc import Mapping
from email.message import Message
from typing import Any

from turnwise.errors import InputError, require

MAX_BYTES = 10_000_000  # of a request
MAX_IMAGES = 64  # in a request


def read_images(body: bytes, content_type: str) -> list[bytes]:
    """Return the image files in a request."""
    header = Message()
    header["Content-Type"] = content_type
    kind = header.get_content_type()
    if kind == "multipart/form-data":
        found = _form_files(body, str(header.get_param("boundary") or ""))
    elif kind == "application/json":
        found = _json_images(body)
    else:
        found = [body]
    require(bool(found), "the request holds no image; send at least one.")
    require(
        len(found) <= MAX_IMAGES,
        f"the request holds {len(found)} images, and {MAX_IMAGES} is the limit; send several "
        "requests.",
    )
    return found


def read_degrees(query: Mapping[str, str]) -> float:
    """Return the angle in a query, by default 0."""
    try:
        degrees = float(query.get("degrees", "0"))
    except ValueError:
        degrees = math.nan
    require(math.isfinite(degrees), "degrees must be a number, such as 45.")
    return degrees % 360


def _json_images(body: bytes) -> list[bytes]:
    try:
        plain: Any = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InputError("the body is not JSON.") from error
    require(isinstance(plain, dict), 'send {"images": ["<base64>", …]}.')
    given = plain.get("images", [plain["image"]] if "image" in plain else None)
    require(
        isinstance(given, list) and all(isinstance(text, str) for text in given),
        'send {"images": ["<base64>", …]}.',
    )
    try:
        return [base64.b64decode(text, validate=True) for text in given]
    except (binascii.Error, ValueError) as error:
        raise InputError("an image is not base64.") from error


def _form_files(body: bytes, boundary: str) -> list[bytes]:
    """Return the files of a form; other fields are ignored."""
    require(0 < len(boundary) <= 70, "the form states no boundary between its files.")
    mark = b"\r\n--" + boundary.encode("latin-1", errors="replace")
    _, *parts = (b"\r\n" + body).split(mark, MAX_IMAGES + 100)
    require(bool(parts) and parts[-1].startswith(b"--"), "the form has no end; send it whole.")
    found = []
    for part in parts[:-1]:
        head, blank, content = part.removeprefix(b"\r\n").partition(b"\r\n\r\n")
        require(bool(blank), "a part of the form has no content.")
        if b"filename" in head.lower():
            found.append(content)
    return found
