"""Vectors are read from tensors, tokens, maps and outputs of Hugging Face."""

from types import SimpleNamespace

import pytest
import torch

from turnwise.errors import InputError
from turnwise.models.contract import logits_of
from turnwise.models.pooled import pool_output

TOKENS, MAPS, VECTORS = torch.rand(2, 6, 4), torch.rand(2, 4, 3, 3), torch.rand(2, 4)


def output(tokens=TOKENS, pooler=None):
    return SimpleNamespace(last_hidden_state=tokens, pooler_output=pooler)


@pytest.mark.parametrize("wrap", [lambda x: x, output])
def test_tokens_become_the_first_or_the_mean_of_the_others(wrap):
    assert torch.equal(pool_output(wrap(TOKENS)), TOKENS[:, 0])
    assert torch.equal(pool_output(wrap(TOKENS), "cls"), TOKENS[:, 0])
    assert torch.equal(pool_output(wrap(TOKENS), "mean"), TOKENS[:, 1:].mean(1))
    assert torch.equal(pool_output(wrap(TOKENS), "mean", prefix=3), TOKENS[:, 3:].mean(1))
    assert torch.equal(pool_output(wrap(TOKENS), "mean", prefix=0), TOKENS.mean(1))


def test_maps_are_averaged_and_vectors_are_left_alone():
    for pool in ("auto", "mean"):
        assert torch.equal(pool_output(output(MAPS), pool), MAPS.mean((-2, -1)))
    assert torch.equal(pool_output(VECTORS), VECTORS)


def test_the_pooler_is_used_if_it_is_requested():
    assert torch.equal(pool_output(output(pooler=VECTORS), "pooler"), VECTORS)
    with pytest.raises(InputError, match="has no pooler_output; use cls or mean"):
        pool_output(output(), "pooler")


def test_an_orbit_takes_the_class_token_of_an_output_without_logits():
    assert torch.equal(logits_of(output()), TOKENS[:, 0])
    assert torch.equal(
        logits_of(SimpleNamespace(logits=VECTORS, last_hidden_state=TOKENS)), VECTORS
    )


@pytest.mark.parametrize(
    ("given", "pool", "message"),
    [
        ("text", "auto", "must return a tensor or last_hidden_state, got a str"),
        (VECTORS, "cls", "which need no pooling 'cls'"),
        (VECTORS, "first", "unknown pooling 'first'"),
    ],
)
def test_other_outputs_are_refused(given, pool, message):
    with pytest.raises(InputError, match=message):
        pool_output(given, pool)
