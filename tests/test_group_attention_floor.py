"""The floor of the benchmark of group attention: what is counted, and what bounds."""

import group_attention
import pytest

RATE = {"bytes": 1e30, "multiply_adds": 1e30, "single_multiply_adds": 1e30, "exponentials": 1.0}
CASE = {"group": "p4", "window": 3, "image": 28, "batch": 1, "precision": "32", "queries": "all"}


def test_exponentials_are_those_of_content_and_position_in_both_passes():
    lift, rest = 28**2 * 9, (24**2 + 24**2 + 8**2 + 6**2 + 4**2) * 9  # tokens and offsets
    counted = {"all": 2 * (lift * (1 + 4) + rest * (16 + 16)),
               "own": 2 * (lift * (1 + 4) + rest * (16 + 4))}  # fmt: skip
    for queries, expected in counted.items():
        found = group_attention.floor(CASE | {"queries": queries}, RATE)
        assert found["exponentials"] == pytest.approx(9 * expected)
        assert max(found, key=found.get) == "exponentials"


def test_weights_grow_with_the_third_power_of_the_group_and_products_with_the_second():
    rate = dict.fromkeys(RATE, 1.0)
    small, large = (group_attention.floor(CASE | {"group": g}, rate) for g in ("p4", "p8"))
    assert 7 < large["weights"] / small["weights"] < 8
    assert 3.5 < large["products"] / small["products"] < 4
    own = group_attention.floor(CASE | {"group": "p8", "queries": "own"}, rate)
    assert 7 < large["weights"] / own["weights"] < 8
