"""What every test shares: one thread, one seed, and the real data where it is at hand."""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

from turnwise.data import load_dataset
from turnwise.training.recipe import make_recipe

REPOSITORY = Path(__file__).parents[1]
collect_ignore_glob = ["kernels/*_in_interpreter.py"]  # programs for a process of their own
QUICK_RECIPE = {
    "model": {"name": "orbit_vit", "group": "C4", "patch": 7, "width": 16, "depth": 2, "heads": 2},
    "data": {"name": "digits", "augment": {"rotation": 15, "shift": 1, "mirror": True}},
    "optimisation": {"batch_size": 400, "learning_rate": 0.003, "warmup_epochs": 1},
    "trainer": {"max_epochs": 2, "accelerator": "cpu"},
    "evaluation": {"angles": 4},
}

# small tensors on a shared two-core machine: threads cost more than they give
torch.set_num_threads(1)
# the same examples in every run, and however busy the machine is
settings.register_profile(
    "turnwise", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("turnwise")
if os.environ.get("TURNWISE_DATA"):  # tests that change the folder must find it, too
    os.environ["TURNWISE_DATA"] = str(Path(os.environ["TURNWISE_DATA"]).expanduser().absolute())


@pytest.fixture(autouse=True)
def same_seed():
    torch.manual_seed(0)


@pytest.fixture
def real_data():
    """The folder of real data sets: TURNWISE_DATA, or `shared/data` beside the checkout."""
    folder = Path(os.environ.get("TURNWISE_DATA", REPOSITORY.parent / "shared" / "data"))
    if not (folder / "mnist" / "mnist.npz").is_file():
        pytest.skip("the real data sets are not on this machine; set TURNWISE_DATA to their folder")
    return folder


@pytest.fixture
def digits_0_1_0(monkeypatch):
    """The digits that version 0.1.0 shipped: 4,000 training images, where this one has 1,500."""
    folder = REPOSITORY / "tests" / "regression" / "version_0_1_0"
    monkeypatch.setattr("turnwise.data.readers.npz.SHIPPED", folder)


@pytest.fixture(scope="session")
def in_interpreter():
    """Run a program whose kernels Triton interprets on the CPU, and return the JSON it prints."""
    if find_spec("triton") is None:
        pytest.skip("Triton, which has wheels for Linux, is not installed")

    def run(program, *arguments):
        environment = os.environ | {"TRITON_INTERPRET": "1"}
        command = [sys.executable, str(program), *arguments]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr[-2000:]
        return json.loads(ended.stdout)

    return run


@pytest.fixture
def digits_like():
    """Images in [0, 1], no two of them alike, for the small networks of small_networks.py."""
    return torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="session")
def digits():
    return load_dataset("digits")


@pytest.fixture
def quick():
    """Makes a recipe that trains in a second and has every source of randomness in it."""
    return lambda *overrides: make_recipe(QUICK_RECIPE, overrides)


def pytest_terminal_summary(terminalreporter):
    """Print how many tests were skipped for each reason."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = Counter(re.sub(r"^Skipped: ", "", report.longrepr[2]) for report in skipped)
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"skipped {count}: {reason}")
