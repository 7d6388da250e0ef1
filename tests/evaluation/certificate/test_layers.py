"""Which break is named, and which is excused."""

import torch
from torch import nn

from turnwise.evaluation.certificate.layers import LayerCheck, find_entry, trace_layers
from turnwise.evaluation.certificate.scores import answerer
from turnwise.groups import PlanarGroup

C4 = PlanarGroup.named("C4")


def check(layer, before, error):
    return LayerCheck(layer, "Linear", "maps", before, error)


def test_the_first_break_is_named():
    layers = [check("a", 0.0, 0.0), check("b", 0.0, 1.0), check("the model", 0.0, 1.0)]
    assert find_entry(layers, 1e-10).startswith("b (Linear): what it is given holds")


def test_nothing_is_named_where_the_answer_holds():
    layers = [check("a", 0.0, 1.0), check("the model", 0.0, 1e-11)]
    assert find_entry(layers, 1e-10) == ""
    assert find_entry([], 1e-10) == ""


def test_a_break_inside_a_module_that_holds_is_excused():
    layers = [
        check("a.inner", 0.0, 1.0), check("a", 0.0, 0.0), check("b", 0.0, 1.0),
        check("the model", 0.0, 1.0),
    ]  # fmt: skip
    assert find_entry(layers, 1e-10).startswith("b (Linear)")


def test_a_break_that_a_later_layer_undoes_is_excused():
    """It was a way of turning that no reading knows."""
    layers = [
        check("a", 0.0, 1.0), check("b", 1.0, 0.0), check("c", 0.0, 1.0), check("d", 1.0, 1.0),
    ]  # fmt: skip
    assert find_entry(layers, 1e-10).startswith("c (Linear)")


def test_what_cannot_be_read_is_passed_over():
    layers = [check("a", None, None), check("b", None, 1.0)]
    assert find_entry(layers, 1e-10).endswith("what this layer is given cannot be read")


class Table(nn.Module):
    """A module whose output is the same for every picture."""

    def __init__(self, rows):
        super().__init__()
        self.rows = nn.Linear(2, 3)
        self.places = torch.randn(rows, 2, dtype=torch.float64)

    def forward(self, images):
        return self.rows(self.places).sum() * images.flatten(1).pow(2).mean(1, keepdim=True)


def test_a_table_says_nothing_even_if_it_has_as_many_rows_as_pictures(digits_like):
    answer = answerer(Table(4), "float64", 8)
    table, whole = trace_layers(answer, C4, digits_like)
    assert (table.layer, table.before, table.error) == ("rows", None, None)
    assert whole.error < 1e-12


def test_a_layer_that_is_called_twice_is_told_apart(digits_like):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.tanh = nn.Tanh()

        def forward(self, images):
            return self.tanh(self.tanh(images)).mean((2, 3))

    names = [c.layer for c in trace_layers(answerer(Twice(), "float64", 8), C4, digits_like)]
    assert names == ["tanh", "tanh, call 2", "the model"]


def test_rectangles_are_left_out():
    assert trace_layers(answerer(nn.Tanh(), "float64", 8), C4, torch.rand(4, 1, 4, 6)) == ()


def test_no_hook_stays(digits_like):
    answer = answerer(Table(4), "float64", 8)
    trace_layers(answer, C4, digits_like)
    assert not any(module._forward_hooks for module in answer.model.modules())
