"""The kernels of RotoConv against its formulas, in Triton's interpreter."""


def test_outputs(roto_run):
    for case, errors in roto_run["cases"].items():
        assert errors["output"] < 1e-6, case


def test_not_a_number_wins_and_the_first_of_the_greatest(roto_run):
    """Answers 0 to 7; and 8 to 15 with one that is not a number in the fourth place."""
    assert roto_run["not a number"] == ["7.0", "nan", [7, 3]]
