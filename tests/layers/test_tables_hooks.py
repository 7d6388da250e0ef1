"""Whoever listens to a part is found, and whoever listens to the whole is no matter."""

import pytest
from torch import nn

from turnwise.layers.tables import has_hooks

WAYS = (
    "register_forward_hook",
    "register_forward_pre_hook",
    "register_full_backward_hook",
    "register_full_backward_pre_hook",
)


@pytest.mark.parametrize("way", WAYS)
def test_a_part_that_is_listened_to(way):
    module = nn.Sequential(nn.Sequential(nn.Linear(2, 2)), nn.ReLU())
    assert not has_hooks(module)
    handle = getattr(module[0][0], way)(lambda *given: None)
    assert has_hooks(module)
    handle.remove()
    assert not has_hooks(module)


@pytest.mark.parametrize("way", WAYS)
def test_the_whole_is_called_in_any_case(way):
    module = nn.Sequential(nn.Linear(2, 2))
    getattr(module, way)(lambda *given: None)
    assert not has_hooks(module)
