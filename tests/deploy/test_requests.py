"""Images in raw bodies, forms and JSON; anything else is refused in one sentence."""

import base64
import json

import pytest

from turnwise.deploy.requests import MAX_IMAGES, read_degrees, read_images
from turnwise.errors import InputError

FORM = "multipart/form-data; boundary=abc"


def form(*files, field=b""):
    head = b'--abc\r\nContent-Disposition: form-data; name="f"; filename="x"\r\n\r\n'
    return b"".join(head + content + b"\r\n" for content in files) + field + b"--abc--\r\n"


def test_images_are_found_in_every_kind_of_request():
    files = [b"one", b"two\r\n--ab", b""]
    encoded = [base64.b64encode(content).decode() for content in files]
    field = b'--abc\r\nContent-Disposition: form-data; name="degrees"\r\n\r\n90\r\n'
    assert read_images(form(*files, field=field), FORM) == files
    assert read_images(json.dumps({"images": encoded}).encode(), "application/json") == files
    assert read_images(json.dumps({"image": encoded[0]}).encode(), "application/json") == [b"one"]
    for kind in ("image/png", "", "application/octet-stream", "a/b; c=d"):
        assert read_images(b"raw", kind) == [b"raw"]


@pytest.mark.parametrize(
    ("body", "kind"),
    [(b"{", "application/json"), (b"[]", "application/json"), (b"{}", "application/json"),
     (b"[" * 100_000, "application/json"), (b'{"images": "x"}', "application/json"),
     (b'{"images": ["\xc3\xa4"]}', "application/json"), (b'{"images": [1]}', "application/json"),
     (b'{"images": []}', "application/json"), (b"", FORM), (b"--abc--", FORM),
     (form(b"x")[:-6], FORM), (form(b"x"), "multipart/form-data"),
     (b"--abc\r\nx\r\n--abc--\r\n", FORM), (form(*[b"x"] * (MAX_IMAGES + 1)), FORM)],
)  # fmt: skip
def test_other_requests_are_refused(body, kind):
    with pytest.raises(InputError) as error:
        read_images(body, kind)
    assert "\n" not in str(error.value)


def test_degrees_are_a_finite_number():
    assert read_degrees({}) == 0 and read_degrees({"degrees": "-90"}) == 270
    for text in ("nan", "inf", "north", "1e999", ""):
        with pytest.raises(InputError, match="must be a number"):
            read_degrees({"degrees": text})
