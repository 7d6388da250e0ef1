"""Norms, blocks, crops and pools on fields: equivariance, witness, control, definition."""

import itertools
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from turnwise.errors import InputError
from turnwise.geometry.layouts import field_to_regular, regular_to_field
from turnwise.geometry.neighbourhoods import Neighbourhood
from turnwise.groups import GRID_GROUPS, PlanarGroup, act_on_field, equivariance_error
from turnwise.layers.gsa.attention import AttentionPlan
from turnwise.layers.gsa.blocks import (
    BlockStyle,
    FieldBatchNorm,
    FieldNorm,
    FieldPool,
    GSABlock,
    crop_field,
    pool_kernel,
)
from turnwise.layers.gsa.published import EXACT, EXACT_GE_VIT, GEVIT_2023, GSA_2021

CONVENTIONS = {"exact": EXACT, "published": GSA_2021}
TWO_CONVENTIONS = pytest.mark.parametrize("convention", CONVENTIONS.values(), ids=CONVENTIONS)


def block_for(name, *, in_width=6, width=6, crop=0, dropout=0.0, **options):
    plan = AttentionPlan(PlanarGroup.named(name), Neighbourhood(3), heads=2, **options)
    return GSABlock(plan, in_width, width, crop, dropout).double()


def field_for(name, rows=4, cols=5, width=6, batch=1):
    order = PlanarGroup.named(name).order
    return torch.randn(batch, order, rows, cols, width, dtype=torch.float64)


def error_of(function, name, field):
    actions = {"act_in": act_on_field, "act_out": act_on_field}
    return equivariance_error(function, name, field, **actions)


# Norms.


def random_norm(convention, width=6):
    norm = FieldNorm(width, convention).double()
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    return norm


@TWO_CONVENTIONS
@pytest.mark.parametrize("name", GRID_GROUPS)
def test_equivariance_of_the_norm(name, convention):
    assert error_of(random_norm(convention), name, field_for(name)) < 1e-12


@TWO_CONVENTIONS
def test_witness_of_the_norm(convention):
    norm = random_norm(convention)
    assert (norm(field_for("C4")) - norm(field_for("C4"))).abs().max() > 0.1


def test_control_of_the_norm():
    """A mean over rows alone distinguishes rows from columns."""
    assert error_of(lambda x: x - x.mean(dim=2, keepdim=True), "C4", field_for("C4", 4, 4)) > 0.01


@TWO_CONVENTIONS
def test_definition_of_the_norm(convention):
    """(x − mean) / std · weight + bias, of each group element and pixel, or of the sample."""
    norm, field = random_norm(convention), field_for("D3", 2, 3, batch=2)
    out = norm(field)
    for b, h, r, c in itertools.product(range(2), range(6), range(2), range(3)):
        over = field[b] if convention.norm_over_image else field[b, h, r, c]
        std = (over.var(correction=0) + convention.norm_eps).sqrt()
        expected = (field[b, h, r, c] - over.mean()) / std * norm.weight + norm.bias
        torch.testing.assert_close(out[b, h, r, c], expected, rtol=0, atol=1e-12)


def test_the_norm_of_a_pixel_does_not_depend_on_other_pixels():
    """In the published programs it does."""
    field = field_for("C4")
    other = field.clone()
    other[:, :, -1, -1] += 3
    exact, published = (random_norm(convention) for convention in (EXACT, GSA_2021))
    assert torch.equal(exact(other)[:, :, 0, 0], exact(field)[:, :, 0, 0])
    assert (published(other) - published(field))[:, :, 0, 0].abs().max() > 1e-3


# Blocks.


@pytest.mark.parametrize("crop", [0, 1])
@pytest.mark.parametrize("name", GRID_GROUPS)
def test_equivariance_of_the_block_on_a_rectangle(name, crop):
    assert error_of(block_for(name, crop=crop).eval(), name, field_for(name)) < 1e-12


@pytest.mark.parametrize("queries", ["all", "own"])
@pytest.mark.parametrize("convention", [EXACT, EXACT_GE_VIT], ids=["gsa", "ge-vit"])
@pytest.mark.parametrize("size", [4, 5])
def test_equivariance_of_the_block_on_odd_and_even_squares(size, convention, queries):
    block = block_for("D4", in_width=4, crop=1, convention=convention, queries=queries)
    assert error_of(block, "D4", field_for("D4", size, size, width=4)) < 1e-12


def test_the_published_block_is_equivariant_where_its_table_is_right():
    assert error_of(block_for("C4", convention=GEVIT_2023, crop=1), "C4", field_for("C4")) < 1e-8


def test_witness_of_the_block():
    """The output depends on the pixels of its window and on the group element."""
    block, field = block_for("D4"), field_for("D4")
    out, other = block(field), field.clone()
    other[:, :, 0, 0] += torch.randn(6)
    assert (block(other) - out)[:, :, 1, 1].abs().max() > 1e-3
    assert (block(other) - out)[:, :, 3, 3].abs().max() == 0  # beyond the window
    assert out.std(dim=1).min() > 1e-3


def test_control_of_the_block():
    """The published table with C4; and an absolute position."""
    wrong = block_for("C4", convention=replace(EXACT, table=GSA_2021.table))
    assert error_of(wrong, "C4", field_for("C4")) > 1e-5
    block, field = block_for("C4"), field_for("C4", 4, 4)
    absolute = torch.zeros_like(field)
    absolute[:, :, 0, 0] = 1.0
    assert error_of(lambda x: block(x + absolute), "C4", field) > 1e-3


@TWO_CONVENTIONS
@pytest.mark.parametrize("in_width", [6, 4])
def test_definition_of_the_block(convention, in_width):
    """y = crop(x) + crop(act(norm(attention(act(norm(x)))))); then y + norm(W₂ act(norm(W₁ y))).

    The exact block crops before the attention, which gives the same.
    """
    block = block_for("D3", in_width=in_width, crop=1, convention=convention)
    for module in block.modules():
        if isinstance(module, FieldNorm):
            nn.init.normal_(module.weight)
            nn.init.normal_(module.bias)
    field = field_for("D3", width=in_width)
    first, norm_first, act, second, norm_second = block.mlp
    attended = block.attention(field_to_regular(F.silu(block.norm_in(field))))
    mixed = F.silu(block.norm_out(regular_to_field(attended)))
    inner = field[:, :, 1:-1, 1:-1]
    if in_width != 6:
        inner = inner @ block.shortcut.weight.T + block.shortcut.bias
    between = inner + mixed[:, :, 1:-1, 1:-1]
    expected = between + norm_second(second(act(norm_first(first(between)))))
    torch.testing.assert_close(block(field), expected, rtol=0, atol=1e-11)
    assert (first.out_features, second.in_features) == (3, 3)


@TWO_CONVENTIONS
def test_the_exact_block_crops_before_the_attention(convention):
    """Cropped tokens are not computed in vain; the published block computes them."""
    block, shapes = block_for("C4", crop=1, convention=convention), []
    block.attention.register_forward_hook(lambda *given: shapes.append(given[-1].shape[-2:]))
    block(field_for("C4"))
    assert shapes == [(2, 3) if convention.crop_before else (4, 5)]


@pytest.mark.parametrize("training", [True, False])
def test_dropout_of_the_block(training):
    torch.manual_seed(0)
    block, field = block_for("C4", dropout=0.5).train(training), field_for("C4")
    same = torch.equal(block(field), block(field))
    assert same != training


def test_gradients_reach_every_parameter():
    """Except those that add the same to all scores of a query, which cancels in the softmax."""
    block = block_for("D4", in_width=4, crop=1)
    (block(field_for("D4", width=4)) * torch.randn(1, 8, 2, 3, 6).double()).sum().backward()
    zero = {n for n, p in block.named_parameters() if p.grad.abs().max() < 1e-10}
    cancelled = {"project.to_key.bias", "place.row.mix.bias", "place.col.mix.bias"}
    assert zero == {f"attention.{name}" for name in cancelled}


# Crops and pools.


@pytest.mark.parametrize("name", GRID_GROUPS)
def test_equivariance_of_the_crop(name):
    assert error_of(lambda x: crop_field(x, 1), name, field_for(name)) == 0


def test_definition_of_the_crop():
    field = field_for("C2", 5, 7)
    cut = crop_field(field, 2)
    assert cut.shape == (1, 2, 1, 3, 6)
    for r, c in itertools.product(range(1), range(3)):
        assert torch.equal(cut[:, :, r, c], field[:, :, r + 2, c + 2])
    assert torch.equal(crop_field(field, 0), field)


SIZES = [(4, 4), (5, 5), (4, 6), (5, 7), (6, 5), (2, 3)]


@pytest.mark.parametrize(("rows", "cols"), SIZES)
@pytest.mark.parametrize("name", ["C4", "D4"])
def test_equivariance_of_the_pool(name, rows, cols):
    assert error_of(FieldPool(EXACT), name, field_for(name, rows, cols)) == 0


@pytest.mark.parametrize(("rows", "cols"), SIZES)
def test_definition_of_the_pool(rows, cols):
    """The maximum of windows that start at every second pixel and cover the whole side."""
    field = field_for("C2", rows, cols)
    out = FieldPool(EXACT)(field)
    assert out.shape == (1, 2, rows // 2, cols // 2, 6)
    for r, c in itertools.product(range(rows // 2), range(cols // 2)):
        window = field[:, :, 2 * r : 2 * r + 2 + rows % 2, 2 * c : 2 * c + 2 + cols % 2]
        assert torch.equal(out[:, :, r, c], window.amax(dim=(2, 3)))


def test_witness_the_pool_depends_on_every_pixel():
    pool = FieldPool(EXACT)
    for rows, cols in SIZES:
        for r, c in itertools.product(range(rows), range(cols)):
            field = torch.zeros(1, 1, rows, cols, 1)
            field[:, :, r, c] = 1
            assert pool(field).max() == 1


def test_control_the_published_pool_is_not_equivariant_on_odd_sizes():
    """There it ignores the last row and column."""
    pool = FieldPool(GSA_2021)
    assert error_of(pool, "C4", field_for("C4", 4, 6)) == 0
    assert error_of(pool, "C4", field_for("C4", 5, 5)) > 0.1


def test_pool_kernels_are_2_for_even_and_3_for_odd_sizes():
    assert [pool_kernel(size) for size in (2, 3, 4, 9)] == [2, 3, 2, 3]


def test_a_field_of_one_row_cannot_be_pooled():
    with pytest.raises(InputError, match="a field of 1 x 4 pixels is too small to pool"):
        FieldPool(EXACT)(torch.zeros(1, 4, 1, 4, 2))


@pytest.mark.parametrize("backend", ["plain", "streaming"])
def test_gradient_checkpointing_gives_identical_gradients(backend):
    """The second forward pass draws the same dropout as the first, also in the attention."""
    block = block_for("C4", dropout=0.3, width=6, backend=backend)
    plan = replace(block.attention.project.plan, dropout=0.3)
    block.attention.project.plan = plan
    block.train()
    field = field_for("C4").requires_grad_()

    def gradients(run):
        torch.manual_seed(0)
        inputs = [field, *block.parameters()]
        return torch.autograd.grad(run(field).square().sum(), inputs)

    stored = gradients(block)
    again = gradients(lambda x: checkpoint(block, x, use_reentrant=False))
    assert all(torch.equal(a, b) for a, b in zip(stored, again, strict=True))


def test_a_batch_norm_on_fields_has_one_mean_per_channel_and_is_equivariant():
    """Control: with an offset for each group element it is not equivariant."""
    norm, group = FieldBatchNorm(3).double(), PlanarGroup.named("D4")
    field = torch.randn(2, 8, 5, 5, 3, dtype=torch.float64)
    flat = field.flatten(0, 3)
    expected = (field - flat.mean(dim=0)) / (flat.var(dim=0, correction=0) + norm.eps).sqrt()
    torch.testing.assert_close(norm(field), expected)

    def error(function):
        return equivariance_error(function, group, field, act_in=act_on_field, act_out=act_on_field)

    assert error(norm) < 1e-12
    offset = torch.arange(8.0, dtype=torch.float64).view(8, 1, 1, 1)
    assert error(lambda x: norm(x) + offset) > 0.01


def test_the_style_of_a_block_is_its_norms_and_activations():
    plan = AttentionPlan(PlanarGroup.named("C4"), Neighbourhood(3), heads=1)
    block = GSABlock(plan, 6, 6, 0, 0.0, BlockStyle("batch", "relu"))
    kinds = [type(part) for part in block.modules()]
    assert kinds.count(FieldBatchNorm) == 4 and FieldNorm not in kinds
    assert kinds.count(nn.ReLU) == 2
