"""What the tests of kernels share: one run of each kind in Triton's interpreter."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def irrep_run(in_interpreter):
    return in_interpreter(HERE / "irreps_in_interpreter.py")


@pytest.fixture
def irrep_errors(irrep_run):
    """Case -> tensor -> relative error of the kernels against the formula."""
    return irrep_run["cases"]


@pytest.fixture(scope="session")
def roto_run(in_interpreter):
    return in_interpreter(HERE / "roto_in_interpreter.py")


@pytest.fixture(scope="session")
def kernel_errors(in_interpreter):
    """Case -> tensor -> relative error of the kernels against the plain formula."""
    return in_interpreter(HERE / "group_attention_in_interpreter.py")
