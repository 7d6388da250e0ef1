"""Every kind of target is opened; what cannot be is refused in one line."""

import textwrap
import warnings

import pytest
import torch

from turnwise.errors import InputError
from turnwise.evaluation.certificate.targets import (
    Request,
    certify_request,
    choose_pictures,
    is_code,
    noisy_digits,
    open_callable,
    open_original,
    open_target,
    own_group,
    prepare_alike,
    read_request,
)
from turnwise.inference.exported import open_file
from turnwise.models import create_model, save
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
    number = 7
    lazy = nn.Sequential(nn.Flatten(), nn.LazyLinear(3))
"""


@pytest.fixture
def code(tmp_path, monkeypatch):
    (tmp_path / "users_own_code.py").write_text(textwrap.dedent(CODE))
    monkeypatch.chdir(tmp_path)
    yield "users_own_code"
    import sys

    sys.modules.pop("users_own_code", None)


def test_a_name_and_its_options():
    model = open_target(Request("orbit_vit", group="D2", settings=SMALL))
    assert isinstance(model, Orbit)
    assert model.group.name == "D2"


def test_a_folder(tmp_path):
    save(create_model("vit", width=16, depth=1, heads=2), tmp_path / "net")
    assert open_target(Request(str(tmp_path / "net"))).position.shape == (49, 16)


def test_code_of_the_users_own(code):
    made = open_target(Request(f"{code}:make", settings=("classes=5",)))
    assert made[1].out_features == 5
    assert open_target(Request(f"{code}:ready"))[1].out_features == 3


def test_the_seed_draws_the_weights_of_code_too(code):
    draws = [open_target(Request(f"{code}:make", seed=seed))[1].weight for seed in (0, 0, 1)]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no_such_module:make", "No module named 'no_such_module'"),
        ("users_own_code:fake", "has no attribute 'fake'"),
        ("users_own_code:number", "'int' object is not callable"),
        ("torch:rand", "cannot be made"),
        ("users_own_code:lazy", "lazy layers without weights; call it once"),
        ("builtins:dict", "gives a dict; it must give an nn.Module"),
    ],
)
def test_code_that_makes_no_module(code, name, said):
    with pytest.raises(InputError, match=said):
        open_target(Request(name))


def test_the_path_is_as_before(code):
    import sys

    before = list(sys.path)
    open_target(Request(f"{code}:make"))
    assert sys.path == before


@pytest.mark.parametrize(
    ("target", "code"), [("a:b", True), ("pkg.mod:make", True), ("vit", False), ("a:b.onnx", False)]
)
def test_code_is_told_from_names_and_files(target, code):
    assert is_code(target) is code


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"pictures": 1}, "--pictures must be at least 2"),
        ({"seed": -1}, "--seed -1 must be from 0"),
        ({"channels": 2}, "--channels 2 must be 1 or 3"),
        ({"group": "Q4"}, "unknown group 'Q4'"),
        ({"precisions": ("float8",)}, "unknown precision 'float8'"),
    ],
)
def test_nonsense(words, said):
    with pytest.raises(InputError, match=said):
        Request("vit", **words)


def test_a_request_comes_back_from_json():
    request = Request("vit", group="C4", settings=SMALL, sizes=(28, 42), layers=False)
    assert read_request(request.plain()) == request


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


def test_the_pictures_fit_the_model():
    model = create_model("vit", in_chans=3, image_size=14, width=16, depth=1, heads=2, patch=7)
    images, words = choose_pictures(Request("vit", pictures=4), model)
    assert images.shape == (4, 3, 14, 14)
    assert words == "embedded digits, resampled, with noise"
    images, words = choose_pictures(Request("vit", pictures=4, data="digits"), model)
    assert images.shape == (4, 3, 14, 14)
    assert words == "validation pictures of digits"


def test_size_and_channels_are_told_for_a_model_that_does_not_say():
    request = Request("code:net", pictures=2, size=10, channels=3)
    assert choose_pictures(request, torch.nn.Tanh())[0].shape == (2, 3, 10, 10)
    assert choose_pictures(Request("code:net", pictures=2), torch.nn.Tanh())[0].shape[1:] == (
        1, 28, 28,
    )  # fmt: skip


def test_no_picture_is_blank():
    images = noisy_digits(5, 1, 12)
    assert 0 <= images.min() < images.max() <= 1
    assert (images.flatten(1).std(1) > 0.01).all()


def test_the_group_is_the_models_own():
    assert own_group(Request("a"), create_model("orbit_vit", group="D2", width=16)) == "D2"
    assert own_group(Request("a"), torch.nn.Tanh()) == "C4"


def test_the_original_is_opened_without_the_targets_options(code):
    assert open_original(Request("vit")) is None
    name, model = open_original(Request("a.onnx", against=f"{code}:ready"))
    assert name == f"{code}:ready"
    assert model[1].out_features == 3


def test_a_model_that_cannot_take_the_pictures_is_one_line(code):
    request = Request(f"{code}:make", group="C4")
    with pytest.raises(InputError, match=r"cannot answer pictures of shape \(1, 28, 28\)"):
        certify_request(request, open_target(request))


@pytest.mark.parametrize("inside", [True, False])
def test_a_files_pictures_are_prepared_as_its_original_does(tmp_path, inside):
    """Unless that is done inside the file."""
    model = create_model("vit", width=16, depth=1, heads=2, image_size=8).eval()
    whole = torch.nn.Sequential(model.preprocess, model) if inside else model
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(whole, (torch.rand(4, 1, 8, 8),))
        torch.export.save(program, tmp_path / "net.pt2")
    opened = open_file(tmp_path / "net.pt2")
    for _ in range(2):  # once for each group that is asked for
        prepare_alike(opened, model, torch.rand(5, 1, 8, 8))
        assert (opened.preprocess is None) is inside


def test_a_request_is_kept_in_its_certificate(code):
    request = Request(f"{code}:make", group="C4", settings=("bright=true",), size=8, angles=1)
    certificate, images = certify_request(request, open_target(request))
    assert read_request(certificate.request) == request
    assert images.shape == (32, 1, 8, 8)
    assert all(element.holds for element in certificate.elements)
    assert not certificate.holds, "brightness does not see shuffled pixels"


def test_code_that_leaves_at_import_is_no_answer(tmp_path, monkeypatch):
    """Its exit status 0 would be read as "the claim holds"."""
    (tmp_path / "leaving_at_import.py").write_text("import sys\nsys.exit(0)\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="leaving_at_import:model cannot be made"):
        open_callable("leaving_at_import:model", {})
