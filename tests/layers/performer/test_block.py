"""Parts of a Performer: random projections, redraws, attention by content, dropout, MLP, block."""

import math

import pytest
import torch
import torch.nn.functional as F

from turnwise.attention.favor import attend_by_features, favor_features
from turnwise.errors import InputError
from turnwise.groups import PlanarGroup
from turnwise.layers.performer.block import (
    MLP,
    ContentAttention,
    HashedDropout,
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


def test_rows_depend_on_the_global_seed():
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drawn.append(RandomProjection(8).rows)
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_a_resumed_run_draws_the_same_rows_as_an_uninterrupted_one():
    first = RandomProjection(8)
    first.draw()
    torch.manual_seed(99)
    second = RandomProjection(8)
    second.load_state_dict(first.state_dict())
    torch.rand(5)  # other draws do not matter
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


def test_every_projection_is_redrawn_after_interval_steps():
    assert [both[0] for both in redraws(3, 8)] == [0, 0, 0, 1, 1, 1, 2, 2]
    assert all(a == b for a, b in redraws(3, 8))
    assert [both[0] for both in redraws(1, 4)] == [0, 1, 2, 3]
    assert redraws(0, 4) == [[0, 0]] * 4


def test_a_loaded_counter_continues():
    """The copy of the counter on the host follows the state dict."""
    trunk, first, second = RandomProjection(4), Redraw(3), Redraw(3)
    for _ in range(2):
        first(trunk)
    second(trunk)
    second.load_state_dict(first.state_dict())
    for expected in (3, 1):
        second(trunk)
        assert int(second.calls) == expected == second.known
    assert int(trunk.draws) == 2


def test_a_hook_is_registered_only_if_there_is_something_to_redraw():
    assert Redraw(3).before(RandomProjection(4, redrawn=False)) is None
    assert Redraw(0).before(RandomProjection(4)) is None
    assert Redraw(3).before(torch.nn.Linear(2, 2)) is None
    assert Redraw(3).before(RandomProjection(4)) is not None


def test_published_redraws_come_one_step_late():
    assert [both[0] for both in redraws(3, 9, "tep-2021")] == [0, 0, 0, 1, 1, 1, 1, 2, 2]


def test_a_projection_may_be_fixed():
    assert redraws(1, 3, redrawn=False) == [[0, 0], [1, 0], [2, 0]]


# Attention.


@KERNELS
def test_equivariance_to_permutations_of_the_tokens(kernel):
    layer, tokens = attention_for(kernel), torch.randn(2, 6, 16).double()
    order = torch.randperm(6)
    torch.testing.assert_close(layer(tokens[:, order]), layer(tokens)[:, order])


@KERNELS
def test_equivariance_to_every_rotation_of_the_grid(kernel):
    """Rotations permute the tokens."""
    layer, tokens = attention_for(kernel), torch.randn(1, 9, 16).double()
    out = layer(tokens)
    for g in range(PlanarGroup(4).order):
        order = torch.arange(9).view(3, 3).rot90(g).flatten()
        assert (layer(tokens[:, order]) - out[:, order]).abs().max() < 1e-12


@KERNELS
def test_witness(kernel):
    layer, tokens = attention_for(kernel), torch.randn(2, 6, 16).double()
    assert layer(tokens).std(dim=1).max() > 1e-4, "outputs differ"
    other = tokens.clone()
    other[:, 0] += 1
    assert (layer(other)[:, 1:] - layer(tokens)[:, 1:]).abs().max() > 1e-5


@KERNELS
def test_a_sample_does_not_depend_on_the_rest_of_its_batch(kernel):
    layer, tokens = attention_for(kernel), torch.randn(3, 6, 16).double()
    tokens[2] *= 20
    torch.testing.assert_close(layer(tokens)[:1], layer(tokens[:1]), atol=1e-12, rtol=1e-12)


def test_control_published_features_depend_on_the_batch():
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


def wave_attention_and_inputs(kernel):
    layer = WaveAttention(8, 2, 3, make_kernel(kernel, 4)).double().train()
    return layer, torch.randn(2, 10, 8, dtype=torch.float64), torch.rand(9, 2, dtype=torch.float64)


@pytest.mark.parametrize("kernel", ["elu", "favor"])
def test_torch_func_computes_the_same_gradients(kernel):
    layer, tokens, positions = wave_attention_and_inputs(kernel)
    weights = dict(layer.named_parameters())

    def loss(weights):
        return torch.func.functional_call(layer, weights, (tokens, positions)).square().sum()

    expected = torch.autograd.grad(loss(weights), list(weights.values()))
    found = torch.func.grad(loss)({k: v.detach() for k, v in weights.items()})
    for one, other in zip(found.values(), expected, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("kind", ["content", "waves"])
def test_a_redraw_before_the_backward_pass_is_an_error(kind):
    layer, tokens, positions = wave_attention_and_inputs("favor")
    if kind == "content":
        layer, tokens = attention_for("favor"), torch.randn(2, 6, 16).double()
    loss = layer(tokens, positions).square().sum()
    layer.kernel.projection.draw()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_heads_are_split_and_merged():
    tokens = torch.randn(2, 3, 8)
    heads = split_heads(tokens, 4)
    assert torch.equal(heads[:, 1, :, 0], tokens[:, :, 2])
    assert torch.equal(merge_heads(heads), tokens)


# Dropout.


def test_definition_of_dropout():
    layer = HashedDropout(0.3).train()
    x = torch.randn(50, 40, dtype=torch.float64, requires_grad=True)
    torch.manual_seed(7)
    out = layer(x)
    kept = out != 0
    assert 0.6 < kept.double().mean() < 0.8
    torch.testing.assert_close(out[kept], x[kept] / (1 - 0.3), rtol=1e-4, atol=0.0)
    (gradient,) = torch.autograd.grad(out.sum(), x)
    assert torch.equal(gradient != 0, kept)


def test_dropout_keeps_the_mean():
    out = HashedDropout(0.25).train()(torch.ones(1000, 1000))
    error = math.sqrt(0.25 / 0.75 / out.numel())
    assert abs(out.mean() - 1) < 5 * error


def test_dropout_depends_on_the_seed():
    layer, x = HashedDropout(0.5).train(), torch.ones(64)
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drawn.append(layer(x))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_dropout_does_nothing_in_eval_mode_or_at_rate_zero():
    x = torch.randn(3, 4)
    assert HashedDropout(0.5).eval()(x) is x
    assert HashedDropout(0.0).train()(x) is x


def test_dropout_on_a_cpu_where_the_default_device_is_another():
    with torch.device("meta"):
        dropped = HashedDropout(0.5).train()(torch.ones(100, device="cpu"))
    assert dropped.device.type == "cpu" and 0 < dropped.count_nonzero() < 100


def test_under_torch_func_dropout_is_that_of_torch():
    """Each example of a `vmap` has its own mask, which the hash could not give."""
    layer = HashedDropout(0.5).train()
    drawn = torch.func.vmap(layer, randomness="different")(torch.ones(2, 64))
    assert not torch.equal(drawn[0], drawn[1])


# The MLP.


def test_equivariance_and_witness_of_the_mlp():
    """It acts on each token alone, and is not linear."""
    layer, x, order = MLP(6, 10, HashedDropout(0.0)).double(), torch.randn(2, 7, 6).double(), [3, 1]
    torch.testing.assert_close(layer(x[:, order]), layer(x)[:, order])
    assert layer(x).std(dim=1).max() > 1e-2
    assert (layer(2 * x) - 2 * layer(x)).abs().max() > 1e-2
    assert (layer(x.flip(-1)) - layer(x)).abs().max() > 1e-2


def test_definition_of_the_mlp():
    layer, x = MLP(6, 10, HashedDropout(0.0)).double(), torch.randn(3, 6).double()
    for token, found in zip(x, layer(x), strict=True):
        hidden = [F.gelu(w @ token + b) for w, b in zip(*layer.spread.parameters(), strict=True)]
        for w, b, channel in zip(*layer.gather.parameters(), found, strict=True):
            total = sum(a * h for a, h in zip(w, hidden, strict=True))
            torch.testing.assert_close(channel, total + b)


@pytest.mark.parametrize("rate", [0.0, 0.4])
def test_gradients_of_the_mlp_can_be_differentiated_again(rate):
    layer = MLP(6, 10, HashedDropout(rate)).double()
    names = [name for name, _ in layer.named_parameters()]

    def output(x, *weights):
        torch.manual_seed(3)  # the same mask each time
        return torch.func.functional_call(layer, dict(zip(names, weights, strict=True)), x)

    x = torch.randn(2, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(output, (x, *layer.parameters()))


# The block.


def test_definition_of_the_block():
    block, tokens = (
        PerformerBlock(16, attention_for("elu")).double(),
        torch.randn(2, 6, 16).double(),
    )
    half = tokens + block.attention(block.norm_attention(tokens))
    hidden = F.gelu(block.mlp.spread(block.norm_mlp(half)))
    torch.testing.assert_close(block(tokens), half + block.mlp.gather(hidden))


@KERNELS
def test_the_output_of_the_first_token_can_be_computed_alone(kernel):
    block, tokens = PerformerBlock(16, attention_for(kernel)).double(), torch.randn(2, 6, 16)
    alone = block(tokens.double(), None, True)
    assert alone.shape == (2, 1, 16)
    torch.testing.assert_close(alone, block(tokens.double())[:, :1])


def test_the_published_variant_uses_dropout_of_torch():
    block = PerformerBlock(16, attention_for("favor"), ff_dropout=0.5, variant="tep-2021")
    assert type(block.dropout) is type(block.mlp.dropout) is torch.nn.Dropout


@pytest.mark.parametrize("which", ["attention_dropout", "ff_dropout"])
def test_each_dropout_of_the_block_acts_in_training(which):
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
        (lambda: HashedDropout(-0.1), "dropout = -0.1 must be from 0 to below 1"),
        (lambda: Redraw(-1), "redraw_interval = -1 must be positive, or 0"),
    ],
)
def test_invalid_options_raise_errors(make, words):
    with pytest.raises(InputError, match=words):
        make()


def test_repr_of_dropout():
    assert repr(HashedDropout(0.25)) == "HashedDropout(rate=0.25)"
