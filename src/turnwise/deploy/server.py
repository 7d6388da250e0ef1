"""The HTTP service behind `turnwise serve`.

    POST /predict        images in, predictions out (deploy/requests.py)
    GET  /health         whether the server runs
    GET  /model          the model, and the limits of requests
    GET  /openapi.json   all of this for machines
    GET  /               a page that uses it

aiohttp parses HTTP and holds the connections.  Requests are not trusted: the Host header must name
this server, and the Origin header this page, if the browser sends one; a request has a limit of
bytes and of seconds, however slowly it arrives; connections, buffered bytes and waiting images
have limits, too; a file is decoded only if it is an image of acceptable size; no URL maps to a
file.  The server stores and logs nothing.
"""

import asyncio
import json
import logging
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from typing import Any

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from turnwise.deploy.addresses import Address
from turnwise.deploy.classifier import Batcher, BusyError, ImageClassifier, base64_png
from turnwise.deploy.openapi import openapi
from turnwise.deploy.page import serve_page
from turnwise.deploy.requests import MAX_BYTES, MAX_IMAGES, read_degrees, read_images
from turnwise.errors import InputError

TIMEOUT = 20.0  # seconds until a request must have arrived, and a connection may be idle
GRACE = 5.0  # seconds for requests in progress when the server stops
BACKLOG = 1024  # connections that wait to be accepted
MAX_CONNECTIONS = 1000
SPARE_FILES = 64  # of the process, for everything but connections
MAX_BUFFERED = 64_000_000  # bytes of requests that are being received, all together
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Server": "turnwise",
}
_SILENT = logging.getLogger("turnwise.server")  # images are private, and so are requests
_SILENT.disabled = True
BUSY = "the server is busy; try again in a moment."
Reply = Callable[[web.BaseRequest], Awaitable[web.Response]]


class RefusalError(Exception):
    """A request is refused with a status and a reason; its connection is closed."""

    def __init__(self, status: int, reason: str, **headers: str) -> None:
        super().__init__(reason)
        self.status, self.reason, self.headers = status, reason, headers


class Connection(RequestHandler):
    """One connection; it is closed if no whole request head arrives in time."""

    def __init__(self, manager: Any, *, server: "ImageServer", loop: Any) -> None:
        super().__init__(
            manager, loop=loop, keepalive_timeout=TIMEOUT, access_log=_SILENT, lingering_time=0,
            read_bufsize=2**14, auto_decompress=False, logger=_SILENT,
        )  # fmt: skip
        self.server = server
        self.deadline: asyncio.TimerHandle | None = None
        self.is_refused = False

    def connection_made(self, transport: Any) -> None:
        self.is_refused = len(self.server.connections) >= self.server.max_connections
        if self.is_refused:
            body = json.dumps({"error": BUSY}).encode()
            head = f"HTTP/1.1 503 Service Unavailable\r\nContent-Length: {len(body)}\r\n"
            transport.write(
                f"{head}Content-Type: application/json\r\nConnection: close\r\n\r\n".encode() + body
            )
            transport.close()
            return
        self.server.connections.add(self)
        super().connection_made(transport)
        self.await_request()

    def data_received(self, data: bytes) -> None:
        if not self.is_refused:
            super().data_received(data)

    def eof_received(self) -> None:
        if not self.is_refused:
            super().eof_received()

    def connection_lost(self, exc: BaseException | None) -> None:
        self.server.connections.discard(self)
        self.stop_waiting()
        if not self.is_refused:
            super().connection_lost(exc)

    def await_request(self) -> None:
        """Close the connection unless a request begins within `TIMEOUT`."""
        self.stop_waiting()
        self.deadline = self._loop.call_later(TIMEOUT, self.force_close)

    def stop_waiting(self) -> None:
        if self.deadline is not None:
            self.deadline.cancel()
            self.deadline = None

    def handle_error(
        self, request: Any, status: int = 500, exc: Any = None, message: str | None = None
    ) -> web.StreamResponse:
        """Reply to what is not valid HTTP, and to a fault of the server, without details."""
        reason = "the server failed." if status >= 500 else "the request is not valid HTTP."
        return _refusal(RefusalError(status, reason))


class ImageServer:
    """The service, bound to its address; port 0 takes a free one.

    `serve_forever` runs it in this thread; `shutdown`, from another one or a signal handler, stops
    accepting, finishes the requests in progress, and lets `serve_forever` return.
    """

    def __init__(
        self, classifier: ImageClassifier, address: Address, port: int, *, shared: bool = False
    ) -> None:
        self.classifier, self.address = classifier, address
        self.socket = bind(address, port, shared=shared)
        self.socket.listen(BACKLOG)  # clients may connect from now on
        self.page = serve_page(classifier.name)
        self.connections = set[Connection]()
        self.max_connections = _allowed_connections()
        self.buffered = 0
        self.hosts = address.hosts(self.port)
        self.origins = {f"{scheme}://{host}" for host in self.hosts for scheme in ("http", "https")}
        self.routes: dict[str, dict[str, Reply]] = {
            "/": {"GET": self._show_page},
            "/predict": {"POST": self._predict},
            "/health": {"GET": self._health},
            "/model": {"GET": self._model},
            "/openapi.json": {"GET": self._openapi},
            "/favicon.ico": {"GET": self._icon},
        }
        self.loop: asyncio.AbstractEventLoop | None = None
        self.stopping = threading.Event()

    @property
    def port(self) -> int:
        return int(self.socket.getsockname()[1])

    @property
    def url(self) -> str:
        return f"{self.address.url(self.port)}/"

    def serve_forever(self) -> None:
        asyncio.run(self._serve())

    def shutdown(self, *_: Any) -> None:
        """Stop soon; it takes no lock, so that a signal handler may call it."""
        self.stopping.set()
        if self.loop is not None:
            with suppress(RuntimeError):  # the loop has ended
                self.loop.call_soon_threadsafe(lambda: None)

    def server_close(self) -> None:
        self.socket.close()

    async def _serve(self) -> None:
        loop = self.loop = asyncio.get_running_loop()
        manager: Any = web.Server(self._handle)
        self.batcher, self.decoder = Batcher(self.classifier), ThreadPoolExecutor(1)
        try:
            listener = await loop.create_server(
                lambda: Connection(manager, server=self, loop=loop),
                sock=self.socket, backlog=BACKLOG,
            )  # fmt: skip
            while not self.stopping.is_set():
                await asyncio.sleep(0.1)
            listener.close()
            manager.pre_shutdown()
            await manager.shutdown(GRACE)
        finally:
            self.decoder.shutdown()
            self.batcher.close()

    async def _handle(self, request: web.BaseRequest) -> web.Response:
        connection: Any = request.protocol
        connection.stop_waiting()
        try:
            self._require_addressed_here(request)
            response = await self._find_route(request)(request)
            response.headers.update(HEADERS)
            return response
        except InputError as error:
            return _refusal(RefusalError(422, str(error)))
        except BusyError:
            return _refusal(RefusalError(503, BUSY, **{"Retry-After": "1"}))
        except RefusalError as refusal:
            return _refusal(refusal)
        finally:
            connection.await_request()

    def _require_addressed_here(self, request: web.BaseRequest) -> None:
        """Refuse requests that name another server, or come from another page.

        Other pages in the same browser may send requests here, and a foreign host name may resolve
        to this address.
        """
        if request.headers.get("Host", "").lower() not in self.hosts:
            raise RefusalError(403, "this server has another name.")
        if request.headers.get("Origin", next(iter(self.origins))) not in self.origins:
            raise RefusalError(403, "requests from other pages are refused.")

    def _find_route(self, request: web.BaseRequest) -> Reply:
        methods = self.routes.get(request.path if request.path != "/" else request.path_qs)
        method = "GET" if request.method == "HEAD" else request.method
        if methods is None and method in ("GET", "POST"):
            raise RefusalError(404, f"there is nothing here but {', '.join(self.routes)}.")
        if methods is None or method not in methods:
            allowed = ", ".join(methods or ("GET", "POST"))
            raise RefusalError(405, f"only {allowed} is supported here.", Allow=allowed)
        return methods[method]

    async def _show_page(self, request: web.BaseRequest) -> web.Response:
        return web.Response(text=self.page, content_type="text/html", charset="utf-8")

    async def _icon(self, request: web.BaseRequest) -> web.Response:
        return web.Response(status=204)

    async def _health(self, request: web.BaseRequest) -> web.Response:
        return _json({"status": "ok", "waiting": self.batcher.waiting})

    async def _model(self, request: web.BaseRequest) -> web.Response:
        limits = {"bytes": MAX_BYTES, "images": MAX_IMAGES, "seconds": TIMEOUT}
        return _json({**self.classifier.about(), "limits": limits})

    async def _openapi(self, request: web.BaseRequest) -> web.Response:
        return _json(openapi())

    async def _predict(self, request: web.BaseRequest) -> web.Response:
        degrees, with_views = read_degrees(request.query), request.query.get("views") == "1"
        content_type = request.headers.get("Content-Type", "")
        async with self._body(request) as body:
            prepared = await asyncio.get_running_loop().run_in_executor(
                self.decoder, self._prepare, bytes(body), content_type, degrees
            )
        upright, rotated = prepared
        found = await asyncio.wrap_future(self.batcher.submit(rotated))
        predictions = [self.classifier.describe(row) for row in found]
        if with_views:
            for prediction, before, after in zip(predictions, upright, rotated, strict=True):
                prediction |= {"image": base64_png(after), "upright": base64_png(before)}
        return _json({"model": self.classifier.name, "predictions": predictions})

    def _prepare(self, body: bytes, content_type: str, degrees: float) -> tuple[list[Any], Any]:
        """Return the decoded images and the rotated ones, as one tensor."""
        import torch

        files = read_images(body, content_type)
        upright = []
        for number, content in enumerate(files, start=1):
            try:
                upright.append(self.classifier.read(content))
            except InputError as error:
                where = f"image {number}: " if len(files) > 1 else ""
                raise InputError(f"{where}{error}") from error
        rotated = torch.stack([self.classifier.rotate(image, degrees) for image in upright])
        return upright, rotated

    @asynccontextmanager
    async def _body(self, request: web.BaseRequest) -> AsyncIterator[bytearray]:
        """Yield the body of a request, received in time and within all limits."""
        length = request.content_length
        if length is None:
            raise RefusalError(411, "the request must state its Content-Length.")
        if length > MAX_BYTES:
            raise RefusalError(413, f"the request is larger than {MAX_BYTES:,} bytes.")
        if "Content-Encoding" in request.headers:
            raise RefusalError(415, "compressed requests are refused.")
        if request.headers.get("Expect", "").lower() == "100-continue":
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = bytearray()
        try:
            async with asyncio.timeout(TIMEOUT):
                async for chunk in request.content.iter_any():
                    body += chunk
                    self.buffered += len(chunk)
                    if self.buffered > MAX_BUFFERED:
                        raise BusyError
            yield body
        except TimeoutError as error:
            raise RefusalError(408, f"the request took over {TIMEOUT:g} seconds.") from error
        finally:
            self.buffered -= len(body)


def bind(address: Address, port: int, *, shared: bool = False) -> socket.socket:
    """Return a socket at the address; with `shared`, several processes may bind it."""
    made = socket.socket(address.family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        made.bind((address.ip, port))
    except OSError as error:
        made.close()
        reason = (error.strerror or str(error)).lower()
        raise InputError(
            f"cannot listen on {address.host}:{port} ({reason}); try another port."
        ) from error
    return made


def _allowed_connections() -> int:
    """Return the number of connections that the limit of open files allows."""
    try:
        import resource
    except ImportError:  # not on Windows
        return MAX_CONNECTIONS
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(8, min(MAX_CONNECTIONS, soft - SPARE_FILES))


def _json(value: dict[str, Any]) -> web.Response:
    return web.Response(text=json.dumps(value), content_type="application/json", charset="utf-8")


def _refusal(refusal: RefusalError) -> web.Response:
    """Reply with the reason and close the connection; the rest of the request is not read."""
    response = _json({"error": refusal.reason})
    response.set_status(refusal.status)
    response.headers.update({**HEADERS, **refusal.headers})
    response.force_close()
    return response
