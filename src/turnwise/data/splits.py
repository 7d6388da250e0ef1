"""Which picture goes to which split: disjoint, and the same for the same seed.

Everything here speaks of positions 0 … n−1 and returns them in ascending order.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from turnwise.errors import InputError, require

Index = Int64[Tensor, " chosen"]
TEST_SHARE, VAL_SHARE = 0.15, 0.15


def _ascending(positions: Sequence[int]) -> Tensor:
    return torch.tensor(sorted(positions), dtype=torch.int64)


def val_count(count: int, default: int, val_fraction: float | None) -> int:
    """How many of `count` training pictures to hold out, at least one and never all."""
    if val_fraction is None:
        return default if default < count else max(1, count // 10)
    if not 0 < val_fraction < 1:
        raise InputError(
            f"val_fraction = {val_fraction} must lie between 0 and 1; "
            "0.1 holds out a tenth of the training pictures."
        )
    return min(max(1, round(val_fraction * count)), count - 1)


def cut(count: int, held_out: int, seed: int) -> tuple[Index, Tensor]:
    """Positions that stay and positions held out, drawn by `seed`."""
    require(count >= 2, f"{count} training picture cannot be split; at least 2 are needed.")
    order = np.random.default_rng(seed).permutation(count).tolist()
    return _ascending(order[held_out:]), _ascending(order[:held_out])


def cut_per_class(
    labels: Int64[Tensor, " picture"], shares: Sequence[int], seed: int
) -> list[Tensor]:
    """Disjoint parts with `shares[i]` pictures of every class in part i.

    >>> [part.tolist() for part in cut_per_class(torch.tensor([0, 1, 0, 1]), (1, 1), seed=0)]
    [[0, 1], [2, 3]]
    """
    parts: list[list[int]] = [[] for _ in shares]
    generator = np.random.default_rng(seed)
    for label in labels.unique().tolist():
        members = generator.permutation((labels == label).nonzero().flatten().numpy()).tolist()
        ends = np.cumsum([0, *shares])
        for part, start, end in zip(parts, ends[:-1], ends[1:], strict=True):
            part.extend(members[start:end])
    return [_ascending(part) for part in parts]


def part_per_class(
    labels: Int64[Tensor, " picture"], fraction: float, seed: int
) -> Int64[Tensor, " chosen"]:
    """Positions of `fraction` of the pictures, each class in proportion and with at least one.

    Shares are rounded so that they add up to round(fraction · n): the classes whose share was cut
    most get one more.  A smaller part lies within a larger one of the same seed.

    >>> part_per_class(torch.tensor([0, 1, 0, 1, 0, 0]), 0.5, seed=0).tolist()
    [0, 3, 4]
    """
    require(0 < fraction <= 1, f"fraction = {fraction} must be above 0 and at most 1; try 0.1.")
    generator = np.random.default_rng(seed)
    classes, counts = labels.unique(return_counts=True)
    shares = fraction * counts.double()
    wanted = shares.floor().long()
    rest = round(float(fraction * len(labels))) - int(wanted.sum())
    wanted[(wanted - shares).argsort(stable=True)[:rest]] += 1
    chosen: list[int] = []
    for label, count in zip(classes.tolist(), wanted.clamp(min=1).tolist(), strict=True):
        members = generator.permutation((labels == label).nonzero().flatten().numpy())
        chosen.extend(members[:count].tolist())
    return _ascending(chosen)


def same_content(images: UInt8[Tensor, "picture channel row col"]) -> list[list[int]]:
    """Positions grouped by equal pixels, in order of first appearance."""
    groups: dict[bytes, list[int]] = {}
    for position, image in enumerate(images):
        digest = hashlib.sha256(image.contiguous().numpy().tobytes()).digest()
        groups.setdefault(digest, []).append(position)
    return list(groups.values())


def cut_by_content(
    images: UInt8[Tensor, "picture channel row col"],
    labels: Int64[Tensor, " picture"],
    classes: Sequence[str],
    shares: Sequence[float],
    seed: int,
) -> list[Tensor]:
    """Parts with about `shares[i]` of every class; equal pictures never fall into two parts.

    The first part takes what the others leave.  Each part gets at least one picture of each class.
    """
    by_class: dict[int, list[list[int]]] = {label: [] for label in range(len(classes))}
    for group in same_content(images):
        by_class[int(labels[group[0]])].append(group)
    generator = np.random.default_rng(seed)
    parts: list[list[int]] = [[] for _ in shares]
    for label, groups in by_class.items():
        if len(groups) < len(shares):
            raise InputError(
                f"class {classes[label]!r} has {len(groups)} different pictures and must have at "
                f"least {len(shares)}, one for each split; add pictures or remove the class."
            )
        shuffled = [groups[i] for i in generator.permutation(len(groups))]
        start = 0
        for waiting, (part, share) in enumerate(zip(parts[:0:-1], shares[:0:-1], strict=True)):
            room = len(groups) - start - (len(parts) - 1 - waiting)  # one for each still to serve
            end = start + min(max(1, round(share * len(groups))), room)
            part.extend(position for group in shuffled[start:end] for position in group)
            start = end
        parts[0].extend(position for group in shuffled[start:] for position in group)
    return [_ascending(part) for part in parts]
