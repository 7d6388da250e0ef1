"""The operators around the kernels of irreps: every case ran, compiled too, and every gradient."""


def test_every_tensor_of_every_case_was_compared(irrep_errors):
    assert len(irrep_errors) == 8
    assert all(len(errors) == 13 for errors in irrep_errors.values())


def test_gradients(irrep_errors):
    for case, errors in irrep_errors.items():
        for tensor in ("d x", "d bias", "d stream"):
            assert errors[tensor] < 1e-6, f"{case}: {tensor}"


def test_agreement_is_of_rounding_size_and_not_of_zeros(irrep_errors):
    """What the formula and the kernels compute differs in its last bits somewhere."""
    assert any(errors["active numbers"] > 0 for errors in irrep_errors.values())


def test_a_whole_block_by_kernels(irrep_run):
    """Compiled, against the formulas: what it gives, and the gradient of every weight."""
    errors = irrep_run["block"]
    assert len(errors) == 16
    for tensor, error in errors.items():
        assert error < 5e-6, tensor
