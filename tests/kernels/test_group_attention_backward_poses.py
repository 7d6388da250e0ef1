"""The gradient of pose scores in groups too large for a lane's registers."""


def test_kernels_agree_with_the_formula_where_the_table_is_not_compiled_in(kernel_errors):
    cases = ("all queries, two frames", "own queries, two frames")
    errors = {case: kernel_errors[case]["pose"] for case in cases}
    assert 0 < max(errors.values()) < 2e-5, errors
