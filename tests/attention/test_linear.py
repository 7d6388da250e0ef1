"""Law, witness, control, definition of linear attention; the state against the formula."""

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
    """Queries, keys, values; frequencies; positions."""
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
    """The largest |mix(g·tokens) − g·mix(tokens)| / |mix|, where g also moves the positions."""
    out, shift = mix(*features, positions), torch.tensor([0.5, -2.0], dtype=torch.float64)
    errors = []
    for g in range(group.order):
        back = group.product()[group.invert(g)]
        moved = mix(*(x[:, :, back] for x in features), act_on_points(group, g, positions) + shift)
        errors.append(float((moved - out[:, :, back]).abs().max() / out.abs().max()))
    return max(errors)


@EVERY_KERNEL
@FRAMES
@pytest.mark.parametrize("name", ["C1", "D1", "C2", "C4", "D4", "D3", "C8", "D8"])
def test_law(name, frame, kernel):
    """Exact for any feature map, under turns, mirrors and shifts of the positions."""
    group, features, frequency, positions = inputs_for(name, frame)

    def mix(*given):
        *features, positions = given
        turns = phases_for(frame, group, frequency, positions)
        return attend_linearly(*features, *turns, kernel=kernel)

    assert error_of(mix, group, features, positions) < 1e-10


@FRAMES
def test_witness(frame):
    """The output follows the tokens and their places."""
    group, (query, key, value), frequency, positions = inputs_for("D4", frame)
    out = attend_linearly(query, key, value, *phases_for(frame, group, frequency, positions))
    elsewhere = phases_for(frame, group, frequency, 2 * positions)
    assert (attend_linearly(query, key, value, *elsewhere) - out).abs().max() > 0.1
    turns = phases_for(frame, group, frequency, positions)
    assert (attend_linearly(key, query, value, *turns) - out).abs().max() > 0.1


@pytest.mark.parametrize("fault", ["unturned", "unsteered"])
def test_control(fault):
    group, features, frequency, positions = inputs_for("D4", "cross")
    matrices, relative = group.matrices(), group.relative()
    if fault == "unturned":
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
        turned = (rotate_pairs(x, cos, sin) for x in (query, key))
        return attend_linearly(*turned, value, torch.zeros_like(phases), kernel=kernel)

    assert error_of(mix, group, features, positions) > 0.01


@FRAMES
def test_definition(frame):
    """Σ (F_q·F_k) v / Σ |f_q||f_k|, one number at a time: F = R(x) f, and f = P_h(elu + 1)."""
    group, features, frequency, positions = inputs_for("D3", frame, tokens=2)
    out = attend_linearly(*features, *phases_for(frame, group, frequency, positions))
    seats = list(itertools.product(range(2), range(6)))

    def feature(x, t, h, n):
        plain = torch.where(x > 0, x + 1, x.exp())[0, t, h, n]
        if frame == "own":
            waves = [act_on_points(group, h, wave) for wave in frequency[n]]
        else:
            plain = plain[
                [6 * i + group.compose(group.invert(h), a) for i in (0, 1) for a in range(6)]
            ]
            waves = [act_on_points(group, a, frequency[n, 0]) for a in range(6)]
        phase = torch.stack([wave @ positions[t] for wave in waves])
        return torch.complex(*plain.chunk(2)) * torch.exp(1j * phase)

    for (t, h), n in itertools.product(seats, range(2)):
        above, below = 0.0, 0.0
        for s, m in seats if frame == "cross" else [(s, h) for s in range(2)]:
            query, key = feature(features[0], t, h, n), feature(features[1], s, m, n)
            above = above + (query.conj() * key).real.sum() * features[2][0, s, m, n]
            below = below + query.abs() @ key.abs()
        torch.testing.assert_close(out[0, t, h, n], above / below)


@EVERY_KERNEL
@FRAMES
def test_state_agrees_with_plain_forward_and_backward(frame, kernel):
    group, features, frequency, positions = inputs_for("D4", frame)
    given = [*(x.requires_grad_() for x in features), frequency.requires_grad_()]
    out, grads = {}, {}
    for name in ("plain", "state"):
        turns = phases_for(frame, group, frequency, positions)
        out[name] = attend_linearly(*features, *turns, kernel=kernel, backend=name)
        grads[name] = torch.autograd.grad(out[name].square().sum(), given)
    torch.testing.assert_close(out["state"], out["plain"])
    torch.testing.assert_close(grads["state"], grads["plain"])
    assert all(grad.abs().max() > 1e-3 for grad in grads["plain"])


def flops(tokens, frame, backend):
    group, features, frequency, positions = inputs_for("C4", frame, tokens, torch.float32)
    turns = phases_for(frame, group, frequency, positions)
    with FlopCounterMode(display=False) as counter:
        attend_linearly(*features, *turns, backend=backend)
    return counter.get_total_flops()


@FRAMES
def test_the_cost_is_linear(frame):
    """Four times the tokens, four times the cost; 64 × 64 tokens in cost what they must."""
    assert flops(400, frame, "state") == 4 * flops(100, frame, "state")
    assert flops(400, frame, "plain") > 12 * flops(100, frame, "plain")
    seats, dim = 2 * 2 * 4 * 64 * 64, 8
    assert flops(64 * 64, frame, "state") == seats * 2 * (dim * dim + dim * dim + dim // 2)


@FRAMES
def test_no_tensor_has_a_row_for_every_pair_of_tokens(frame):
    group, features, frequency, positions = inputs_for("C4", frame, 256, torch.float32)
    given = [x.requires_grad_() for x in features]
    sizes = []

    def note(tensor):
        sizes.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        turns = phases_for(frame, group, frequency, positions)
        attend_linearly(*given, *turns)
    assert max(sizes) <= features[0].numel() < 256 * 256


@EVERY_KERNEL
@FRAMES
def test_weights_of_a_query_sum_to_at_most_one_in_size(frame, kernel):
    """Read off by values that are the unit vectors; without positions the sum can be 1."""
    group, (query, key, _), frequency, positions = inputs_for("C4", frame, tokens=6)
    seats = 6 * 4
    value = torch.eye(seats, dtype=torch.float64).view(1, 6, 4, 1, seats).expand(2, 6, 4, 2, seats)
    turns = phases_for(frame, group, 3 * frequency, positions)
    weight = attend_linearly(query, key, value, *turns, kernel=kernel)
    assert weight.abs().sum(dim=-1).max() <= 1 + 1e-12
    still = attend_linearly(key, key, value, torch.zeros_like(turns[0]), turns[1], kernel=kernel)
    assert still.abs().sum(dim=-1).max() > 0.3


@pytest.mark.parametrize("kernel", [k for k in KERNELS if k != "relu"])
def test_features_are_positive_and_finite_far_out(kernel):
    """Also where elu(x) + 1, computed as it is written, would be 0."""
    features = KERNELS[kernel](torch.tensor([-40.0, -20.0, 0.0, 20.0, 40.0]))
    assert features.isfinite().all()
    assert features[0] > 0
    assert (features.diff() > 0).all()


@EVERY_KERNEL
@pytest.mark.parametrize("level", [-200.0, -110.0, 200.0])
def test_tokens_that_like_nothing_are_numbers_and_have_gradients(kernel, level):
    group, features, frequency, positions = inputs_for("C1", "own", dtype=torch.float32)
    query, key, value = features
    query, key = level + query, level + key
    query[..., 0] = 0.5 * level  # one channel far from the others
    query.requires_grad_()
    turns = own_frame_phases(frequency, group.matrices().float(), positions)
    out = attend_linearly(query, key, value, turns, kernel=kernel)
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
def test_sixteen_bits_lose_little(frame):
    """Under autocast the sums stay in 32 bits; what is rounded is what comes in."""
    group, features, frequency, positions = inputs_for("D4", frame, tokens=64)
    turns = phases_for(frame, group, frequency, positions)
    rounded = [x.bfloat16() for x in features]
    exact = attend_linearly(*(x.double() for x in rounded), *turns)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = attend_linearly(*rounded, *turns)
    assert out.dtype == torch.bfloat16
    assert (out - exact).abs().max() / exact.abs().max() < 4e-3  # half of the last bit


def test_unknown_names_are_refused():
    group, features, frequency, positions = inputs_for("C1", "own")
    turns = phases_for("own", group, frequency, positions)
    with pytest.raises(InputError, match=r"unknown kernel 'elo'\. Did you mean 'elu'\?"):
        attend_linearly(*features, *turns, kernel="elo")
    with pytest.raises(InputError, match=r"unknown backend 'sdpa'\..* Known: auto, plain, state"):
        attend_linearly(*features, *turns, backend="sdpa")


@pytest.mark.parametrize("kernel", KERNELS)
def test_gradients_are_those_of_the_forward_pass(kernel):
    torch.manual_seed(0)
    given = [torch.randn(1, 3, 1, 1, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    phases = torch.randn(1, 1, 3, 2, dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda q, k, v: attend_linearly(q, k, v, phases, kernel=kernel), given
    )
