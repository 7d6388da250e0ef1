"""Gradients on the side of the sources."""

import pytest


@pytest.mark.parametrize("tensor", ["key", "value"])
def test_kernels_agree_with_the_formula_in_every_form(kernel_errors, tensor):
    errors = {case: found.get(tensor, 0.0) for case, found in kernel_errors.items()}
    assert max(errors.values()) < 2e-5, errors
