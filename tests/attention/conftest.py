"""What the tests of the kernels share: one run of them in Triton's interpreter."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("kernels_in_interpreter.py")


@pytest.fixture(scope="session")
def kernel_errors():
    """Case -> tensor -> relative error of the kernels against the plain formula."""
    if find_spec("triton") is None:
        pytest.skip("Triton is not installed; `pip install triton==3.9.0` runs its interpreter")
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    run = subprocess.run(
        [sys.executable, str(PROGRAM)], env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr[-2000:]
    return json.loads(run.stdout)
