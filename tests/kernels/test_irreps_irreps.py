"""The kernels between poses and irreps against the formula, in Triton's interpreter."""


def test_outputs(irrep_errors):
    for case, errors in irrep_errors.items():
        for tensor in ("numbers", "planes", "poses", "poses onto the stream"):
            assert errors[tensor] < 1e-6, f"{case}: {tensor}"
        assert max(errors["active numbers"], errors["active planes"]) < 1e-6, case
