"""Roto-MetaFormers turn with the picture at every size; their plain twins do not."""

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
    """A narrow network in double precision, whose blocks speak up from the start."""
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


def pictures(size=32, cols=None):
    return torch.rand(2, 3, size, cols or size, dtype=torch.float64)


@pytest.mark.parametrize("name", PARAMETERS)
@pytest.mark.parametrize("prefix", ["", "roto_"])
def test_parameters_are_as_many_as_published(prefix, name):
    for classes, wanted in zip((1000, 7), PARAMETERS[name], strict=True):
        with torch.device("meta"):
            model = create_model(
                prefix + name, "D4", num_classes=classes, in_chans=3, image_size=128
            )
        assert sum(p.numel() for p in model.parameters()) == wanted
    assert DESIGNS.keys() == PARAMETERS.keys()


@pytest.mark.parametrize("size", [28, 30, 32, 64])
@pytest.mark.parametrize("name", ["roto_poolformer_s12", "roto_metaformer_s12_ppaa"])
def test_law(name, size):
    model, x = small(name, size), pictures(size)
    assert max(equivariance_errors(model, "D4", x)) < 1e-12
    assert max(equivariance_errors(model.forward_features, "D4", x, act_out=act_on_image)) < 1e-12
    assert model.group.name == "D4"


@pytest.mark.parametrize("geometry", ["published", "even", "patch"])
@pytest.mark.parametrize("reduce", ["max", "mean", "rms"])
def test_law_of_every_geometry_and_reduction(geometry, reduce):
    model = small(geometry=geometry, reduce=reduce)
    assert equivariance_error(model, "D4", pictures()) < 1e-11
    assert equivariance_error(model.train(), "D4", pictures()) < 1e-11


@pytest.mark.parametrize("group", ["C2", "C4", "D1", "D2"])
def test_law_of_other_groups_and_of_rectangles(group):
    model = small(group=group, mixers="pwia")
    assert equivariance_error(model, group, pictures(32, 64)) < 1e-12
    assert equivariance_error(model, "D4", pictures()) > 1e-4


def test_witness_the_features_turn_and_pictures_differ():
    model, x = small(), pictures(64)
    y = model.forward_features(x)
    assert all((act_on_image("D4", g, y) - y).abs().max() > 0.01 for g in range(1, 8))
    assert (model(x)[0] - model(x)[1]).abs().max() > 1e-3


@pytest.mark.parametrize("geometry", ["published", "even", "patch"])
def test_control_the_plain_twin_fails_with_the_same_weights(geometry):
    roto = small(geometry=geometry)
    plain = small("metaformer_s12_pppa", geometry=geometry)
    plain.load_state_dict(roto.state_dict())
    assert equivariance_error(plain, "D4", pictures()) > 0.01
    assert plain.group.name == "C1"
    twin = small("metaformer_s12_pppa", geometry=geometry, roto=True)
    twin.load_state_dict(roto.state_dict())
    x = pictures()
    torch.testing.assert_close(twin(x), roto(x))


def test_definition():
    """Embed, blocks, four times; norm, mean over the pixels, linear."""
    model, x = small("metaformer_s12_pppa"), pictures(64, 32)
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
    x, results = pictures(), []
    for chosen in (algorithm, "auto"):
        model = small(algorithm=chosen)
        y = model(x)
        results.append([y, *torch.autograd.grad(y.square().sum(), list(model.parameters()))])
    for found, wanted in zip(*results, strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-9, rtol=1e-9)


def two_parts(size=32):
    """Pictures of part A with part B, and with B moved and mirrored about the picture's centre."""
    a, b = torch.zeros(2, 1, 3, size, size, dtype=torch.float64)
    a[..., 2:6, 2:6] = torch.rand(1, 3, 4, 4)
    b[..., 2:6, 9:13] = torch.rand(1, 3, 4, 4)
    return a + b, a + act_on_image("D4", 4, b)


@torch.no_grad()
def test_moving_a_part_is_seen_by_the_aligned_model_and_not_by_the_legacy_one():
    before, after = two_parts()
    changes = {}
    for reduce in ("max", "legacy"):
        model = small(geometry="patch", reduce=reduce)
        changes[reduce] = float((model(after) - model(before)).abs().max() / model(before).std())
        assert equivariance_error(model, "D4", before) < 1e-12
    assert changes["legacy"] < 1e-12
    assert changes["max"] > 0.01


@pytest.mark.parametrize("name", ["roto_poolformer_s12", "roto_metaformer_s12_pppa"])
def test_the_certificate_passes_the_twin_and_fails_the_plain_one(name):
    images = torch.rand(2, 3, 32, 32)
    assert certify(small(name), "D4", images, angles=2, scope=BRIEF).holds
    assert not certify(small(name.removeprefix("roto_")), "D4", images, angles=2, scope=BRIEF).holds


def test_single_precision_at_full_width():
    """The published width, 64 pixels: 1e-4 of the logits' spread is promised."""
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
        small(size=64)(pictures(28))
    assert small(size=28).exact_size(28) == (28,)
    plain = small("metaformer_s12_pppa", size=60, geometry="even")
    assert plain.exact_size(60) == (60,)
    assert plain(pictures(60)).shape == (2, 5)


@pytest.mark.parametrize("name", ["metaformer_s12_pppa", "roto_metaformer_s12_pppa"])
def test_sizes_that_are_too_small_are_refused(name):
    with pytest.raises(InputError, match=r"image_size = 2 is too small for .* try 3\."):
        small(name, size=2)
    with pytest.raises(InputError, match=r"image_size = 28 .* 'even' .* try 32"):
        small(name, size=28, geometry="even")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mixers": "ppp"}, "must have one entry for each stage"),
        ({"mixers": "pppx"}, "unknown mixer 'x'"),
        ({"depths": (1, 1, 0, 1)}, "must have one entry for each stage, and be positive"),
        ({"depths": (), "widths": (), "mixers": ""}, "must have one entry for each stage"),
        ({"geometry": "odd"}, "unknown geometry 'odd'"),
        ({"norm": "batch"}, "unknown norm 'batch'"),
        ({"reduce": "median"}, "unknown reduction 'median'"),
        ({"algorithm": "fft"}, "unknown algorithm 'fft'"),
        ({"drop_path": 1.0}, "drop_path = 1.0 must be 0 to below 1"),
        ({"group": "C8"}, "C8 does not map pixels to pixels"),
    ],
)
def test_nonsense_is_refused(options, said):
    with pytest.raises(InputError, match=said):
        small(**options)


def test_wrong_channels_are_refused():
    with pytest.raises(InputError, match="pictures with 3 channels, got 1"):
        small()(torch.rand(1, 1, 32, 32).double())


def test_it_is_saved_and_loaded(tmp_path):
    model = small(geometry="even").float()
    save(model, tmp_path / "model")
    x = torch.rand(1, 3, 32, 32)
    torch.testing.assert_close(load(tmp_path / "model")(x), model(x))


def test_first_loss_is_that_of_a_guess_and_gradients_reach_everything():
    model = small(lively=False).train()
    loss = nn.functional.cross_entropy(model(pictures()), torch.arange(2))
    assert loss.item() == pytest.approx(1.609, abs=0.2)
    loss.backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in model.parameters())


def test_paths_are_dropped_the_more_the_deeper():
    model = small(drop_path=0.4)
    rates = [block.drop_path.rate for stage in model.stages for block in stage]
    assert rates == pytest.approx([0, 0.1, 0.2, 0.3, 0.4])


def test_names():
    assert len(list_models("poolformer_*")) == 5
    assert len(list_models("metaformer_*")) == 3
    assert len(list_models("roto_*former_*")) == 8


ORIENTED = {"widths": (8, 16, 24, 24)}


@pytest.mark.parametrize("oriented", [1, 2, 3])
@pytest.mark.parametrize(("geometry", "size"), [("published", 28), ("even", 32), ("patch", 32)])
def test_law_where_poses_are_kept(oriented, geometry, size):
    model = small(size=size, geometry=geometry, oriented=oriented, **ORIENTED)
    x = pictures(size)
    assert max(equivariance_errors(model, "D4", x)) < 1e-12
    assert max(equivariance_errors(model.forward_features, "D4", x, act_out=act_on_image)) < 1e-12
    assert max(equivariance_errors(model.train(), "D4", x)) < 1e-12


def test_law_of_other_groups_where_poses_are_kept():
    model = small("roto_poolformer_s12", group="C4", oriented=2, **ORIENTED)
    assert equivariance_error(model, "C4", pictures(32, 64)) < 1e-12
    assert equivariance_error(model, "D4", pictures()) > 1e-4


def test_control_the_poses_must_be_renamed():
    """The same weights, in a lift that shows all poses the picture from one side."""
    model, x = small(oriented=1, **ORIENTED), pictures()
    assert equivariance_error(model, "D4", x) < 1e-12
    model.embeddings[0].filters.source[64:] = model.embeddings[0].filters.source[:64].repeat(7)
    assert equivariance_error(model, "D4", x) > 0.01


def one_patch_turned(size=32):
    """A picture, and the same with one of its 4 × 4 patches turned by itself."""
    x = torch.rand(1, 3, size, size, dtype=torch.float64)
    turned = x.clone()
    turned[..., 8:12, 8:12] = act_on_image("D4", 1, x[..., 8:12, 8:12])
    return x, turned


@torch.no_grad()
def test_witness_a_patch_turned_by_itself_is_seen_only_where_poses_are_kept():
    before, after = one_patch_turned()
    changes = {}
    for oriented in (0, 1):
        model = small(geometry="patch", oriented=oriented, **ORIENTED)
        y = model(before)
        changes[oriented] = float((model(after) - y).abs().max() / y.std())
    assert changes[0] < 1e-12
    assert changes[1] > 1e-4


def test_definition_where_poses_are_kept():
    """Lift, a block and a convolution on the group, the greatest pose; then as without poses."""
    model, x = small(oriented=1, geometry="even", **ORIENTED), pictures(32, 64)
    lift, fold = model.embeddings[0], model.embeddings[1]
    kernels = lift.weight.unflatten(-1, (8, 8))
    poses = [
        nn.functional.conv2d(x, act_on_image("D4", g, kernels), lift.bias, 4, 2) for g in range(8)
    ]
    maps = model.stages[0](torch.cat(poses, dim=1))
    answers = nn.functional.conv2d(maps, fold[0].filters.group(fold[0].weight), None, 2, 1)
    maps = answers.unflatten(1, (8, -1)).amax(1) + fold[0].bias[:, None, None]
    for number in (1, 2, 3):
        maps = maps if number == 1 else model.embeddings[number](maps)
        maps = model.stages[number](maps)
    mean = model.norm(maps).mean(dim=(2, 3))
    torch.testing.assert_close(model(x), mean @ model.head.weight.T + model.head.bias)


@pytest.mark.parametrize(("oriented", "weights"), [(0, 14_997_767), (1, 14_928_383)])
def test_weights_where_poses_are_kept(oriented, weights):
    """The same width of the first stage, |G| times fewer weights there: half a per cent of all."""
    model = create_model(
        "roto_metaformer_s12_pppa", "D4", num_classes=7, in_chans=3, image_size=128,
        geometry="even", oriented=oriented,
    )  # fmt: skip
    assert sum(p.numel() for p in model.parameters()) == weights
    assert model.embeddings[0](torch.rand(1, 3, 128, 128)).shape == (1, 64, 32, 32)


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("metaformer_s12_pppa", {"oriented": 1}, "oriented = 1 .* use the roto_ twin"),
        ("roto_metaformer_s12_pppa", {"oriented": 4}, "oriented = 4 must be from 0 to 3"),
        ("roto_metaformer_s12_pppa", {"oriented": 1, "reduce": "mean"}, "reduce is 'mean'"),
        ("roto_metaformer_s12_pppa", {"oriented": 1}, "width = 12 .* 8 poses"),
        ("roto_metaformer_s12_ppaa", {"oriented": 3}, "'ppa', but attention mixes them"),
    ],
)
def test_stages_that_cannot_keep_poses(name, options, said):
    with pytest.raises(InputError, match=said):
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
