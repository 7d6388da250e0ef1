"""Every parameter of ours has its counterpart, and theirs are all used."""

import json
from pathlib import Path

import pytest
import torch

from turnwise.models import create_model
from turnwise.models.importing.roto_keys import block, convolution, counterparts_of, is_buffer

KEYS = json.loads((Path(__file__).parents[2] / "golden" / "roto.keys.json").read_text())


@pytest.mark.parametrize("name", KEYS)
@pytest.mark.parametrize("prefix", ["", "roto_"])
def test_the_keys_and_shapes_are_those_of_the_original(prefix, name):
    with torch.device("meta"):
        model = create_model(prefix + name, "D4", num_classes=1000, in_chans=3, image_size=64)
    pairs = counterparts_of(model)
    ours = {pairs[key].key: list(values.shape) for key, values in model.named_parameters()}
    assert ours == dict(map(tuple, KEYS[name]["parameters"]))
    assert KEYS[name]["buffers"] == []


def test_no_two_parameters_share_a_counterpart():
    with torch.device("meta"):
        model = create_model("metaformer_s12_ppaa")
    found = [pair.key for pair in counterparts_of(model).values()]
    assert len(found) == len(set(found)) == len(list(model.parameters()))


def test_names():
    assert [convolution(n) for n in range(3)] == [
        "patch_embed.proj", "network.1.proj", "network.3.proj"
    ]  # fmt: skip
    assert block(3, 1) == "network.6.1"
    assert not is_buffer("head.weight")
