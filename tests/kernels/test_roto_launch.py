"""The operators around the kernels of RotoConv: every case and gradient, compiled, too."""


def test_every_case_was_compared(roto_run):
    assert len(roto_run["cases"]) == 13


def test_gradients(roto_run):
    for case, errors in roto_run["cases"].items():
        for tensor in ("d maps", "d weight", "d bias"):
            assert errors[tensor] < 1e-6, f"{case}: {tensor}"


def test_agreement_is_of_rounding_size_and_not_of_zeros(roto_run):
    """What the formula and the kernels compute differs in its last bits somewhere."""
    assert any(errors["d maps"] > 0 for errors in roto_run["cases"].values())
