"""What the tests of the kernels of irreps share: one run of them in Triton's interpreter."""

from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("irreps_in_interpreter.py")


@pytest.fixture(scope="session")
def irrep_run(in_interpreter):
    return in_interpreter(PROGRAM)


@pytest.fixture
def irrep_errors(irrep_run):
    """Case -> tensor -> relative error of the kernels against the formula."""
    return irrep_run["cases"]
