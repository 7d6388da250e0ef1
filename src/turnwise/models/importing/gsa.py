"""Networks that the original programs GSA-Nets and GE-ViT trained, as models of ours.

The file tells the group, the window and all sizes.  What leaves no trace in it is taken as
published: the crops and pools of the layout, Swish, the mean and spread of the pictures.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from turnwise.errors import InputError, require, require_divisible, require_known
from turnwise.groups import PlanarGroup
from turnwise.layers.gsa.published import (
    Matrices,
    Table,
    matrices_of_2021,
    matrices_of_2023,
    table_of_2021,
    table_of_2023,
    their_numbers,
)
from turnwise.models.gsa import LAYOUTS, GroupAttentionNetwork
from turnwise.models.importing.checkpoints import Weights, fill_strictly, read_checkpoint_weights
from turnwise.models.importing.gsa_keys import LIFT, counterparts_of, is_buffer
from turnwise.models.registry import create_model


@dataclass(frozen=True)
class Program:
    """An original program: our model of it, and how it numbers poses and relates them."""

    model: str
    variant: str
    table: Callable[[PlanarGroup], Table]
    matrices: Callable[[PlanarGroup], Matrices]

    def kept_table(self, group: PlanarGroup) -> Table:
        """The table of relations by the program's own numbers, as its files keep it."""
        order = their_numbers(group, self.matrices(group)).argsort()
        return self.table(group)[order][:, order][:, :, order]


ORIGINS = {
    "gsa-nets": Program("gsa_net", "gsa-2021", table_of_2021, matrices_of_2021),
    "ge-vit": Program("ge_vit", "gevit-2023", table_of_2023, matrices_of_2023),
}


@dataclass(frozen=True)
class Pictures:
    """The pictures that a published layout was trained on, and how they were normalised."""

    size: int
    mean: tuple[float, ...]
    spread: tuple[float, ...]


PICTURES = {
    "rotmnist": Pictures(28, (0.1307,), (0.3081,)),
    "cifar10": Pictures(32, (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    "pcam": Pictures(96, (0.701, 0.538, 0.692), (0.235, 0.277, 0.213)),
}


@dataclass(frozen=True)
class Sizes:
    """What the shapes in a file tell of its network."""

    in_chans: int
    width: int  # of the lifting layer
    widths: tuple[int, ...]  # of the blocks
    queries: int  # heads times channels of a head, in the lifting layer
    num_classes: int
    blocks: tuple[int, ...]  # their numbers in the file
    head: int  # its number

    def __str__(self) -> str:
        return _described(self.in_chans, self.width, self.widths)


def import_original(path: str | Path, origin: str) -> nn.Module:
    """The network in a state dict of "gsa-nets" or "ge-vit", with its outputs, in eval mode."""
    require_known(origin, ORIGINS, "origin")
    weights = read_checkpoint_weights(path)
    try:
        return build_original(weights, origin)
    except InputError as error:
        raise InputError(f"{path} cannot be imported: {error}") from error


def build_original(weights: Weights, origin: str) -> nn.Module:
    """A model that computes with these weights what the program `origin` does."""
    program, sizes, group = ORIGINS[origin], _sizes(weights), _group(weights)
    data = _published_data(sizes)
    _require_tables_of(origin, weights, group)
    require_divisible(sizes.queries, sizes.width // 2, "queries", "the heads share them")
    model = create_model(
        program.model,
        group=group,
        num_classes=sizes.num_classes,
        in_chans=sizes.in_chans,
        image_size=PICTURES[data].size,
        variant=program.variant,
        data=data,
        window=_window(weights, group, PICTURES[data].size),
        heads=sizes.queries // (sizes.width // 2),
    )
    assert isinstance(model, GroupAttentionNetwork)
    counterparts = counterparts_of(model, sizes.blocks, sizes.head)
    fill_strictly(model, counterparts, weights, ignored=is_buffer)
    model.preprocess.mean.copy_(torch.tensor(PICTURES[data].mean))
    model.preprocess.spread.copy_(torch.tensor(PICTURES[data].spread))
    return model.eval()


def _sizes(weights: Weights) -> Sizes:
    """In the list `transformer`, blocks have attention, pools have no keys, the head is last."""
    require(
        not any(key.endswith(".running_mean") for key in weights),
        "it was trained with BatchNorm; the published networks, which alone fit, have LayerNorm.",
    )
    found = (re.match(r"transformer\.(\d+)\.", key) for key in weights)
    numbers = sorted({int(match[1]) for match in found if match is not None})
    outputs = {n: f"transformer.{n}.attention.2.wout.weight" for n in numbers}
    blocks = tuple(n for n in numbers if outputs[n] in weights)
    head = max(numbers, default=0)
    queries, in_chans = _shape(weights, f"{LIFT}.query.weight", 4)[:2]
    return Sizes(
        in_chans=in_chans,
        width=_shape(weights, f"{LIFT}.wout.weight", 5)[0],
        widths=tuple(_shape(weights, outputs[n], 5)[0] for n in blocks),
        queries=queries,
        num_classes=_shape(weights, f"transformer.{head}.weight", 5)[0],
        blocks=blocks,
        head=head,
    )


def _shape(weights: Weights, key: str, *axes: int) -> tuple[int, ...]:
    require(
        key in weights and weights[key].ndim in axes,
        f"it has no {key} of {' or '.join(map(str, axes))} axes, but for instance "
        f"{next(iter(weights))}; give the whole state dict of a network of {' or '.join(ORIGINS)}.",
    )
    return tuple(weights[key].shape)


def _group(weights: Weights) -> PlanarGroup:
    """Elements are kept as (angle), or as (angle, mirror) with unmirrored ones first."""
    inner = (key for key in weights if key.endswith(".group._elements"))
    key = next(inner, "group._elements")
    order, numbers = _shape(weights, key, 2)
    require(
        numbers == 1 or (numbers == 2 and order % 2 == 0),
        f"{key} is {order} x {numbers}; a group of n rotations has n x 1, with mirrors 2n x 2.",
    )
    return PlanarGroup(order // numbers, reflections=numbers == 2)


def _window(weights: Weights, group: PlanarGroup, size: int) -> int:
    """The side of the window, or of the whole picture where the attention is global."""
    key = f"{LIFT}.row_indices"
    poses, *sides = _shape(weights, key, 3, 5)
    whole = len(sides) == 4
    fits = sides[0] == size if whole else 0 < sides[0] < size
    require(
        poses == group.order and len(set(sides)) == 1 and fits,
        f"{key} is {' x '.join(map(str, [poses, *sides]))}; with {group.order} poses and pictures "
        f"of {size} pixels it must be {group.order} x P x P with a window P below {size}, "
        f"or {group.order}{f' x {size}' * 4}.",
    )
    layers = {tuple(w.shape) for key, w in weights.items() if key.endswith(".row_indices")}
    require(whole or len(layers) == 1, "its layers have different windows; they must share one.")
    return sides[0]


def _published_data(sizes: Sizes) -> str:
    """The data set whose published layout has these sizes."""
    known = {}
    for data, layout in LAYOUTS.items():
        widths = tuple(width for stage in layout.widths for width in stage)
        known[data] = _described(len(PICTURES[data].mean), layout.width, widths)
        if str(sizes) == known[data]:
            return data
    layouts = "; ".join(f"{data}: {words}" for data, words in known.items())
    raise InputError(f"it has {sizes}, which no published network has ({layouts}).")


def _described(in_chans: int, width: int, widths: tuple[int, ...]) -> str:
    blocks = ", ".join(map(str, widths)) or "no"
    return f"in_chans {in_chans}, width {width} and blocks of {blocks}"


def _require_tables_of(origin: str, weights: Weights, group: PlanarGroup) -> None:
    """The tables in the file must be those of the program that is said to have made it."""
    kept = [table.long() for key, table in weights.items() if key.endswith(".g_indices")]
    makers = [
        name
        for name, program in ORIGINS.items()
        if all(torch.equal(table, program.kept_table(group)) for table in kept)
    ]
    if makers and origin not in makers:
        raise InputError(f"these weights were made by {makers[0]}; use --from {makers[0]}.")
    require(
        bool(makers),
        f"its g_indices are not those of {group.name} in {' or '.join(ORIGINS)}; "
        "it must come from one of these programs, unchanged.",
    )
