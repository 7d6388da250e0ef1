"""MetaFormers have the published sizes, and Roto-MetaFormers are equivariant at every size."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from turnwise.errors import InputError
from turnwise.evaluation import Scope, certify
from turnwise.groups import act_on_image, equivariance_error, equivariance_errors
from turnwise.models import create_model, list_models, load, save
from turnwise.models.metaformer import DESIGNS

# parameters with 1000 and with 7 classes, as counted in the original programs
PARAMETERS = {
    "poolformer_s12": (11_915_176, 11_405_767),
    "poolformer_s24": (21_388_968, 20_879_559),
    "poolformer_s36": (30_862_760, 30_353_351),
    "poolformer_m36": (56_172_520, 55_408_903),
    "poolformer_m48": (73_473_448, 72_709_831),
    "metaformer_s12_pppa": (14_013_352, 13_503_943),
    "metaformer_s12_ppaa": (16_472_872, 15_963_463),
    "metaformer_s12_224": (16_637_096, 16_127_687),
}
BRIEF = Scope(shifts=0, layers=False)
SMALL = {"widths": (8, 12, 16, 24), "depths": (1, 1, 2, 1), "head_width": 4}


def small(name="roto_metaformer_s12_pppa", size=32, group="D4", lively=True, **options):
    """Return a narrow network in float64; if `lively`, its blocks change their inputs a lot."""
    torch.manual_seed(0)
    model = create_model(
        name, group, num_classes=5, in_chans=3, image_size=size, **SMALL | options
    ).double()
    if lively:
        for key, weight in model.named_parameters():
            if "scale_" in key:
                nn.init.constant_(weight, 0.5)
            elif weight.ndim >= 2:
                nn.init.kaiming_normal_(weight)
    return model.eval()


def random_images(size=32, cols=None):
    return torch.rand(2, 3, size, cols or size, dtype=torch.float64)


@pytest.mark.parametrize("name", PARAMETERS)
@pytest.mark.parametrize("prefix", ["", "roto_"])
def test_the_number_of_parameters_is_the_published_one(prefix, name):
    for classes, wanted in zip((1000, 7), PARAMETERS[name], strict=True):
        with torch.device("meta"):
            model = create_model(
                prefix + name, "D4", num_classes=classes, in_chans=3, image_size=128,
                qk_norm=False,
            )  # fmt: skip
        assert sum(p.numel() for p in model.parameters()) == wanted
    assert DESIGNS.keys() == PARAMETERS.keys()


@pytest.mark.parametrize("size", [28, 30, 32, 64])
@pytest.mark.parametrize("name", ["roto_poolformer_s12", "roto_metaformer_s12_ppaa"])
def test_the_logits_are_invariant_and_the_features_equivariant(name, size):
    model, x = small(name, size), random_images(size)
    assert max(equivariance_errors(model, "D4", x)) < 1e-12
    assert max(equivariance_errors(model.forward_features, "D4", x, act_out=act_on_image)) < 1e-12
    assert model.group.name == "D4"


@pytest.mark.parametrize("geometry", ["published", "even", "patch"])
@pytest.mark.parametrize("reduce", ["max", "mean", "rms"])
def test_invariance_with_every_geometry_and_reduction(geometry, reduce):
    model = small(geometry=geometry, reduce=reduce)
    assert equivariance_error(model, "D4", random_images()) < 1e-11
    assert equivariance_error(model.train(), "D4", random_images()) < 1e-11


@pytest.mark.parametrize("group", ["C2", "C4", "D1", "D2"])
def test_invariance_under_other_groups_and_of_rectangles(group):
    model = small(group=group, mixers="pwia")
    assert equivariance_error(model, group, random_images(32, 64)) < 1e-12
    assert equivariance_error(model, "D4", random_images()) > 1e-4


def test_outputs_differ_between_images_and_features_between_orientations():
    model, x = small(), random_images(64)
    y = model.forward_features(x)
    assert all((act_on_image("D4", g, y) - y).abs().max() > 0.01 for g in range(1, 8))
    assert (model(x)[0] - model(x)[1]).abs().max() > 1e-3


@pytest.mark.parametrize("geometry", ["published", "even", "patch"])
def test_negative_control_the_plain_variant_is_not_invariant_with_the_same_weights(geometry):
    roto = small(geometry=geometry)
    plain = small("metaformer_s12_pppa", geometry=geometry)
    plain.load_state_dict(roto.state_dict())
    assert equivariance_error(plain, "D4", random_images()) > 0.01
    assert plain.group.name == "C1"
    switched = small("metaformer_s12_pppa", geometry=geometry, roto=True)
    switched.load_state_dict(roto.state_dict())
    x = random_images()
    torch.testing.assert_close(switched(x), roto(x))


def test_definition():
    """Embed, blocks, four times; norm, mean over the pixels, linear."""
    model, x = small("metaformer_s12_pppa"), random_images(64, 32)
    maps = x
    for stage in range(4):
        conv = model.embeddings[stage]
        kernel, stride, padding = ((7, 4, 2), *[(3, 2, 1)] * 3)[stage]
        assert conv.weight.shape[-1] == kernel
        maps = nn.functional.conv2d(maps, conv.weight, conv.bias, stride, padding)
        for block in model.stages[stage]:
            maps = block(maps)
    normed = model.norm(maps)
    assert maps.shape == (2, 24, 2, 1)
    mean = (normed[:, :, 0, 0] + normed[:, :, 1, 0]) / 2
    torch.testing.assert_close(model(x), mean @ model.head.weight.T + model.head.bias)


@pytest.mark.parametrize("algorithm", ["copies", "bank", "fourier"])
def test_algorithms_agree_forward_and_backward(algorithm):
    x, results = random_images(), []
    for chosen in (algorithm, "auto"):
        model = small(algorithm=chosen)
        y = model(x)
        results.append([y, *torch.autograd.grad(y.square().sum(), list(model.parameters()))])
    for found, wanted in zip(*results, strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-9, rtol=1e-9)


def two_parts(size=32):
    """Return images of parts A and B, and of A and the reflection of B."""
    a, b = torch.zeros(2, 1, 3, size, size, dtype=torch.float64)
    a[..., 2:6, 2:6] = torch.rand(1, 3, 4, 4)
    b[..., 2:6, 9:13] = torch.rand(1, 3, 4, 4)
    return a + b, a + act_on_image("D4", 4, b)


@torch.no_grad()
def test_reflecting_one_part_changes_the_logits_except_with_reduce_legacy():
    before, after = two_parts()
    changes = {}
    for reduce in ("max", "legacy"):
        model = small(geometry="patch", reduce=reduce)
        changes[reduce] = float((model(after) - model(before)).abs().max() / model(before).std())
        assert equivariance_error(model, "D4", before) < 1e-12
    assert changes["legacy"] < 1e-12
    assert changes["max"] > 0.01


@pytest.mark.parametrize("name", ["roto_poolformer_s12", "roto_metaformer_s12_pppa"])
def test_the_certificate_holds_for_the_roto_variant_and_not_for_the_plain_one(name):
    images = torch.rand(2, 3, 32, 32)
    assert certify(small(name), "D4", images, angles=2, scope=BRIEF).holds
    assert not certify(small(name.removeprefix("roto_")), "D4", images, angles=2, scope=BRIEF).holds


def test_invariance_in_float32_at_the_published_width():
    """The error is below 1e-4 of the standard deviation of the logits."""
    model = create_model("roto_metaformer_s12_pppa", "D4", num_classes=7, in_chans=3, image_size=64)
    for key, weight in model.named_parameters():
        if "scale_" in key:
            nn.init.constant_(weight, 0.3)
    x = torch.rand(1, 3, 64, 64)
    with torch.no_grad():
        y = model(x)
        gaps = [(model(act_on_image("D4", g, x)) - y).abs().max() for g in range(8)]
    assert max(gaps) < 1e-4 * y.std()


def test_sizes_that_cannot_be_exact_are_refused_with_the_nearest():
    with pytest.raises(InputError, match=r"image_size = 28 .* 'even' .* try 32"):
        small(size=28, geometry="even")
    with pytest.raises(InputError, match=r"image_size = 100 .* 'patch' .* try 96 or 128"):
        small(size=100, geometry="patch")
    with pytest.raises(InputError, match=r"image_size = 28 .* 'published' .* try 32"):
        small(size=64)(random_images(28))
    assert small(size=28).exact_size(28) == (28,)
    plain = small("metaformer_s12_pppa", size=60, geometry="even")
    assert plain.exact_size(60) == (60,)
    assert plain(random_images(60)).shape == (2, 5)


@pytest.mark.parametrize("name", ["metaformer_s12_pppa", "roto_metaformer_s12_pppa"])
def test_sizes_that_are_too_small_are_refused(name):
    with pytest.raises(InputError, match=r"image_size = 2 is too small for .* try 3\."):
        small(name, size=2)
    with pytest.raises(InputError, match=r"image_size = 28 .* 'even' .* try 32"):
        small(name, size=28, geometry="even")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mixers": "ppp"}, "must have one entry per stage"),
        ({"mixers": "pppx"}, "unknown mixer 'x'"),
        ({"depths": (1, 1, 0, 1)}, "depths\\[2\\] = 0 must be from 1"),
        ({"depths": (), "widths": (), "mixers": ""}, "must have one entry per stage"),
        ({"geometry": "odd"}, "unknown geometry 'odd'"),
        ({"norm": "batch"}, "unknown norm 'batch'"),
        ({"reduce": "median"}, "unknown reduce 'median'"),
        ({"algorithm": "fft"}, "unknown algorithm 'fft'"),
        ({"drop_path": 1.0}, "drop_path = 1.0 must be from 0 to below 1"),
        ({"group": "C8"}, "C8 does not map pixels to pixels"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        small(**options)


def test_wrong_channels_are_refused():
    with pytest.raises(InputError, match="images with 3 channels, got 1"):
        small()(torch.rand(1, 1, 32, 32).double())


def test_a_saved_model_is_loaded_exactly(tmp_path):
    model = small(geometry="even").float()
    save(model, tmp_path / "model")
    x = torch.rand(1, 3, 32, 32)
    torch.testing.assert_close(load(tmp_path / "model")(x), model(x))


def test_first_loss_is_that_of_uniform_probabilities_and_gradients_reach_everything():
    model = small(lively=False, qk_norm=False).train()  # one token has no scores
    loss = nn.functional.cross_entropy(model(random_images()), torch.arange(2))
    assert loss.item() == pytest.approx(1.609, abs=0.2)
    loss.backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in model.parameters())


def test_drop_path_rates_increase_with_depth():
    model = small(drop_path=0.4)
    rates = [block.drop_path.rate for stage in model.stages for block in stage]
    assert rates == pytest.approx([0, 0.1, 0.2, 0.3, 0.4])


def test_the_registered_names():
    assert len(list_models("poolformer_*")) == 5
    assert len(list_models("metaformer_*")) == 3
    assert len(list_models("roto_*former_*")) == 8


ORIENTED = {"widths": (8, 16, 24, 24)}


@pytest.mark.parametrize("oriented", [1, 2, 3])
@pytest.mark.parametrize(("geometry", "size"), [("published", 28), ("even", 32), ("patch", 32)])
def test_invariance_of_networks_with_oriented_stages(oriented, geometry, size):
    model = small(size=size, geometry=geometry, oriented=oriented, **ORIENTED)
    x = random_images(size)
    assert max(equivariance_errors(model, "D4", x)) < 1e-12
    assert max(equivariance_errors(model.forward_features, "D4", x, act_out=act_on_image)) < 1e-12
    assert max(equivariance_errors(model.train(), "D4", x)) < 1e-12


def test_invariance_under_other_groups_with_oriented_stages():
    model = small("roto_poolformer_s12", group="C4", oriented=2, **ORIENTED)
    assert equivariance_error(model, "C4", random_images(32, 64)) < 1e-12
    assert equivariance_error(model, "D4", random_images()) > 1e-4


def test_negative_control_a_lift_with_equal_filters_for_all_group_elements():
    model, x = small(oriented=1, **ORIENTED), random_images()
    assert equivariance_error(model, "D4", x) < 1e-12
    model = small(oriented=1, **ORIENTED)  # the filters of the other are expanded already
    model.embeddings[0].filters.source[64:] = model.embeddings[0].filters.source[:64].repeat(7)
    assert equivariance_error(model, "D4", x) > 0.01


def with_one_patch_rotated(size=32):
    """Return an image, and the same with one of its 4 × 4 patches rotated about its own centre."""
    x = torch.rand(1, 3, size, size, dtype=torch.float64)
    changed = x.clone()
    changed[..., 8:12, 8:12] = act_on_image("D4", 1, x[..., 8:12, 8:12])
    return x, changed


@torch.no_grad()
def test_only_oriented_stages_detect_the_rotation_of_a_single_patch():
    before, after = with_one_patch_rotated()
    changes = {}
    for oriented in (0, 1):
        model = small(geometry="patch", oriented=oriented, **ORIENTED)
        y = model(before)
        changes[oriented] = float((model(after) - y).abs().max() / y.std())
    assert changes[0] < 1e-12
    assert changes[1] > 1e-4


def test_definition_with_oriented_stages():
    """Lift, a block and a convolution on the group, the maximum over it; then as the plain one."""
    model, x = small(oriented=1, geometry="even", **ORIENTED), random_images(32, 64)
    lift, fold = model.embeddings[0], model.embeddings[1]
    kernels = lift.weight.unflatten(-1, (8, 8))
    by_element = [
        nn.functional.conv2d(x, act_on_image("D4", g, kernels), lift.bias, 4, 2) for g in range(8)
    ]
    regular = model.stages[0](torch.stack(by_element, dim=2))
    maps = regular.transpose(1, 2).flatten(1, 2)
    maps = nn.functional.conv2d(maps, fold[0].filters.group_conv(fold[0].weight), None, 2, 1)
    maps = maps.unflatten(1, (8, -1)).amax(1) + fold[0].bias[:, None, None]
    for number in (1, 2, 3):
        maps = maps if number == 1 else model.embeddings[number](maps)
        maps = model.stages[number](maps)
    mean = model.norm(maps).mean(dim=(2, 3))
    torch.testing.assert_close(model(x), mean @ model.head.weight.T + model.head.bias)


@pytest.mark.parametrize(("oriented", "count"), [(0, 14_997_767), (1, 14_928_383)])
def test_number_of_parameters_with_oriented_stages(oriented, count):
    """The first stage has the same width and |G| times fewer parameters: 0.5 % of all."""
    model = create_model(
        "roto_metaformer_s12_pppa", "D4", num_classes=7, in_chans=3, image_size=128,
        geometry="even", oriented=oriented, qk_norm=False,
    )  # fmt: skip
    assert sum(p.numel() for p in model.parameters()) == count
    shape = (1, 8, 8, 32, 32) if oriented else (1, 64, 32, 32)
    assert model.embeddings[0](torch.rand(1, 3, 128, 128)).shape == shape


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("metaformer_s12_pppa", {"oriented": 1}, "oriented = 1 .* use the roto_ model"),
        ("roto_metaformer_s12_pppa", {"oriented": 4}, "oriented = 4 must be from 0 to 3"),
        ("roto_metaformer_s12_pppa", {"oriented": 1, "reduce": "mean"}, "reduce is 'mean'"),
        ("roto_metaformer_s12_pppa", {"oriented": 1}, "width = 12 .* 8 group elements"),
        ("roto_metaformer_s12_ppaa", {"oriented": 3}, "'ppa', but attention would mix it"),
    ],
)
def test_stages_that_cannot_be_oriented_are_refused(name, options, message):
    with pytest.raises(InputError, match=message):
        small(name, widths=(12, 16, 24, 24), **options)


ONE_GRAPH = """
import torch, turnwise
small = dict(widths=[8, 16], depths=[1, 1], mixers="pa", head_width=4, drop_path=0.1)
small |= dict(oriented=1, algorithm="bank")
model = turnwise.create_model("roto_metaformer_s12_pppa", "D4", 7, 3, 16, **small)
images = torch.rand(2, 3, 16, 16)
compiled = torch.compile(model, backend="eager", fullgraph=True)
compiled(images).square().sum().backward()
assert all(p.grad is not None for p in model.parameters())
torch.testing.assert_close(compiled.eval()(images), model(images))
"""


def test_it_compiles_in_one_graph():
    """In a process of its own: the run-time type checks of the tests would break the graph."""
    subprocess.run([sys.executable, "-c", ONE_GRAPH], check=True)
