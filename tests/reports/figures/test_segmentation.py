"""Where the class of a pixel changes under the group, and the slider of the report."""

import pytest
import torch

from turnwise.errors import InputError
from turnwise.groups import PlanarGroup
from turnwise.inference.predictor import Predictor
from turnwise.reports.figures import FigureOptions
from turnwise.reports.figures.segmentation import changes_under, segmentation_figure


class Left(torch.nn.Module):
    """Class 1 in the left half of every image, and class 0 in the right one."""

    def forward(self, images):
        left = (torch.arange(images.shape[-1]) < images.shape[-1] // 2).float()
        return (
            torch.stack([1 - left, left])
            .expand(images.shape[-2], -1, -1)
            .transpose(0, 1)[None]
            .expand(len(images), -1, -1, -1)
        )


def test_changes_are_counted_by_pixel():
    """Under C4 the left half changes for the half turn everywhere, for a quarter in half of it."""
    predictor, image = Predictor(Left()), torch.zeros(1, 4, 4, dtype=torch.uint8)
    found = changes_under(predictor, PlanarGroup.named("C4"), image)
    assert torch.allclose(found, torch.full((4, 4), 2 / 3))
    assert changes_under(predictor, PlanarGroup.named("C1"), image).max() == 0


def test_an_exact_model_changes_nowhere_and_the_plain_one_does(mask_models):
    drawn = segmentation_figure(mask_models, FigureOptions(image=1))
    shares = {row.split()[0]: row.split()[-2] for row in drawn.text.splitlines()[2:]}
    assert shares["turnwise_unet_nano"] == "0.0" and float(shares["unet"]) > 0
    titles = [axes.get_title() for axes in drawn.figure.axes]
    assert titles[:3] == ["image", "truth", "turnwise_unet_nano"] and titles[6] == "unet"
    truth = drawn.figure.axes[1].images[0].get_array()
    assert (truth[2, 3:9] == truth[2, 3]).all(), "the outline of the first square"


def test_models_of_classes_are_refused(make_model):
    with pytest.raises(InputError, match="predicts no masks"):
        segmentation_figure([make_model("vit")], FigureOptions())
