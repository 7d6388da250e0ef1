"""The switch `roto` between plain and equivariant convolutions, and the two registered variants."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn

from turnwise.errors import InputError
from turnwise.geometry.sizes import Stage, output_size, size_after
from turnwise.groups import PlanarGroup, act_on_image, equivariance_error
from turnwise.layers.roto.conv import RotoConv2d
from turnwise.models import registry
from turnwise.models.convolutions import ConvMaker, RotoDesign, register_both, require_large_enough
from turnwise.models.registry import create_model, describe_model, model_options

D4 = PlanarGroup.named("D4")


@pytest.mark.parametrize("size", [7, 8, 9, 10])
def test_plain_and_equivariant_convolutions_share_shapes_and_states(size):
    stage = Stage(3, 2, 1)
    plain = ConvMaker(D4, roto=False).conv(3, 4, stage, size)
    equivariant = ConvMaker(D4, roto=True).conv(3, 4, stage, size)
    assert type(plain) is nn.Conv2d
    assert type(equivariant) is RotoConv2d
    equivariant.load_state_dict(plain.state_dict())
    x = torch.randn(1, 3, size, size)
    shape = (1, 4, size_after(size, stage), size_after(size, stage))
    assert plain(x).shape == equivariant(x).shape == shape


@pytest.mark.parametrize("size", [7, 8, 11, 12])
def test_the_pool_is_equivariant(size):
    x = torch.randn(1, 3, size, size, dtype=torch.float64)
    stage = Stage(3, 2, 1)
    pool = ConvMaker(D4, roto=True).max_pool(stage, size)
    published = ConvMaker(D4, roto=False).max_pool(stage, size)
    by_element = [pool_transformed(published, g, x) for g in range(8)]
    torch.testing.assert_close(pool(x), torch.stack(by_element).amax(0))
    assert equivariance_error(pool, "D4", x, act_out=act_on_image) == 0
    off_centre = equivariance_error(published, "D4", x, act_out=act_on_image) > 0.01
    assert off_centre == (size % 2 == 0)


def pool_transformed(pool, g, x):
    """Pool the transformed maps, and transform the result back."""
    return act_on_image(D4, D4.invert(g), pool(act_on_image(D4, g, x)))


def test_the_enlarged_stage_samples_symmetrically():
    stage = Stage(7, 4, 2)
    assert output_size(128, [stage]) is None
    assert output_size(128, [ConvMaker(D4, roto=True).sampling(stage, 128)]) == 32
    kept = ConvMaker(D4, roto=True, extend=False)
    assert kept.sampling(stage, 128) == stage
    assert ConvMaker(D4, roto=False).sampling(stage, 128) == stage


@pytest.mark.parametrize("oriented", [(False, True), (True, True), (True, False)])
def test_oriented_convolutions_have_the_requested_width_over_all_group_elements(oriented):
    """Their windows also cover what the published ones leave unseen on one side."""
    maker = ConvMaker(D4, roto=True)
    conv = maker.conv(16, 24, Stage(3, 2, 1), 8, oriented=oriented)
    x = torch.randn(2, 2, 8, 8, 8) if oriented[0] else torch.randn(2, 16, 8, 8)
    shape = (2, 3, 8, 4, 4) if oriented[1] else (2, 24, 4, 4)
    assert conv(x).shape == shape
    norm = maker.batch_norm(24, oriented[1])
    assert norm(conv(x)).shape == shape
    assert sum(p.numel() for p in norm.parameters()) == 2 * (3 if oriented[1] else 24)


def test_only_equivariant_convolutions_have_a_group():
    assert ConvMaker(D4, roto=True).exact_group == D4
    assert ConvMaker(D4, roto=False).exact_group.name == "C1"
    with pytest.raises(InputError, match="C8 does not map pixels to pixels"):
        ConvMaker(PlanarGroup.named("C8"), roto=True)
    assert ConvMaker(PlanarGroup.named("C8"), roto=False).exact_group.name == "C1"


def test_an_image_that_is_too_small_is_refused():
    with pytest.raises(InputError, match=r"1 pixels .* too few for windows of 4; use 4 or more"):
        ConvMaker(D4, roto=False).conv(3, 4, Stage(4, 4, 0), 1)


def test_the_smallest_image_size_depends_on_all_stages():
    stages = (Stage(4, 4), Stage(2, 2), Stage(2, 2))
    require_large_enough(19, stages, "these")
    with pytest.raises(InputError, match="image_size = 15 is too small for these; try 16"):
        require_large_enough(15, stages, "these")


@dataclass(frozen=True)
class OneConv(RotoDesign):
    width: int = 4
    widths: tuple[int, ...] = (1, 2)


def test_both_variants_are_registered(monkeypatch):
    monkeypatch.setattr(registry, "_families", {})

    def make(task, design):
        maker = ConvMaker(task.group, design.roto)
        return maker.conv(task.in_chans, design.width, Stage(2, 2), task.image_size)

    register_both("one_conv", OneConv(), make, "One convolution.")
    shared = {"reduce": "max", "algorithm": "auto", "oriented": 0}
    own = {"width": 4, "widths": (1, 2)}
    assert model_options("one_conv") == {**own, "roto": False, **shared}
    assert model_options("roto_one_conv") == {**own, **shared}
    assert describe_model("one_conv") == "One convolution."
    assert describe_model("roto_one_conv") == "Exactly equivariant One convolution."
    assert type(create_model("one_conv", widths=[3])) is nn.Conv2d
    assert type(create_model("one_conv", roto=True)) is RotoConv2d
    assert type(create_model("roto_one_conv", width=2)) is RotoConv2d
    with pytest.raises(InputError, match="option of roto_one_conv 'roto'"):
        create_model("roto_one_conv", roto=False)
