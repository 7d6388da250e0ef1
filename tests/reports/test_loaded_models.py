"""Models are loaded from folders and by name; views transform images as they say."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from turnwise.errors import InputError
from turnwise.groups import act_on_image
from turnwise.models import create_model, save
from turnwise.reports.loaded_models import (
    least_stable,
    load_models,
    recognised_example,
    require_comparable,
    rotated_views,
    sample_examples,
    shift_image,
    shifted_views,
    shifts_within,
    take_example,
)

OPTIONS = {"patch": 7, "width": 16, "depth": 1, "heads": 2}
SETTINGS = [f"{key}={value}" for key, value in OPTIONS.items()]


@pytest.fixture
def folder(tmp_path):
    return save(create_model("orbit_vit", group="D4", **OPTIONS), tmp_path / "kept")


def test_a_model_folder_has_its_group_and_numbered_classes(folder):
    (loaded,) = load_models([str(folder)])
    assert (loaded.name, loaded.group.name, loaded.run.path) == ("kept", "D4", folder)
    assert not loaded.run.exists
    assert loaded.classes == tuple("0123456789")
    assert loaded.origin == "embedded digits" and len(loaded.examples) == 500


def test_a_named_model_is_untrained_and_takes_options():
    (loaded,) = load_models(["vit", *SETTINGS])
    assert loaded.name == "vit, untrained" and loaded.run is None
    assert loaded.model.config.options["width"] == 16
    assert loaded.group.name == "C4"  # a plain model is measured against rotations by 90°


def test_equal_names_are_distinguished_by_their_paths(folder, tmp_path):
    other = save(create_model("vit", **OPTIONS), tmp_path / "other" / "kept")
    names = [loaded.name for loaded in load_models([str(folder), str(other)])]
    assert names == [str(folder), str(other)]


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (["width=3"], "name at least one"),
        (["nowhere/run"], "neither a folder nor a model"),
        (["vti"], "Did you mean 'vit'"),
        (["vit", "vit"], "named twice"),
        (["vit", "width=[3"], "cannot be read"),
    ],
)
def test_unusable_targets(targets, message):
    with pytest.raises(InputError, match=message):
        load_models(targets)


def test_options_of_a_folder_are_refused(folder):
    with pytest.raises(InputError, match="only folders are given"):
        load_models([str(folder), "width=3"])


def test_comparable_models_have_the_same_images_and_classes(make_model):
    vit, gsa = make_model("vit"), make_model("gsa_net")
    require_comparable([vit, make_model("orbit_vit")])
    with pytest.raises(InputError, match="vit and gsa_net differ"):
        require_comparable([vit, gsa])


def test_an_image_is_chosen_by_its_number(quadrant):
    assert int(take_example(quadrant, 3).labels) == 3
    with pytest.raises(InputError, match="there is no image 4; quadrant has images 0 to 3"):
        take_example(quadrant, 4)


def test_a_sample_covers_all_classes(make_model):
    sample = sample_examples(make_model("vit"), 10)
    assert sample.labels.tolist() == sorted(sample.labels.tolist())
    assert len(sample.labels.unique()) == 10
    assert len(sample_examples(make_model("vit"), 1000)) == 20


def test_a_recognised_example_is_classified_correctly(quadrant):
    assert recognised_example([quadrant]) == 2  # the middle: all are correct
    quadrant.examples.labels[2] = 0
    assert recognised_example([quadrant]) == 3
    quadrant.examples.labels[:] = torch.tensor([1, 2, 0, 0])
    assert recognised_example([quadrant]) == 2  # none is correct: the middle


class AlwaysOne(nn.Module):
    def forward(self, images):
        return torch.eye(4)[1].repeat(len(images), 1)


def test_the_least_stable_image_of_each_class_is_chosen(quadrant):
    """A model that is right only for images that are not rotated: every rotation changes it."""
    examples = quadrant.examples.take(torch.tensor([0, 1, 2, 3, 0, 1]))
    chosen = least_stable([quadrant], examples, 2, 4)
    assert len(chosen) == 2
    assert len(chosen.labels.unique()) == 2
    predicted = quadrant.predictor.probabilities(chosen.images).argmax(-1)
    assert predicted.tolist() == chosen.labels.tolist()


def test_images_that_some_model_gets_wrong_are_not_chosen(quadrant):
    """The second model always predicts 1, which is right for images 1 and 5 only."""
    examples = quadrant.examples.take(torch.tensor([0, 1, 2, 3, 0, 1]))
    always = replace(quadrant, model=AlwaysOne())
    assert least_stable([quadrant, always], examples, 3, 4).labels.tolist() == [1]
    examples.labels[:] = torch.tensor([1, 2, 3, 0, 1, 2])  # every prediction is wrong
    assert len(least_stable([quadrant], examples, 3, 4)) == 3


def test_rotations_by_90_degrees_are_exact():
    image = torch.randint(256, (3, 4, 4), dtype=torch.uint8)
    views = rotated_views(image, [0.0, 90.0, 180.0, 270.0], "zeros")
    for k, view in enumerate(views):
        assert torch.equal(view, act_on_image("C4", k, image.float() / 255))


@pytest.mark.parametrize(("right", "up"), [(0, 0), (2, 0), (-1, 0), (0, 1), (0, -2), (1, 2)])
def test_a_shift_moves_every_pixel(right, up):
    """Pixel by pixel on a rectangle: what lands at (row, col) came from (row + up, col − right)."""
    images = torch.rand(2, 3, 4, 5)
    shifted = shift_image(images, right, up)
    assert shifted.shape == images.shape
    for row in range(4):
        for col in range(5):
            inside = 0 <= row + up < 4 and 0 <= col - right < 5
            expected = images[..., row + up, col - right] if inside else torch.zeros(2, 3)
            assert torch.equal(shifted[..., row, col], expected)


def test_shifts_are_ordered_row_by_row_from_the_upper_left():
    assert shifts_within(1)[:4] == [(-1, 1), (0, 1), (1, 1), (-1, 0)]
    assert len(shifts_within(5)) == 121 and shifts_within(5)[60] == (0, 0)


def test_shifted_views_are_in_the_order_of_the_shifts():
    image = torch.zeros(1, 3, 3, dtype=torch.uint8)
    image[0, 1, 1] = 255
    positions = [
        divmod(int(view[0].argmax()), 3) for view in shifted_views(image, shifts_within(1))
    ]
    assert positions == [(row, col) for row in range(3) for col in range(3)]


def test_the_predictor_is_of_the_model(quadrant):
    views = rotated_views(quadrant.examples.images[0], [0.0, 90.0], "zeros")
    expected = quadrant.model(views).softmax(-1)
    torch.testing.assert_close(quadrant.predictor.probabilities(views), expected)
    assert quadrant.predictor.probabilities(views).argmax(-1).tolist() == [0, 1]
