"""Targets of fuzzing: requests to the HTTP service, which stays in service."""

import base64
import http.client
import io
import json
import socket
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from turnwise.deploy.addresses import find_address
from turnwise.deploy.classifier import ImageClassifier
from turnwise.deploy.requests import read_images
from turnwise.deploy.server import ImageServer
from turnwise.models import create_model

from .conftest import PROFILE
from .test_fuzz import SMALL, VALUES, mutate, refused_in_one_line


def an_image():
    encoded = io.BytesIO()
    Image.new("L", (28, 28), 200).save(encoded, "PNG")
    return encoded.getvalue()


IMAGE = an_image()
FORM = (
    b'--xx\r\nContent-Disposition: form-data; name="image"; filename="a.png"\r\n\r\n'
    + IMAGE
    + b"\r\n--xx--\r\n"
)
JSON = json.dumps({"images": [base64.b64encode(IMAGE).decode()]}).encode()
BODIES = {"image/png": IMAGE, "multipart/form-data; boundary=xx": FORM, "application/json": JSON}


@pytest.fixture(scope="module")
def server():
    model = create_model("orbit_vit", **SMALL).eval()
    served = ImageServer(
        ImageClassifier("m", model, tuple("0123456789")), find_address("127.0.0.1"), 0
    )
    thread = threading.Thread(target=served.serve_forever)
    thread.start()
    yield served
    served.shutdown()
    thread.join(20)
    served.server_close()


def request(port, path, kind):
    """Return the bytes of a request that the server answers."""
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: {kind}\r\n"
    body = BODIES[kind]
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def reply_to(port, content):
    """Send bytes, say that there are no more, and return all that comes back."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        found = b""
        try:
            connection.sendall(content)
            connection.shutdown(socket.SHUT_WR)
            while part := connection.recv(65536):
                found += part
        except ConnectionError:  # refused before all of it was read
            pass
    return found


@PROFILE
@given(kind=st.sampled_from(sorted(BODIES)), path=st.sampled_from(["/predict", "/predict?degrees=9",
       "/predict?views=1", "/", "/model"]), seed=st.integers(0, 2**32))  # fmt: skip
def test_a_damaged_request_is_answered_or_refused(server, kind, path, seed):
    """Never with status 500; and the next request is answered."""
    reply = reply_to(server.port, mutate(request(server.port, path, kind), seed))
    if reply:
        head, _, body = reply.partition(b"\r\n\r\n")
        status = int(head.split()[1])  # after HTTP/1.1, or 1.0
        assert status in (200, 204) or 400 <= status < 500, reply
        if status >= 400 and body:
            assert "\n" not in json.loads(body)["error"]
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.request("POST", "/predict", IMAGE, {"Content-Type": "image/png"})
    assert connection.getresponse().status == 200
    connection.close()
    assert server.buffered == 0


@PROFILE
@given(kind=st.sampled_from(sorted(BODIES)) | st.text(max_size=60), seed=st.integers(0, 2**32),
       value=VALUES)  # fmt: skip
def test_any_body_holds_images_or_is_refused(kind, seed, value):
    bodies = [mutate(BODIES.get(kind, FORM), seed), json.dumps({"images": value}).encode()]
    for body in bodies:
        with refused_in_one_line():
            assert all(isinstance(image, bytes) for image in read_images(body, kind))
