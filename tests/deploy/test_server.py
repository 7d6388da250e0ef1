"""The server classifies images, and refuses everything else without failing."""

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
from turnwise.deploy.server import ImageClassifier, ImageServer, open_image, serve_page
from turnwise.errors import InputError
from turnwise.models import create_model


@pytest.fixture(scope="module")
def served():
    torch.manual_seed(0)
    model = create_model("orbit_vit", patch=7, width=16, depth=1, heads=2).eval()
    server = ImageServer(ImageClassifier("m <b>", model, tuple("0123456789")), "127.0.0.1", 0)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def send_request(served):
    """Sends a request; returns the status, the headers and the body of the reply."""

    def send(method, path, body=None, **headers):
        connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=20)
        connection.request(method, path, body, headers)
        reply = connection.getresponse()
        content = reply.read()
        connection.close()
        return reply.status, reply.headers, content

    return send


@pytest.fixture
def png(digits):
    encoded = io.BytesIO()
    Image.fromarray(digits.val.images[200, 0].numpy()).save(encoded, "PNG")
    return encoded.getvalue()


def bomb(side):
    """Return a small PNG whose header states side × side pixels."""

    def chunk(kind, content):
        body = kind + content
        return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))

    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    pixels = zlib.compress(bytes(1000))
    parts = chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


def probabilities_in(content):
    return json.loads(content)["probabilities"]


def test_the_page_loads_nothing_else(send_request, served):
    status, headers, content = send_request("GET", "/")
    assert status == 200 and headers["Content-Type"].startswith("text/html")
    assert content == serve_page(served.classifier).encode()
    assert b"http://" not in content and b"https://" not in content
    assert b"m &lt;b&gt;" in content and b"m <b>" not in content
    assert b"connect-src 'self'; script-src 'sha256-" in content
    assert headers["X-Content-Type-Options"] == "nosniff"


def test_the_reply_is_the_prediction_of_the_model(send_request, served, png, digits):
    status, _, content = send_request("POST", "/predict?degrees=90", png)
    assert status == 200
    model, image = served.classifier.model, digits.val.images[200:201].float() / 255
    with torch.no_grad():
        expected = model(model.preprocess(torch.rot90(image, 1, (2, 3)))).softmax(-1)[0]
    assert probabilities_in(content) == pytest.approx(expected.tolist(), abs=1e-6)
    shown = np.asarray(Image.open(io.BytesIO(base64.b64decode(json.loads(content)["image"]))))
    assert np.array_equal(shown, np.rot90(digits.val.images[200, 0].numpy()))


def test_predictions_are_invariant_under_90_degrees_and_not_under_45(send_request, png):
    upright, *rotated, slanted = [
        probabilities_in(send_request("POST", f"/predict?degrees={degrees}", png)[2])
        for degrees in (0, 90, 180, 45)
    ]
    assert all(each == pytest.approx(upright, abs=1e-6) for each in rotated)
    assert slanted != pytest.approx(upright, abs=1e-4)


def test_the_resampled_image_gets_the_same_prediction(send_request, digits):
    """After the first reply the page sends the image in the model's size."""
    large = Image.fromarray(digits.val.images[200, 0].numpy()).resize((90, 120)).convert("RGB")
    encoded = io.BytesIO()
    large.save(encoded, "JPEG")
    first = json.loads(send_request("POST", "/predict?degrees=30", encoded.getvalue())[2])
    small = base64.b64decode(first["upright"])
    again = json.loads(send_request("POST", "/predict?degrees=30", small)[2])
    assert again["probabilities"] == first["probabilities"]
    assert again["upright"] == first["upright"]


NOT_IMAGES = {
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


@pytest.mark.parametrize("name", NOT_IMAGES)
def test_hostile_files_are_refused_in_one_sentence(send_request, png, name):
    content = png[: len(png) // 2] if name == "half a PNG" else NOT_IMAGES[name]
    status, _, body = send_request("POST", "/predict?degrees=0", content)
    message = json.loads(body)["error"]
    assert status == 422
    assert not any(part in message for part in ("\n", "/tmp", "Traceback"))
    assert send_request("POST", "/predict?degrees=0", png)[0] == 200  # the server still runs


def test_the_limit_of_pixels_is_checked_before_decoding():
    with pytest.raises(InputError, match="25,000,000 pixels, and 16,000,000 is the limit"):
        open_image(bomb(5_000), 28, 1)


def test_a_file_that_is_too_large_is_refused_unread(send_request, monkeypatch, png):
    monkeypatch.setattr(module, "MAX_BYTES", 10)
    assert send_request("POST", "/predict?degrees=0", png)[0] == 413
    monkeypatch.undo()
    assert send_request("POST", "/predict?degrees=0", b"", **{"Content-Length": "9" * 30})[0] == 413


@pytest.mark.parametrize("length", ["-1", "+5", "1e3", "٣", ""])
def test_an_invalid_content_length_is_refused(served, length):
    with socket.create_connection(("127.0.0.1", served.port), timeout=20) as raw:
        host = f"127.0.0.1:{served.port}"
        raw.sendall(
            f"POST /predict HTTP/1.1\r\nHost: {host}\r\nContent-Length: {length}\r\n\r\n".encode()
        )
        assert b" 411 " in raw.makefile("rb").readline()


@pytest.mark.parametrize("degrees", ["nan", "inf", "north", "1e999"])
def test_degrees_must_be_a_number(send_request, png, degrees):
    status, _, body = send_request("POST", f"/predict?degrees={degrees}", png)
    assert status == 422 and "degrees must be a number" in json.loads(body)["error"]


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"])
def test_other_methods_are_refused(send_request, method):
    status, headers, _ = send_request(method, "/predict")
    assert status == 405 and headers["Allow"] == "GET, POST"


@pytest.mark.parametrize(
    "path",
    ["/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "//etc/passwd", "/page.css", "/index.html",
     "/predict/../../x", "/\\..\\x", "/?x=1"],
)  # fmt: skip
def test_no_url_maps_to_a_file(send_request, path):
    status, _, body = send_request("GET", path)
    assert status == 404 and b"root:" not in body


def test_each_url_has_one_method(send_request, png):
    assert send_request("GET", "/predict")[0] == 405
    assert send_request("POST", "/", png)[0] == 405
    assert send_request("POST", "/elsewhere", png)[0] == 404
    assert send_request("HEAD", "/")[0] == 200 and send_request("GET", "/favicon.ico")[0] == 204


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", ""])
def test_a_foreign_host_name_that_resolves_to_this_address_is_refused(send_request, png, host):
    assert send_request("GET", "/", Host=host)[0] == 403
    assert send_request("POST", "/predict?degrees=0", png, Host=host)[0] == 403


def test_requests_of_other_pages_are_refused(send_request, png, served):
    status, headers, _ = send_request(
        "POST", "/predict?degrees=0", png, Origin="http://evil.example"
    )
    assert status == 403 and "Access-Control-Allow-Origin" not in headers
    assert send_request("POST", "/predict?degrees=0", png, Origin="null")[0] == 403
    own = f"http://localhost:{served.port}"
    assert send_request("POST", "/predict?degrees=0", png, Origin=own)[0] == 200


def test_a_request_that_is_no_http_is_refused(served):
    with socket.create_connection(("127.0.0.1", served.port), timeout=20) as raw:
        raw.sendall(b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n")
        assert raw.makefile("rb").read().endswith(b'{"error": "the request is not valid HTTP."}')


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_an_invalid_url_is_refused(served, method):
    host = f"{served.host}:{served.port}"
    with socket.create_connection((served.host, served.port), timeout=10) as raw:
        raw.sendall(f"{method} http://[ HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        assert b" 404 " in raw.recv(200)


def test_requests_are_served_concurrently(send_request, png):
    results = []
    threads = [
        threading.Thread(
            target=lambda: results.append(send_request("POST", "/predict?degrees=10", png))
        )
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [status for status, _, _ in results] == [200] * 6
    assert len({json.dumps(probabilities_in(body)) for _, _, body in results}) == 1


def test_a_client_that_sends_nothing_blocks_no_other(send_request, served, png):
    with socket.create_connection(("127.0.0.1", served.port)) as idle:
        idle.sendall(b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Le")
        assert send_request("POST", "/predict?degrees=0", png)[0] == 200
    assert module.ImageHandler.timeout == module.TIMEOUT <= 60


def test_an_image_of_any_mode_is_converted_for_the_model():
    for mode in ("RGB", "RGBA", "P", "I;16", "1"):
        encoded = io.BytesIO()
        Image.new(mode, (40, 30)).save(encoded, "PNG")
        assert open_image(encoded.getvalue(), 28, 1).shape == (1, 28, 28)
        assert open_image(encoded.getvalue(), 28, 3).shape == (3, 28, 28)


def test_only_the_most_probable_of_many_classes_are_returned(png):
    torch.manual_seed(0)
    model = create_model("vit", num_classes=30, patch=7, width=16, depth=1, heads=2).eval()
    reply = ImageClassifier("m", model, tuple(map(str, range(30)))).predict(png, 0.0)
    with torch.no_grad():
        image = open_image(png, 28, 1)[None].float() / 255
        expected = model(model.preprocess(image)).softmax(-1)[0]
    assert reply["classes"] == [str(c) for c in sorted(expected.topk(10).indices.tolist())]
    assert max(reply["probabilities"]) == pytest.approx(float(expected.max()))
