"""Rotating the query does not change its neighbours."""

import csv
import io
import sys

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("pyarrow")
pytest.importorskip("faiss")
NET = "from torch import nn\ndef make(): return nn.Sequential(nn.Flatten(), nn.Linear(192, 5))\n"


@pytest.fixture
def index(turnwise, empty_folder):
    (empty_folder / "net.py").write_text(NET)
    (empty_folder / "images").mkdir()
    random = np.random.default_rng(0)
    for number in range(12):
        pixels = random.integers(0, 256, (8, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(f"images/{number:02d}.png")
    Image.fromarray(np.rot90(np.asarray(Image.open("images/04.png")))).save("rotated.png")
    words = ("--backbone", "net:make", "--size", 8, "--device", "cpu", "--output", "e.parquet")
    assert turnwise("embed", "images", *words, "--group", "D4")[0] == 0
    yield "e.parquet"
    sys.modules.pop("net", None)


def search(turnwise, *words):
    status, output, _ = turnwise("neighbours", *words, "--backbone", "net:make", "--device", "cpu")
    assert status == 0
    return list(csv.DictReader(io.StringIO(output)))


def test_the_neighbours_of_a_rotated_query_do_not_change(turnwise, index):
    upright = search(turnwise, "images/04.png", index, "--count", 5)
    rotated = search(turnwise, "rotated.png", index, "--count", 5)
    assert [row["neighbour"] for row in rotated] == [row["neighbour"] for row in upright]
    assert rotated[0]["neighbour"] == "images/04.png" and len(rotated) == 5
    assert float(rotated[0]["cosine"]) == pytest.approx(1, abs=1e-5)
    assert float(rotated[1]["cosine"]) < 0.9999


def test_a_page_shows_queries_and_neighbours(turnwise, index, empty_folder):
    search(turnwise, "rotated.png", index, "--count", 3, "--page", "page.html")
    html = (empty_folder / "page.html").read_text()
    assert html.count("<img") == 4 and "images/04.png" in html


def test_code_in_the_table_is_not_imported(refused, index):
    assert "is not imported because a file names it" in refused("neighbours", "rotated.png", index)


def test_other_weights_are_refused(refused, index, empty_folder):
    (empty_folder / "other.py").write_text(NET.replace("192, 5", "192, 5, bias=False"))
    error = refused("neighbours", "rotated.png", index, "--backbone", "other:make")
    assert "made with other weights than other:make has now" in error
