"""The flagship: invariance, negative controls, definitions, sizes, readouts, refused options."""

import subprocess
import sys

import pytest
import torch

from turnwise.errors import InputError
from turnwise.evaluation import Scope, certify
from turnwise.geometry.layouts import regular_to_tokens, tokens_to_regular
from turnwise.groups import (
    PlanarGroup,
    act_on_field,
    act_on_image,
    act_on_regular,
    equivariance_error,
    equivariance_errors,
)
from turnwise.layers.conv.stem import GroupPool2d
from turnwise.layers.heads.pooling import invariant
from turnwise.layers.transformer.plain import DropPath
from turnwise.models import create_model, list_models

SMALL = {"depths": [1], "kernels": [3, 3, 3], "image_size": 12, "width": 32}
FORMS = {
    "plain": {},
    "two stages": {"depths": [1, 1], "patch": 2},
    "patches": {"stem": "patch"},
    "residual stem": {"stem": "residual"},
    "norms of images": {"norm": "image", "final_norm": "pooled", "layer_scale": 0.1},
    "no attention": {"depths": [0], "stem": "residual"},
    "a wide residual stem with a stride": {
        "stem": "residual",
        "stem_width": 32,
        "stem_depth": 1,
        "stem_stride": 2,
    },
    "cross frame": {"frame": "cross", "width": 256, "group": "D4"},
    "linear attention": {"kernel": "elu"},
    "windows": {"window": 3},
    "irreps": {"basis": "irreps"},
    "averages and maxima": {"halve": "average", "pool_tokens": "both"},
    "overview": {"overview": 5, "halve": "average"},
    "all options": {"layer_scale": 0.1, "qk_norm": True, "drop_path": 0.1, "dropout": 0.1},
}


def model_for(group="C4", size="nano", **options):
    torch.manual_seed(0)
    given = {"group": group} | SMALL | options
    return create_model(f"turnwise_vit_{size}", **given).double().eval()


def random_images(size=12, channels=1, batch=2):
    return torch.rand(batch, channels, size, size, dtype=torch.float64)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_invariant(form):
    model = model_for(**FORMS[form])
    assert equivariance_error(model, model.group, random_images()) < 1e-10


@pytest.mark.parametrize("group", ["C1", "D1", "C2", "D2", "C4", "D4", "C8", "D8"])
def test_invariance_under_the_exact_subgroup_of_every_group(group):
    model = model_for(group)
    assert equivariance_error(model, model.group.exact_subgroup(), random_images()) < 1e-10


@pytest.mark.parametrize("group", ["C4", "D4"])
def test_the_features_of_a_rectangle_are_equivariant(group):
    model, images = model_for(group), torch.rand(1, 1, 12, 8, dtype=torch.float64)
    field = model.forward_features(images)
    assert field.shape == (1, model.group.order, 3, 2, 32 // model.group.order)
    for element in range(model.group.order):
        transformed = model.forward_features(act_on_image(group, element, images))
        assert (transformed - act_on_field(group, element, field)).abs().max() < 1e-10
        if element:
            same_shape = transformed.shape == field.shape
            assert not same_shape or (transformed - field).abs().max() > 1e-3


def test_invariance_in_training():
    """The statistics of batch norms do not depend on the orientation of the images."""
    model = model_for("D4").train()
    assert equivariance_error(model, "D4", random_images()) < 1e-10


def test_logits_differ_between_images_and_under_other_transformations():
    model, images = model_for("C4"), random_images()
    assert (model(images)[0] - model(images)[1]).abs().max() > 1e-4
    flipped = act_on_image("D4", 4, images)
    assert (model(flipped) - model(images)).abs().max() > 1e-5


@pytest.mark.parametrize(("part", "axis"), [("matrices", 0), ("sources", 1)])
def test_negative_control_a_wrong_table_breaks_invariance(part, axis):
    """Two group elements are swapped, for the positions or for the linear maps."""
    model = model_for("C4")
    for name, table in model.named_buffers():
        if name.endswith(part):
            table.copy_(table.index_select(axis, torch.tensor([1, 0, 2, 3])))
    assert equivariance_error(model, "C4", random_images()) > 1e-4


@pytest.mark.parametrize("pool_tokens", ["mean", "max", "both"])
def test_definition_stem_block_norm_pooling(pool_tokens):
    model, images = model_for("C4", pool_tokens=pool_tokens), random_images()
    tokens = regular_to_tokens(model.stem(images))
    block = model.stages[0][0]
    normed = tokens_to_regular(block.norm_attention(tokens), 3, 3)
    tokens = tokens + regular_to_tokens(block.attention(normed))
    tokens = tokens + block.mlp(block.norm_mlp(tokens))
    pooled = invariant(model.norm(tokens), pool_tokens, "both")
    torch.testing.assert_close(model(images), model.head(pooled))


def test_definition_of_an_overview():
    """One token from all tokens, then the pooling over the group."""
    model, images = model_for("C4", overview=5), random_images()
    one = model.overview(model.forward_features(images))
    assert one.shape == (2, 1, 4, 5)
    torch.testing.assert_close(model(images), model.head(invariant(one, "mean", "both")))


def test_an_overview_depends_on_where_tokens_are():
    """Swapping tokens changes nothing for a pooling, but it does for an overview."""
    for options, depends in (({}, False), ({"overview": 5}, True)):
        model = model_for("C4", **options)
        field = model.forward_features(random_images())
        swapped = field[:, :, [1, 0, 2]]
        change = (model.forward_head(swapped) - model.forward_head(field)).abs().max()
        assert (change > 1e-4) == depends


def test_the_stem_pools_as_the_option_says():
    for halve in ("max", "average"):
        layers = model_for(halve=halve).stem.layers
        pools = [layer for layer in layers if isinstance(layer, GroupPool2d)]
        assert [pool.mode for pool in pools] == [halve] * 2


@pytest.mark.parametrize("group", ["C1", "C4", "D4", "C8", "D8", "C16"])
def test_nano_has_at_most_100000_parameters(group):
    model = create_model("turnwise_vit_nano", group=group)
    assert sum(p.numel() for p in model.parameters()) <= 100_000


def test_there_are_four_sizes_each_larger_than_the_last():
    names = ("nano", "tiny", "small", "base")
    assert {f"turnwise_vit_{name}" for name in names} == set(list_models("turnwise_vit_*"))
    counts = [
        sum(
            p.numel()
            for p in create_model(
                f"turnwise_vit_{name}", group="D4", image_size=32, in_chans=3
            ).parameters()
        )
        for name in names
    ]
    assert counts == sorted(counts)
    assert counts[-1] > 10**7


@pytest.mark.parametrize(("size", "group"), [("nano", "C4"), ("nano", "D4"), ("tiny", "C4")])
def test_the_certificate_holds_for_the_sizes(size, group):
    model = create_model(f"turnwise_vit_{size}", group=group, image_size=28)
    scope = Scope(shifts=0, layers=False)
    assert certify(model, group, torch.rand(3, 1, 28, 28), angles=1, scope=scope).holds


def test_invariance_of_the_small_size_in_float32():
    """A rotation by 90° and a reflection generate D4."""
    model = create_model("turnwise_vit_small", group="D4").eval()
    errors = equivariance_errors(model, "D4", torch.rand(2, 1, 28, 28), elements=[1, 4])
    assert max(errors) < 1e-4


@pytest.mark.parametrize("basis", ["regular", "irreps"])
def test_the_state_dict_is_the_same_in_both_bases(basis):
    model, other = model_for("D4"), model_for("D4", basis=basis)
    other.load_state_dict(model.state_dict())
    images = random_images()
    torch.testing.assert_close(other(images), model(images), atol=1e-12, rtol=1e-10)


def test_the_nearest_exact_sizes_are_named():
    model = model_for()
    assert model.exact_size(28) == (28,)
    assert model.exact_size(30) == (28, 32)
    with pytest.raises(InputError, match="try 28 or 32"):
        model(random_images(30))
    with pytest.raises(InputError, match="try 12 or 16"):
        model_for(image_size=14)


@pytest.mark.parametrize(
    ("size", "stride", "widths", "tokens"),
    [(28, 1, [8, 16, 32], 7), (64, 1, [8, 16, 32, 32], 8), (128, 2, [8, 16, 32, 32], 8),
     (224, 4, [8, 16, 32], 14)],
)  # fmt: skip
def test_a_residual_stem_is_chosen_by_the_image_size(size, stride, widths, tokens):
    model = model_for("C1", stem="residual", patch=0, stem_depth=1, image_size=size)
    found = [block.conv_out.out_channels for block in model.stem.blocks]
    assert (model.stem.lift[0].stride, found) == (stride, widths)
    assert model.forward_features(random_images(size, batch=1)).shape[2:4] == (tokens, tokens)


def test_head_dropout_drops_before_the_classifier_in_training_only():
    model, images = model_for(head_dropout=0.5), random_images()
    torch.testing.assert_close(model(images), model_for()(images))
    pooled = model.train().forward_head(model.forward_features(images), pre_logits=True)
    assert 0.2 < (pooled == 0).double().mean() < 0.8


def test_an_overview_has_one_image_size():
    model = model_for(overview=5)
    assert model.exact_size(28) == model.exact_size(12) == (12,)
    with pytest.raises(InputError, match="takes 3 x 3 tokens, got 7 x 7"):
        model(random_images(28))


@pytest.mark.parametrize("overview", [0, 5])
def test_orientation_scores_are_equivariant(overview):
    model, images = model_for("D4", readout="orientation", overview=overview), random_images()
    scores = model(images)
    assert scores.shape == (2, 8)
    for element in range(8):
        transformed = model(act_on_image("D4", element, images))
        torch.testing.assert_close(transformed, act_on_regular("D4", element, scores))
    assert scores.std() > 1e-4


def test_dense_logits_are_equivariant():
    model, images = model_for("C4", readout="dense"), random_images()
    scores = model(images)
    assert scores.shape == (2, 10, 3, 3)
    for element in range(4):
        transformed = model(act_on_image("C4", element, images))
        torch.testing.assert_close(transformed, act_on_image("C4", element, scores))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"width": 30},
            r"width = 30 must be a multiple of 8 \(4 group elements with 1 heads of 2 channels",
        ),
        ({"width": 48, "frame": "cross"}, r"width = 48 must be a multiple of 32 .* try 32 or 64"),
        ({"depths": []}, "must list one stage or more"),
        ({"layer_scale": -0.5}, "layer_scale = -0.5 must be from 0"),
        ({"window": -3}, "window = -3 must be from 0"),
        ({"patch": 3}, "must be a power of 2"),
        ({"patch": 8}, "must be a power of 2 below 2\\^3"),
        ({"stem": "residual", "patch": 6}, "patch = 6 must be stem_stride = 1 times 1, 2, 4"),
        ({"stem": "residual", "stem_stride": 3}, "patch = 4 must be stem_stride = 3 times"),
        ({"stem": "conf"}, "Did you mean 'conv'"),
        ({"pool": "sum"}, "unknown pool 'sum'"),
        ({"pool_tokens": "sum"}, "unknown pool_tokens 'sum'"),
        ({"halve": "mean"}, "unknown halve 'mean'"),
        ({"drop_path": 1.0}, "drop_path = 1.0 must be from 0 to below 1"),
        ({"overview": -1}, "overview = -1 must be from 0"),
        ({"overview": 4, "readout": "dense"}, "dense needs each token; set overview to 0"),
        ({"width": -4}, "must be from 0 to 16384"),
    ],
)
def test_bad_options_are_refused(options, words):
    with pytest.raises(InputError, match=words):
        model_for(**options)


def test_wrong_channels_are_refused():
    with pytest.raises(InputError, match="takes images with 1 channels, got 3"):
        model_for()(random_images(channels=3))


def test_first_loss_is_that_of_uniform_probabilities():
    model, images = create_model("turnwise_vit_tiny", group="C4"), torch.rand(8, 1, 28, 28)
    loss = torch.nn.functional.cross_entropy(model(images), torch.arange(8))
    assert abs(loss.item() - 2.3026) < 0.3


ONE_GRAPH = """
import torch, turnwise
small = dict(depths=[1], kernels=[3, 3, 3], image_size=12, width=32)
for options in ({}, {"basis": "irreps"}, {"overview": 4}, {"kernel": "elu"}):
    torch._dynamo.reset()
    model = turnwise.create_model("turnwise_vit_nano", group="D4", **small, **options)
    model = model.double().eval()
    images = torch.rand(2, 1, 12, 12, dtype=torch.float64)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(images), model(images))
    for element in (1, 4):
        transformed = turnwise.groups.act_on_image("D4", element, images).contiguous()
        torch.testing.assert_close(compiled(transformed), model(images))
exported = torch.export.export(model, (images,)).module()
torch.testing.assert_close(exported(images), model(images))
"""


def test_it_compiles_in_one_graph_and_exports():
    """In a process of its own: the run-time type checks of the tests would break the graph."""
    subprocess.run([sys.executable, "-c", ONE_GRAPH], check=True)


def test_the_default_width_depends_on_the_group():
    """Nano has about the same number of parameters for every group."""
    widths = {
        name: create_model("turnwise_vit_nano", group=name).norm.weight.numel()
        for name in ("C1", "C4", "C16")
    }
    assert widths == {"C1": 32, "C4": 16, "C16": 8}
    assert PlanarGroup.named("C16").order * widths["C16"] == 128


def test_the_rate_of_stochastic_depth_grows_from_0_to_the_option():
    """A mutant that left all rates at 0 once survived all tests."""
    model = create_model("turnwise_vit_nano", drop_path=0.4, **{**SMALL, "depths": [3]})
    rates = [m.rate for m in model.modules() if isinstance(m, DropPath)]
    assert rates == pytest.approx([0, 0.2, 0.4])
    images = torch.rand(4, 1, 12, 12)
    outputs = [model.train()(images) for _ in range(5)]
    assert any(not torch.equal(outputs[0], other) for other in outputs[1:])
