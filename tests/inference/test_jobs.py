"""Jobs are done in parts: complete or absent, and the same however often they are interrupted."""

import numpy as np
import pytest
import torch
from PIL import Image
from small_networks import group_net

from turnwise.errors import InputError
from turnwise.geometry.tiles import TilePlan
from turnwise.inference import Predictor
from turnwise.inference.jobs import Job, PartFolder, run_parts
from turnwise.inference.preparation import Preparation
from turnwise.inference.sources import ArrayImages, ImageFiles, SlideTiles, Tiling

COUNT = 23


@pytest.fixture
def arrays(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (COUNT, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "images.npz", images=images)
    return ArrayImages(str(tmp_path / "images.npz"), "images", COUNT)


@pytest.fixture
def job(arrays):
    return Job((arrays,), Preparation(8, 1), batch_size=3, part_size=5)


@pytest.fixture
def predict():
    return Predictor(group_net().eval())


def all_columns(job, folder):
    parts = [folder.read(part)[0] for part in range(job.parts)]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def test_every_image_has_a_row_with_the_outputs_of_the_predictor(job, arrays, predict, tmp_path):
    folder = PartFolder(tmp_path / "out.csv")
    counts = list(run_parts(job, range(job.parts), predict, folder))
    assert sum(counts) == COUNT and job.parts == 5
    columns = all_columns(job, folder)
    assert columns["image"].tolist() == [arrays.name(i) for i in range(COUNT)]
    images = torch.stack([arrays.read(i) for i in range(COUNT)])
    np.testing.assert_allclose(columns["probabilities"], predict.probabilities(images), atol=1e-6)


def test_an_interrupted_job_gives_the_same_rows_to_the_bit(job, predict, tmp_path):
    whole, resumed = PartFolder(tmp_path / "whole"), PartFolder(tmp_path / "resumed")
    list(run_parts(job, range(job.parts), predict, whole))
    for stop in (1, 4, 2, 7):  # batches until it is interrupted again
        counts = run_parts(job, resumed.missing(job), predict, resumed)
        for _ in range(stop):
            next(counts, None)
        counts.close()
    assert 0 < len(resumed.missing(job)) < job.parts
    list(run_parts(job, resumed.missing(job), predict, resumed))
    for name, column in all_columns(job, whole).items():
        assert np.array_equal(column, all_columns(job, resumed)[name])


def test_an_unfinished_part_leaves_no_file(job, predict, tmp_path):
    folder = PartFolder(tmp_path / "out")
    counts = run_parts(job, [0], predict, folder)
    next(counts)
    counts.close()
    assert not folder.path.exists() and folder.missing(job) == [0, 1, 2, 3, 4]


def test_a_full_disk_is_one_line_and_leaves_no_part(job, predict, tmp_path, monkeypatch):
    def full(file, **columns):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    folder = PartFolder(tmp_path / "out")
    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(InputError, match="no space left on device"):
        list(run_parts(job, [0], predict, folder))
    assert not folder.path.exists() or not list(folder.path.iterdir())


def test_what_cannot_be_read_is_listed_and_the_rest_is_computed(predict, tmp_path):
    for name in "abc":
        Image.fromarray(np.full((8, 8), ord(name), np.uint8)).save(tmp_path / f"{name}.png")
    (tmp_path / "b.png").write_bytes(b"no image")
    files = ImageFiles(tuple(str(tmp_path / f"{name}.png") for name in "abc"))
    job, folder = Job((files,), Preparation(8, 1)), PartFolder(tmp_path / "out")
    list(run_parts(job, [0], predict, folder))
    columns, broken = folder.read(0)
    assert columns["image"].tolist() == [files.paths[0], files.paths[2]]
    assert list(broken) == [files.paths[1]] and "cannot be read" in broken[files.paths[1]]


def test_a_part_of_background_has_no_rows(predict, tmp_path):
    Image.fromarray(np.full((16, 8), 255, np.uint8)).save(tmp_path / "white.png")
    tiling = Tiling(8, background="white")
    plan = TilePlan(16, 8, 8)
    tiles = SlideTiles(str(tmp_path / "white.png"), plan, 0, 1.0, 1.0, tiling)
    job, folder = Job((tiles,), Preparation(8, 1)), PartFolder(tmp_path / "out")
    assert sum(run_parts(job, [0], predict, folder)) == 2
    assert folder.read(0) == ({}, {})


def test_another_job_is_not_continued(job, arrays, tmp_path):
    folder = PartFolder(tmp_path / "out")
    folder.start(job.identity())
    folder.start(job.identity())
    other = Job((arrays,), Preparation(8, 1), batch_size=4, part_size=5)
    with pytest.raises(InputError, match="holds the parts of another job"):
        folder.start(other.identity())


def test_images_are_located_in_their_sources(arrays, tmp_path):
    other = ImageFiles(("a", "b"))
    job = Job((other, arrays), Preparation(8))
    assert [job.locate(i) for i in (0, 1, 2, 24)] == [
        (other, 0), (other, 1), (arrays, 0), (arrays, 22),
    ]  # fmt: skip
    assert [list(batch) for batch in Job((other,), Preparation(8), 1, 5).batches_of(0)] == [
        [0],
        [1],
    ]


def test_a_job_without_images_is_refused():
    with pytest.raises(InputError, match="there are no images"):
        Job((), Preparation(8))
