"""The Triton kernels of irreps against the formula in float64, in Triton's interpreter."""

from pathlib import Path

import pytest

GRADIENTS = {"d x", "d bias", "d residual", "d weight of the norm", "d bias of the norm"}


@pytest.fixture(scope="module")
def run(in_interpreter):
    return in_interpreter(Path(__file__).parent / "irreps_in_interpreter.py")


@pytest.fixture
def errors(run):
    """Case -> tensor -> relative error of the kernels."""
    return run["cases"]


def test_every_output_and_gradient_of_every_case_was_compared(errors):
    assert len(errors) == 8
    assert all(len(found) == 13 and set(found) > GRADIENTS for found in errors.values())


def test_outputs_are_those_of_the_formula(errors):
    for case, found in errors.items():
        assert max(found[name] for name in set(found) - GRADIENTS) < 1e-6, case


def test_gradients_are_those_of_the_formula(errors):
    for case, found in errors.items():
        assert max(found[name] for name in GRADIENTS) < 1e-6, case


def test_agreement_is_at_rounding_level_and_not_of_zeros(errors):
    assert all(found["gelu 1-D"] > 0 for found in errors.values())


def test_a_compiled_block_has_the_output_and_gradients_of_the_formulas(run):
    assert len(run["block"]) == 16
    assert max(run["block"].values()) < 5e-6, run["block"]


def test_a_residual_in_float32_stays_in_float32(run):
    """Autocast rounds the irreps that are added to it, and their gradients, to bfloat16."""
    half, single = "torch.bfloat16", "torch.float32"
    assert run["residual"]["dtypes"] == [single, half, half, single]
    assert max(run["residual"]["errors"]) < 1e-2


def test_one_graph_serves_every_number_of_tokens(run):
    assert run["graphs"] == 1
