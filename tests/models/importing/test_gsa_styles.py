"""Imported GSA-Nets with BatchNorm or ReLU give the logits of their program, in float64."""

import pytest
from models.importing.golden_states import distance, images_of, in_float64, state_of

from turnwise.models.importing.gsa import build_original


@pytest.mark.parametrize("norm", ["BatchNorm", "LayerNorm"])
def test_gsa_nets_with_batch_norm_or_relu(norm):
    case = f"gsa_{norm}_ReLU"
    state = state_of(case)
    model = in_float64(lambda s: build_original(s, "gsa-nets", activation="relu"), state)
    assert model.config.options["norm"] == ("batch" if norm == "BatchNorm" else "layer")
    images = images_of(case)
    assert distance(model(images), case) < 1e-10
    other = in_float64(lambda s: build_original(s, "gsa-nets"), state)
    assert distance(other(images), case) > 1e-3, "control: with Swish it is another network"
