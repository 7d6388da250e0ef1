"""Imported vision transformers and orbits give the logits of the program that wrote them."""

import pytest
import torch
from models.importing.golden_states import CASES, distance, images_of, in_float64, state_of

from turnwise.errors import InputError
from turnwise.groups import equivariance_error
from turnwise.models import load, save
from turnwise.models.importing.vit import build_posthoc, build_vit, import_posthoc, import_vit

POSTHOC = [name for name in CASES if name.startswith("posthoc") and "likely" not in name]


def test_vision_transformer():
    model = in_float64(build_vit, state_of("vit"))
    images = images_of("vit")
    assert distance(model(images), "vit") < 1e-10
    normal = (images.mT - 0.1307) / 0.3081
    torch.testing.assert_close(model.preprocess(images), normal, rtol=1e-6, atol=1e-6)
    upright = build_vit(state_of("vit"), upright=True)
    torch.testing.assert_close(upright.preprocess(images.float()), normal.mT.float())


@pytest.mark.parametrize("case", POSTHOC)
def test_orbits(case):
    combine = case.removeprefix("posthoc_")
    chosen = {} if combine.startswith("published") else {"combine": combine}
    model = in_float64(lambda state: build_posthoc(state, **chosen), state_of(case))
    assert model.design.combine == combine
    images = images_of(case)
    assert distance(model(images), case) < 1e-10
    assert equivariance_error(model, "D4", images) < 1e-10
    assert distance(model(images.roll(1, -1)), case) > 1e-3, "witness"


@torch.no_grad()
@pytest.mark.parametrize("case", ["vit", "posthoc_published_attention"])
def test_an_imported_model_is_saved_and_loaded(tmp_path, case):
    torch.save(state_of(case), tmp_path / "net.pt")
    model = (import_vit if case == "vit" else import_posthoc)(tmp_path / "net.pt")
    save(model, tmp_path / "net")
    images = model.preprocess(images_of(case).float())
    assert torch.equal(load(tmp_path / "net")(images), model(images))


def test_transposed_digits_are_known_again(tmp_path):
    """The program reads rotated MNIST transposed; `preprocess` does, too, also after loading."""
    torch.save(state_of("vit"), tmp_path / "net.pt")
    save(import_vit(tmp_path / "net.pt"), tmp_path / "net")
    image = images_of("vit").float()
    plain, model = import_vit(tmp_path / "net.pt", upright=True), load(tmp_path / "net")
    torch.testing.assert_close(model(model.preprocess(image)), plain(plain.preprocess(image.mT)))
    assert (model(model.preprocess(image)) - plain(plain.preprocess(image))).abs().max() > 1e-3


def test_other_files_are_refused():
    state = {f"model.{key}": values for key, values in state_of("vit").items()}
    with pytest.raises(InputError, match=r"it has extra.0, which no orbit of the program has"):
        build_posthoc(state | {"extra.0": torch.zeros(3)})
    with pytest.raises(InputError, match="unknown combination that learns nothing 'best'"):
        build_posthoc(state, combine="best")
    with pytest.raises(InputError, match="give the state dict of a network of GEVit-DL2"):
        build_vit({"weight": torch.zeros(3)})
