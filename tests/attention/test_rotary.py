"""Rotary attention on the group: equivariance, witness, control, definition, and its windows.

Positions here are points of the plane, and the group acts on them exactly: attention is equivariant
for every group, on the pixel grid or off it.
Letters:  b batch, t token, s source, n head, p pair;  g acts;  h, m orientations of query and key.
"""

import cmath
import itertools
import math

import pytest
import torch

from turnwise.attention.rotary import (
    attend_on_group,
    cross_frame_phases,
    own_frame_phases,
    rotate_pairs,
    rotated_frequencies,
    steer_orbit,
    window_mask,
)
from turnwise.geometry.grids import pixel_centres
from turnwise.geometry.neighbourhoods import SHAPES, Neighbourhood, find_sources
from turnwise.groups import PlanarGroup, act_on_points

GROUPS = ["C1", "D1", "C2", "C4", "D4", "D3", "C8", "D8"]
FRAMES = pytest.mark.parametrize("frame", ["own", "cross"])


def inputs_for(name, batch=1, tokens=4, heads=2, bases=2):
    """Return a group; queries, keys and values; frequencies; positions."""
    group = PlanarGroup.named(name)
    shape = (3, batch, tokens, group.order, heads, 2 * bases * group.order)
    features = torch.randn(shape, dtype=torch.float64).unbind()
    frequency = torch.randn(heads, bases, 2, dtype=torch.float64)
    return group, features, frequency, torch.randn(tokens, 2, dtype=torch.float64)


def own_frequency(group, frequency):
    """Return one frequency for each pair: the bases, and fractions of them."""
    scale = 1 + torch.arange(group.order, dtype=torch.float64)[:, None]
    return (frequency[:, :, None] / scale).flatten(1, 2)


def phases_for(frame, group, frequency, positions):
    if frame == "own":
        frequency = own_frequency(group, frequency)
        return own_frame_phases(frequency, group.matrices(), positions), None
    return cross_frame_phases(frequency, group.matrices(), positions), group.relative()


def error_of(mix, group, features, positions):
    """Return max |mix(g·tokens) − g·mix(tokens)| / max |mix|, where g also acts on positions."""
    out, shift = mix(*features, positions), torch.tensor([0.5, -2.0], dtype=torch.float64)
    errors = []
    for g in range(group.order):
        inverse = group.product()[group.invert(g)]
        acted = [x[:, :, inverse] for x in features]
        transformed = mix(*acted, act_on_points(group, g, positions) + shift)
        errors.append(float((transformed - out[:, :, inverse]).abs().max() / out.abs().max()))
    return max(errors)


@FRAMES
@pytest.mark.parametrize("name", GROUPS)
def test_equivariance(name, frame):
    """Under rotations, reflections and shifts of the positions."""
    group, features, frequency, positions = inputs_for(name)

    def mix(*given):
        *features, positions = given
        return attend_on_group(*features, *phases_for(frame, group, frequency, positions))

    assert error_of(mix, group, features, positions) < 1e-12


@FRAMES
def test_witness(frame):
    """The output depends on tokens, positions and, across frames, on all orientations."""
    group, (query, key, value), frequency, positions = inputs_for("D4")
    phases = phases_for(frame, group, frequency, positions)
    out = attend_on_group(query, key, value, *phases)
    assert (attend_on_group(key, query, value, *phases) - out).abs().max() > 0.1
    distant = phases_for(frame, group, frequency, 2 * positions)
    assert (attend_on_group(query, key, value, *distant) - out).abs().max() > 0.1
    other = value.clone()
    other[:, 0, 5] += 1
    change = (attend_on_group(query, key, other, *phases) - out).abs().amax(dim=(0, 1, 3, 4))
    assert change[5] > 0.01
    assert (change[:5].max() > 0.01) == (frame == "cross")


def unrotated(group):
    return torch.eye(2, dtype=torch.float64).expand(group.order, 2, 2)


def unsteered(group):
    return torch.arange(group.order).expand(group.order, group.order)


FAULTS = {
    "own: positions not rotated": lambda group: (unrotated(group), None),
    "cross: orbit not closed": lambda group: (unrotated(group), group.relative()),
    "cross: orbit not permuted": lambda group: (group.matrices(), unsteered(group)),
    "cross: permuted by the inverse": lambda g: (g.matrices(), g.product()),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", ["C4", "D4", "D3"])
def test_control(name, fault):
    group, features, frequency, positions = inputs_for(name)
    matrices, relative = FAULTS[fault](group)

    def mix(query, key, value, positions):
        if relative is None:
            phases = own_frame_phases(own_frequency(group, frequency), matrices, positions)
        else:
            phases = cross_frame_phases(frequency, matrices, positions)
        return attend_on_group(query, key, value, phases, relative)

    assert error_of(mix, group, features, positions) > 0.01


def by_pairs(features):
    """Return [b][t][h][n][p]: pair p of the head as one complex number."""
    first, second = features.chunk(2, dim=-1)
    return torch.complex(first, second).tolist()


def by_loops(group, features, relation):
    """Return the softmax over the sources of Σ_p Re(q̄_p e^{iφ_p} k_p') / √dim, number by number.

    `relation(n, t, s, h, m)` lists (p, φ_p, p'), or nothing where the source is not attended to.
    """
    query, key = by_pairs(features[0]), by_pairs(features[1])
    value, dim = features[2], features[0].shape[-1]
    out = torch.zeros_like(value)
    items = list(itertools.product(range(value.shape[1]), range(group.order)))
    for b, (t, h), n in itertools.product(range(len(value)), items, range(value.shape[3])):
        weights = {}
        for s, m in items:
            pairs = relation(n, t, s, h, m)
            q, k = query[b][t][h][n], key[b][s][m][n]
            score = sum((q[p].conjugate() * cmath.exp(1j * a) * k[r]).real for p, a, r in pairs)
            if pairs:
                weights[s, m] = math.exp(score / math.sqrt(dim))
        for (s, m), weight in weights.items():
            out[b, t, h, n] += weight / sum(weights.values()) * value[b, s, m, n]
    return out


def phase_of(group, wave, a, h, offset):
    """Return (a·ω)·(h⁻¹ offset)."""
    seen = act_on_points(group, group.invert(h), offset)
    return float(act_on_points(group, a, wave) @ seen)


@pytest.mark.parametrize("name", ["D3", "D4"])
def test_definition_in_the_own_frame(name):
    """q^hᵀ R(h⁻¹(x'−x)) k^h, among tokens of the same orientation."""
    group, features, frequency, positions = inputs_for(name, tokens=2, bases=1)
    waves = own_frequency(group, frequency)

    def relation(n, t, s, h, m):
        offset, pairs = positions[s] - positions[t], range(group.order if h == m else 0)
        return [(p, phase_of(group, waves[n, p], 0, h, offset), p) for p in pairs]

    out = attend_on_group(*features, *phases_for("own", group, frequency, positions))
    assert (out - by_loops(group, features, relation)).abs().max() < 1e-12


def test_definition_across_the_frames():
    """q^hᵀ R(h⁻¹(x'−x)) P_{h⁻¹m} k^m, and (P_r k)_a = k_{r⁻¹a}: pair p is base · |G| + a."""
    group, features, frequency, positions = inputs_for("D3", tokens=2)
    inverse_times = group.relative().tolist()

    def relation(n, t, s, h, m):
        offset, pairs = positions[s] - positions[t], []
        for base, a in itertools.product(range(2), range(6)):
            phase = phase_of(group, frequency[n, base], a, h, offset)
            of_key = inverse_times[inverse_times[h][m]][a]
            pairs.append((6 * base + a, phase, 6 * base + of_key))
        return pairs

    out = attend_on_group(*features, *phases_for("cross", group, frequency, positions))
    assert (out - by_loops(group, features, relation)).abs().max() < 1e-12


def test_definition_of_rotated_pairs_and_steered_orbits():
    """Pair (p, p + dim/2) rotates counter-clockwise; the orbit is permuted by h⁻¹."""
    x, angle = torch.randn(3, 4, dtype=torch.float64), torch.randn(3, 2, dtype=torch.float64)
    out = rotate_pairs(x, angle.cos(), angle.sin())
    expected = torch.complex(x[:, :2], x[:, 2:]) * torch.exp(1j * angle)
    assert (torch.complex(out[:, :2], out[:, 2:]) - expected).abs().max() < 1e-14
    group, (features, *_), *_ = inputs_for("D3")
    steered = steer_orbit(features, group.relative())
    for h, block, a in itertools.product(range(6), range(4), range(6)):
        seen = 6 * block + group.compose(group.invert(h), a)
        assert torch.equal(steered[:, :, h, :, 6 * block + a], features[:, :, h, :, seen])


def test_phases_keep_their_precision():
    """Phases of many periods are accurate under autocast and for weights in 16 bits."""
    matrices = PlanarGroup.named("C8").matrices().float()
    waves = torch.randn(2, 3, 2, dtype=torch.bfloat16)
    distant = torch.full((1, 2), 100.5)
    expected = own_frame_phases(waves.double(), matrices.double(), distant.double())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = own_frame_phases(waves, matrices, distant)
    assert found.dtype == torch.float32
    assert (found - expected).abs().max() < 1e-3
    assert rotated_frequencies(waves.double(), matrices).dtype == torch.float64
    x = torch.randn(3, 4, dtype=torch.bfloat16)
    assert rotate_pairs(x, torch.ones(2), torch.zeros(2)).dtype == torch.bfloat16


@pytest.mark.parametrize("mask", [True, False])
@FRAMES
def test_fused_kernels_match_the_formula_forward_and_backward(frame, mask):
    group, features, frequency, _ = inputs_for("D4", tokens=6)
    positions = pixel_centres(2, 3).flatten(0, 1)
    given = [*(x.requires_grad_() for x in features), frequency.requires_grad_()]
    seen = window_mask(positions, 3, "disc") if mask else None
    out, grads = {}, {}
    for name in ("plain", "sdpa"):
        phases = phases_for(frame, group, frequency, positions)
        out[name] = attend_on_group(*features, *phases, seen, backend=name)
        grads[name] = torch.autograd.grad(out[name].square().sum(), given)
    torch.testing.assert_close(out["sdpa"], out["plain"])
    torch.testing.assert_close(grads["sdpa"], grads["plain"])
    assert all(grad.abs().max() > 1e-3 for grad in grads["plain"])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("window", [1, 3, 5, 7])
def test_windows_are_those_of_the_neighbourhoods(window, shape):
    sources = find_sources(Neighbourhood(window, shape), 4, 5)
    expected = torch.zeros(20, 20, dtype=torch.bool)
    for t, s in torch.nonzero(sources.inside).tolist():
        expected[t, sources.pixel[t, s]] = True
    assert torch.equal(window_mask(pixel_centres(4, 5).flatten(0, 1), window, shape), expected)


@FRAMES
def test_the_output_depends_on_the_window_alone(frame):
    """And on everything in it: on all orientations across frames, on its own in the own frame."""
    group, (query, key, value), frequency, _ = inputs_for("C4", tokens=6)
    positions = pixel_centres(2, 3).flatten(0, 1)
    phases = phases_for(frame, group, frequency, positions)
    mask = window_mask(positions, 3, "disc")
    value = value.requires_grad_()
    out = attend_on_group(query, key, value, *phases, mask)
    for t, h in itertools.product(range(6), range(4)):
        (grad,) = torch.autograd.grad(out[:, t, h].sum(), value, retain_graph=True)
        elements = torch.eye(4)[h] > 0 if frame == "own" else torch.ones(4, dtype=torch.bool)
        assert torch.equal(grad.abs().amax(dim=(0, 3, 4)) > 0, mask[t][:, None] & elements)
