"""What the tests of the kernels of irreps share: one run of them in Triton's interpreter."""

from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("irreps_in_interpreter.py")


@pytest.fixture(scope="session")
def irrep_errors(in_interpreter):
    """Case -> tensor -> relative error of the kernels against the formula."""
    return in_interpreter(PROGRAM)
