"""The server classifies images, and refuses everything else without failing."""

import base64
import http.client
import io
import json
import socket
import struct
import threading
import time
import zlib
from contextlib import ExitStack

import numpy as np
import pytest
import torch
from PIL import Image

from turnwise.deploy import server as module
from turnwise.deploy.addresses import find_address
from turnwise.deploy.classifier import ImageClassifier
from turnwise.deploy.page import serve_page
from turnwise.deploy.server import ImageServer
from turnwise.models import create_model


def small_model(**options):
    torch.manual_seed(0)
    return create_model("orbit_vit", patch=7, width=16, depth=1, heads=2, **options).eval()


@pytest.fixture(scope="module")
def served():
    classifier = ImageClassifier("m <b>", small_model(), tuple("0123456789"))
    server = ImageServer(classifier, find_address("127.0.0.1"), 0)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join(20)
    assert not thread.is_alive()
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


def prediction_in(content):
    (found,) = json.loads(content)["predictions"]
    return found


def probabilities_in(content):
    return prediction_in(content)["probabilities"]


def test_the_page_loads_nothing_else(send_request, served):
    status, headers, content = send_request("GET", "/")
    assert status == 200 and headers["Content-Type"].startswith("text/html")
    assert content == serve_page(served.classifier.name).encode()
    assert b"http://" not in content and b"https://" not in content
    assert b"m &lt;b&gt;" in content and b"m <b>" not in content
    assert b"connect-src 'self'; script-src 'sha256-" in content
    assert headers["X-Content-Type-Options"] == "nosniff"


def test_the_reply_is_the_prediction_of_the_model(send_request, served, png, digits):
    status, _, content = send_request("POST", "/predict?degrees=90&views=1", png)
    assert status == 200
    model, image = served.classifier.model, digits.val.images[200:201].float() / 255
    with torch.no_grad():
        expected = model(model.preprocess(torch.rot90(image, 1, (2, 3)))).softmax(-1)[0]
    assert probabilities_in(content) == pytest.approx(expected.tolist(), abs=1e-6)
    shown = np.asarray(Image.open(io.BytesIO(base64.b64decode(prediction_in(content)["image"]))))
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
    path = "/predict?degrees=30&views=1"
    first = prediction_in(send_request("POST", path, encoded.getvalue())[2])
    small = base64.b64decode(first["upright"])
    again = prediction_in(send_request("POST", path, small)[2])
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


def test_a_file_that_is_too_large_is_refused_unread(send_request, monkeypatch, png):
    monkeypatch.setattr(module, "MAX_BYTES", 10)
    assert send_request("POST", "/predict?degrees=0", png)[0] == 413
    monkeypatch.undo()
    assert send_request("POST", "/predict", b"", **{"Content-Length": "9" * 12})[0] == 413


@pytest.mark.parametrize("length", ["-1", "+5", "1e3", "٣", "", "9" * 30])
def test_an_invalid_content_length_is_refused(served, length):
    with socket.create_connection(("127.0.0.1", served.port), timeout=20) as raw:
        host = f"127.0.0.1:{served.port}"
        raw.sendall(
            f"POST /predict HTTP/1.1\r\nHost: {host}\r\nContent-Length: {length}\r\n\r\n".encode()
        )
        assert b" 400 " in raw.makefile("rb").readline()


def test_a_request_must_state_its_length(served):
    with socket.create_connection(("127.0.0.1", served.port), timeout=20) as raw:
        host = f"127.0.0.1:{served.port}"
        head = f"POST /predict HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\n\r\n"
        raw.sendall(head.encode())
        assert b" 411 " in raw.makefile("rb").readline()


@pytest.mark.parametrize("degrees", ["nan", "inf", "north", "1e999"])
def test_degrees_must_be_a_number(send_request, png, degrees):
    status, _, body = send_request("POST", f"/predict?degrees={degrees}", png)
    assert status == 422 and "degrees must be a number" in json.loads(body)["error"]


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"])
def test_other_methods_are_refused(send_request, method):
    status, headers, body = send_request(method, "/predict")
    assert (status == 405 and headers["Allow"] == "POST") or (method == "BREW" and status == 400)
    assert "error" in json.loads(body)


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
    host = f"127.0.0.1:{served.port}"
    with socket.create_connection(("127.0.0.1", served.port), timeout=10) as raw:
        raw.sendall(f"{method} http://[ HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        assert b" 400 " in raw.recv(200)


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
    assert module.TIMEOUT <= 60


def drip(port, start, rest=b"x" * 1000):
    """Send bytes one by one for ever; return the reply and the seconds until it ended."""
    begun = time.monotonic()
    with socket.create_connection(("127.0.0.1", port), timeout=0.05) as raw:
        raw.sendall(start)
        received = b""
        for number in range(200):
            try:
                raw.sendall(rest[number : number + 1])
                part = raw.recv(1000)
            except TimeoutError:
                continue
            except OSError:
                break
            received += part
            if not part:
                break
    return received, time.monotonic() - begun


@pytest.mark.parametrize("where", ["head", "body"])
def test_a_request_that_arrives_slowly_is_ended(served, monkeypatch, where):
    monkeypatch.setattr(module, "TIMEOUT", 0.5)
    start = f"POST /predict HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\n"
    start += "X-Drip: " if where == "head" else "Content-Length: 900\r\n\r\n"
    reply, seconds = drip(served.port, start.encode())
    assert seconds < 8
    assert (b" 408 " in reply) == (where == "body")


def test_too_many_connections_are_refused_and_forgotten(send_request, served, monkeypatch):
    monkeypatch.setattr(served, "max_connections", len(served.connections) + 3)
    with ExitStack() as opened:
        for _ in range(3):
            opened.enter_context(socket.create_connection(("127.0.0.1", served.port)))
        wait_until(lambda: len(served.connections) >= served.max_connections)
        status, _, body = send_request("GET", "/health")
        assert status == 503 and "try again" in json.loads(body)["error"]
    wait_until(lambda: len(served.connections) < served.max_connections)
    assert send_request("GET", "/health")[0] == 200


def wait_until(condition):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_buffered_bodies_are_bounded(send_request, served, png, monkeypatch):
    monkeypatch.setattr(module, "MAX_BUFFERED", 2000)
    head = (
        f"POST /predict HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\nContent-Length: 9000\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", served.port), timeout=20) as raw:
        raw.sendall(head.encode() + bytes(1900))
        wait_until(lambda: served.buffered == 1900)
        assert send_request("POST", "/predict", png + bytes(1000))[0] == 503
    wait_until(lambda: served.buffered == 0)
    assert send_request("POST", "/predict", png)[0] == 200


def test_many_images_in_a_form_and_in_json(send_request, png):
    upright = probabilities_in(send_request("POST", "/predict", png)[2])
    part = b'Content-Disposition: form-data; name="f"; filename="a.png"\r\n\r\n' + png + b"\r\n"
    form = b"--xyz\r\n" + part + b"--xyz\r\n" + part + b"--xyz--\r\n"
    as_json = json.dumps({"images": [base64.b64encode(png).decode()] * 2}).encode()
    for body, kind in ((form, "multipart/form-data; boundary=xyz"), (as_json, "application/json")):
        status, _, content = send_request("POST", "/predict", body, **{"Content-Type": kind})
        found = json.loads(content)["predictions"]
        assert status == 200 and len(found) == 2
        assert all(each["probabilities"] == pytest.approx(upright, abs=1e-6) for each in found)


def test_the_bad_image_of_several_is_named(send_request, png):
    images = [base64.b64encode(content).decode() for content in (png, b"no image")]
    body = json.dumps({"images": images}).encode()
    status, _, content = send_request(
        "POST", "/predict", body, **{"Content-Type": "application/json"}
    )
    assert status == 422
    assert json.loads(content)["error"].startswith("image 2: the file is not a picture")


def test_the_service_describes_itself(send_request):
    about = json.loads(send_request("GET", "/model")[2])
    assert (about["name"], about["group"], about["image_size"]) == ("m <b>", "C4", 28)
    assert about["limits"] == {"bytes": 10_000_000, "images": 64, "seconds": 20.0}
    assert json.loads(send_request("GET", "/health")[2]) == {"status": "ok", "waiting": 0}
    document = json.loads(send_request("GET", "/openapi.json")[2])
    assert set(document["paths"]) == {"/predict", "/model", "/health"}


def test_too_many_waiting_images_are_refused(send_request, served, png, monkeypatch):
    monkeypatch.setattr(served.batcher, "limit", 0)
    status, headers, _ = send_request("POST", "/predict", png)
    assert status == 503 and headers["Retry-After"] == "1"


def test_requests_in_progress_are_answered_when_the_server_stops(png):
    server = ImageServer(
        ImageClassifier("m", small_model(), ()), find_address("localhost"), 0
    )  # fmt: skip
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.request("GET", "/health")
    connection.getresponse().read()
    outputs, begun = server.classifier.predictor.run, threading.Event()

    def slowly(images):
        begun.set()
        time.sleep(0.5)
        return outputs(images)

    server.classifier.predictor.run = slowly
    connection.request("POST", "/predict", png)
    assert begun.wait(20)
    server.shutdown()
    reply = connection.getresponse()
    assert reply.status == 200 and prediction_in(reply.read())
    connection.close()
    thread.join(20)
    server.server_close()
    assert not thread.is_alive()
