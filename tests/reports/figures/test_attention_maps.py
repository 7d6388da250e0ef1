"""Weights read off as derivatives are the softmax that the formulas define."""

import pytest
import torch

from turnwise.attention.rotary import own_frame_phases
from turnwise.errors import InputError
from turnwise.geometry.grids import pixel_centres
from turnwise.reports.figures.attention_maps import Gaze, attention_layers, attention_of, grid_of

NAMES = ["gsa_net", "turnwise_vit_nano", "vit"]


def image_of(subject):
    return subject.pictures.images[:1].double() / 255


@pytest.mark.parametrize("name", NAMES)
def test_weights_sum_to_one_and_differ(make_subject, name):
    subject = make_subject(name, dtype=torch.float64)
    for layer in range(len(attention_layers(subject.model))):
        weights = attention_of(
            subject.model,
            image_of(subject),
            Gaze(layer, 1 % 2 if name != "turnwise_vit_nano" else 0, 0, 2, 3),
        )
        assert float(weights.sum()) == pytest.approx(1)
        assert weights.min() >= 0 and weights.std() > 1e-6


def test_definition_plain(make_subject):
    """softmax(q·k / √dim), spelled out for one token and head of the first layer."""
    subject = make_subject("vit", dtype=torch.float64)
    model, image = subject.model, image_of(subject)
    block = model.blocks[0]
    tokens = block.norm_attention(model.patches(model.preprocess(image)) + model.position)
    query, key, _ = (
        block.attention.to_query_key_value(tokens)[0].unflatten(-1, (3, 2, -1)).unbind(1)
    )
    expected = torch.stack([query[1 * 4 + 2, 1] @ key[s, 1] / 8**0.5 for s in range(16)]).softmax(0)
    weights = attention_of(model, image, Gaze(0, 1, 0, 1, 2))
    torch.testing.assert_close(weights, expected.detach().view(1, 4, 4))


def test_definition_rotary(make_subject):
    """softmax(F_q·F_k / √dim) in pose 3, with each pair of channels turned by its phase."""
    subject = make_subject("turnwise_vit_nano", dtype=torch.float64)
    model, image = subject.model, image_of(subject)
    layer, kept = attention_layers(model)[0], {}
    handle = layer.register_forward_pre_hook(lambda m, given: kept.update(tokens=given[0]))
    model(model.preprocess(image))
    handle.remove()
    split = layer.to_query_key_value(kept["tokens"]).unflatten(-1, (3, 1, -1))[0, :, 3, :, 0]
    positions = pixel_centres(7, 7).flatten(0, 1)
    phases = own_frame_phases(layer.frequency, layer.matrices, positions)[3, 0]
    half = split.shape[-1] // 2
    complex_ = torch.complex(split[..., :half], split[..., half:]) * torch.exp(1j * phases)[:, None]
    query, key, _ = complex_.unbind(1)
    score = torch.stack([(query[9] * key[s].conj()).real.sum() for s in range(49)])
    expected = (score / (2 * half) ** 0.5).softmax(0).detach()
    weights = attention_of(model, image, Gaze(0, 0, 3, 1, 2))
    torch.testing.assert_close(weights[3].flatten(), expected)
    assert float(weights.sum() - weights[3].sum()) == 0  # poses attend among themselves


def test_a_window_has_no_weight_outside(make_subject):
    subject = make_subject("gsa_net", dtype=torch.float64)
    weights = attention_of(subject.model, image_of(subject), Gaze(0, 0, 0, 5, 5)).sum(0)
    outside = weights.clone()
    outside[4:7, 4:7] = 0
    assert outside.abs().max() == 0 and (weights[4:7, 4:7] > 0).all()


def test_grids_are_those_of_the_layers(make_subject):
    subject = make_subject("gsa_net")
    image = image_of(subject).float()
    assert grid_of(subject.model, image, 0) == (4, 12, 12, 2)
    assert grid_of(make_subject("turnwise_vit_nano").model, torch.rand(1, 1, 28, 28), 1) == (
        4,
        7,
        7,
        1,
    )


@pytest.mark.parametrize(
    ("gaze", "said"),
    [
        (Gaze(9, 0, 0, 0, 0), "there is no layer 9; they are 0 to 1"),
        (Gaze(0, 5, 0, 0, 0), "heads 0 to 1 and poses 0 to 0"),
        (Gaze(0, 0, 1, 0, 0), "heads 0 to 1 and poses 0 to 0"),
        (Gaze(0, 0, 0, 4, 0), "rows 0 to 3 and columns 0 to 3"),
    ],
)
def test_what_the_layer_has_not(make_subject, gaze, said):
    with pytest.raises(InputError, match=said):
        attention_of(make_subject("vit").model, torch.rand(1, 1, 28, 28), gaze)


def test_a_model_without_attention(quadrant):
    with pytest.raises(InputError, match="Quadrant has no attention"):
        attention_of(quadrant.model, torch.rand(1, 1, 8, 8), Gaze(0, 0, 0, 0, 0))
