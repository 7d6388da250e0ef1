"""Disjoint splits of a table of examples.

The functions take and return positions 0 … n−1, in ascending order.  The same seed always gives the
same split.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from turnwise.data.dataset import Examples, Images, Labels
from turnwise.errors import InputError, require

TEST_SHARE, VAL_SHARE = 0.15, 0.15
Positions = Int64[Tensor, " chosen"]


def _ascending(positions: Sequence[int]) -> Tensor:
    return torch.tensor(sorted(positions), dtype=torch.int64)


def val_count(count: int, default: int, val_fraction: float | None) -> int:
    """Return how many of `count` training images to hold out: at least one and never all."""
    if val_fraction is None:
        return default if default < count else max(1, count // 10)
    if not 0 < val_fraction < 1:
        raise InputError(
            f"val_fraction = {val_fraction} must lie between 0 and 1; "
            "0.1 holds out a tenth of the training images."
        )
    return min(max(1, round(val_fraction * count)), count - 1)


def hold_out(count: int, held_out: int, seed: int) -> tuple[Positions, Tensor]:
    """Draw `held_out` of `count` positions; return those that stay and those held out."""
    require(count >= 2, f"{count} training image cannot be split; at least 2 are needed.")
    order = np.random.default_rng(seed).permutation(count).tolist()
    return _ascending(order[held_out:]), _ascending(order[:held_out])


def split_per_class(labels: Labels, counts: Sequence[int], seed: int) -> list[Tensor]:
    """Split into disjoint parts with `counts[i]` images of every class in part i.

    >>> [part.tolist() for part in split_per_class(torch.tensor([0, 1, 0, 1]), (1, 1), seed=0)]
    [[0, 1], [2, 3]]
    """
    parts: list[list[int]] = [[] for _ in counts]
    generator = np.random.default_rng(seed)
    for label in labels.unique().tolist():
        members = generator.permutation((labels == label).nonzero().flatten().numpy()).tolist()
        ends = np.cumsum([0, *counts])
        for part, start, end in zip(parts, ends[:-1], ends[1:], strict=True):
            part.extend(members[start:end])
    return [_ascending(part) for part in parts]


def sample_per_class(labels: Labels, fraction: float, seed: int) -> Positions:
    """Draw a fraction of the images, each class in proportion and with at least one image.

    The shares of the classes are rounded so that they add up to round(fraction · n): classes whose
    share was rounded down most get one more.  With one seed, a smaller sample is part of a larger.

    >>> sample_per_class(torch.tensor([0, 1, 0, 1, 0, 0]), 0.5, seed=0).tolist()
    [0, 3, 4]
    """
    require(0 < fraction <= 1, f"fraction = {fraction} must be above 0 and at most 1; try 0.1.")
    generator = np.random.default_rng(seed)
    classes, counts = labels.unique(return_counts=True)
    shares = fraction * counts.double()
    rounded = shares.floor().long()
    rest = round(float(fraction * len(labels))) - int(rounded.sum())
    rounded[(rounded - shares).argsort(stable=True)[:rest]] += 1
    chosen: list[int] = []
    for label, count in zip(classes.tolist(), rounded.clamp(min=1).tolist(), strict=True):
        members = generator.permutation((labels == label).nonzero().flatten().numpy())
        chosen.extend(members[:count].tolist())
    return _ascending(chosen)


def find_duplicates(images: Images) -> list[list[int]]:
    """Group positions by equal pixels, in order of first appearance."""
    groups: dict[bytes, list[int]] = {}
    for position, image in enumerate(images):
        digest = hashlib.sha256(image.contiguous().numpy().tobytes()).digest()
        groups.setdefault(digest, []).append(position)
    return list(groups.values())


def split_by_content(
    examples: Examples, classes: Sequence[str], shares: Sequence[float], seed: int
) -> list[Tensor]:
    """Split into parts with about `shares[i]` of every class; equal images stay in one part.

    The first part gets what the others leave.  Every part gets at least one image of each class.
    """
    by_class: dict[int, list[list[int]]] = {label: [] for label in range(len(classes))}
    for group in find_duplicates(examples.images):
        by_class[int(examples.labels[group[0]])].append(group)
    generator = np.random.default_rng(seed)
    parts: list[list[int]] = [[] for _ in shares]
    for label, groups in by_class.items():
        if len(groups) < len(shares):
            raise InputError(
                f"class {classes[label]!r} has {len(groups)} different images and must have at "
                f"least {len(shares)}, one for each split; add images or remove the class."
            )
        shuffled = [groups[i] for i in generator.permutation(len(groups))]
        start = 0
        for served, (part, share) in enumerate(zip(parts[:0:-1], shares[:0:-1], strict=True)):
            left = len(groups) - start - (len(parts) - 1 - served)  # one for each remaining part
            end = start + min(max(1, round(share * len(groups))), left)
            part.extend(position for group in shuffled[start:end] for position in group)
            start = end
        parts[0].extend(position for group in shuffled[start:] for position in group)
    return [_ascending(part) for part in parts]
