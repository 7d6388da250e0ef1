"""Linear attention: equivariance, witness, control, definition; the state against the formula."""

import itertools

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from turnwise.attention.linear import KERNELS, attend_linearly, elu_features
from turnwise.attention.rotary import (
    cos_and_sin,
    cross_frame_phases,
    own_frame_phases,
    rotate_pairs,
)
from turnwise.errors import InputError
from turnwise.groups import PlanarGroup, act_on_points

FRAMES = pytest.mark.parametrize("frame", ["own", "cross"])
EVERY_KERNEL = pytest.mark.parametrize("kernel", KERNELS)


def inputs_for(name, frame, tokens=4, dtype=torch.float64):
    """Return a group; queries, keys and values; frequencies; positions."""
    group, bases = PlanarGroup.named(name), 1
    pairs = bases * group.order
    features = torch.randn(3, 2, tokens, group.order, 2, 2 * pairs, dtype=dtype).unbind()
    frequency = torch.randn(2, bases if frame == "cross" else pairs, 2, dtype=dtype)
    return group, features, frequency, torch.randn(tokens, 2, dtype=dtype)


def phases_for(frame, group, frequency, positions):
    if frame == "own":
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


@EVERY_KERNEL
@FRAMES
@pytest.mark.parametrize("name", ["C1", "D1", "C2", "C4", "D4", "D3", "C8", "D8"])
def test_equivariance(name, frame, kernel):
    """Exact for any feature map, under rotations, reflections and shifts of the positions."""
    group, features, frequency, positions = inputs_for(name, frame)

    def mix(*given):
        *features, positions = given
        phases = phases_for(frame, group, frequency, positions)
        return attend_linearly(*features, *phases, kernel=kernel)

    assert error_of(mix, group, features, positions) < 1e-10


@FRAMES
def test_witness(frame):
    """The output depends on the tokens and on their positions."""
    group, (query, key, value), frequency, positions = inputs_for("D4", frame)
    out = attend_linearly(query, key, value, *phases_for(frame, group, frequency, positions))
    other = phases_for(frame, group, frequency, 2 * positions)
    assert (attend_linearly(query, key, value, *other) - out).abs().max() > 0.1
    phases = phases_for(frame, group, frequency, positions)
    assert (attend_linearly(key, query, value, *phases) - out).abs().max() > 0.1


@pytest.mark.parametrize("fault", ["unrotated", "unsteered"])
def test_control(fault):
    group, features, frequency, positions = inputs_for("D4", "cross")
    matrices, relative = group.matrices(), group.relative()
    if fault == "unrotated":
        matrices = matrices[:1].expand(8, 2, 2)
    else:
        relative = torch.arange(8).expand(8, 8)

    def mix(*given):
        *features, positions = given
        phases = cross_frame_phases(frequency, matrices, positions)
        return attend_linearly(*features, phases, relative)

    assert error_of(mix, group, features, positions) > 0.01


@EVERY_KERNEL
def test_control_positions_before_the_feature_map(kernel):
    """The order of the published relative Performer: shifts are not exact."""
    group, features, frequency, positions = inputs_for("C1", "own")

    def mix(query, key, value, positions):
        phases, _ = phases_for("own", group, frequency, positions)
        cos, sin = cos_and_sin(phases)
        rotated = (rotate_pairs(x, cos, sin) for x in (query, key))
        return attend_linearly(*rotated, value, torch.zeros_like(phases), kernel=kernel)

    assert error_of(mix, group, features, positions) > 0.01


@FRAMES
def test_definition(frame):
    """Σ (F_q·F_k) v / Σ |f_q||f_k|, one number at a time: F = R(x) f, and f = P_h(elu + 1)."""
    group, features, frequency, positions = inputs_for("D3", frame, tokens=2)
    out = attend_linearly(*features, *phases_for(frame, group, frequency, positions))
    items = list(itertools.product(range(2), range(6)))

    def feature(x, t, h, n):
        unsteered = torch.where(x > 0, x + 1, x.exp())[0, t, h, n]
        if frame == "own":
            waves = [act_on_points(group, h, wave) for wave in frequency[n]]
        else:
            seen = [group.compose(group.invert(h), a) for a in range(6)]
            unsteered = unsteered[seen + [6 + a for a in seen]]
            waves = [act_on_points(group, a, frequency[n, 0]) for a in range(6)]
        phase = torch.stack([wave @ positions[t] for wave in waves])
        return torch.complex(*unsteered.chunk(2)) * torch.exp(1j * phase)

    for (t, h), n in itertools.product(items, range(2)):
        above, below = 0.0, 0.0
        for s, m in items if frame == "cross" else [(s, h) for s in range(2)]:
            query, key = feature(features[0], t, h, n), feature(features[1], s, m, n)
            above = above + (query.conj() * key).real.sum() * features[2][0, s, m, n]
            below = below + query.abs() @ key.abs()
        torch.testing.assert_close(out[0, t, h, n], above / below)


@EVERY_KERNEL
@FRAMES
def test_the_state_matches_the_formula_forward_and_backward(frame, kernel):
    group, features, frequency, positions = inputs_for("D4", frame)
    given = [*(x.requires_grad_() for x in features), frequency.requires_grad_()]
    out, grads = {}, {}
    for name in ("plain", "state"):
        phases = phases_for(frame, group, frequency, positions)
        out[name] = attend_linearly(*features, *phases, kernel=kernel, backend=name)
        grads[name] = torch.autograd.grad(out[name].square().sum(), given)
    torch.testing.assert_close(out["state"], out["plain"])
    torch.testing.assert_close(grads["state"], grads["plain"])
    assert all(grad.abs().max() > 1e-3 for grad in grads["plain"])


def flops(tokens, frame, backend):
    group, features, frequency, positions = inputs_for("C4", frame, tokens, torch.float32)
    phases = phases_for(frame, group, frequency, positions)
    with FlopCounterMode(display=False) as counter:
        attend_linearly(*features, *phases, backend=backend)
    return counter.get_total_flops()


@FRAMES
def test_the_cost_is_linear(frame):
    """Four times the tokens take four times the operations, and their number is as computed."""
    assert flops(400, frame, "state") == 4 * flops(100, frame, "state")
    assert flops(400, frame, "plain") > 12 * flops(100, frame, "plain")
    items, dim = 2 * 2 * 4 * 64 * 64, 8
    assert flops(64 * 64, frame, "state") == items * 2 * (dim * dim + dim * dim + dim // 2)


@FRAMES
def test_no_stored_tensor_has_an_entry_for_every_pair_of_tokens(frame):
    group, features, frequency, positions = inputs_for("C4", frame, 256, torch.float32)
    given = [x.requires_grad_() for x in features]
    sizes = []

    def note(tensor):
        sizes.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        phases = phases_for(frame, group, frequency, positions)
        attend_linearly(*given, *phases)
    assert max(sizes) <= features[0].numel() < 256 * 256


@EVERY_KERNEL
@FRAMES
def test_absolute_weights_of_a_query_sum_to_at_most_one(frame, kernel):
    """Unit vectors as values give the weights; with equal phases the bound is not far."""
    group, (query, key, _), frequency, positions = inputs_for("C4", frame, tokens=6)
    items = 6 * 4
    value = torch.eye(items, dtype=torch.float64).view(1, 6, 4, 1, items).expand(2, 6, 4, 2, items)
    phases = phases_for(frame, group, 3 * frequency, positions)
    weight = attend_linearly(query, key, value, *phases, kernel=kernel)
    assert weight.abs().sum(dim=-1).max() <= 1 + 1e-12
    zero = torch.zeros_like(phases[0])
    equal = attend_linearly(key, key, value, zero, phases[1], kernel=kernel)
    assert equal.abs().sum(dim=-1).max() > 0.3


@pytest.mark.parametrize("kernel", [k for k in KERNELS if k != "relu"])
def test_features_are_positive_and_finite_for_large_inputs(kernel):
    """Also where elu(x) + 1, computed literally, would be 0."""
    features = KERNELS[kernel](torch.tensor([-40.0, -20.0, 0.0, 20.0, 40.0]))
    assert features.isfinite().all()
    assert features[0] > 0
    assert (features.diff() > 0).all()


@EVERY_KERNEL
@pytest.mark.parametrize("level", [-200.0, -110.0, 200.0])
def test_extreme_inputs_give_finite_outputs_and_gradients(kernel, level):
    group, features, frequency, positions = inputs_for("C1", "own", dtype=torch.float32)
    query, key, value = features
    query, key = level + query, level + key
    query[..., 0] = 0.5 * level  # one channel far from the others
    query.requires_grad_()
    phases = own_frame_phases(frequency, group.matrices().float(), positions)
    out = attend_linearly(query, key, value, phases, kernel=kernel)
    assert out.isfinite().all()
    out.square().sum().backward()
    assert query.grad.isfinite().all()


def test_definition_of_relu_features():
    features = KERNELS["relu"](torch.tensor([-2.0, 0.0, 3.0]))
    torch.testing.assert_close(features, torch.tensor([0.001, 0.001, 3.001]))


def test_definition_of_elu_features():
    x = torch.randn(100, dtype=torch.float64)
    torch.testing.assert_close(elu_features(x), torch.nn.functional.elu(x) + 1)


@FRAMES
def test_in_sixteen_bits_sums_stay_in_single_precision(frame):
    """Under autocast only the inputs and the output are rounded."""
    group, features, frequency, positions = inputs_for("D4", frame, tokens=64)
    phases = phases_for(frame, group, frequency, positions)
    rounded = [x.bfloat16() for x in features]
    exact = attend_linearly(*(x.double() for x in rounded), *phases)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = attend_linearly(*rounded, *phases)
    assert out.dtype == torch.bfloat16
    assert (out - exact).abs().max() / exact.abs().max() < 4e-3  # half of the last bit


def test_unknown_names_raise_errors():
    group, features, frequency, positions = inputs_for("C1", "own")
    phases = phases_for("own", group, frequency, positions)
    with pytest.raises(InputError, match=r"unknown kernel 'elo'\. Did you mean 'elu'\?"):
        attend_linearly(*features, *phases, kernel="elo")
    with pytest.raises(InputError, match=r"unknown backend 'sdpa'\..* Known: auto, plain, state"):
        attend_linearly(*features, *phases, backend="sdpa")


@pytest.mark.parametrize("kernel", KERNELS)
def test_gradients_match_finite_differences(kernel):
    given = [torch.randn(1, 3, 1, 1, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    phases = torch.randn(1, 1, 3, 2, dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda q, k, v: attend_linearly(q, k, v, phases, kernel=kernel), given
    )
