"""Mixers turn with the map; pooling leaves a constant alone, attention knows no place."""

import pytest
import torch
from torch import nn

from turnwise.errors import InputError
from turnwise.groups import act_on_image, equivariance_errors
from turnwise.layers.roto.metaformer import AttentionMixer, PoolMixer, far_mask


def maps(rows=5, cols=5):
    return torch.randn(2, 8, rows, cols, dtype=torch.float64)


def attention(**options):
    mixer = AttentionMixer(8, 4, **options).double()
    for weight in mixer.parameters():
        nn.init.normal_(weight, std=0.5)
    return mixer


MIXERS = {
    "pool": PoolMixer,
    "pool of 5": lambda: PoolMixer(5),
    "attention": attention,
    "attention in a window": lambda: attention(window=3),
}
all_mixers = pytest.mark.parametrize("make", MIXERS.values(), ids=MIXERS)


@all_mixers
@pytest.mark.parametrize("shape", [(5, 5), (4, 4), (6, 3)])
def test_law(make, shape):
    errors = equivariance_errors(make(), "D4", maps(*shape), act_out=act_on_image)
    assert max(errors) < 1e-12


@all_mixers
def test_witness(make):
    mixer, x = make(), maps()
    moved = x.clone()
    moved[:, :, 0, 0] += 1
    change = (mixer(moved) - mixer(x)).abs().amax(dim=(0, 1))
    assert change[0, 1] > 1e-3, "neighbours are told"
    y = mixer(x)
    assert (act_on_image("D4", 1, y) - y).abs().max() > 1e-3


def test_control_a_pool_off_the_centre_breaks_the_law():
    def pool(x):
        return nn.functional.avg_pool2d(nn.functional.pad(x, (1, 0, 1, 0)), 2, 1)

    assert max(equivariance_errors(pool, "D4", maps(), act_out=act_on_image)) > 0.1


def test_definition_of_pooling():
    """The mean over the neighbours that there are, minus the pixel, on a rectangle."""
    x = maps(4, 3)
    expected = torch.zeros_like(x)
    for row in range(4):
        for col in range(3):
            near = x[:, :, max(0, row - 1) : row + 2, max(0, col - 1) : col + 2]
            expected[:, :, row, col] = near.mean(dim=(2, 3)) - x[:, :, row, col]
    torch.testing.assert_close(PoolMixer()(x), expected)


def test_pooling_leaves_a_constant_alone():
    assert PoolMixer()(torch.full((1, 2, 5, 7), 3.0)).abs().max() == 0
    padded = nn.functional.avg_pool2d(torch.ones(1, 1, 5, 7), 3, 1, 1) - 1
    assert padded[0, 0, 0, 0] == pytest.approx(-5 / 9), "the control: pads that count"


@pytest.mark.parametrize("window", [0, 3])
def test_definition_of_attention(window):
    """softmax over the pixels in reach, pixel by pixel and head by head."""
    mixer, x = attention(window=window), maps(4, 3)
    inner = mixer.attention
    tokens = x.permute(0, 2, 3, 1)
    query, key, value = (tokens @ inner.to_query_key_value.weight.T).split(8, dim=-1)
    mixed = torch.zeros_like(tokens)
    places = [(row, col) for row in range(4) for col in range(3)]
    for row, col in places:
        reach = [(r, c) for r, c in places if not window or max(abs(r - row), abs(c - col)) <= 1]
        for head in (slice(0, 4), slice(4, 8)):
            scores = [(query[:, row, col, head] * key[:, r, c, head]).sum(-1) / 2 for r, c in reach]
            weight = torch.softmax(torch.stack(scores, -1), -1)
            for index, (r, c) in enumerate(reach):
                mixed[:, row, col, head] += weight[:, index, None] * value[:, r, c, head]
    expected = mixed @ inner.to_output.weight.T + inner.to_output.bias
    torch.testing.assert_close(mixer(x), expected.permute(0, 3, 1, 2))


def test_a_window_over_everything_is_no_window():
    wide, whole = attention(window=9), attention()
    whole.load_state_dict(wide.state_dict())
    x = maps()
    torch.testing.assert_close(wide(x), whole(x))


@pytest.mark.parametrize("window", [0, 3])
def test_backends_agree_forward_and_backward(window):
    plain, fast = attention(window=window, backend="plain"), attention(window=window)
    fast.load_state_dict(plain.state_dict())
    x = maps()
    results = []
    for mixer in (plain, fast):
        y = mixer(x)
        results.append([y, *torch.autograd.grad(y.square().sum(), list(mixer.parameters()))])
    for found, wanted in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(found, wanted)


def test_queries_keys_and_values_have_no_bias_as_published():
    names = {name for name, _ in AttentionMixer(8, 4).named_parameters()}
    prefix = "attention.to_"
    assert names == {f"{prefix}query_key_value.weight", f"{prefix}output.weight",
                     f"{prefix}output.bias"}  # fmt: skip
    assert sum(p.numel() for p in AttentionMixer(64).parameters()) == 4 * 64 * 64 + 64


def test_the_mask_counts_pixels():
    mask = far_mask(3, 4, 3, torch.zeros(1))
    assert (mask[0] == 0).nonzero().flatten().tolist() == [0, 1, 4, 5]
    assert torch.equal(mask, mask.T)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: PoolMixer(2), "window = 2 must be odd"),
        (lambda: AttentionMixer(8, 4, window=4), "window = 4 must be odd, or 0"),
        (lambda: AttentionMixer(8, 4, window=-1), "window = -1 must be odd, or 0"),
        (lambda: AttentionMixer(40, 32), r"width = 40 must be a multiple of 32 .* try 32 or 64"),
    ],
)
def test_nonsense_is_refused(make, said):
    with pytest.raises(InputError, match=said):
        make()
