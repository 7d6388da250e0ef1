"""The exported graph returns what the model returns, for images in [0, 1] and for bytes."""

import copy

import pytest
import torch
from torch import nn

import turnwise
from turnwise.deploy.program import Program, has_embedding, trace
from turnwise.errors import InputError
from turnwise.geometry.warps import inscribed_disc


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    made = turnwise.create_model("vit", image_size=8, patch=4, width=16, depth=1, heads=2).eval()
    made.preprocess.mean += 0.3
    return made


def test_preprocessing_and_softmax_are_inside(model):
    images = torch.randint(0, 256, (3, 1, 8, 8), dtype=torch.uint8)
    program = Program(model, "float32", has_embedding=True)
    logits = model(model.preprocess(images / 255))
    for given in (images, images / 255):
        found = program(given)
        torch.testing.assert_close(found[0], logits)
        torch.testing.assert_close(found[1], logits.softmax(-1))
        assert found[2].shape == (3, 16)


def test_a_model_of_discs_sees_only_the_disc(model):
    """The graph shows the model what training showed it, whoever runs the graph."""
    images, black = torch.rand(2, 1, 8, 8), torch.zeros(2, 1, 8, 8)
    cornerless = torch.where(inscribed_disc(8, 8), images, black)
    discs = copy.copy(model)
    discs.fill = "disc"
    for chosen, same in ((model, False), (discs, True)):
        graph = trace(Program(chosen, "float32", has_embedding=False).eval(), images).module()
        assert torch.equal(graph(images)[0], graph(cornerless)[0]) == same


def test_one_graph_takes_any_number_of_images(model):
    program = Program(model, "float32", has_embedding=True).eval()
    with torch.no_grad():
        run = trace(program, torch.rand(2, 1, 8, 8)).module()
        for count in (1, 3, 64):
            images = torch.rand(count, 1, 8, 8)
            torch.testing.assert_close(run(images)[0], program(images)[0])


def test_a_module_without_features_has_no_embedding(model):
    images = torch.rand(2, 1, 8, 8)
    plain = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    assert has_embedding(model, images) and not has_embedding(plain, images)
    assert len(Program(plain, "float32", has_embedding=False)(images)) == 2


def test_a_model_that_branches_on_its_values_is_refused_in_one_line():
    class Branching(nn.Module):
        def forward(self, images):
            return images.flatten(1) if images.sum() > 0 else -images.flatten(1)

    program = Program(Branching(), "float32", has_embedding=False)
    with pytest.raises(InputError, match="cannot trace this Branching") as error:
        trace(program, torch.rand(2, 1, 4, 4))
    assert "\n" not in str(error.value)
