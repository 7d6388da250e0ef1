"""Parts of a Performer: projections follow their seed, redraws come when they should, kernels."""

import pytest
import torch

from turnwise.attention.favor import attend_by_features, favor_features
from turnwise.errors import InputError
from turnwise.groups import PlanarGroup
from turnwise.layers.performer.block import (
    ContentAttention,
    PerformerBlock,
    RandomProjection,
    Redraw,
    make_kernel,
    merge_heads,
    split_heads,
)
from turnwise.layers.performer.positions import WaveAttention

KERNELS = pytest.mark.parametrize("kernel", ["favor", "elu", "relu", None])


def attention_for(kernel, variant="exact"):
    made = None if kernel is None else make_kernel(kernel, 8, variant)
    return ContentAttention(16, 2, made).double()


# Random projections.


def test_rows_follow_the_global_seed():
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drawn.append(RandomProjection(8).rows)
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_a_resumed_run_draws_what_it_would_have_drawn():
    first = RandomProjection(8)
    first.draw()
    torch.manual_seed(99)
    second = RandomProjection(8)
    second.load_state_dict(first.state_dict())
    torch.rand(5)  # what else is random does not matter
    for projection in (first, second):
        projection.draw()
    assert torch.equal(first.rows, second.rows)
    assert int(first.draws) == 3


def redraws(interval, steps, variant="exact", redrawn=True):
    trunk = torch.nn.ModuleList([RandomProjection(4), RandomProjection(4, redrawn=redrawn)])
    redraw = Redraw(interval, variant)
    history = []
    for _ in range(steps):
        redraw(trunk)
        history.append([int(projection.draws) - 1 for projection in trunk])
    return history


def test_redraws_come_on_time():
    """After `interval` steps with the same features, in every projection."""
    assert [both[0] for both in redraws(3, 8)] == [0, 0, 0, 1, 1, 1, 2, 2]
    assert all(a == b for a, b in redraws(3, 8))
    assert [both[0] for both in redraws(1, 4)] == [0, 1, 2, 3]
    assert redraws(0, 4) == [[0, 0]] * 4


def test_a_loaded_count_goes_on():
    """The count that the host keeps is that of the weights."""
    trunk, first, second = RandomProjection(4), Redraw(3), Redraw(3)
    for _ in range(2):
        first(trunk)
    second(trunk)
    second.load_state_dict(first.state_dict())
    for expected in (3, 1):
        second(trunk)
        assert int(second.calls) == expected == second.known
    assert int(trunk.draws) == 2


def test_only_what_is_drawn_is_listened_to():
    assert Redraw(3).before(RandomProjection(4, redrawn=False)) is None
    assert Redraw(0).before(RandomProjection(4)) is None
    assert Redraw(3).before(torch.nn.Linear(2, 2)) is None
    assert Redraw(3).before(RandomProjection(4)) is not None


def test_published_redraws_come_one_step_late():
    assert [both[0] for both in redraws(3, 9, "tep-2021")] == [0, 0, 0, 1, 1, 1, 1, 2, 2]


def test_a_projection_may_be_kept():
    assert redraws(1, 3, redrawn=False) == [[0, 0], [1, 0], [2, 0]]


# Attention.


@KERNELS
def test_law_shuffled_tokens_give_shuffled_answers(kernel):
    layer, tokens = attention_for(kernel), torch.randn(2, 6, 16).double()
    order = torch.randperm(6)
    torch.testing.assert_close(layer(tokens[:, order]), layer(tokens)[:, order])


@KERNELS
def test_law_of_every_turn_of_the_grid(kernel):
    """A permutation of the tokens among others."""
    layer, tokens = attention_for(kernel), torch.randn(1, 9, 16).double()
    out = layer(tokens)
    for turns in range(PlanarGroup(4).order):
        order = torch.arange(9).view(3, 3).rot90(turns).flatten()
        assert (layer(tokens[:, order]) - out[:, order]).abs().max() < 1e-12


@KERNELS
def test_witness(kernel):
    layer, tokens = attention_for(kernel), torch.randn(2, 6, 16).double()
    assert layer(tokens).std(dim=1).max() > 1e-4, "tokens hear different things"
    other = tokens.clone()
    other[:, 0] += 1
    assert (layer(other)[:, 1:] - layer(tokens)[:, 1:]).abs().max() > 1e-5


@KERNELS
def test_a_sample_does_not_depend_on_its_batch_mates(kernel):
    layer, tokens = attention_for(kernel), torch.randn(3, 6, 16).double()
    tokens[2] *= 20
    torch.testing.assert_close(layer(tokens)[:1], layer(tokens[:1]), atol=1e-12, rtol=1e-12)


def test_control_published_features_depend_on_them():
    layer, tokens = attention_for("favor", "tep-2021"), torch.randn(3, 6, 16).double()
    tokens[2] *= 20
    assert (layer(tokens)[:1] - layer(tokens[:1])).abs().max() > 1e-6


def test_definition():
    layer, tokens = attention_for("favor"), torch.randn(2, 6, 16).double()
    rows = layer.kernel.projection.rows
    query, key, value = (
        to(tokens).view(2, 6, 2, 8).transpose(1, 2)
        for to in (layer.to_query, layer.to_key, layer.to_value)
    )
    mixed = attend_by_features(
        favor_features(query, rows, of_keys=False), favor_features(key, rows, of_keys=True),
        value, backend="plain",
    )  # fmt: skip
    torch.testing.assert_close(
        layer(tokens), layer.to_output(mixed.transpose(1, 2).reshape(2, 6, 16))
    )


def trained_by(kernel):
    layer = WaveAttention(8, 2, 3, make_kernel(kernel, 4)).double().train()
    return layer, torch.randn(2, 10, 8, dtype=torch.float64), torch.rand(9, 2, dtype=torch.float64)


def test_what_is_made_again_has_the_same_gradients_and_torch_func_has_them_too():
    layer, tokens, places = trained_by("elu")
    weights = dict(layer.named_parameters())

    def loss(weights):
        return torch.func.functional_call(layer, weights, (tokens, places)).square().sum()

    made_again = torch.autograd.grad(loss(weights), list(weights.values()))
    by_function = torch.func.grad(loss)({k: v.detach() for k, v in weights.items()})
    kept = torch.autograd.grad(layer.eval()(tokens, places).square().sum(), list(weights.values()))
    for again, functional, plain in zip(made_again, by_function.values(), kept, strict=True):
        torch.testing.assert_close(again, plain)
        torch.testing.assert_close(functional, plain)


def test_features_drawn_anew_before_the_way_back_are_an_error():
    layer, tokens, places = trained_by("favor")
    loss = layer(tokens, places).square().sum()
    layer.kernel.projection.draw()
    with pytest.raises(RuntimeError, match="drawn anew between a call and its backward pass"):
        loss.backward()


def test_heads_are_split_and_merged():
    tokens = torch.randn(2, 3, 8)
    heads = split_heads(tokens, 4)
    assert torch.equal(heads[:, 1, :, 0], tokens[:, :, 2])
    assert torch.equal(merge_heads(heads), tokens)


def test_definition_of_the_block():
    block, tokens = (
        PerformerBlock(16, attention_for("elu")).double(),
        torch.randn(2, 6, 16).double(),
    )
    half = tokens + block.attention(block.norm_attention(tokens))
    spread = torch.nn.functional.gelu(block.mlp.spread(block.norm_mlp(half)))
    torch.testing.assert_close(block(tokens), half + block.mlp.gather(spread))


@KERNELS
def test_the_first_token_may_ask_alone(kernel):
    block, tokens = PerformerBlock(16, attention_for(kernel)).double(), torch.randn(2, 6, 16)
    alone = block(tokens.double(), None, True)
    assert alone.shape == (2, 1, 16)
    torch.testing.assert_close(alone, block(tokens.double())[:, :1])


def test_as_published_the_layers_are_torchs_own():
    block = PerformerBlock(16, attention_for("favor"), ff_dropout=0.5, variant="tep-2021")
    assert type(block.dropout) is type(block.mlp.dropout) is torch.nn.Dropout
    assert block.mlp.backend == "plain"


@pytest.mark.parametrize("which", ["attention_dropout", "ff_dropout"])
def test_each_dropout_drops(which):
    block = PerformerBlock(16, attention_for("elu"), **{which: 0.5}).double()
    tokens = torch.randn(2, 6, 16).double()
    assert (block(tokens) - block(tokens)).abs().max() > 1e-2
    block.eval()
    assert torch.equal(block(tokens), block(tokens))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: make_kernel("flavor", 8), r"unknown kernel 'flavor'\. Did you mean 'favor'\?"),
        (lambda: make_kernel("favor", 8, "tep"), "unknown variant 'tep'"),
        (lambda: ContentAttention(15, 2, None), "width = 15 must be a multiple of 2"),
        (lambda: PerformerBlock(8, torch.nn.Identity(), ff_dropout=1.0), "ff_dropout = 1.0"),
        (lambda: Redraw(-1), "redraw_interval = -1 must be positive, or 0"),
    ],
)
def test_refusals(make, words):
    with pytest.raises(InputError, match=words):
        make()
