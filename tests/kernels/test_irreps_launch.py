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


def test_a_stream_is_as_fine_as_it_was(irrep_run):
    """Rounded by autocast is what is added to it, and the gradient of that, not the stream."""
    found = irrep_run["finer stream"]
    half, single = "torch.bfloat16", "torch.float32"
    assert found["kinds"] == [single, half, half, single]
    assert max(found["errors"]) < 1e-2


def test_one_graph_serves_all_numbers_of_tokens(irrep_run):
    assert irrep_run["graphs"] == 1
