"""Imported networks compute what the original programs did, plain and with RotoConv."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from turnwise.errors import InputError
from turnwise.groups import act_on_image, equivariance_error
from turnwise.models import create_model, load, save
from turnwise.models.importing.roto import (
    block,
    build_roto_original,
    convolution,
    counterparts_of,
    import_roto_original,
)

GOLDEN = Path(__file__).parents[2] / "golden"
CASES = ["poolformer_s12", "metaformer_s12_pppa"]


def made_up(number, key, shape):
    """Return parameter `number` of a case, by the formula behind the golden outputs."""
    i = np.arange(np.prod(shape, dtype=int), dtype=np.float64)
    u = np.sin(1.7 * (i + 1) + 0.61 * (number + 1) + 0.05 * i * np.sin(0.3 * i))
    if len(shape) >= 2:
        u /= np.sqrt(np.prod(shape[1:]))
    elif "norm" in key and key.endswith("weight"):
        u = 1 + 0.3 * u
    elif "layer_scale" in key:
        u = 0.5 + 0.3 * u
    else:
        u *= 0.3
    return torch.from_numpy(u.reshape(shape).astype(np.float32))


@pytest.fixture(scope="module")
def states():
    """Return the plain state dicts of both cases; a test that changes one must copy it."""
    keys = json.loads((GOLDEN / "roto.keys.json").read_text())
    return {
        case: {
            key: made_up(n, key, shape) for n, (key, shape) in enumerate(keys[case]["parameters"])
        }
        for case in CASES
    }


@pytest.fixture(scope="module")
def golden():
    arrays = np.load(GOLDEN / "roto.npz")
    return lambda entry: torch.from_numpy(arrays[entry])


def as_written(state, origin):
    """Return the state dict with the keys that the original program writes.

    RotoConv holds the convolution that it replaces as `conv1`.
    """
    if origin != "roto-metaformer":
        return state
    convolution = re.compile(r"^(patch_embed|network\.\d+)\.proj\.")
    return {convolution.sub(r"\1.proj.conv1.", key): values for key, values in state.items()}


def distance(found, wanted):
    return float((found - wanted).abs().max() / wanted.abs().max())


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    ("origin", "entry"), [("metaformer", ""), ("roto-metaformer", "_roto_legacy")]
)
@torch.no_grad()
def test_the_logits_are_those_of_the_original(states, golden, case, origin, entry):
    model = build_roto_original(as_written(states[case], origin), origin, image_size=64)
    image = golden(f"{case}.input")
    assert distance(model(image), golden(f"{case}{entry}.logits")) < 1e-4
    other = "" if entry else "_roto_legacy"
    assert distance(model(image), golden(f"{case}{other}.logits")) > 0.01, "negative control"
    change = distance(model(act_on_image("D4", 5, image)), model(image))
    assert (change < 1e-4) == (origin == "roto-metaformer")


@torch.no_grad()
def test_an_imported_model_is_saved_and_loaded(tmp_path, states, golden):
    state = as_written(states["metaformer_s12_pppa"], "roto-metaformer")
    parallel = {f"module.{key}": v for key, v in state.items()}
    torch.save({"state_dict": parallel}, tmp_path / "net.pth")
    model = import_roto_original(tmp_path / "net.pth", "roto-metaformer", image_size=64)
    assert model.config.name == "roto_metaformer_s12_pppa"
    assert model.config.options["reduce"] == "legacy"
    image = golden("metaformer_s12_pppa.input")
    torch.testing.assert_close(model.preprocess(image), image)
    save(model, tmp_path / "net")
    torch.testing.assert_close(load(tmp_path / "net")(image), model(image))


@torch.no_grad()
def test_image_size_and_normalisation_are_the_published_ones(states):
    sizes = {}
    for origin in ("poolformer", "metaformer", "roto-metaformer"):
        model = build_roto_original(as_written(states["poolformer_s12"], origin), origin)
        sizes[origin] = model.config.options["image_size"]
    assert sizes == {"poolformer": 224, "metaformer": 128, "roto-metaformer": 128}
    model = build_roto_original(states["poolformer_s12"], "poolformer")
    assert model.preprocess.mean.tolist() == pytest.approx([0.485, 0.456, 0.406])
    assert equivariance_error(model, "D4", torch.rand(1, 3, 32, 32)) > 0.01


@torch.no_grad()
def test_grey_images_are_not_normalised(states):
    grey = dict(states["poolformer_s12"])
    first = f"{convolution(0)}.weight"
    grey[first] = grey[first][:, :1]
    model = build_roto_original(as_written(grey, "roto-metaformer"), "roto-metaformer")
    assert (model.preprocess.mean.tolist(), model.preprocess.spread.tolist()) == ([0.0], [1.0])
    assert "1 channels, and poolformer's have 3" in refusal(grey, "poolformer")


@torch.no_grad()
def test_the_first_classes_can_be_kept(states):
    """The programs have 1,000 outputs for every data set and use the first ones."""
    state, images = (
        as_written(states["poolformer_s12"], "roto-metaformer"),
        torch.rand(1, 3, 32, 32),
    )
    whole = build_roto_original(state, "roto-metaformer", 32)
    model = build_roto_original(state, "roto-metaformer", 32, classes=7)
    assert (whole.num_classes, model.num_classes) == (1000, 7)
    torch.testing.assert_close(model(images), whole(images)[:, :7])
    for classes in (0, 1001):
        with pytest.raises(InputError, match=f"classes = {classes} must be from 1 to its 1000"):
            build_roto_original(state, "roto-metaformer", 32, classes)


def test_the_file_says_whether_it_was_trained_with_roto_conv(states):
    plain = states["metaformer_s12_pppa"]
    assert "['patch_embed.proj.weight'], a convolution without RotoConv; import it as metaf" in (
        refusal(plain, "roto-metaformer")
    )
    wrapped = as_written(plain, "roto-metaformer")
    assert "['patch_embed.proj.conv1.weight'], a convolution inside RotoConv; import it as r" in (
        refusal(wrapped, "metaformer")
    )


def refusal(state, origin="metaformer"):
    with pytest.raises(InputError) as refused:
        build_roto_original(state, origin)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_networks_that_do_not_fit_are_refused(states):
    state = states["metaformer_s12_pppa"]
    fewer = {key: v for key, v in state.items() if not key.startswith("network.6.1")}
    assert "stages of [2, 2, 6, 1] blocks, [64, 128, 320, 512] channels and" in refusal(fewer)
    headless = {key: v for key, v in state.items() if key != "head.weight"}
    assert "it has no head.weight of 2 axes, but for instance patch_embed" in refusal(headless)
    assert "no published network has" in refusal({"weight": torch.zeros(3)})
    more = state | {"fork_feat.weight": torch.zeros(3)}
    assert "unexpected are fork_feat.weight" in refusal(more)
    positioned = state | {"network.5.pos_embed": torch.zeros(1, 7, 7, 512)}
    assert "it adds absolute positions before attention" in refusal(positioned)


def test_an_unknown_origin_is_refused(tmp_path):
    with pytest.raises(InputError, match="unknown origin 'roto'"):
        import_roto_original(tmp_path / "net.pt", "roto")
    torch.save({"weight": torch.zeros(3)}, tmp_path / "net.pt")
    with pytest.raises(InputError, match=r"net\.pt cannot be imported: it has stages of \[\]"):
        import_roto_original(tmp_path / "net.pt", "poolformer")


KEYS = json.loads((GOLDEN / "roto.keys.json").read_text())


@pytest.mark.parametrize("name", KEYS)
@pytest.mark.parametrize("prefix", ["", "roto_"])
def test_the_keys_and_shapes_are_those_of_the_original(prefix, name):
    with torch.device("meta"):
        options = {"num_classes": 1000, "in_chans": 3, "image_size": 64, "qk_norm": False}
        model = create_model(prefix + name, "D4", **options)
    pairs = counterparts_of(model)
    ours = {pairs[key].key: list(values.shape) for key, values in model.named_parameters()}
    assert ours == dict(map(tuple, KEYS[name]["parameters"]))
    assert KEYS[name]["buffers"] == []


def test_no_two_parameters_share_a_counterpart():
    with torch.device("meta"):
        model = create_model("metaformer_s12_ppaa", qk_norm=False)
    found = [pair.key for pair in counterparts_of(model).values()]
    assert len(found) == len(set(found)) == len(list(model.parameters()))


def test_the_names_of_stages_and_convolutions():
    assert [convolution(n) for n in range(3)] == [
        "patch_embed.proj", "network.1.proj", "network.3.proj"
    ]  # fmt: skip
    assert block(3, 1) == "network.6.1"
