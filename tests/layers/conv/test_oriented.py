"""Maps keep their poses, and give them up, without breaking the law."""

import pytest
import torch
from torch import nn

from turnwise.errors import InputError
from turnwise.geometry.sizes import Stage
from turnwise.groups import PlanarGroup, act_on_field, act_on_image, equivariance_errors
from turnwise.layers.conv.conv import field_to_maps, maps_to_field
from turnwise.layers.conv.oriented import PoseMaximum, oriented_conv, width_of_pose
from turnwise.layers.roto.conv import RotoConv

KINDS = {"lift": (False, True), "keep": (True, True), "fold": (True, False)}
STAGES = [Stage(3, 1, 1), Stage(4, 2, 1), Stage(2, 2, 0), Stage(1, 1, 0)]


def act_on_maps(group, g, maps):
    """An element turns oriented maps and renames their poses."""
    field = maps_to_field(maps, PlanarGroup.named(group).order)
    return field_to_maps(act_on_field(group, g, field))


def action(oriented):
    return act_on_maps if oriented else act_on_image


def made(kind, group="D4", stage=STAGES[1], bias=True):
    layer = oriented_conv(group, 16, 24, stage, KINDS[kind], bias=bias).double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    return layer


def maps(rows=8, cols=8):
    return torch.randn(2, 16, rows, cols, dtype=torch.float64)


@pytest.mark.parametrize("group", ["D4", "C4", "D1"])
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("kind", KINDS)
def test_law(kind, stage, group):
    layer, (old, new) = made(kind, group, stage), KINDS[kind]
    for x in (maps(), maps(8, 4)):
        errors = equivariance_errors(layer, group, x, act_in=action(old), act_out=action(new))
        assert max(errors) < 1e-12


@pytest.mark.parametrize("kind", KINDS)
def test_witness(kind):
    layer, x = made(kind), maps()
    y = layer(x)
    assert y.shape == (2, 24, 4, 4)
    act = action(KINDS[kind][1])
    assert all((act("D4", g, y) - y).abs().max() > 0.1 for g in range(1, 8))


@pytest.mark.parametrize("kind", KINDS)
def test_control_maps_whose_poses_stay_where_they_are(kind):
    """An action without the renaming of poses is not the one that the layers obey."""
    layer = made(kind)
    errors = equivariance_errors(layer, "D4", maps(), act_in=act_on_image, act_out=act_on_image)
    assert min(errors[1:]) > 0.1


def test_control_a_plain_convolution():
    plain = nn.Conv2d(16, 24, 4, 2, 1).double()
    errors = equivariance_errors(plain, "D4", maps(), act_in=act_on_maps, act_out=act_on_image)
    assert min(errors[1:]) > 0.1


def test_definition_of_folding():
    """max_g Σ_m Σ_δ K[o, i, g⁻¹m](g⁻¹δ) f(m, i, p + δ), as loops, on a rectangle."""
    group, layer, x = PlanarGroup.named("C4"), made("fold", "C4", Stage(3, 1, 1)), maps(4, 3)
    weight, bias = layer[0].weight, layer[0].bias  # (o, i, n, tap)
    field, y = maps_to_field(x, 4), layer(x)
    kernels = weight.unflatten(-1, (3, 3))
    for row, col in [(0, 0), (2, 1), (3, 2)]:
        answers = []
        for g in range(4):
            total = bias.clone()[None].expand(2, -1)
            turned = act_on_image(group, g, kernels.flatten(1, 2)).unflatten(1, (4, 4))
            for m in range(4):
                n = group.compose(group.invert(g), m)
                for dr in (-1, 0, 1):
                    for dc in (-1, 0, 1):
                        if 0 <= row + dr < 4 and 0 <= col + dc < 3:
                            value = field[:, m, row + dr, col + dc]  # (batch, i)
                            total = total + value @ turned[:, :, n, dr + 1, dc + 1].T
            answers.append(total)
        torch.testing.assert_close(y[:, :, row, col], torch.stack(answers).amax(0))


def test_to_lift_and_fold_at_once_is_roto_conv():
    lift, fold = made("lift", bias=False), PoseMaximum("D4")
    roto = RotoConv("D4", 16, 3, Stage(4, 2, 1), bias=False).double()
    with torch.no_grad():
        roto.weight.copy_(lift.weight.unflatten(-1, (4, 4)))
    x = maps()
    torch.testing.assert_close(fold(lift(x)), roto(x))


def test_relative_orientation_is_seen_where_poses_are_kept_and_not_by_roto_conv():
    """Turn one patch by itself: disjoint RotoConvs cannot tell, a fold after a lift can."""
    x = torch.rand(1, 16, 8, 8, dtype=torch.float64)
    turned = x.clone()
    turned[..., :4, :4] = act_on_image("D4", 1, x[..., :4, :4])
    roto = RotoConv("D4", 16, 16, Stage(4, 4), bias=False).double()
    assert (roto(x) - roto(turned)).abs().max() < 1e-12
    lift = oriented_conv("D4", 16, 16, Stage(4, 4), KINDS["lift"]).double()
    fold = oriented_conv("D4", 16, 16, Stage(2, 2), KINDS["fold"]).double()
    assert (fold(lift(x)) - fold(lift(turned))).abs().max() > 0.01


@pytest.mark.parametrize(("kind", "share"), [("lift", 8), ("keep", 8), ("fold", 1)])
def test_weights_are_a_share_of_the_plain_ones(kind, share):
    plain = nn.Conv2d(16, 24, 4, 2, 1)
    assert made(kind).state_dict().keys()
    count = sum(p.numel() for p in made(kind).parameters())
    assert count * share == sum(p.numel() for p in plain.parameters())


def test_gradients_reach_every_weight():
    for kind in KINDS:
        layer = made(kind)
        layer(maps()).square().sum().backward()
        assert all(p.grad.abs().max() > 0 for p in layer.parameters())


def test_nonsense_is_refused():
    with pytest.raises(InputError, match=r"width = 20 .*oriented maps split it over 8 poses"):
        width_of_pose("D4", 20)
    with pytest.raises(InputError, match="use a RotoConv"):
        oriented_conv("D4", 16, 24, Stage(3, 1, 1), (False, False))
