"""Contact sheets show every class, with its own images, in a PNG or in one page."""

import base64
import io
import re

import numpy as np
import pytest
from PIL import Image

from turnwise.data.inspection import inspect_source
from turnwise.errors import InputError
from turnwise.reports.contact_sheet import (
    EACH,
    GAP,
    LABEL,
    SIDE,
    require_sheet,
    write_contact_sheet,
)

COLOURS = {"blue <b>": (0, 0, 200), "red": (200, 0, 0)}


@pytest.fixture
def found(tmp_path):
    """Images of plain colours, each a little different, and more of them than are shown."""
    for name, colour in COLOURS.items():
        folder = tmp_path / "own" / name
        folder.mkdir(parents=True)
        for i in range(2 * EACH):
            Image.new("RGB", (20, 20), (*colour[:1], i, *colour[2:])).save(folder / f"{i:02}.png")
    return inspect_source(f"folder:{tmp_path / 'own'}")


def test_a_picture(found, tmp_path):
    write_contact_sheet(found, tmp_path / "sheet.png")
    pixels = np.asarray(Image.open(tmp_path / "sheet.png").convert("RGB"))
    assert pixels.shape[1] == LABEL + EACH * (SIDE + GAP) + GAP
    for row, colour in enumerate(COLOURS.values()):
        y = 40 + row * (SIDE + GAP) + SIDE // 2
        shown = [pixels[y, LABEL + i * (SIDE + GAP) + SIDE // 2].tolist() for i in range(EACH)]
        assert shown == [[colour[0], 2 * i, colour[2]] for i in range(EACH)]


def test_a_page(found, tmp_path):
    write_contact_sheet(found, tmp_path / "sheet.html")
    page = (tmp_path / "sheet.html").read_text(encoding="utf-8")
    assert "<h2>blue &lt;b&gt; <small>20 images</small></h2>" in page and "<b>" not in page
    images = re.findall(r'src="data:image/png;base64,([^"]+)"', page)
    assert len(images) == 2 * EACH and page.count("src=") == 2 * EACH
    first = Image.open(io.BytesIO(base64.b64decode(images[0])))
    assert first.size == (SIDE, SIDE) and first.getpixel((9, 9)) == (0, 0, 200)
    assert 'title="' + found.small.names[0].replace("<", "&lt;").replace(">", "&gt;") in page


def test_images_without_files(tmp_path):
    images = np.tile(np.arange(40, dtype=np.uint8)[:, None, None], (1, 30, 20))
    np.savez(tmp_path / "x.npz", images=images, labels=np.arange(40) % 2)
    write_contact_sheet(inspect_source(str(tmp_path / "x.npz")), tmp_path / "sheet.png")
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.height == 40 + 2 * (SIDE + GAP)
        assert sheet.getpixel((LABEL + 5, 45)) == (0, 0, 0)
        assert sheet.getpixel((LABEL + 5, 45 + SIDE + GAP)) == (1, 1, 1)


def test_other_formats_are_refused(tmp_path):
    with pytest.raises(
        InputError, match=r"a contact sheet is a \.png or \.html file, got .*x\.pdf"
    ):
        require_sheet(tmp_path / "x.pdf")
    assert not list(tmp_path.iterdir())
