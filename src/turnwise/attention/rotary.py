"""Rotary attention on the group: a token has a position x and an orientation h, its pose.

Queries and keys are rotated by phases ω·x of planar frequencies ω, so that their product depends on
the relative pose alone, in the frame of the query:

    own frame:    F(x, h) = R(h⁻¹x) f         attention within an orientation:
                                              f_qᵀ R(h⁻¹(x'−x)) f_k
    cross frame:  F(x, h) = R(x) P_h f        attention across all orientations:
                                              f_qᵀ R(h⁻¹(x'−x)) P_{h⁻¹h'} f_k

In the cross frame each base frequency comes with its whole orbit aω, a ∈ G, and P_h permutes it:
(P_h f)_a = f_{h⁻¹a}.  Both are plain softmax attention between rotated queries and keys.

Paper:    Su et al. 2021, "RoFormer" (rotary positions); Heo et al. 2024, "Rotary Position
          Embedding for Vision Transformer" (learned frequencies in all directions).
Symbols:  R(x) rotates pair p of channels by ω_p·x;  h, a group elements;  x positions (x, y),
          centred.
Departs:  the frequencies are rotated with the orientation.
Channels: pair p of a head is (p, p + dim/2); in the cross frame p = base · |G| + a.
"""

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from turnwise.attention.dense import attend

Features = Float[Tensor, "batch token group head dim"]
Values = Float[Tensor, "batch token group head dim_out"]
Phases = Float[Tensor, "#group head token pair"]
Table = Int64[Tensor, "group group"]
Sequences = Float[Tensor, "batch sequence item dim"]


def rotate_pairs(
    x: Float[Tensor, "*many dim"],
    cos: Float[Tensor, "*#many pair"],
    sin: Float[Tensor, "*#many pair"],
) -> Float[Tensor, "*many dim"]:
    """Rotate each pair of channels (p, p + dim/2) by its phase, in the precision of the phases."""
    first, second = x.chunk(2, dim=-1)
    rotated = torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)
    return rotated.to(x.dtype)


def rotated_frequencies(
    frequency: Float[Tensor, "head pair 2"], matrices: Float[Tensor, "group 2 2"]
) -> Float[Tensor, "group head pair 2"]:
    """Return hω for every group element h, in single precision at least.

    Sums of products here and below, no matrix products: autocast would round those to a few bits,
    which is too coarse for a phase of many periods.
    """
    fine = torch.promote_types(frequency.dtype, torch.float32)
    matrix = matrices.to(fine)[:, None, None]  # (group, 1, 1, 2, 2)
    return (matrix * frequency.to(fine)[None, :, :, None, :]).sum(dim=-1)


def own_frame_phases(
    frequency: Float[Tensor, "head pair 2"],
    matrices: Float[Tensor, "group 2 2"],
    positions: Float[Tensor, "token 2"],
) -> Float[Tensor, "group head token pair"]:
    """Return ω·(h⁻¹x) = (hω)·x, the phases of positions in the frame of each h."""
    rotated = rotated_frequencies(frequency, matrices)[:, :, None]  # (group, head, 1, pair, 2)
    return (rotated * positions.to(rotated)[:, None]).sum(dim=-1)


def cross_frame_phases(
    frequency: Float[Tensor, "head base 2"],
    matrices: Float[Tensor, "group 2 2"],
    positions: Float[Tensor, "token 2"],
) -> Float[Tensor, "1 head token pair"]:
    """Return (aω)·x for the whole orbit a of each base frequency, shared by all orientations."""
    orbit = own_frame_phases(frequency, matrices, positions)  # (a, head, token, base)
    return orbit.permute(1, 2, 3, 0).flatten(2)[None]


def steer_orbit(features: Features, relative: Table) -> Features:
    """Return (P_h f)_a = f_{h⁻¹a} for orientation h; `relative` is the table [h, a] -> h⁻¹a."""
    first = torch.arange(0, features.shape[-1], len(relative), device=relative.device)
    channel = (first[:, None] + relative[:, None]).flatten(1)  # (group, dim)
    return features.gather(-1, channel[:, None].expand_as(features))


def cos_and_sin(phases: Phases) -> tuple[Tensor, Tensor]:
    """Return both as (token, #group, head, pair), in the order of the features."""
    ordered = phases.permute(2, 0, 1, 3)
    return ordered.cos(), ordered.sin()


def to_sequences(features: Features, relative: Table | None) -> Sequences:
    """Arrange features as sequences whose items attend to one another.

    In the own frame a sequence is one head and orientation, with the tokens as items; across frames
    it is one head, with all orientations of all tokens as items.
    """
    merged = features.flatten(2, 3) if relative is None else features.flatten(1, 2)
    return merged.transpose(1, 2)


def from_sequences(mixed: Sequences, like: Features, relative: Table | None) -> Features:
    """Undo `to_sequences`; `like` has the shape of the result."""
    tokens, order, heads = like.shape[1:4]
    merged = mixed.transpose(1, 2)
    if relative is None:
        return merged.unflatten(2, (order, heads))
    return merged.unflatten(1, (tokens, order))


def attend_on_group(
    query: Features,
    key: Features,
    value: Values,
    phases: Phases,
    relative: Table | None = None,
    mask: Bool[Tensor, "token source"] | None = None,
    *,
    backend: str = "auto",
) -> Values:
    """Return softmax(F_q·F_k / √dim) v, in the own frame or, with `relative`, across frames.

    `mask` is true for the sources of each token; others never enter the softmax.
    """
    if relative is not None:
        query, key = steer_orbit(query, relative), steer_orbit(key, relative)
    cos, sin = cos_and_sin(phases)
    query, key = rotate_pairs(query, cos, sin), rotate_pairs(key, cos, sin)
    bias = None
    if mask is not None:
        seen = mask if relative is None else _repeat_mask(mask, len(relative))
        bias = query.new_zeros(seen.shape).masked_fill(~seen, -torch.inf)[None, None]
    queries, keys, values = (to_sequences(x, relative) for x in (query, key, value))
    mixed = attend(queries, keys, values, bias, backend=backend)
    return from_sequences(mixed, value, relative)


def _repeat_mask(
    mask: Bool[Tensor, "token source"], order: int
) -> Bool[Tensor, "item source_item"]:
    return mask.repeat_interleave(order, dim=0).repeat_interleave(order, dim=1)


def window_mask(
    positions: Float[Tensor, "token 2"], window: int, shape: str
) -> Bool[Tensor, "token source"]:
    """Return which tokens are in each token's window, for a `Neighbourhood` of that shape.

    It is computed from distances, not from a list of offsets, on the device of the positions.
    """
    offset = (positions[None, :] - positions[:, None]).abs()
    if shape == "disc":
        return offset.square().sum(dim=-1) <= (window / 2) ** 2
    return offset.amax(dim=-1) <= window // 2
