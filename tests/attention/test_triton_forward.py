"""The forward kernels give what the formula gives."""

import pytest

CASES = (
    "all queries",
    "all queries, related by queries",
    "all queries, two frames",
    "own queries, cropped",
    "own queries, two frames",
    "lifting",
    "lifting, two frames",
    "whole picture",
)


@pytest.mark.parametrize("case", CASES)
def test_kernels_agree_with_the_formula(kernel_errors, case):
    errors = {name: kernel_errors[case].get(name, 0.0) for name in ("output",)}
    assert max(errors.values()) < 2e-5, errors
