"""The server answers pictures, and refuses everything else without falling over."""

import base64
import http.client
import io
import json
import socket
import struct
import threading
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

from turnwise.deploy import server as module
from turnwise.deploy.server import Answerer, ImageServer, open_image, serve_page
from turnwise.errors import InputError
from turnwise.models import create_model


@pytest.fixture(scope="module")
def served():
    torch.manual_seed(0)
    model = create_model("orbit_vit", patch=7, width=16, depth=1, heads=2).eval()
    server = ImageServer(Answerer("m <b>", model, tuple("0123456789")), "127.0.0.1", 0)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def ask(served):
    """Sends a request; returns status, headers and body."""

    def send(method, path, body=None, **headers):
        connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=20)
        connection.request(method, path, body, headers)
        reply = connection.getresponse()
        content = reply.read()
        connection.close()
        return reply.status, reply.headers, content

    return send


@pytest.fixture
def picture(digits):
    encoded = io.BytesIO()
    Image.fromarray(digits.val.images[200, 0].numpy()).save(encoded, "PNG")
    return encoded.getvalue()


def bomb(side):
    """A small PNG that says it has side × side pixels."""

    def chunk(kind, content):
        body = kind + content
        return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))

    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    pixels = zlib.compress(bytes(1000))
    parts = chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


def answer_of(content):
    return json.loads(content)["probabilities"]


def test_the_page_needs_nothing_else(ask, served):
    status, headers, content = ask("GET", "/")
    assert status == 200 and headers["Content-Type"].startswith("text/html")
    assert content == serve_page(served.answerer).encode()
    assert b"http://" not in content and b"https://" not in content
    assert b"m &lt;b&gt;" in content and b"m <b>" not in content
    assert b"connect-src 'self'; script-src 'sha256-" in content
    assert headers["X-Content-Type-Options"] == "nosniff"


def test_an_answer_is_the_models(ask, served, picture, digits):
    status, _, content = ask("POST", "/answer?degrees=90", picture)
    assert status == 200
    model, image = served.answerer.model, digits.val.images[200:201].float() / 255
    with torch.no_grad():
        expected = model(model.preprocess(torch.rot90(image, 1, (2, 3)))).softmax(-1)[0]
    assert answer_of(content) == pytest.approx(expected.tolist(), abs=1e-6)
    seen = np.asarray(Image.open(io.BytesIO(base64.b64decode(json.loads(content)["seen"]))))
    assert np.array_equal(seen, np.rot90(digits.val.images[200, 0].numpy()))


def test_law_and_witness_over_http(ask, picture):
    said = [answer_of(ask("POST", f"/answer?degrees={d}", picture)[2]) for d in (0, 90, 180, 45)]
    assert said[1] == pytest.approx(said[0], abs=1e-6) == said[2]
    assert said[3] != pytest.approx(said[0], abs=1e-4)


def test_the_small_picture_gets_the_same_answer(ask, digits):
    """What the page sends after the first answer is the picture in the model's size."""
    large = Image.fromarray(digits.val.images[200, 0].numpy()).resize((90, 120)).convert("RGB")
    encoded = io.BytesIO()
    large.save(encoded, "JPEG")
    first = json.loads(ask("POST", "/answer?degrees=30", encoded.getvalue())[2])
    small = base64.b64decode(first["upright"])
    again = json.loads(ask("POST", "/answer?degrees=30", small)[2])
    assert again["probabilities"] == first["probabilities"]
    assert again["upright"] == first["upright"]


NOT_PICTURES = {
    "nothing": b"",
    "text": b"hello",
    "HTML": b"<html><script>alert(1)</script>",
    "half a PNG": None,
    "SVG": b'<svg xmlns="http://www.w3.org/2000/svg"/>',
    "a GIF": b"GIF89a" + bytes(50),
    "a pickle": b"\x80\x04cos\nsystem\n(S'echo'\ntR.",
    "a bomb": bomb(60_000),
    "large": bomb(5_000),
    "broken TIFF": b"II*\x00\x08\x00\x00\x00\xff\xff" + bytes(100),
}


@pytest.mark.parametrize("name", NOT_PICTURES)
def test_hostile_files_are_refused_in_one_sentence(ask, picture, name):
    content = picture[: len(picture) // 2] if name == "half a PNG" else NOT_PICTURES[name]
    status, _, body = ask("POST", "/answer?degrees=0", content)
    said = json.loads(body)["error"]
    assert status == 422 and "\n" not in said and "/tmp" not in said and "Traceback" not in said
    assert ask("POST", "/answer?degrees=0", picture)[0] == 200  # it goes on


def test_the_limit_of_pixels_is_checked_before_anything_is_unpacked():
    with pytest.raises(InputError, match="25,000,000 pixels, and 16,000,000 is the limit"):
        open_image(bomb(5_000), 28, 1)


def test_a_file_too_large_is_refused_unread(ask, monkeypatch, picture):
    monkeypatch.setattr(module, "LARGEST_FILE", 10)
    assert ask("POST", "/answer?degrees=0", picture)[0] == 413
    monkeypatch.undo()
    assert ask("POST", "/answer?degrees=0", b"", **{"Content-Length": "9" * 30})[0] == 413


@pytest.mark.parametrize("length", ["-1", "+5", "1e3", "٣", ""])
def test_a_length_that_is_none(served, length):
    with socket.create_connection(("127.0.0.1", served.port), timeout=20) as raw:
        host = f"127.0.0.1:{served.port}"
        raw.sendall(
            f"POST /answer HTTP/1.1\r\nHost: {host}\r\nContent-Length: {length}\r\n\r\n".encode()
        )
        assert b" 411 " in raw.makefile("rb").readline()


@pytest.mark.parametrize("degrees", ["nan", "inf", "north", "1e999"])
def test_degrees_must_be_a_number(ask, picture, degrees):
    status, _, body = ask("POST", f"/answer?degrees={degrees}", picture)
    assert status == 422 and "degrees must be a number" in json.loads(body)["error"]


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"])
def test_other_methods_are_refused(ask, method):
    status, headers, _ = ask(method, "/answer")
    assert status == 405 and headers["Allow"] == "GET, POST"


@pytest.mark.parametrize(
    "path",
    ["/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "//etc/passwd", "/page.css", "/index.html",
     "/answer/../../x", "/\\..\\x", "/?x=1"],
)  # fmt: skip
def test_no_path_leads_to_the_disk(ask, path):
    status, _, body = ask("GET", path)
    assert status == 404 and b"root:" not in body


def test_get_on_answer_and_post_on_the_page(ask, picture):
    assert ask("GET", "/answer")[0] == 405
    assert ask("POST", "/", picture)[0] == 405
    assert ask("POST", "/elsewhere", picture)[0] == 404
    assert ask("HEAD", "/")[0] == 200 and ask("GET", "/favicon.ico")[0] == 204


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", ""])
def test_a_name_that_was_made_to_point_here_is_refused(ask, picture, host):
    assert ask("GET", "/", Host=host)[0] == 403
    assert ask("POST", "/answer?degrees=0", picture, Host=host)[0] == 403


def test_other_pages_may_not_ask(ask, picture, served):
    status, headers, _ = ask("POST", "/answer?degrees=0", picture, Origin="http://evil.example")
    assert status == 403 and "Access-Control-Allow-Origin" not in headers
    assert ask("POST", "/answer?degrees=0", picture, Origin="null")[0] == 403
    own = f"http://localhost:{served.port}"
    assert ask("POST", "/answer?degrees=0", picture, Origin=own)[0] == 200


def test_what_is_no_http_is_refused(served):
    with socket.create_connection(("127.0.0.1", served.port), timeout=20) as raw:
        raw.sendall(b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n")
        assert raw.makefile("rb").read().endswith(b'{"error": "the request cannot be understood."}')


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_what_is_no_address_is_answered(served, method):
    host = f"{served.host}:{served.port}"
    with socket.create_connection((served.host, served.port), timeout=10) as caller:
        caller.sendall(f"{method} http://[ HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        assert b" 404 " in caller.recv(200)


def test_callers_are_answered_at_the_same_time(ask, picture):
    results = []
    threads = [
        threading.Thread(target=lambda: results.append(ask("POST", "/answer?degrees=10", picture)))
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [status for status, _, _ in results] == [200] * 6
    assert len({json.dumps(answer_of(body)) for _, _, body in results}) == 1


def test_a_silent_caller_blocks_nobody(ask, served, picture):
    with socket.create_connection(("127.0.0.1", served.port)) as silent:
        silent.sendall(b"POST /answer HTTP/1.1\r\nHost: x\r\nContent-Le")
        assert ask("POST", "/answer?degrees=0", picture)[0] == 200
    assert module.ImageHandler.timeout == module.PATIENCE <= 60


def test_a_picture_of_any_kind_becomes_the_models():
    for mode in ("RGB", "RGBA", "P", "I;16", "1"):
        encoded = io.BytesIO()
        Image.new(mode, (40, 30)).save(encoded, "PNG")
        assert open_image(encoded.getvalue(), 28, 1).shape == (1, 28, 28)
        assert open_image(encoded.getvalue(), 28, 3).shape == (3, 28, 28)


def test_of_many_classes_the_likeliest_are_answered(picture):
    torch.manual_seed(0)
    model = create_model("vit", num_classes=30, patch=7, width=16, depth=1, heads=2).eval()
    asked = Answerer("m", model, tuple(map(str, range(30)))).answer(picture, 0.0)
    with torch.no_grad():
        image = open_image(picture, 28, 1)[None].float() / 255
        said = model(model.preprocess(image)).softmax(-1)[0]
    assert asked["classes"] == [str(c) for c in sorted(said.topk(10).indices.tolist())]
    assert max(asked["probabilities"]) == pytest.approx(float(said.max()))
