"""Ray computes the parts of a job as the local engine does."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from turnwise.errors import InputError
from turnwise.inference.backbones import BackboneName
from turnwise.inference.engines import Work, run_local
from turnwise.inference.jobs import Job, PartFolder
from turnwise.inference.preparation import Preparation
from turnwise.inference.ray_engine import run_on_ray
from turnwise.inference.sources import ArrayImages

COUNT = 60
NET = """
from torch import nn

def make():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
"""


def make_work(folder, output):
    source = ArrayImages(str(folder / "images.npz"), "images", COUNT)
    job = Job((source,), Preparation(8, 1), batch_size=5, part_size=5)
    return Work(job, BackboneName("net:make", "C4", size=8).open, ("embedding",), folder / output)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    images = np.random.default_rng(0).integers(0, 256, (COUNT, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "images.npz", images=images)
    (tmp_path / "net.py").write_text(NET)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_missing_package_is_named(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match="the Ray engine needs the package ray; install it with"):
        next(run_on_ray(make_work(folder, "out"), [0]))


def run_program(folder):
    """Run this file as a program: Ray's own warnings must not fail the tests."""
    paths = [str(folder), *sys.path]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths)),
                                "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}  # fmt: skip
    return subprocess.run(
        [sys.executable, __file__, str(folder)], capture_output=True, text=True,
        env=environment, cwd=folder,
    )  # fmt: skip


def same_parts(folder):
    work, other = make_work(folder, "local"), PartFolder(folder / "ray")
    list(run_local(work, range(work.job.parts)))
    for part in range(work.job.parts):
        expected, found = PartFolder(work.output).read(part)[0], other.read(part)[0]
        assert expected["image"].tolist() == found["image"].tolist()
        np.testing.assert_allclose(expected["embedding"], found["embedding"], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_ray_computes_what_the_local_engine_computes(folder):
    pytest.importorskip("ray.data")
    ended = run_program(folder)
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert ended.stdout.splitlines()[-1] == str(COUNT)
    same_parts(folder)


def main(folder):
    work = make_work(folder, "ray")
    PartFolder(work.output).start(work.job.identity())
    print(sum(run_on_ray(work, range(work.job.parts), actors=3)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
