"""A request is checked, stored and read; its images fit the model."""

import sys
import textwrap
import warnings
from dataclasses import replace

import pytest
import torch

from turnwise.errors import InputError
from turnwise.evaluation.certificate.targets import (
    Request,
    certify_request,
    choose_images,
    default_group,
    match_preprocessing,
    noisy_digits,
    open_original,
    open_target,
    read_request,
)
from turnwise.inference.exported import open_file
from turnwise.models import create_model
from turnwise.models.orbits import Orbit

SMALL = ("width=16", "depth=1", "heads=2", "patch=7")
CODE = """
    import torch
    from torch import nn

    def make(classes=3, bright=False):
        class Bright(nn.Module):
            def forward(self, images):
                return images.mean((1, 2, 3))[:, None] * torch.arange(1.0, classes + 1)
        return Bright() if bright else nn.Sequential(nn.Flatten(), nn.Linear(64, classes))

    ready = make()
"""


@pytest.fixture
def code(tmp_path, monkeypatch):
    (tmp_path / "code_of_a_user.py").write_text(textwrap.dedent(CODE))
    monkeypatch.chdir(tmp_path)
    yield "code_of_a_user"
    sys.modules.pop("code_of_a_user", None)


def test_the_target_is_opened_with_group_and_options():
    model = open_target(Request("orbit_vit", group="D2", settings=SMALL))
    assert isinstance(model, Orbit)
    assert model.group.name == "D2"


def test_the_original_is_opened_without_the_options_of_the_target(code):
    assert open_original(Request("vit")) is None
    name, model = open_original(Request("a.onnx", against=f"{code}:ready"))
    assert name == f"{code}:ready"
    assert model[1].out_features == 3


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"images": 1}, "images = 1 must be at least 2"),
        ({"seed": -1}, "seed = -1 must be from 0"),
        ({"channels": 2}, "channels = 2 must be 1 or 3"),
        ({"group": "Q4"}, "unknown group 'Q4'"),
        ({"precisions": ("float8",)}, "unknown precision 'float8'"),
    ],
)
def test_invalid_requests(fields, message):
    with pytest.raises(InputError, match=message):
        Request("vit", **fields)


def test_a_request_is_read_as_it_was_stored():
    request = Request("vit", group="C4", settings=SMALL, sizes=(28, 42), layers=False)
    assert read_request(request.plain()) == request


def test_a_request_of_version_0_1_0_is_read():
    old = read_request({"target": "vit", "pictures": 5})
    assert old == Request("vit", images=5, fill="zeros", conditions=False, fresh=0)


@pytest.mark.parametrize(
    "plain",
    [
        {},
        {"target": "vit", "surprise": 1},
        {"target": 5},
        {"target": "vit", "angles": "3"},
        {"target": "vit", "sizes": ["28"]},
        {"target": "vit", "settings": [3]},
        {"target": "vit", "precisions": [None]},
    ],
)
def test_a_damaged_request_is_refused(plain):
    with pytest.raises(InputError):
        read_request(plain)


def test_the_images_fit_the_model():
    model = create_model("vit", in_chans=3, image_size=14, width=16, depth=1, heads=2, patch=7)
    images, words, _ = choose_images(Request("vit", images=4), model)
    assert images.shape == (4, 3, 14, 14)
    assert words == "embedded digits, resampled, with noise"
    images, words, _ = choose_images(Request("vit", images=4, data="digits"), model)
    assert images.shape == (4, 3, 14, 14)
    assert words == "validation images of digits"


def test_size_and_channels_can_be_given_for_a_model_that_does_not_state_them():
    request = Request("code:net", images=2, size=10, channels=3)
    assert choose_images(request, torch.nn.Tanh())[0].shape == (2, 3, 10, 10)
    default, _, _ = choose_images(Request("code:net", images=2), torch.nn.Tanh())
    assert default.shape == (2, 1, 28, 28)


def test_no_image_is_blank():
    images = noisy_digits(5, 1, 12)
    assert 0 <= images.min() < images.max() <= 1
    assert (images.flatten(1).std(1) > 0.01).all()


def test_the_default_group_is_the_models_own():
    assert default_group(Request("a"), create_model("orbit_vit", group="D2", width=16)) == "D2"
    assert default_group(Request("a"), torch.nn.Tanh()) == "C4"


def test_a_model_that_cannot_take_the_images_is_reported_in_one_line(code):
    request = Request(f"{code}:make", group="C4")
    with pytest.raises(InputError, match=r"cannot take images of shape \(1, 28, 28\)"):
        certify_request(request, open_target(request))


@pytest.mark.parametrize("inside", [True, False])
def test_a_file_gets_the_preprocessing_of_its_original_unless_it_has_it_inside(tmp_path, inside):
    model = create_model("vit", width=16, depth=1, heads=2, image_size=8).eval()
    whole = torch.nn.Sequential(model.preprocess, model) if inside else model
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(whole, (torch.rand(4, 1, 8, 8),))
        torch.export.save(program, tmp_path / "net.pt2")
    opened = open_file(tmp_path / "net.pt2")
    for _ in range(2):  # once for each group requested
        match_preprocessing(opened, model, torch.rand(5, 1, 8, 8))
        assert (opened.preprocess is None) is inside


def test_a_certificate_stores_its_request(code):
    request = Request(
        f"{code}:make", group="C4", settings=("bright=true",), size=8, angles=1, fresh_seed=7
    )
    certificate, images = certify_request(request, open_target(request))
    assert certificate.fill == "zeros", "of embedded digits"
    assert read_request(certificate.request) == replace(request, fill="zeros")
    assert images.shape == (32, 1, 8, 8)
    assert all(element.holds for element in certificate.elements)
    assert not certificate.holds, "brightness does not depend on the order of the pixels"
