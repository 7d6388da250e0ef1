"""`turnwise embed` writes invariant vectors; a killed job continues where it stopped."""

import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from PIL import Image

parquet = pytest.importorskip("pyarrow.parquet")
RANDOM = np.random.default_rng(0)
NET = "from torch import nn\ndef make(): return nn.Sequential(nn.Flatten(), nn.Linear(192, 3))\n"
SLOW_NET = """
import time
from torch import nn

class Slow(nn.Linear):
    def forward(self, x):
        time.sleep(0.02)
        return super().forward(x)

def make():
    return nn.Sequential(nn.Flatten(), Slow(192, 3))
"""
BACKBONE = ("--backbone", "net:make", "--size", "8", "--device", "cpu")


@pytest.fixture
def images(empty_folder):
    (empty_folder / "net.py").write_text(NET)
    (empty_folder / "images").mkdir()
    for name in "abc":
        pixels = RANDOM.integers(0, 256, (8, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(empty_folder / "images" / f"{name}.png")
        Image.fromarray(np.rot90(pixels)).save(empty_folder / f"rotated_{name}.png")
    yield empty_folder
    sys.modules.pop("net", None)


def vectors(path):
    return np.asarray(parquet.read_table(path)["embedding"].to_pylist(), np.float32)


def test_vectors_are_invariant_with_an_orbit_and_not_without(turnwise, images):
    found = {}
    for source in ("images", "rotated_*.png"):
        for combine in ("mean", "none"):
            words = (source, *BACKBONE, "--group", "D4", "--combine", combine)
            status, output, _ = turnwise("embed", *words, "--output", "e.parquet")
            assert (status, output) == (0, "3 vectors written to e.parquet\n")
            found[source, combine] = vectors("e.parquet")
    kept, moved = (
        np.abs(found["images", c] - found["rotated_*.png", c]).max() for c in ("mean", "none")
    )
    assert kept < 1e-5 < 1e-3 < moved
    assert np.abs(found["images", "mean"][0] - found["images", "mean"][1]).max() > 1e-3


def test_the_table_states_its_origin(turnwise, images):
    import json

    turnwise("embed", "images", *BACKBONE, "--group", "C4", "--output", "e.parquet")
    table = parquet.read_table("e.parquet")
    assert table["image"].to_pylist() == [f"images/{name}.png" for name in "abc"]
    facts = json.loads(table.schema.metadata[b"turnwise"])
    assert facts["backbone"] == "net:make" and facts["group"] == "C4"
    assert len(table["weights_sha256"][0].as_py()) == 64


def test_tiles_of_a_slide_have_coordinates(turnwise, images):
    Image.fromarray(RANDOM.integers(0, 256, (20, 16, 3), dtype=np.uint8)).save("slide.png")
    status, output, _ = turnwise(
        "embed", "slide.png", *BACKBONE, "--tile", 8, "--output", "t.parquet"
    )
    table = parquet.read_table("t.parquet")
    assert status == 0 and output.startswith("6 vectors")
    assert list(zip(table["x"].to_pylist(), table["y"].to_pylist(), strict=True)) == [
        (0, 0), (8, 0), (0, 6), (8, 6), (0, 12), (8, 12),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("images",), "an embedding is long; give --output"),
        (("images", "--output", "e.xyz"), "unknown kind of output 'xyz'"),
        (("images", "--output", "e.csv", "--overlap", "3"), "are about tiles; give --tile SIDE"),
        (("images", "--output", "e.csv", "--device", "all"), "--device all means every GPU"),
        (("images", "--output", "e.csv", "--group", "Q8"), "unknown group 'Q8'"),
        (
            ("images", "--output", "e.csv", "--group", "C4", "--combine", "x"),
            "unknown combination of vectors 'x'",
        ),
    ],
)
def test_bad_words_are_refused_in_one_line(refused, images, words, message):
    assert message in refused(
        "embed", *words, *BACKBONE[:4], *(() if "--device" in words else BACKBONE[4:])
    )


def test_another_job_beside_the_same_output_is_refused(refused, images):
    (images / "e.csv.parts").mkdir()
    (images / "e.csv.parts" / "job.json").write_text('{"sha256": "another"}')
    assert "holds the parts of another job" in refused(
        "embed", "images", *BACKBONE, "--output", "e.csv"
    )


@pytest.mark.slow
def test_a_job_killed_at_ten_random_moments_gives_the_same_rows(images):
    pixels = RANDOM.integers(0, 256, (400, 8, 8, 3), dtype=np.uint8)
    np.savez("many.npz", images=pixels)
    (images / "net.py").write_text(SLOW_NET)
    command = [sys.executable, "-m", "turnwise", "embed", "many.npz", *BACKBONE, "--part-size", "8",
               "--batch-size", "4", "--output"]  # fmt: skip
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(images), *sys.path]))
    }
    subprocess.run([*command, "whole.parquet"], check=True, env=environment)
    draw = random.Random(0)
    kills = 0
    while kills < 10:
        process = subprocess.Popen([*command, "killed.parquet"], env=environment,
                                   stderr=subprocess.DEVNULL)  # fmt: skip
        parts, before = (
            images / "killed.parquet.parts",
            len(list((images).glob("killed.parquet.parts/*.npz"))),
        )
        while process.poll() is None and len(list(parts.glob("*.npz"))) == before:
            time.sleep(0.01)
        time.sleep(draw.uniform(0, 0.1))
        if process.poll() is not None:
            break
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        kills += 1
    subprocess.run([*command, "killed.parquet"], check=True, env=environment)
    assert kills == 10
    assert parquet.read_table("killed.parquet").equals(parquet.read_table("whole.parquet"))


def test_certify_embedding_prints_every_route_and_judges_the_chosen_one(turnwise, images):
    import json

    words = ("certify", "net:make", "--embedding", "--size", 8, "--group", "D4", "--images", 12)
    status, output, _ = turnwise(*words, "--output", "routes.json")
    assert status == 0 and output.splitlines()[-1] == "orbit D4, mean: HOLDS"
    for route in ("backbone", "canonical", "orbit C4, mean"):
        assert f"\n{route} " in output
    stored = json.loads((images / "routes.json").read_text())
    assert stored["holds"] and len(stored["routes"]) == 4
    status, output, _ = turnwise(*words, "--combine", "none")
    assert status == 1 and output.splitlines()[-1] == "backbone: DOES NOT HOLD"
