"""The norm and the way into irreps in one step against both in a row, in Triton's interpreter."""


def test_outputs_and_gradients(irrep_errors):
    for case, errors in irrep_errors.items():
        for tensor in ("normed numbers", "normed planes"):
            assert errors[tensor] < 1e-6, f"{case}: {tensor}"
        for tensor in ("d x", "d weight of the norm", "d bias of the norm"):
            assert errors[tensor] < 1e-6, f"{case}: {tensor}"
