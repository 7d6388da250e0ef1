"""A page on this machine where a person drops a picture and turns it while the model answers.

    GET  /                   the page; it loads nothing else
    POST /answer?degrees=D   a picture as the body; what the model says, as JSON

Whatever comes in is distrusted: the caller must mean this server (Host, and Origin where a browser
tells it), the body has a limit, a file is opened only if it is a picture of a bearable size, and no
path leads to the disk.  The server keeps nothing of what it was sent.
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
from importlib.resources import files
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
from turnwise.models.registry import config_of
from turnwise.reports.pages.page import Section, page
from turnwise.reports.views import answers_to

LARGEST_FILE = 10_000_000  # bytes
LARGEST_PICTURE = 16_000_000  # pixels: unpacked, resampled in double precision, 400 MB
MOST_CLASSES = 10  # that are answered with, the likeliest
PATIENCE = 20  # seconds that a caller may be silent
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}


@dataclass(frozen=True, eq=False)
class Answerer:
    """The model that answers, one question at a time."""

    name: str
    model: nn.Module
    classes: tuple[str, ...]
    lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, content: bytes, degrees: float) -> dict[str, Any]:
        """What the model says to the picture in these bytes, turned; raises if there is none."""
        options = config_of(self.model).options
        with self.lock:
            upright = open_image(content, options["image_size"], options["in_chans"])
            turned = rotate_image(to_unit(upright[None]), degrees)
            (said,) = answers_to(self.model, turned).tolist()
        seen = (255 * turned[0]).round().to(torch.uint8)
        likely = sorted(range(len(said)), key=said.__getitem__)[-MOST_CLASSES:]
        return {
            "model": self.name,
            "classes": [self.classes[c] for c in sorted(likely)],
            "probabilities": [said[c] for c in sorted(likely)],
            "seen": _png(seen),
            "upright": _png(upright),
        }


def open_image(
    content: bytes, image_size: int, channels: int
) -> UInt8[Tensor, "channels image_size image_size"]:
    """The bytes as a picture for the model; whatever is no picture, or too large, is refused."""
    require(bool(content), f"the file is empty; choose a {KINDS}.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(content), formats=FORMATS) as image:
                pixels = image.size[0] * image.size[1]  # as the header says: nothing is unpacked
    except Exception as error:  # a parser fed with anything may raise anything
        raise InputError(f"the file is not a picture; choose a {KINDS}.") from error
    require(
        pixels <= LARGEST_PICTURE,
        f"the picture has {pixels:,} pixels, and {LARGEST_PICTURE:,} is the limit; shrink it.",
    )
    with tempfile.TemporaryDirectory(prefix="turnwise-") as folder:
        path = Path(folder) / "picture"
        path.write_bytes(content)
        try:
            return read_image(path, image_size, channels)
        except InputError as error:
            raise InputError(str(error).replace(str(path), "you sent")) from error
        except Exception as error:
            raise InputError("the picture cannot be read; save it anew as PNG.") from error


def serve_page(answerer: Answerer) -> str:
    """The page that a browser is given."""
    folder = files("turnwise.reports.pages")
    script = "\n".join(
        folder.joinpath(name).read_text("utf-8") for name in ("voices.js", "serve.js")
    )
    quarters = "".join(
        f'<button type="button" data-degrees="{d}">{d}°</button>' for d in (0, 90, 180, 270)
    )
    html = f"""<div class="explorer">
<div>
<div class="drop" id="serve-drop" data-largest="{LARGEST_FILE}">
<p><label for="serve-file">Drop a picture here, or choose one:</label></p>
<input type="file" id="serve-file"
accept="image/png,image/jpeg,image/tiff,image/bmp,image/webp"></div>
<p><label for="serve-angle">turn it</label><br>
<input type="range" id="serve-angle" min="0" max="359" step="1" value="0" disabled></p>
<div class="choice" role="group" aria-label="quarter turns">{quarters}</div>
<p id="serve-told" role="status">No picture yet.</p>
<img class="seen" id="serve-seen" alt="the picture as the model sees it">
</div>
<div class="voices"><div class="voice" id="serve-voice"></div></div>
</div>
<noscript><p>This page needs JavaScript.</p></noscript>"""
    told = (
        "The picture is cropped to its central square and resampled to the model's size. "
        "It stays on this machine."
    )
    sections = [Section("Turn your picture", html)]
    return page(
        f"Turnwise: {answerer.name}", sections, summary=told, script=script, asks_server=True
    )


class ImageHandler(BaseHTTPRequestHandler):
    """One request; everything but the two above is an error, in JSON."""

    timeout = PATIENCE
    server_version, sys_version = "turnwise", ""
    server: "ImageServer"

    def do_GET(self) -> None:
        if not self._is_meant():
            return
        if self.path == "/":
            self._reply(200, self.server.content, "text/html; charset=utf-8")
        elif self._address().path == "/answer":
            self._refuse(405, "ask with POST and a picture.", Allow="POST")
        elif self.path == "/favicon.ico":
            self._reply(204, b"", "image/x-icon")
        else:
            self._refuse(404, "there is nothing here but / and /answer.")

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_POST(self) -> None:
        if not self._is_meant():
            return
        address = self._address()
        if address.path != "/answer":
            self._refuse(405 if address.path == "/" else 404, "pictures go to /answer.")
            return
        try:
            degrees = _degrees(parse_qs(address.query))
            body = self._body()
            if body is not None:
                answer = self.server.answerer.answer(body, degrees)
                self._reply(200, json.dumps(answer).encode(), "application/json")
        except InputError as error:
            self._refuse(422, str(error))

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the library refuses: methods without a do_METHOD, and what is no HTTP."""
        if code == 501:
            self._refuse(405, "only GET and POST are understood.", Allow="GET, POST")
        else:
            self._refuse(code, "the request cannot be understood.")

    def _address(self) -> SplitResult:
        """The parts of what was asked for; of what is no address, none."""
        try:
            return urlsplit(self.path)
        except ValueError:
            return urlsplit("")

    def _is_meant(self) -> bool:
        """Whether this server was asked by its own name, and by its own page.

        Other pages in the same browser may send requests here, and names of the net may be
        made to point here.
        """
        bound = self.server.port
        hosts = (self.server.host, "127.0.0.1", "localhost")
        names = {f"{name}:{bound}" for name in hosts} | set(hosts if bound == 80 else ())
        origin = self.headers.get("Origin")
        if self.headers.get("Host") not in names:
            self._refuse(403, "this server is not known by that name.")
        elif origin is not None and origin not in {f"http://{name}" for name in names}:
            self._refuse(403, "other pages may not ask this server.")
        else:
            return True
        return False

    def _body(self) -> bytes | None:
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()):
            self._refuse(411, "say how long the picture is (Content-Length).")
            return None
        if len(length) > 12 or int(length) > LARGEST_FILE:
            self._refuse(413, f"the file is larger than {LARGEST_FILE:,} bytes.")
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
        """Say why, and hang up: what else was sent is not read."""
        self.close_connection = True
        body = json.dumps({"error": message}).encode()
        self._reply(status, body, "application/json", Connection="close", **more)

    def log_message(self, format: str, *args: Any) -> None:
        """Pictures are private, and so is the terminal."""


class ImageServer(ThreadingHTTPServer):
    """Bound to its address, and waiting for `serve_forever`; port 0 takes any that is free."""

    daemon_threads = False  # one that still runs while Python ends can take it down (SIGABRT)

    def __init__(self, answerer: Answerer, host: str, port: int) -> None:
        self.answerer, self.host = answerer, host
        self.callers: set[socket.socket] = set()
        self.interrupted = False
        self.content = serve_page(answerer).encode()
        super().__init__((host, port), ImageHandler)

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def interrupt(self, *_: Any) -> None:
        """End `serve_forever` before its next caller: no thread is left half started."""
        self.interrupted = True

    def service_actions(self) -> None:
        if self.interrupted:
            raise KeyboardInterrupt

    def process_request(self, request: Any, client_address: Any) -> None:
        self.callers.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self.callers.discard(request)
        super().shutdown_request(request)

    def server_close(self) -> None:
        """Hang up on every caller, silent ones too, and wait until their threads have ended."""
        for caller in tuple(self.callers):
            with suppress(OSError):
                caller.shutdown(socket.SHUT_RDWR)
        super().server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A caller who hangs up in the middle is no news."""


def _degrees(query: dict[str, list[str]]) -> float:
    try:
        degrees = float(query.get("degrees", ["0"])[0])
    except ValueError:
        degrees = math.nan
    require(math.isfinite(degrees), "degrees must be a number, such as 45.")
    return degrees % 360


def _png(image: UInt8[Tensor, "channel row col"]) -> str:
    colours = image.movedim(0, -1).cpu().numpy()
    encoded = io.BytesIO()
    Image.fromarray(colours[..., 0] if colours.shape[-1] == 1 else colours).save(encoded, "PNG")
    return base64.b64encode(encoded.getvalue()).decode()
