"""The head is found in anybody's model, and what it is given is the vector before the logits."""

import copy
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from turnwise.errors import InputError
from turnwise.models import create_model
from turnwise.models.heads import HeadListener, find_head, head_width, logits_of


class Named(nn.Module):
    """A classifier that ends in `fc`, with another linear layer after it in its list of parts."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(5, 3)
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.ReLU())

    def forward(self, x):
        return self.fc(self.body(x))


def test_where_the_head_is():
    assert find_head(Named()) == "fc"
    assert find_head(create_model("vit", width=8, depth=1, heads=2)) == "head"
    last = nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.ReLU(), nn.Linear(5, 3))
    assert find_head(last) == "3"
    assert find_head(last, "1") == "1"
    assert find_head(nn.Linear(4, 2)) == ""


def test_how_wide_it_is():
    assert head_width(nn.Linear(5, 3)) == 5
    assert head_width(nn.Sequential(nn.LayerNorm(7), nn.Linear(7, 3))) == 7
    with pytest.raises(InputError, match=r"a ReLU does not tell how many numbers it takes; name"):
        head_width(nn.ReLU())


def test_definition():
    """head(features) is what the model answers, and nothing is kept afterwards."""
    model, x = Named(), torch.rand(2, 1, 4, 4)
    listener = HeadListener(model.fc)
    for _ in range(2):
        features = listener.features(model, x)
        assert torch.equal(features, model.body(x))
        assert torch.equal(model.fc(features), model(x))
        assert listener.given == {}, "it hears only when it is asked to"


def test_a_model_that_fails_leaves_nothing_to_be_heard():
    model, x = Named(), torch.rand(2, 1, 4, 4)
    listener = HeadListener(model.fc)
    with pytest.raises(RuntimeError):
        listener.features(model, torch.rand(2, 1, 5, 5))
    assert listener.given == {}
    assert torch.equal(listener.features(model, x), model.body(x))


def test_each_thread_hears_its_own_pictures():
    """Two look at once: the second has begun before the first is done."""
    model, met = Named(), threading.Barrier(2, timeout=60)

    def wait(*_):
        met.wait()

    model.fc.register_forward_pre_hook(wait)
    listener, pictures = HeadListener(model.fc), [torch.rand(2, 1, 4, 4) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        heard = list(pool.map(lambda x: listener.features(model, x), pictures))
    for features, x in zip(heard, pictures, strict=True):
        assert torch.equal(features, model.body(x))


def test_a_copy_has_its_own_listener():
    """And two listeners on one head hear the same."""
    model, x = Named(), torch.rand(2, 1, 4, 4)
    pair = (model, HeadListener(model.fc))
    copied, listener = copy.deepcopy(pair)
    assert listener.head is copied.fc and listener is not pair[1]
    nn.init.zeros_(copied.body[1].weight)
    assert not torch.equal(listener.features(copied, x), pair[1].features(model, x))
    second = HeadListener(model.fc)
    assert torch.equal(second.features(model, x), pair[1].features(model, x))


def test_a_head_that_sees_no_vectors_is_refused():
    """GSA-Net scores each pose and pixel, and pools afterwards."""
    model = create_model("gsa_net", image_size=14, widths=[[6]], width=6, heads=1, window=3)
    with pytest.raises(InputError, match=r"one vector for each of 2 pictures, got \[\(2, 4, "):
        HeadListener(model.head).features(model, torch.rand(2, 1, 14, 14))


@pytest.mark.parametrize(
    ("model", "path", "words"),
    [
        (nn.Flatten(), "", "no linear layer was found in a Flatten; name the part"),
        (Named(), "top", r"a Named has no part 'top'; .*head=\"fc\""),
    ],
)
def test_no_head(model, path, words):
    with pytest.raises(InputError, match=words):
        find_head(model, path)


def test_logits_of_other_programs():
    logits = torch.rand(2, 3)
    assert logits_of(logits) is logits
    assert logits_of(SimpleNamespace(logits=logits)) is logits
    with pytest.raises(InputError, match="must answer with a tensor, got a tuple"):
        logits_of((logits,))
