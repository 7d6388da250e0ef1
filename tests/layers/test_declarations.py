"""A layer declares its own behaviour; no other module needs to know its class."""

import torch
from torch import nn

from turnwise.layers.declarations import (
    AttentionTaps,
    HasAttention,
    HasPositions,
    undecayed_parameters,
)


class Positions(nn.Module):
    no_weight_decay = ("table",)

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.zeros(3, 3))
        self.weight = nn.Parameter(torch.zeros(3, 3))

    def position_maps(self):
        return {"table": self.table[None]}


class Attention(nn.Module):
    def attention_taps(self):
        return AttentionTaps(self, 0, self, 1, "tokens")


def test_declared_parameters_are_found_under_their_full_names():
    model = nn.Sequential(nn.Linear(3, 3), nn.Sequential(Positions()))
    assert list(undecayed_parameters(model)) == ["1.0.table"]
    assert list(undecayed_parameters(Positions())) == ["table"]


def test_the_method_of_a_model_is_not_a_declaration():
    class Model(nn.Module):
        def no_weight_decay(self):
            return set(undecayed_parameters(self))

    model = Model()
    model.inner = Positions()
    assert model.no_weight_decay() == {"inner.table"}


def test_protocols_require_only_the_method():
    assert isinstance(Attention(), HasAttention)
    assert isinstance(Positions(), HasPositions)
    assert not isinstance(nn.Linear(1, 1), HasAttention | HasPositions)
