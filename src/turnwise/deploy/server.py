"""The HTTP service behind `turnwise serve`: drop an image on a page, rotate it, see predictions.

    GET  /                    the page; it loads nothing else
    POST /predict?degrees=D   an image as the body; the reply is JSON (`ImageClassifier.predict`)

Requests are not trusted: the Host header must name this server, and the Origin header this page, if
the browser sends one; the body has a limit; a file is decoded only if it is an image of acceptable
size; no URL maps to a file.  The server stores nothing.
"""

import base64
import io
import json
import math
import socket
import tempfile
import threading
import warnings
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qs, urlsplit

import torch
from jaxtyping import UInt8
from PIL import Image
from torch import Tensor, nn

from turnwise.data import read_image
from turnwise.data.batches import to_unit
from turnwise.data.readers.image_files import FORMATS, KINDS
from turnwise.errors import InputError, require
from turnwise.geometry.warps import rotate_image
from turnwise.inference.loading import image_shape
from turnwise.inference.predictor import Predictor
from turnwise.reports.pages import Section, encode_png, page, read_assets

MAX_BYTES = 10_000_000
MAX_PIXELS = 16_000_000  # decoded and resampled in double precision, 400 MB
MAX_CLASSES = 10  # in a reply, the most probable ones
TIMEOUT = 20  # seconds without data from the client
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}


@dataclass(frozen=True, eq=False)
class ImageClassifier:
    """The model behind the service; it predicts one image at a time."""

    name: str
    model: nn.Module
    classes: tuple[str, ...]
    fill: str = "zeros"  # of the corners of rotated images
    lock: threading.Lock = field(default_factory=threading.Lock)

    def predict(self, content: bytes, degrees: float) -> dict[str, Any]:
        """Classify the image in a file, rotated; raise if there is none.

        The reply has the keys

            model          the name of the model
            prediction     the most probable class
            classes        the most probable classes, at most `MAX_CLASSES`, in the model's order
            probabilities  theirs
            image          the rotated image in the model's size, a PNG file in base64
            upright        the same before the rotation
        """
        channels, size = image_shape(self.model)
        if channels is None or size is None:
            raise InputError("the model does not say which images it takes.")
        with self.lock:
            upright = open_image(content, size, channels)
            rotated = rotate_image(to_unit(upright[None]), degrees, self.fill)
            (probabilities,) = Predictor(self.model).probabilities(rotated).tolist()
        ranked = sorted(range(len(probabilities)), key=probabilities.__getitem__)
        shown = sorted(ranked[-MAX_CLASSES:])
        return {
            "model": self.name,
            "prediction": self.classes[ranked[-1]],
            "classes": [self.classes[c] for c in shown],
            "probabilities": [probabilities[c] for c in shown],
            "image": _base64_png((255 * rotated[0]).round().to(torch.uint8)),
            "upright": _base64_png(upright),
        }


def open_image(
    content: bytes, image_size: int, channels: int
) -> UInt8[Tensor, "channels image_size image_size"]:
    """Decode an image for the model; raise if it is none, or too large."""
    require(bool(content), f"the file is empty; choose a {KINDS}.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(content), formats=FORMATS) as image:
                pixels = image.size[0] * image.size[1]  # from the header: nothing is decoded
    except Exception as error:  # a parser may raise anything on such input
        raise InputError(f"the file is not a picture; choose a {KINDS}.") from error
    require(
        pixels <= MAX_PIXELS,
        f"the picture has {pixels:,} pixels, and {MAX_PIXELS:,} is the limit; shrink it.",
    )
    with tempfile.TemporaryDirectory(prefix="turnwise-") as folder:
        path = Path(folder) / "image"
        path.write_bytes(content)
        try:
            return read_image(path, image_size, channels)
        except InputError as error:
            raise InputError(str(error).replace(str(path), "the file")) from error
        except Exception as error:
            raise InputError("the picture cannot be read; save it again as PNG.") from error


def serve_page(classifier: ImageClassifier) -> str:
    """Return the page of the service."""
    buttons = "".join(
        f'<button type="button" data-degrees="{d}">{d}°</button>' for d in (0, 90, 180, 270)
    )
    html = f"""<div class="explorer">
<div>
<div class="drop" id="serve-drop" data-max-bytes="{MAX_BYTES}">
<p><label for="serve-file">Drop a picture here, or choose one:</label></p>
<input type="file" id="serve-file"
accept="image/png,image/jpeg,image/tiff,image/bmp,image/webp"></div>
<p><label for="serve-angle">angle</label><br>
<input type="range" id="serve-angle" min="0" max="359" step="1" value="0" disabled></p>
<div class="choice" role="group" aria-label="rotations by 90°">{buttons}</div>
<p id="serve-status" role="status">No picture yet.</p>
<img class="rotated" id="serve-image" alt="the rotated picture in the model's size">
</div>
<div class="models"><div class="model" id="serve-model"></div></div>
</div>
<noscript><p>This page needs JavaScript.</p></noscript>"""
    summary = (
        "The picture is cropped to its central square and resampled to the model's size. "
        "It stays on this machine."
    )
    return page(
        f"Turnwise: {classifier.name}",
        [Section("Rotate your picture", html)],
        summary=summary,
        script=read_assets("predictions.js", "serve.js"),
        calls_server=True,
    )


class ImageHandler(BaseHTTPRequestHandler):
    """One request; everything but the two above gets an error in JSON."""

    timeout = TIMEOUT
    server_version, sys_version = "turnwise", ""
    server: "ImageServer"

    def do_GET(self) -> None:
        if not self._is_addressed_here():
            return
        if self.path == "/":
            self._reply(200, self.server.content, "text/html; charset=utf-8")
        elif self._url().path == "/predict":
            self._refuse(405, "send an image with POST.", Allow="POST")
        elif self.path == "/favicon.ico":
            self._reply(204, b"", "image/x-icon")
        else:
            self._refuse(404, "there is nothing here but / and /predict.")

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_POST(self) -> None:
        if not self._is_addressed_here():
            return
        url = self._url()
        if url.path != "/predict":
            self._refuse(405 if url.path == "/" else 404, "send images to /predict.")
            return
        try:
            degrees = _degrees(parse_qs(url.query))
            body = self._body()
            if body is not None:
                reply = self.server.classifier.predict(body, degrees)
                self._reply(200, json.dumps(reply).encode(), "application/json")
        except InputError as error:
            self._refuse(422, str(error))

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Reply to what the library refuses: methods without a do_METHOD, and invalid HTTP."""
        if code == 501:
            self._refuse(405, "only GET and POST are supported.", Allow="GET, POST")
        else:
            self._refuse(code, "the request is not valid HTTP.")

    def _url(self) -> SplitResult:
        """Return the parts of the requested URL, empty if it is invalid."""
        try:
            return urlsplit(self.path)
        except ValueError:
            return urlsplit("")

    def _is_addressed_here(self) -> bool:
        """Reply 403 and return False unless the request names this server and is of its own page.

        Other pages in the same browser may send requests here, and a foreign host name may resolve
        to this address.
        """
        bound = self.server.port
        hosts = (self.server.host, "127.0.0.1", "localhost")
        names = {f"{name}:{bound}" for name in hosts} | set(hosts if bound == 80 else ())
        origin = self.headers.get("Origin")
        if self.headers.get("Host") not in names:
            self._refuse(403, "this server has another name.")
        elif origin is not None and origin not in {f"http://{name}" for name in names}:
            self._refuse(403, "requests from other pages are refused.")
        else:
            return True
        return False

    def _body(self) -> bytes | None:
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()):
            self._refuse(411, "the request must state its Content-Length.")
            return None
        if len(length) > 12 or int(length) > MAX_BYTES:
            self._refuse(413, f"the file is larger than {MAX_BYTES:,} bytes.")
            return None
        return self.rfile.read(int(length))

    def _reply(self, status: int, body: bytes, kind: str, **more: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, **HEADERS, **more}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _refuse(self, status: int, message: str, **more: str) -> None:
        """Reply with the reason and close the connection; the rest of the request is not read."""
        self.close_connection = True
        body = json.dumps({"error": message}).encode()
        self._reply(status, body, "application/json", Connection="close", **more)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: images are private."""


class ImageServer(ThreadingHTTPServer):
    """The service, bound to its address; port 0 takes a free one.  `serve_forever` starts it."""

    daemon_threads = False  # one that still runs while Python exits can crash it (SIGABRT)

    def __init__(self, classifier: ImageClassifier, host: str, port: int) -> None:
        self.classifier, self.host = classifier, host
        self.clients: set[socket.socket] = set()
        self.interrupted = False
        self.content = serve_page(classifier).encode()
        super().__init__((host, port), ImageHandler)

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def interrupt(self, *_: Any) -> None:
        """End `serve_forever` before its next request, so that no thread is half started."""
        self.interrupted = True

    def service_actions(self) -> None:
        if self.interrupted:
            raise KeyboardInterrupt

    def process_request(self, request: Any, client_address: Any) -> None:
        self.clients.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self.clients.discard(request)
        super().shutdown_request(request)

    def server_close(self) -> None:
        """Close every connection, idle ones too, and wait until their threads have ended."""
        for client in tuple(self.clients):
            with suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
        super().server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect in the middle of a request."""


def _degrees(query: dict[str, list[str]]) -> float:
    try:
        degrees = float(query.get("degrees", ["0"])[0])
    except ValueError:
        degrees = math.nan
    require(math.isfinite(degrees), "degrees must be a number, such as 45.")
    return degrees % 360


def _base64_png(image: UInt8[Tensor, "channel row col"]) -> str:
    return base64.b64encode(encode_png(image)).decode()
