"""Imported fast GE-ViTs give the logits of the programs that wrote them, in float64."""

import pytest
import torch
from models.importing.golden_states import distance, images_of, in_float64, state_of

from turnwise.errors import InputError
from turnwise.groups import equivariance_error
from turnwise.models.importing.modern import build_modern


@pytest.mark.parametrize(("case", "exact"), [("modern_patches", True), ("modern_g_cnn", False)])
def test_modern_equivariant_vits(case, exact):
    images = images_of(case)
    model = in_float64(lambda s: build_modern(s, images.shape[-1]), state_of(case))
    assert distance(model(images), case) < 1e-10
    assert (equivariance_error(model, "C4", images) < 1e-8) == exact
    assert model.group.name == ("C4" if exact else "C1")


def test_control_another_filter_gives_other_logits():
    state, case = state_of("modern_g_cnn"), "modern_g_cnn"
    state["gcnn.gconvs.6.kernel.transformed_grid_R2xH"] *= 0.9
    model = in_float64(lambda s: build_modern(s, 40), state)
    assert distance(model(images_of(case)), case) > 1e-3


def test_other_files_are_refused():
    with pytest.raises(InputError, match=r"no keys that begin with gevit\. or group_transformer\."):
        build_modern({"weight": torch.zeros(3)})
