"""What a layer may declare about itself, so that no other module has to list layers.

    no_weight_decay    names of its own parameters that weight decay must leave alone
    feature_layout     name of the layout of its output (`geometry.layouts`), if it is worth showing
    attention_taps()   where attention values enter and leave it, for attention maps
    position_maps()    what it has learned about positions, as images

A layer declares by having the attribute; there is nothing to inherit from and nothing to register.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor, nn


@dataclass(frozen=True)
class AttentionTaps:
    """Where the values of an attention layer can be read and replaced.

    value:   the module whose output holds the values
    first:   the index of the first value channel in that output
    output:  the module whose input is the mixed values, heads side by side
    heads:   the number of heads
    layout:  the layout of both tensors, a name of `geometry.layouts`
    """

    value: nn.Module
    first: int
    output: nn.Module
    heads: int
    layout: str


@runtime_checkable
class HasAttention(Protocol):
    """A layer whose attention weights can be shown."""

    def attention_taps(self) -> AttentionTaps: ...


@runtime_checkable
class HasPositions(Protocol):
    """A layer that has learned something about positions."""

    def position_maps(self) -> dict[str, Float[Tensor, "group row col"]]:
        """Return maps over the offset from a token, one for each group element, by name."""
        ...


def undecayed_parameters(model: nn.Module) -> Iterator[str]:
    """Yield the full names of the parameters that layers declare in `no_weight_decay`."""
    for prefix, module in model.named_modules():
        declared = getattr(module, "no_weight_decay", ())
        for name in () if callable(declared) else declared:
            yield f"{prefix}.{name}" if prefix else name
