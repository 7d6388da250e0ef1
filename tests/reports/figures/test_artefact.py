"""Spots turn without interpolation; quarter turns move nothing and 45° does, by known amounts."""

import pytest
import torch

from turnwise.groups import act_on_image
from turnwise.reports.figures.artefact import artefact_figure, change_over_angles, spots


def test_spots_turn_exactly_by_quarters_and_move_between():
    upright = spots(3, 1, 16, 0.0)
    assert upright.shape == (3, 1, 16, 16)
    torch.testing.assert_close(spots(3, 1, 16, 90.0), act_on_image("C4", 1, upright))
    assert (spots(3, 1, 16, 45.0) - upright).abs().max() > 0.1
    assert (upright[0] - upright[1]).abs().max() > 0.1


class Total(torch.nn.Module):
    """Two scores: the sum of all pixels, which no turn should change, and that of the left half."""

    def preprocess(self, images):
        return images

    def forward(self, images):
        return torch.stack([images.sum((1, 2, 3)), images[..., :8].sum((1, 2, 3))], dim=-1)


def test_the_change_is_the_mean_move_over_the_spread():
    change = change_over_angles(Total(), 1, 16, [0.0, 90.0], count=4)
    before = Total()(spots(4, 1, 16, 0.0))
    after = Total()(spots(4, 1, 16, 90.0))
    expected = float((after - before).abs().mean() / before.std(dim=0).mean())
    assert change["drawn anew"] == pytest.approx([0.0, expected], abs=1e-6)
    assert change["interpolated"][1] == pytest.approx(expected, abs=1e-5)
    assert expected > 0.1


def test_law_and_control(make_subject):
    """Exact by quarters, off the grid not; the plain model moves at both."""
    figure, rows = artefact_figure([make_subject("orbit_vit"), make_subject("vit")])
    change = {name: [float(cell) for cell in cells] for name, *cells in rows}
    for how in ("interpolated", "drawn anew"):
        _, at_45, at_90 = change[f"orbit_vit, {how}"]
        assert at_90 < 1e-5 < 1e-2 < at_45
        assert change[f"vit, {how}"][2] > 1e-2
    assert figure.axes[0].get_yscale() == "log"
    assert "$" not in "".join(t.get_text() for t in figure.axes[0].get_yticklabels())
