"""Subjects are read from folders and names, and say clearly what they cannot be."""

import pytest
import torch
from torch import nn

from turnwise.data import Examples
from turnwise.errors import InputError
from turnwise.models import create_model, save
from turnwise.reports.loaded_models import (
    chosen_example,
    load_models,
    recognised_by_all,
    recognised_example,
    require_alike,
    spaced_examples,
)

OPTIONS = {"patch": 7, "width": 16, "depth": 1, "heads": 2}
WORDS = [f"{key}={value}" for key, value in OPTIONS.items()]


@pytest.fixture
def folder(tmp_path):
    return save(create_model("orbit_vit", group="D4", **OPTIONS), tmp_path / "kept")


def test_a_model_folder_brings_its_group_and_numbered_classes(folder):
    (subject,) = load_models([str(folder)])
    assert (subject.name, subject.group.name, subject.run) == ("kept", "D4", folder)
    assert subject.classes == tuple("0123456789")
    assert subject.origin == "embedded digits" and len(subject.pictures) == 500


def test_a_named_model_is_untrained_and_takes_options():
    (subject,) = load_models(["vit", *WORDS])
    assert subject.name == "vit, untrained" and subject.run is None
    assert subject.model.config.options["width"] == 16
    assert subject.group.name == "C4"  # a plain model is held against quarter turns


def test_the_same_name_twice_is_told_apart_by_its_path(folder, tmp_path):
    other = save(create_model("vit", **OPTIONS), tmp_path / "other" / "kept")
    names = [s.name for s in load_models([str(folder), str(other)])]
    assert names == [str(folder), str(other)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["width=3"], "name at least one"),
        (["nowhere/run"], "neither a folder nor a model"),
        (["vti"], "Did you mean 'vit'"),
        (["vit", "vit"], "named twice"),
        (["vit", "width=[3"], "cannot be read"),
    ],
)
def test_what_is_no_subject(words, said):
    with pytest.raises(InputError, match=said):
        load_models(words)


def test_options_of_a_folder_are_refused(folder):
    with pytest.raises(InputError, match="only folders are given"):
        load_models([str(folder), "width=3"])


def test_alike_means_the_same_pictures_and_classes(make_subject):
    vit, gsa = make_subject("vit"), make_subject("gsa_net")
    require_alike([vit, make_subject("orbit_vit")])
    with pytest.raises(InputError, match="vit and gsa_net differ"):
        require_alike([vit, gsa])


def test_a_picture_is_chosen_by_its_number(quadrant):
    assert int(chosen_example(quadrant, 3).labels) == 3
    with pytest.raises(InputError, match="there is no picture 4; quadrant has pictures 0 to 3"):
        chosen_example(quadrant, 4)


def test_pictures_are_spread_over_the_classes(make_subject):
    sample = spaced_examples(make_subject("vit"), 10)
    assert sample.labels.tolist() == sorted(sample.labels.tolist())
    assert len(sample.labels.unique()) == 10
    assert len(spaced_examples(make_subject("vit"), 1000)) == 20


def test_a_recognised_picture_is_recognised(quadrant):
    assert recognised_example([quadrant]) == 2  # the middle: all are right
    quadrant.pictures.labels[2] = 0
    assert recognised_example([quadrant]) == 3
    quadrant.pictures.labels[:] = torch.tensor([1, 2, 0, 0])
    assert recognised_example([quadrant]) == 2  # none is: the middle


class BrightestQuadrant(nn.Module):
    """Quadrants are counted counter-clockwise, so a quarter turn adds one to the answer."""

    def preprocess(self, images):
        return images

    def forward(self, images):
        top, bottom = images[:, 0, :4], images[:, 0, 4:]
        quadrants = (top[..., 4:], top[..., :4], bottom[..., :4], bottom[..., 4:])
        return 9 * torch.stack([q.square().mean((-2, -1)) for q in quadrants], dim=-1)


def spots():
    """One bright square in each quadrant, over a little noise that no two pictures share."""
    images = torch.randint(40, (4, 1, 8, 8), dtype=torch.uint8)
    for label, (row, col) in enumerate([(1, 5), (1, 1), (5, 1), (5, 5)]):
        images[label, 0, row : row + 2, col : col + 2] = 250
    return Examples(images, torch.arange(4))


def test_examples_are_the_first_of_their_class_that_all_recognise():
    """The second model always says 1; both are right on pictures 1 and 5, of one class."""
    labels = torch.tensor([0, 1, 2, 3, 0, 1])
    twice = Examples(spots().images[labels], labels)

    class AlwaysOne(BrightestQuadrant):
        def forward(self, images):
            return torch.eye(4)[1].repeat(len(images), 1)

    models = [BrightestQuadrant(), AlwaysOne()]
    assert recognised_by_all(models[:1], twice, [2, 0]).tolist() == [2, 0]
    assert recognised_by_all(models, twice, [2, 1, 0]).tolist() == [1]
