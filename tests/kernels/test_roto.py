"""The Triton kernels of RotoConv2d against its formula in float64, in Triton's interpreter."""

from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def run(in_interpreter):
    return in_interpreter(Path(__file__).parent / "roto_in_interpreter.py")


def test_outputs_and_gradients_are_those_of_the_formula(run):
    assert len(run["cases"]) == 13
    for case, errors in run["cases"].items():
        assert set(errors) == {"output", "d maps", "d weight", "d bias"}
        assert max(errors.values()) < 1e-6, (case, errors)


def test_agreement_is_at_rounding_level_and_not_of_zeros(run):
    assert all(errors["d maps"] > 0 for errors in run["cases"].values())


def test_nan_is_the_maximum_as_in_torch(run):
    assert run["max of nan"] == ["7.0", "nan", [7, 3]]
