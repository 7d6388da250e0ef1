"""What the tests of the kernels share: one run of them in Triton's interpreter."""

from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("kernels_in_interpreter.py")


@pytest.fixture(scope="session")
def kernel_errors(in_interpreter):
    """Case -> tensor -> relative error of the kernels against the plain formula."""
    return in_interpreter(PROGRAM)
