"""Disjoint splits of a table of examples.

The functions take and return positions 0 … n−1, in ascending order.  The same seed always gives the
same split.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Int64, Shaped
from torch import Tensor

from turnwise.data.dataset import Examples, Images, Labels, Target
from turnwise.errors import InputError, require

TEST_SHARE, VAL_SHARE = 0.15, 0.15
BINS = 3  # of numbers, for stratified splits
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


def strata_of(examples: Examples, target: Target) -> Int64[np.ndarray, "image stratum"]:
    """Return one row per image, with 1 for each property whose share all splits should keep.

    The properties are the classes; the labels, and having none; or the third of all values in which
    the first number lies.
    """
    if target.has_classes:
        return np.eye(len(target.names), dtype=np.int64)[examples.labels.numpy()]
    values = examples.targets.numpy()
    if target.kind == "multilabel":
        has = values.astype(np.int64)
        return np.concatenate([has, has.sum(1, keepdims=True) == 0], axis=1).astype(np.int64)
    if target.kind == "number":
        first = values[:, 0]
        edges = np.quantile(first, np.arange(1, BINS) / BINS)
        return np.eye(BINS, dtype=np.int64)[np.searchsorted(edges, first, side="right")]
    return np.ones((len(examples), 1), dtype=np.int64)


def split_by_group(
    examples: Examples, target: Target, shares: Sequence[float], seed: int
) -> list[Tensor]:
    """Split into parts with about `shares[i]` of each stratum; no group is in two parts.

    Images without a known group are groups of their own.  Equal images belong together, too: they
    join the groups that they are in.  Every part gets each class, as far as groups allow it; a
    class in fewer groups than there are parts is an error.
    """
    units = _units(examples)
    strata = strata_of(examples, target)
    counts = np.stack([strata[unit].sum(0) for unit in units])  # (unit, stratum)
    spread = (counts > 0).sum(0)
    if target.has_classes:
        for name, found in zip(target.names, spread.tolist(), strict=True):
            require(
                found >= len(shares),
                f"class {name!r} is in {found} groups of images and must be in at least "
                f"{len(shares)}, one for each split; add groups, or state the splits.",
            )
    part_of = _assign(counts, np.asarray(shares), np.random.default_rng(seed))
    parts = [
        _ascending([i for unit in np.flatnonzero(part_of == part) for i in units[unit]])
        for part in range(len(shares))
    ]
    if target.has_classes:
        _require_every_class(strata, parts, target.names)
    return parts


def _units(examples: Examples) -> list[list[int]]:
    """Return positions that must stay together: of equal groups, or of equal pixels."""
    parent = list(range(len(examples)))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    first: dict[str, int] = {}
    for i, group in enumerate(examples.groups):
        parent[root(i)] = root(first.setdefault(group, i))
    for first_copy, *copies in find_duplicates(examples.images):
        for copy in copies:
            parent[root(copy)] = root(first_copy)
    units: dict[int, list[int]] = {}
    for i in range(len(examples)):
        units.setdefault(root(i), []).append(i)
    return list(units.values())


def _assign(
    counts: Int64[np.ndarray, "unit stratum"],
    shares: Shaped[np.ndarray, " part"],
    generator: np.random.Generator,
) -> Int64[np.ndarray, " unit"]:
    """Return the part of each unit.

    First every part gets one small unit of each stratum that it has not yet, the rarest first.
    Then the others are given out, the largest first: each to the part that lacks most of it.
    """
    total = np.maximum(counts.sum(0), 1)
    weights, wanted = counts / total, np.repeat(shares[:, None], counts.shape[1], axis=1)
    order = generator.permutation(len(counts))
    order = order[np.argsort(-counts[order].sum(1), kind="stable")]
    part_of = np.full(len(counts), -1, dtype=np.int64)
    for stratum in np.argsort((counts > 0).sum(0), kind="stable"):
        for part in range(len(shares) - 1, -1, -1):
            if (counts[part_of == part, stratum] > 0).any():
                continue
            free = [unit for unit in order if part_of[unit] < 0 and counts[unit, stratum] > 0]
            if free:
                part_of[free[-1]] = part
                wanted[part] -= weights[free[-1]]
    for unit in order[part_of[order] < 0]:
        part = int(np.argmax(wanted @ weights[unit]))
        part_of[unit] = part
        wanted[part] -= weights[unit]
    return part_of


def _require_every_class(
    strata: Int64[np.ndarray, "image stratum"], parts: Sequence[Tensor], classes: Sequence[str]
) -> None:
    for part in parts:
        missing = np.flatnonzero(strata[part.numpy()].sum(0) == 0).tolist()
        require(
            not missing,
            f"the groups cannot be split so that every split has class "
            f"{classes[missing[0]] if missing else ''!r}; state the splits yourself.",
        )
