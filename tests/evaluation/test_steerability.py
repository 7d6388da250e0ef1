"""Changes off the grid: exact at quarter rotations, not zero between them, and as defined."""

import pytest
import torch

from turnwise.evaluation.steerability import change_over_angles, outputs_of, spots, steerability
from turnwise.geometry.warps import rotate_image
from turnwise.groups import act_on_image
from turnwise.models import create_model

SMALL = {"heads": 2, "width": 6, "widths": [[6], [6]], "crops": [[2], [1]], "image_size": 12}


@pytest.fixture
def model():
    torch.manual_seed(0)
    return create_model("gsa_net", "C4", 3, 1, **SMALL).double().eval()


def test_spots_are_drawn_where_the_rotation_moves_them():
    upright = spots(3, 1, 16, 0.0)
    torch.testing.assert_close(spots(3, 1, 16, 90.0), act_on_image("C4", 1, upright))
    assert (spots(3, 1, 16, 45.0) - upright).abs().max() > 0.1


def test_quarter_rotations_change_nothing_and_others_do(model):
    changes = steerability(model, 1, 12, [0.0, 45.0, 90.0], count=4)
    for output in ("logits", "features"):
        for way in ("redrawn", "interpolated"):
            zero, between, quarter = changes[output][way]
            assert (zero, quarter) == (pytest.approx(0, abs=1e-12), pytest.approx(0, abs=1e-5))
            assert between > 1e-4


def test_control_a_plain_network_changes_at_quarter_rotations():
    plain = create_model("vit", "C4", 3, 1, 12, patch=4, width=16, depth=1, heads=2).eval()
    changes = steerability(plain, 1, 12, [90.0], count=4)
    assert changes["logits"]["redrawn"][0] > 0.01


def test_definition_of_a_change():
    def total(images):
        return images.flatten(1)[:, ::7].double()

    found = change_over_angles(total, 1, 16, [30.0], count=4)
    before = total(spots(4, 1, 16, 0.0))
    for way, after in (
        ("redrawn", spots(4, 1, 16, 30.0)),
        ("interpolated", rotate_image(spots(4, 1, 16, 0.0), 30.0, "zeros")),
    ):
        expected = (total(after) - before).abs().mean() / before.std(dim=0).mean()
        assert found[way] == [pytest.approx(float(expected))]


def test_outputs_are_the_logits_and_the_features_before_them(model):
    images = torch.rand(2, 1, 12, 12)
    outputs = outputs_of(model)
    torch.testing.assert_close(
        outputs["logits"](images).float(),
        model(model.preprocess(images.double())).detach().float(),
    )
    assert outputs["features"](images).shape == (2, 6)
