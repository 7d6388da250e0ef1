"""The kernels between poses and irreps against the formula, in Triton's interpreter."""

from pathlib import Path

PROGRAM = Path(__file__).with_name("irreps_in_interpreter.py")


def test_outputs_and_gradients(in_interpreter):
    """Case -> tensor -> relative error."""
    found = in_interpreter(PROGRAM)
    assert len(found) == 8
    for case, errors in found.items():
        assert len(errors) == 7, case
        for tensor, error in errors.items():
            assert error < 1e-6, f"{case}: {tensor}"
