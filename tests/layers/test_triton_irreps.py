"""The kernels between poses and irreps against the formula, in Triton's interpreter."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("irreps_in_interpreter.py")


@pytest.fixture(scope="module")
def kernel_errors():
    """Case -> tensor -> relative error."""
    if find_spec("triton") is None:
        pytest.skip("Triton is not installed; `pip install triton==3.9.0` runs its interpreter")
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    run = subprocess.run(
        [sys.executable, str(PROGRAM)], env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr[-2000:]
    return json.loads(run.stdout)


def test_outputs_and_gradients(kernel_errors):
    assert len(kernel_errors) == 8
    for case, errors in kernel_errors.items():
        assert len(errors) == 7, case
        for tensor, error in errors.items():
            assert error < 1e-6, f"{case}: {tensor}"
