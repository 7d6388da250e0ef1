"""The pieces of the way back, tested through the kernels made of them: each gradient, each form."""

import pytest


@pytest.mark.parametrize("tensor", ["query", "key", "value", "place", "pose"])
def test_every_gradient_agrees_in_every_form(kernel_errors, tensor):
    found = [errors[tensor] for errors in kernel_errors.values() if tensor in errors]
    assert len(found) >= 6
    assert max(found) < 2e-5
