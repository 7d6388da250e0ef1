"""Imported checkpoints give the logits of the programs that wrote them, in float64.

`importers.json.gz` lists the state dicts of the original programs, key by key; `importers.npz`
holds what these programs computed from weights by the formula below.
"""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from turnwise.errors import InputError
from turnwise.groups import PlanarGroup, equivariance_error
from turnwise.models import load, save
from turnwise.models.importing.checkpoints import Checkpoint, read_checkpoint
from turnwise.models.importing.gsa import ORIGINS, build_original
from turnwise.models.importing.modern import build_modern
from turnwise.models.importing.performer import build_performer, import_performer
from turnwise.models.importing.vit import build_posthoc, build_vit, import_posthoc, import_vit

GOLDEN = Path(__file__).parents[2] / "golden"
CASES = json.loads(gzip.decompress((GOLDEN / "importers.json.gz").read_bytes()))
ARRAYS = np.load(GOLDEN / "importers.npz")
PERFORMERS = [name for name in CASES if "erformer" in name]
POSTHOC = [name for name in CASES if name.startswith("posthoc") and "likely" not in name]
UNDIVIDED = ("cls_token", "pos_embedding", "group_embedding.weight", "rpe", "projection_matrix")
TABLES = ("_elements", "_identity", "_relative_positions", "_indices", "grid", "identity")


def made_up(number, key, shape):
    """Return entry `number` of a state dict, by the formula behind the golden outputs."""
    i = np.arange(int(np.prod(shape)), dtype=np.float64)
    u = np.sin(1.7 * (i + 1) + 0.61 * (number + 1) + 0.05 * i * np.sin(0.3 * i)).reshape(shape)
    if len(shape) >= 2 and not key.endswith(UNDIVIDED):
        u = u / np.sqrt(np.prod(shape[1:]))
    elif key.endswith("running_var") or ("norm" in key and key.endswith("weight")):
        u = 1 + 0.3 * u
    elif key.endswith("inv_freq"):
        u = 0.3 + 0.2 * u
    elif key.endswith("projection_matrix"):
        u = 1.5 * u
    elif len(shape) < 2:
        u = 0.3 * u
    return torch.from_numpy(u)


def state_of(case):
    """Return a state dict as the program writes it, buffers and all, in float64."""
    origin = "gsa-nets" if case.startswith("gsa") else "ge-vit"
    group = PlanarGroup.named("p4")
    state = {}
    for number, (key, shape) in enumerate(CASES[case]["state"]):
        if key.endswith("g_indices"):
            state[key] = ORIGINS[origin].stored_table(group)
        elif "transformed_grid" in key:
            kernel = "lifting_conv" if "lifting" in key else "gconvs.0"
            name = key.rpartition(".")[2]
            state[key] = torch.from_numpy(ARRAYS[f"{case}.gcnn.{kernel}.kernel.{name}"]).double()
        elif any(table in key for table in TABLES):
            state[key] = torch.zeros(shape)
        elif key.endswith(("calls_since_last_redraw", "num_batches_tracked")):
            state[key] = torch.tensor(0)
        else:
            state[key] = made_up(number, key, tuple(shape))
    return state


def in_float64(build, state):
    """Build in float64, so that nothing is rounded."""
    torch.set_default_dtype(torch.float64)
    try:
        return build(state).double()
    finally:
        torch.set_default_dtype(torch.float32)


def images_of(case):
    """Return the input of a case as the program took it: in [0, 1], not normalised."""
    return torch.from_numpy(ARRAYS[f"{case}.input"]).double() / 255


def distance(found, case):
    wanted = torch.from_numpy(ARRAYS[f"{case}.logits"])
    return float((found.detach() - wanted).abs().max() / wanted.abs().max())


def performer(case, state):
    size = ARRAYS[f"{case}.input"].shape[-1]
    return build_performer(Checkpoint(state, CASES[case]["options"]), size)


@pytest.mark.parametrize("case", PERFORMERS)
def test_performers(case):
    model = in_float64(lambda state: performer(case, state), state_of(case))
    images = images_of(case)
    torch.testing.assert_close(model.preprocess(images), images, msg="it is not normalised")
    assert distance(model(images), case) < 1e-10
    options = model.config.options
    assert (options["variant"], options["heads"], options["depth"]) == ("tep-2021", 4, 2)


def test_control_another_number_of_heads_gives_other_logits():
    case = "Performer_MLP_softmax"
    state = state_of(case)
    for key in state:
        if key.endswith("projection_matrix"):
            state[key] = torch.zeros(10, 8)
    model = in_float64(lambda state: performer(case, state), state)
    assert distance(model(images_of(case)), case) > 1e-3


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


@pytest.mark.parametrize("norm", ["BatchNorm", "LayerNorm"])
def test_gsa_nets_with_batch_norm_or_relu(norm):
    case = f"gsa_{norm}_ReLU"
    state = state_of(case)
    model = in_float64(lambda s: build_original(s, "gsa-nets", activation="relu"), state)
    assert model.config.options["norm"] == ("batch" if norm == "BatchNorm" else "layer")
    images = images_of(case)
    assert distance(model(images), case) < 1e-10
    other = in_float64(lambda s: build_original(s, "gsa-nets"), state)
    assert distance(other(images), case) > 1e-3, "control: with Swish it is another network"


@pytest.mark.parametrize(("case", "exact"), [("modern_patches", True), ("modern_g_cnn", False)])
def test_modern_equivariant_vits(case, exact):
    images = images_of(case)
    model = in_float64(lambda s: build_modern(s, images.shape[-1]), state_of(case))
    assert distance(model(images), case) < 1e-10
    assert (equivariance_error(model, "C4", images) < 1e-8) == exact
    assert model.group.name == ("C4" if exact else "C1")


IMPORTS = {
    "RelativePerformer": lambda path: import_performer(path, 8),
    "vit": import_vit,
    "posthoc_published_attention": import_posthoc,
}


@torch.no_grad()
@pytest.mark.parametrize("case", IMPORTS)
def test_an_imported_model_is_saved_and_loaded(tmp_path, case):
    torch.save(state_of(case), tmp_path / "net.pt")
    model = IMPORTS[case](tmp_path / "net.pt")
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


class ModelCheckpoint:
    """As old Lightning wrote the class of a callback: a name, nothing more."""


ModelCheckpoint.__module__ = "pytorch_lightning.callbacks.model_checkpoint"


def test_checkpoints_of_old_lightning_are_read(tmp_path, monkeypatch):
    """They hold the classes of callbacks as keys, and the options of the model."""
    import sys
    from types import ModuleType

    module = ModuleType("pytorch_lightning.callbacks.model_checkpoint")
    module.ModelCheckpoint = ModelCheckpoint
    monkeypatch.setitem(sys.modules, module.__name__, module)
    content = {
        "state_dict": state_of("RelativePerformer"),
        "callbacks": {ModelCheckpoint: {"best_model_score": torch.tensor(0.9)}},
        "hyper_parameters": {"no_projection": True, "heads": 4},
    }
    torch.save(content, tmp_path / "last.ckpt")
    checkpoint = read_checkpoint(tmp_path / "last.ckpt")
    assert checkpoint.options["no_projection"] is True
    assert build_performer(checkpoint, 8).config.options["kernel"] == "softmax"


def test_files_of_other_networks_are_refused():
    for build in (build_vit, build_modern, lambda w: build_performer(Checkpoint(w))):
        with pytest.raises(InputError, match="for instance weight; give the state dict of"):
            build({"weight": torch.zeros(3)})
    state = {f"model.{key}": values for key, values in state_of("vit").items()}
    with pytest.raises(InputError, match=r"it has extra.0, which no orbit of the program has"):
        build_posthoc(state | {"extra.0": torch.zeros(3)})
    with pytest.raises(InputError, match="unknown combination that learns nothing 'best'"):
        build_posthoc(state, combine="best")
