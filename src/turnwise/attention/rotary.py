"""Rotary attention on the group: a token is a position x together with a pose h.

Queries and keys are turned by phases ω·x of planar frequencies ω, so that their product depends on
where one token stands seen from the other, in its own frame:

    own frame:    F(x, h) = R(h⁻¹x) f         poses attend among themselves:  f_qᵀ R(h⁻¹(x'−x)) f_k
    cross frame:  F(x, h) = R(x) P_h f        all attend to all:
                                              f_qᵀ R(h⁻¹(x'−x)) P_{h⁻¹h'} f_k

In the cross frame each base frequency comes with its whole orbit aω, a ∈ G, and P_h permutes it:
(P_h f)_a = f_{h⁻¹a}.  Both are plain softmax attention between turned queries and keys.

Paper:    Su et al. 2021, "RoFormer" (rotary positions); Heo et al. 2024, "Rotary Position
          Embedding for Vision Transformer" (frequencies that are learned, and not along the axes).
Symbols:  R(x) turns pair p of channels by ω_p·x;  h, a poses;  x positions (x, y), centred.
Departs:  the frequencies turn with the pose, which the papers' do not.
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
Slots = Float[Tensor, "batch slot seat dim"]


def rotate_pairs(
    x: Float[Tensor, "*many dim"],
    cos: Float[Tensor, "*#many pair"],
    sin: Float[Tensor, "*#many pair"],
) -> Float[Tensor, "*many dim"]:
    """Turn each pair of channels (p, p + dim/2) by its phase; in the precision of the phases."""
    first, second = x.chunk(2, dim=-1)
    turned = torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)
    return turned.to(x.dtype)


def rotated_frequencies(
    frequency: Float[Tensor, "head pair 2"], matrices: Float[Tensor, "group 2 2"]
) -> Float[Tensor, "group head pair 2"]:
    """hω for every pose h, at least in single precision.

    Sums of products, here and below, and no matrix products: autocast would round those to a few
    bits, and a phase of many turns has none to spare.
    """
    fine = torch.promote_types(frequency.dtype, torch.float32)
    turn = matrices.to(fine)[:, None, None]  # (group, 1, 1, 2, 2)
    return (turn * frequency.to(fine)[None, :, :, None, :]).sum(dim=-1)


def own_frame_phases(
    frequency: Float[Tensor, "head pair 2"],
    matrices: Float[Tensor, "group 2 2"],
    positions: Float[Tensor, "token 2"],
) -> Float[Tensor, "group head token pair"]:
    """ω·(h⁻¹x) = (hω)·x: where a token stands, as pose h sees it."""
    turned = rotated_frequencies(frequency, matrices)[:, :, None]  # (group, head, 1, pair, 2)
    return (turned * positions.to(turned)[:, None]).sum(dim=-1)


def cross_frame_phases(
    frequency: Float[Tensor, "head base 2"],
    matrices: Float[Tensor, "group 2 2"],
    positions: Float[Tensor, "token 2"],
) -> Float[Tensor, "1 head token pair"]:
    """(aω)·x for the whole orbit a of each base frequency: one set of phases for all poses."""
    orbit = own_frame_phases(frequency, matrices, positions)  # (a, head, token, base)
    return orbit.permute(1, 2, 3, 0).flatten(2)[None]


def steer_orbit(features: Features, relative: Table) -> Features:
    """(P_h f)_a = f_{h⁻¹a} for a token in pose h; `relative` is the table [h, a] -> h⁻¹a."""
    poses = len(relative)
    first = torch.arange(0, features.shape[-1], poses, device=relative.device)
    channel = (first[:, None] + relative[:, None]).flatten(1)  # (group, dim)
    return features.gather(-1, channel[:, None].expand_as(features))


def cos_and_sin(phases: Phases) -> tuple[Tensor, Tensor]:
    """Both as (token, #group, head, pair), the order of features."""
    ordered = phases.permute(2, 0, 1, 3)
    return ordered.cos(), ordered.sin()


def to_slots(features: Features, relative: Table | None) -> Slots:
    """Who attends to whom: the seats of a slot.

    In its own frame a pose of a head is a slot and its tokens are the seats; across the frames a
    head is a slot and all poses of all tokens are the seats.
    """
    merged = features.flatten(2, 3) if relative is None else features.flatten(1, 2)
    return merged.transpose(1, 2)


def from_slots(mixed: Slots, like: Features, relative: Table | None) -> Features:
    """Back to the shape of `like`."""
    tokens, poses, heads = like.shape[1:4]
    merged = mixed.transpose(1, 2)
    if relative is None:
        return merged.unflatten(2, (poses, heads))
    return merged.unflatten(1, (tokens, poses))


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
    """softmax(F_q·F_k / √dim) v: in each pose's own frame, or with `relative` across the frames.

    `mask` says which sources a token sees; what it does not see never enters the softmax.
    """
    if relative is not None:
        query, key = steer_orbit(query, relative), steer_orbit(key, relative)
    cos, sin = cos_and_sin(phases)
    query, key = rotate_pairs(query, cos, sin), rotate_pairs(key, cos, sin)
    bias = None
    if mask is not None:
        seen = mask if relative is None else _for_all_poses(mask, len(relative))
        bias = query.new_zeros(seen.shape).masked_fill(~seen, -torch.inf)[None, None]
    queries, keys, values = (to_slots(x, relative) for x in (query, key, value))
    mixed = attend(queries, keys, values, bias, backend=backend)
    return from_slots(mixed, value, relative)


def _for_all_poses(
    mask: Bool[Tensor, "token source"], poses: int
) -> Bool[Tensor, "seat source_seat"]:
    return mask.repeat_interleave(poses, dim=0).repeat_interleave(poses, dim=1)


def window_mask(
    positions: Float[Tensor, "token 2"], window: int, shape: str
) -> Bool[Tensor, "token source"]:
    """Which tokens stand in each token's window: the `Neighbourhood` of that shape, as a table.

    By distance and not by a list of offsets, so that it is made on the device of the positions.
    """
    offset = (positions[None, :] - positions[:, None]).abs()
    if shape == "disc":
        return offset.square().sum(dim=-1) <= (window / 2) ** 2
    return offset.amax(dim=-1) <= window // 2
