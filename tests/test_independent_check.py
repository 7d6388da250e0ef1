"""A sample of the check that uses no measure of turnwise; the script measures all combinations."""

import torch
from independent_check import GROUPS, build, check, combinations, measure, moves


def test_a_sample_of_models_groups_and_sizes_is_invariant():
    done, worst, failures = check(60)
    assert (done, failures) == (60, [])
    assert worst < 1e-10


def test_control_a_plain_model_is_not_invariant():
    model = build("vit", "C4", 16)
    assert measure(model, "C4", 16)[0] > 1e-3


def test_control_a_constant_output_depends_on_nothing():
    constant = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(32, 3).double())
    with torch.no_grad():
        constant[1].weight.zero_()
    assert measure(constant, "C4", 4)[1] == 0


def test_the_elements_are_those_of_the_name():
    """An image without symmetry has as many versions as the grid group has elements."""
    image = torch.rand(5, 5)
    for group, count in (("C2", 2), ("C4", 4), ("C8", 4), ("D1", 2), ("D2", 4), ("D4", 8)):
        versions = {tuple(move(image).flatten().tolist()) for move in moves(group)}
        assert len(versions) == count - 1
    names = {name for name, _, _ in combinations()}
    assert len(names) > 20 and {group for _, group, _ in combinations()} == set(GROUPS)
