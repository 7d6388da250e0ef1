"""What GSA-Nets and GE-ViT call the parameters of our networks: both use the same names.

Their lifting layer is `lifting_self_attention`; all that follows stands in one list `transformer`,
in which pools, dropouts and activations count but have no keys.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from torch import Tensor, nn

from turnwise.layers.gsa.blocks import FieldNorm, GroupBlock
from turnwise.models.gsa import GroupAttentionNetwork
from turnwise.models.importing.checkpoints import Counterpart, as_it_is

LIFT = "lifting_self_attention"

Counterparts = dict[str, Counterpart]
Arrange = Callable[[Tensor], Tensor]


def is_buffer(key: str) -> bool:
    """Whether the key holds no weights, but a table that we compute."""
    return re.fullmatch(r"(.*\.)?group\._\w+|.*\.(row|col|g)_indices", key) is not None


def heads_first(values: Tensor, heads: int, axis: int) -> Tensor:
    """Their channel c·heads + head becomes our head·channels + c, along one axis."""
    split = values.unflatten(axis, (-1, heads))  # (…, c, head, …)
    return split.transpose(axis, axis + 1).flatten(axis, axis + 1)


def _both(
    ours: str, theirs: str, weight: Arrange = as_it_is, bias: Arrange = as_it_is
) -> Counterparts:
    """For a weight and its bias."""
    return {
        f"{ours}.weight": Counterpart(f"{theirs}.weight", weight),
        f"{ours}.bias": Counterpart(f"{theirs}.bias", bias),
    }


def _norm(ours: str, theirs: str) -> Counterparts:
    return _both(ours, f"{theirs}.layer_norm")


def attention_counterparts(ours: str, theirs: str, heads: int) -> Counterparts:
    """For the parameters of a lifting layer, or those of a group layer but its poses."""
    rows, columns = (partial(heads_first, heads=heads, axis=axis) for axis in (0, 1))
    pairs = _both(f"{ours}.project.to_output", f"{theirs}.wout", columns)
    for part in ("query", "key", "value"):
        pairs |= _both(f"{ours}.project.to_{part}", f"{theirs}.{part}", rows, rows)
    for axis in ("row", "col"):
        pairs |= _both(f"{ours}.place.{axis}.spread", f"{theirs}.{axis}_embedding.0")
        pairs |= _norm(f"{ours}.place.{axis}.norm", f"{theirs}.{axis}_embedding.1")
        pairs |= _both(f"{ours}.place.{axis}.mix", f"{theirs}.{axis}_embedding.3")
    return pairs


def _block(ours: str, theirs: str, heads: int, block: GroupBlock) -> Counterparts:
    wider = isinstance(block.shortcut, nn.Linear)
    return {
        **_norm(f"{ours}.norm_in", f"{theirs}.attention.0"),
        **attention_counterparts(f"{ours}.attention", f"{theirs}.attention.2", heads),
        f"{ours}.attention.pose": Counterpart(f"{theirs}.attention.2.group_embedding.weight"),
        **_norm(f"{ours}.norm_out", f"{theirs}.attention.3"),
        **(_both(f"{ours}.shortcut", f"{theirs}.shortcut.0") if wider else {}),
        **_both(f"{ours}.mlp.0", f"{theirs}.mlp.0"),
        **_norm(f"{ours}.mlp.1", f"{theirs}.mlp.1"),
        **_both(f"{ours}.mlp.3", f"{theirs}.mlp.3"),
        **_norm(f"{ours}.mlp.4", f"{theirs}.mlp.4"),
    }


def counterparts_of(model: GroupAttentionNetwork, blocks: Sequence[int], head: int) -> Counterparts:
    """For each of our parameters theirs, given the numbers of their blocks and of their head."""
    heads = model.lift.project.plan.heads
    pairs = {
        **attention_counterparts("lift", LIFT, heads),
        **_norm("norm", "lifting_normalization"),
        "head.weight": Counterpart(f"transformer.{head}.weight"),
    }
    numbers, number = iter(blocks), 0
    for name, part in _parts(model):
        if isinstance(part, GroupBlock):
            number = next(numbers)
            pairs |= _block(name, f"transformer.{number}", heads, part)
        elif isinstance(part, FieldNorm):
            pairs |= _norm(name, f"transformer.{number + 1}")  # it follows its block
    return pairs


def _parts(model: GroupAttentionNetwork) -> Iterator[tuple[str, nn.Module]]:
    for name, stage in model.stages.named_children():
        for inner, part in stage.named_children():
            yield f"stages.{name}.{inner}", part
