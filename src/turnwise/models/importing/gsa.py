"""Import networks that the original programs GSA-Nets and GE-ViT trained.

The file determines the group, the window, the norm and all sizes.  The rest is taken as published:
the crops and pools of the layout, Swish unless ReLU is named, the mean and standard deviation of
the images.  Rotated MNIST is stored column by column and the programs read it row by row, so their
networks know transposed digits: images are transposed first (`transposed`), unless it was trained
on `upright` ones.

Both programs use the same keys.  The lifting layer is `lifting_self_attention`; all that follows is
one list `transformer`, in which pools, dropouts and activations are counted but have no keys.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from turnwise.errors import InputError, require, require_divisible, require_known
from turnwise.groups import PlanarGroup
from turnwise.layers.gsa.blocks import FieldBatchNorm, FieldNorm, GSABlock
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
from turnwise.models.importing.checkpoints import (
    Counterpart,
    Weights,
    fill_strictly,
    import_weights,
    shape_of,
    unchanged,
)
from turnwise.models.registry import create_model

LIFT = "lifting_self_attention"

Counterparts = dict[str, Counterpart]
Arrange = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Program:
    """An original program: our model of it, and how it numbers and relates group elements."""

    model: str
    variant: str
    table: Callable[[PlanarGroup], Table]
    matrices: Callable[[PlanarGroup], Matrices]

    def stored_table(self, group: PlanarGroup) -> Table:
        """Return the table of relations by the program's own numbers, as its files hold it."""
        order = their_numbers(group, self.matrices(group)).argsort()
        return self.table(group)[order][:, order][:, :, order]


ORIGINS = {
    "gsa-nets": Program("gsa_net", "gsa-2021", table_of_2021, matrices_of_2021),
    "ge-vit": Program("ge_vit", "gevit-2023", table_of_2023, matrices_of_2023),
}


@dataclass(frozen=True)
class PublishedData:
    """The images that a published layout was trained on, and how they were normalised."""

    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]


PUBLISHED_DATA = {
    "rotmnist": PublishedData(28, (0.1307,), (0.3081,)),
    "cifar10": PublishedData(32, (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    "pcam": PublishedData(96, (0.701, 0.538, 0.692), (0.235, 0.277, 0.213)),
}


@dataclass(frozen=True)
class Sizes:
    """What the shapes in a file reveal about its network."""

    in_chans: int
    width: int  # of the lifting layer
    widths: tuple[int, ...]  # of the blocks
    queries: int  # heads times channels of a head, in the lifting layer
    num_classes: int
    blocks: tuple[int, ...]  # their numbers in the file
    head: int  # its number

    def __str__(self) -> str:
        return _described(self.in_chans, self.width, self.widths)


def import_original(
    path: str | Path, origin: str, upright: bool = False, activation: str = "silu"
) -> nn.Module:
    """Build the network in a state dict of "gsa-nets" or "ge-vit", in eval mode."""
    require_known(origin, ORIGINS, "origin")
    build = partial(build_original, origin=origin, upright=upright, activation=activation)
    return import_weights(path, build)


def build_original(
    weights: Weights, origin: str, upright: bool = False, activation: str = "silu"
) -> nn.Module:
    """Build the model that computes with these weights what the program `origin` does."""
    program, sizes, group = ORIGINS[origin], _sizes(weights), _group(weights)
    data = _published_layout(sizes)
    images = PUBLISHED_DATA[data]
    require_tables_of(origin, weights, group)
    require_divisible(sizes.queries, sizes.width // 2, "queries", "the heads share them")
    # flipped digits are nothing new to D1, and transposed ones are those, rotated
    flips_alone = group.reflections and group.rotations % 2 == 1
    model = create_model(
        program.model,
        group=group,
        num_classes=sizes.num_classes,
        in_chans=sizes.in_chans,
        image_size=images.size,
        variant=program.variant,
        data=data,
        window=_window(weights, group, images.size),
        heads=sizes.queries // (sizes.width // 2),
        norm="batch" if any(key.endswith(".running_mean") for key in weights) else "layer",
        activation=activation,
        transposed=data == "rotmnist" and not upright and not flips_alone,
    )
    assert isinstance(model, GroupAttentionNetwork)
    counterparts = counterparts_of(model, sizes.blocks, sizes.head)
    fill_strictly(model, counterparts, weights, ignored=is_buffer)
    model.preprocess.mean.copy_(torch.tensor(images.mean))
    model.preprocess.spread.copy_(torch.tensor(images.std))
    return model.eval()


def _shape(weights: Weights, key: str, *axes: int) -> tuple[int, ...]:
    return shape_of(weights, key, axes, ORIGINS)


def _sizes(weights: Weights) -> Sizes:
    """In the list `transformer`, blocks have attention, pools have no keys, the head is last."""
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


def _group(weights: Weights) -> PlanarGroup:
    """Elements are stored as (angle), or as (angle, reflection) with pure rotations first."""
    inner = (key for key in weights if key.endswith(".group._elements"))
    key = next(inner, "group._elements")
    order, numbers = _shape(weights, key, 2)
    require(
        numbers == 1 or (numbers == 2 and order % 2 == 0),
        f"{key} is {order} x {numbers}; a group of n rotations has n x 1, with reflections 2n x 2.",
    )
    return PlanarGroup(order // numbers, reflections=numbers == 2)


def _window(weights: Weights, group: PlanarGroup, size: int) -> int:
    """Return the side of the window, or of the whole image where the attention is global."""
    key = f"{LIFT}.row_indices"
    elements, *sides = _shape(weights, key, 3, 5)
    whole = len(sides) == 4
    fits = sides[0] == size if whole else 0 < sides[0] < size
    require(
        elements == group.order and len(set(sides)) == 1 and fits,
        f"{key} is {' x '.join(map(str, [elements, *sides]))}; with {group.order} group elements "
        f"and images of {size} pixels it must be {group.order} x P x P with a window P below "
        f"{size}, or {group.order}{f' x {size}' * 4}.",
    )
    layers = {tuple(w.shape) for key, w in weights.items() if key.endswith(".row_indices")}
    require(whole or len(layers) == 1, "its layers have different windows; they must share one.")
    return sides[0]


def _published_layout(sizes: Sizes) -> str:
    """Return the data set whose published layout has these sizes."""
    known = {}
    for data, layout in LAYOUTS.items():
        widths = tuple(width for stage in layout.widths for width in stage)
        known[data] = _described(len(PUBLISHED_DATA[data].mean), layout.width, widths)
        if str(sizes) == known[data]:
            return data
    layouts = "; ".join(f"{data}: {words}" for data, words in known.items())
    raise InputError(f"it has {sizes}, which no published network has ({layouts}).")


def _described(in_chans: int, width: int, widths: tuple[int, ...]) -> str:
    blocks = ", ".join(map(str, widths)) or "no"
    return f"in_chans {in_chans}, width {width} and blocks of {blocks}"


def require_tables_of(origin: str, weights: Weights, group: PlanarGroup) -> None:
    """Raise unless the tables in the file are those of the program `origin`."""
    stored = [table.long() for key, table in weights.items() if key.endswith(".g_indices")]
    makers = [
        name
        for name, program in ORIGINS.items()
        if all(torch.equal(table, program.stored_table(group)) for table in stored)
    ]
    if makers and origin not in makers:
        raise InputError(f"these weights come from {makers[0]}, not from {origin}.")
    require(
        bool(makers),
        f"its g_indices are not those of {group.name} in {' or '.join(ORIGINS)}; "
        "it must come from one of these programs, unchanged.",
    )


def is_buffer(key: str) -> bool:
    """Return whether the key holds no parameter, but a table that we compute."""
    return re.fullmatch(r"(.*\.)?group\._\w+|.*\.(row|col|g)_indices", key) is not None


def heads_first(values: Tensor, heads: int, axis: int) -> Tensor:
    """Reorder an axis: their channel c·heads + head becomes our head·channels + c."""
    split = values.unflatten(axis, (-1, heads))  # (…, c, head, …)
    return split.transpose(axis, axis + 1).flatten(axis, axis + 1)


def counterparts_of(model: GroupAttentionNetwork, blocks: Sequence[int], head: int) -> Counterparts:
    """Return the counterpart of each parameter, given the numbers of their blocks and head."""
    named = {"head.weight": Counterpart(f"transformer.{head}.weight")}
    return body_counterparts(model, blocks) | named


def body_counterparts(model: GroupAttentionNetwork, blocks: Sequence[int]) -> Counterparts:
    """Return the counterparts of all but the head, given the numbers of the blocks."""
    heads = model.lift.project.plan.heads
    pairs = {
        **attention_counterparts("lift", LIFT, heads),
        **_norm("norm", "lifting_normalization", model.norm),
    }
    numbers, number = iter(blocks), 0
    for stage, layers in model.stages.named_children():
        for name, layer in layers.named_children():
            ours = f"stages.{stage}.{name}"
            if isinstance(layer, GSABlock):
                number = next(numbers)
                pairs |= _block(ours, f"transformer.{number}", heads, layer)
            elif isinstance(layer, FieldNorm | FieldBatchNorm):
                pairs |= _norm(ours, f"transformer.{number + 1}", layer)  # it follows its block
    return pairs


def attention_counterparts(ours: str, theirs: str, heads: int) -> Counterparts:
    """Return those of a lifting layer, or of a group layer without its group embedding."""
    rows, columns = (partial(heads_first, heads=heads, axis=axis) for axis in (0, 1))
    pairs = _both(f"{ours}.project.to_output", f"{theirs}.wout", columns)
    for name in ("query", "key", "value"):
        pairs |= _both(f"{ours}.project.to_{name}", f"{theirs}.{name}", rows, rows)
    for axis in ("row", "col"):
        pairs |= _both(f"{ours}.place.{axis}.spread", f"{theirs}.{axis}_embedding.0")
        norm = f"{theirs}.{axis}_embedding.1.layer_norm"  # in every network
        pairs |= _both(f"{ours}.place.{axis}.norm", norm)
        pairs |= _both(f"{ours}.place.{axis}.mix", f"{theirs}.{axis}_embedding.3")
    return pairs


def _block(ours: str, theirs: str, heads: int, block: GSABlock) -> Counterparts:
    wider = isinstance(block.shortcut, nn.Linear)
    return {
        **_norm(f"{ours}.norm_in", f"{theirs}.attention.0", block.norm_in),
        **attention_counterparts(f"{ours}.attention", f"{theirs}.attention.2", heads),
        f"{ours}.attention.pose": Counterpart(f"{theirs}.attention.2.group_embedding.weight"),
        **_norm(f"{ours}.norm_out", f"{theirs}.attention.3", block.norm_out),
        **(_both(f"{ours}.shortcut", f"{theirs}.shortcut.0") if wider else {}),
        **_both(f"{ours}.mlp.0", f"{theirs}.mlp.0"),
        **_norm(f"{ours}.mlp.1", f"{theirs}.mlp.1", block.mlp[1]),
        **_both(f"{ours}.mlp.3", f"{theirs}.mlp.3"),
        **_norm(f"{ours}.mlp.4", f"{theirs}.mlp.4", block.mlp[4]),
    }


def _norm(ours: str, theirs: str, norm: nn.Module) -> Counterparts:
    """Return those of a norm; the original wraps its layer norms, and batch norms have buffers."""
    if isinstance(norm, FieldNorm):
        return _both(ours, f"{theirs}.layer_norm")
    return {f"{ours}.{name}": Counterpart(f"{theirs}.{name}") for name in norm.state_dict()}


def _both(
    ours: str, theirs: str, weight: Arrange = unchanged, bias: Arrange = unchanged
) -> Counterparts:
    """Return the counterparts of a weight and its bias."""
    return {
        f"{ours}.weight": Counterpart(f"{theirs}.weight", weight),
        f"{ours}.bias": Counterpart(f"{theirs}.bias", bias),
    }
