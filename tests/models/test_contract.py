"""Every registered model, its orbit and all pretrained weights follow the model contract."""

import copy
import inspect
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from types import SimpleNamespace

import pytest
import torch
from regression.recorded_models import options_of
from torch import nn

import turnwise
from turnwise.errors import InputError
from turnwise.geometry.layouts import action_on
from turnwise.groups import act_on_image, assert_equivariant, equivariance_error, leave_fixed
from turnwise.models import create_model, list_models
from turnwise.models.contract import (
    HeadInputs,
    Model,
    chosen_indices,
    find_head,
    head_width,
    logits_of,
)
from turnwise.models.orbits import Orbit
from turnwise.models.weights import list_pretrained

EVERY_MODEL = pytest.mark.parametrize("name", list_models())
WITH_PRETRAINED = pytest.mark.parametrize("name", [*list_models(), *list_pretrained()])
CLASSES = 3
SMALL_GSA = {"heads": 2, "width": 6, "widths": [[6], [6]], "crops": [[2], [1]], "image_size": 12}
SMALL_HYBRID = {"heads": 2, "width": 6, "blocks": [1, 1]}
SMALLER = {
    "gsa_net": SMALL_GSA,
    "ge_vit": SMALL_GSA,
    "patch_ge_vit": SMALL_HYBRID,
    "hybrid_ge_vit": SMALL_HYBRID,
    "roto_resnet50": {"widths": [8, 16], "depths": [1, 1]},
}


@cache
def built(name, num_classes=CLASSES):
    """Return a small model in float64 and eval mode; a test that changes it must copy it."""
    torch.manual_seed(0)
    if name in list_pretrained():
        model = create_model(name, num_classes=num_classes)
    else:
        plain = name.removeprefix("orbit_")
        options = {"image_size": 28, **SMALLER.get(plain, options_of(name))}
        model = create_model(name, group="C4", num_classes=num_classes, **options)
    return model.double().eval()


def images_for(model, count=2):
    channels, size = model.config.options["in_chans"], model.config.options["image_size"]
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(count, channels, size, size, generator=generator, dtype=torch.float64)
    return model.preprocess(images)


@WITH_PRETRAINED
def test_the_model_has_every_member_of_the_contract(name):
    model = built(name)
    assert isinstance(model, Model)
    assert model.num_classes == CLASSES == model.config.options["num_classes"]
    for member, function in inspect.getmembers(Model, inspect.isfunction):
        if not member.startswith("_") and hasattr(type(model), member):
            wanted = list(inspect.signature(function).parameters)
            assert list(inspect.signature(getattr(type(model), member)).parameters) == wanted


@EVERY_MODEL
@torch.no_grad()
def test_the_forward_pass_is_features_then_head(name):
    model = built(name)
    images = images_for(model)
    features = model.forward_features(images)
    torch.testing.assert_close(model.forward_head(features), model(images))
    pixels = images.shape[2:] if model.output == "map" else ()
    assert model(images).shape == (2, CLASSES, *pixels)
    pooled = model.forward_head(features, pre_logits=True)
    assert pooled.shape == (2, model.num_features, *pixels)
    assert (pooled[0] - pooled[1]).abs().max() > 0


@EVERY_MODEL
@torch.no_grad()
def test_logits_and_pooled_features_are_invariant_or_rotate_with_the_image(name):
    model = built(name)
    act = act_on_image if model.output == "map" else leave_fixed

    def both(images):
        features = model.forward_features(images)
        pooled = model.forward_head(features, pre_logits=True)
        return torch.cat([model.forward_head(features), pooled / pooled.abs().max()], dim=1)

    group, images = model.group.exact_subgroup(), images_for(model, 1)
    assert equivariance_error(both, group, images, act_out=act) < 1e-10


@EVERY_MODEL
@torch.no_grad()
def test_without_classes_the_model_returns_its_pooled_features(name):
    model = copy.deepcopy(built(name))
    images = images_for(model)
    pooled = model.forward_head(model.forward_features(images), pre_logits=True)
    model.reset_classifier(0)
    assert isinstance(model.get_classifier(), nn.Identity)
    torch.testing.assert_close(model(images), pooled)
    bare = built(name, num_classes=0)
    assert bare.num_classes == 0 and isinstance(bare.get_classifier(), nn.Identity)
    bare.load_state_dict(model.state_dict())
    torch.testing.assert_close(bare(images), pooled)


@WITH_PRETRAINED
def test_the_classifier_can_be_replaced(name):
    model = copy.deepcopy(built(name)).train()
    model.classes = ("a", "b", "c")
    before = model.get_classifier()
    assert any(part is before for part in model.modules())
    for num_classes in (5, 0, 4):
        model.reset_classifier(num_classes)
        assert model.num_classes == num_classes == model.config.options["num_classes"]
    assert model.classes == ()
    assert any(part is model.get_classifier() for part in model.modules())
    images = images_for(model)
    logits = model(images)
    assert logits.shape[:2] == (2, 4) and logits.dtype == torch.float64
    logits.sum().backward()
    assert all(p.grad is not None for p in model.get_classifier().parameters())
    with pytest.raises(InputError, match="num_classes = -1 must be at least 0"):
        model.reset_classifier(-1)


@EVERY_MODEL
@torch.no_grad()
def test_intermediate_maps_are_equivariant(name):
    """Those with a group axis are regular features; those of an orbit have an axis of views."""
    model = built(name)
    images, group = images_for(model, 1), model.group
    features, maps = model.forward_intermediates(images)
    torch.testing.assert_close(features, model.forward_features(images))
    assert maps and not any(module._forward_hooks for module in model.modules())
    if isinstance(model, Orbit):
        assert all(len(x) == 1 and x.shape[1] == group.order for x in maps)
        return
    for g in group.grid_elements():
        _, transformed = model.forward_intermediates(act_on_image(group, g, images))
        for x, y in zip(maps, transformed, strict=True):
            act = action_on("regular" if x.ndim == 5 else "image")
            assert (act(group, g, x) - y).abs().max() < 1e-10 * x.abs().max()


@torch.no_grad()
def test_intermediate_maps_are_selected_as_in_timm():
    model = built("vit")
    _, maps = model.forward_intermediates(images_for(model))
    for indices, wanted in ((2, maps[-2:]), ([0, -1], [maps[0], maps[-1]]), ([], [])):
        _, found = model.forward_intermediates(images_for(model), indices)
        assert [torch.equal(a, b) for a, b in zip(found, wanted, strict=True)] == [True] * len(
            wanted
        )
    with pytest.raises(InputError, match="indices = 0 must be from 1 to 3"):
        chosen_indices(0, 3)
    with pytest.raises(InputError, match="index 3 must be from -3 to 2"):
        chosen_indices([3], 3)


@WITH_PRETRAINED
def test_parameters_without_weight_decay_exist(name):
    model = built(name)
    excluded = model.no_weight_decay()
    assert isinstance(excluded, set) and excluded <= dict(model.named_parameters()).keys()


@EVERY_MODEL
def test_exact_sizes_are_exact(name):
    model = built(name)
    own = model.config.options["image_size"]
    assert model.exact_size(own) == (own,)
    for size in (own - 1, own + 1, own + 7):
        nearest = model.exact_size(size)
        assert nearest and all(model.exact_size(n) == (n,) for n in nearest)


@EVERY_MODEL
def test_preprocessing_acts_pixel_by_pixel(name):
    model = built(name)
    channels = model.config.options["in_chans"]
    images = torch.rand(2, channels, 6, 6, dtype=torch.float64)
    assert model.preprocess(images).shape == images.shape
    assert_equivariant(model.preprocess, "D4", images, act_out=act_on_image)


@pytest.mark.parametrize("name", list_models("[!o]*"))
def test_a_model_without_classes_is_saved_and_loaded(name, tmp_path):
    model = built(name, num_classes=0)
    loaded = turnwise.load(turnwise.save(model, tmp_path / "model"))
    assert loaded.config == model.config and loaded.num_classes == 0


class Named(nn.Module):
    """A model whose classifier is `fc`, with another linear layer registered after it."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(5, 3)
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.ReLU())

    def forward(self, x):
        return self.fc(self.body(x))


def test_the_classifier_is_found_by_declaration_name_or_position():
    assert find_head(Named()) == "fc"
    assert find_head(create_model("vit", width=8, depth=1, heads=2)) == "head"
    last = nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.ReLU(), nn.Linear(5, 3))
    assert find_head(last) == "3"
    assert find_head(last, "1") == "1"
    assert find_head(nn.Linear(4, 2)) == ""


def test_the_width_of_the_classifier_input():
    assert head_width(nn.Linear(5, 3)) == 5
    assert head_width(nn.Sequential(nn.LayerNorm(7), nn.Linear(7, 3))) == 7
    with pytest.raises(InputError, match=r"the input width of a ReLU is unknown; name"):
        head_width(nn.ReLU())


def test_the_recorded_input_is_what_the_classifier_maps_to_the_logits():
    model, x = Named(), torch.rand(2, 1, 4, 4)
    recorder = HeadInputs(model.fc)
    for _ in range(2):
        features = recorder.features(model, x)
        assert torch.equal(features, model.body(x))
        assert torch.equal(model.fc(features), model(x))
        assert recorder.recorded == {}, "nothing is kept afterwards"


def test_a_failed_forward_pass_leaves_no_record():
    model, x = Named(), torch.rand(2, 1, 4, 4)
    recorder = HeadInputs(model.fc)
    with pytest.raises(RuntimeError):
        recorder.features(model, torch.rand(2, 1, 5, 5))
    assert recorder.recorded == {}
    assert torch.equal(recorder.features(model, x), model.body(x))


def test_threads_record_separately():
    """Two forward passes overlap in time."""
    model, met = Named(), threading.Barrier(2, timeout=60)

    def wait(*_):
        met.wait()

    model.fc.register_forward_pre_hook(wait)
    recorder, batches = HeadInputs(model.fc), [torch.rand(2, 1, 4, 4) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        recorded = list(pool.map(lambda x: recorder.features(model, x), batches))
    for features, x in zip(recorded, batches, strict=True):
        assert torch.equal(features, model.body(x))


def test_a_copied_model_has_a_recorder_of_its_own():
    """And two recorders of one classifier agree."""
    model, x = Named(), torch.rand(2, 1, 4, 4)
    pair = (model, HeadInputs(model.fc))
    copied, recorder = copy.deepcopy(pair)
    assert recorder.head is copied.fc and recorder is not pair[1]
    nn.init.zeros_(copied.body[1].weight)
    assert not torch.equal(recorder.features(copied, x), pair[1].features(model, x))
    second = HeadInputs(model.fc)
    assert torch.equal(second.features(model, x), pair[1].features(model, x))


def test_a_classifier_that_takes_no_vectors_is_refused():
    """GSA-Net classifies each group element and pixel, and pools the logits."""
    model = create_model("gsa_net", image_size=14, widths=[[6]], width=6, heads=1, window=3)
    with pytest.raises(InputError, match=r"one vector for each of 2 images, got \[\(2, 4, "):
        HeadInputs(model.head).features(model, torch.rand(2, 1, 14, 14))


@pytest.mark.parametrize(
    ("model", "path", "words"),
    [
        (nn.Flatten(), "", "no linear layer was found in a Flatten; name the layer"),
        (Named(), "top", r"a Named has no layer 'top'; .*head=\"fc\""),
    ],
)
def test_models_without_a_classifier_are_refused(model, path, words):
    with pytest.raises(InputError, match=words):
        find_head(model, path)


def test_logits_of_hugging_face_outputs():
    logits = torch.rand(2, 3)
    assert logits_of(logits) is logits
    assert logits_of(SimpleNamespace(logits=logits)) is logits
    with pytest.raises(InputError, match="must return a tensor of logits, got a tuple"):
        logits_of((logits,))
