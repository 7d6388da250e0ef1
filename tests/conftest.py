"""What every test shares: one thread, one seed, and the real data where it is at hand."""

import os
from pathlib import Path

import pytest
import torch

REPOSITORY = Path(__file__).parents[1]

torch.set_num_threads(
    1
)  # small tensors on a shared two-core machine: threads cost more than they give


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
