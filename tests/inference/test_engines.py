"""Engines compute the parts of a job, on one device or several, and say why they cannot."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from small_networks import group_net

from turnwise.errors import InputError
from turnwise.inference.engines import PartRunner, Work, run_local
from turnwise.inference.jobs import Job, PartFolder
from turnwise.inference.preparation import Preparation
from turnwise.inference.sources import ArrayImages

COUNT = 30


def open_network():
    return group_net().eval()


@pytest.fixture
def work(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (COUNT, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "images.npz", images=images)
    source = ArrayImages(str(tmp_path / "images.npz"), "images", COUNT)
    job = Job((source,), Preparation(8, 1), batch_size=4, part_size=8)
    return Work(job, open_network, ("probabilities",), tmp_path / "out.csv")


def test_the_local_engine_computes_the_parts(work):
    assert sum(run_local(work, [0, 3])) == 8 + 6
    assert PartFolder(work.output).missing(work.job) == [1, 2]


def test_a_runner_is_an_actor_of_ray_data(work):
    found = PartRunner(work)({"part": np.asarray([1, 3])})
    assert found["part"].tolist() == [1, 3] and found["images"].tolist() == [8, 6]
    assert PartFolder(work.output).missing(work.job) == [0, 2]


PROGRAM = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from turnwise.inference.backbones import BackboneName
from turnwise.inference.engines import Work, run_local
from turnwise.inference.jobs import Job
from turnwise.inference.preparation import Preparation
from turnwise.inference.sources import ArrayImages

if __name__ == "__main__":
    folder = Path({folder!r})
    source = ArrayImages(str(folder / "images.npz"), "images", {count})
    job = Job((source,), Preparation(8, 1), 4, 8)
    name = BackboneName({backbone!r}, size=8)
    work = Work(job, name.open, ("embedding",), folder / "out.csv")
    print(sum(run_local(work, range(job.parts), ("cpu", "cpu"), workers=1)))
"""


def run_on_two_devices(work, backbone):
    program = work.output.with_name("program.py")
    program.write_text(PROGRAM.format(
        tests=str(Path(__file__).parents[1]), folder=str(work.output.parent), count=COUNT,
        backbone=backbone,
    ))  # fmt: skip
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*sys.path, str(program.parent)])}
    return subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, env=environment,
        cwd=program.parent,
    )  # fmt: skip


@pytest.mark.slow
def test_two_devices_share_the_parts(work):
    network = "nn.Sequential(nn.Flatten(), nn.Linear(64, 3))"
    code = f"from torch import nn\ndef make():\n    return {network}\n"
    work.output.with_name("net.py").write_text(code)
    ended = run_on_two_devices(work, "net:make")
    assert (ended.returncode, ended.stdout) == (0, f"{COUNT}\n"), ended.stderr
    assert PartFolder(work.output).missing(work.job) == []


@pytest.mark.slow
def test_an_error_in_a_process_is_raised_in_the_parent(work):
    ended = run_on_two_devices(work, "nowhere:make")
    assert ended.returncode == 1
    assert "turnwise.errors.InputError: nowhere:make cannot be made" in ended.stderr


def test_an_error_of_the_model_is_raised(work):
    def refuse():
        raise InputError("no such model")

    with pytest.raises(InputError, match="no such model"):
        list(run_local(Work(work.job, refuse, ("probabilities",), work.output), [0]))
