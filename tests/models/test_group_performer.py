"""The Performer on the group: exactness under rotations and shifts, sizes, refused options."""

import subprocess
import sys

import pytest
import torch

from turnwise.errors import InputError
from turnwise.evaluation import certify
from turnwise.geometry.layouts import regular_to_tokens, tokens_to_regular
from turnwise.groups import act_on_field, act_on_image, equivariance_error
from turnwise.layers.heads.pooling import invariant
from turnwise.models import create_model

SMALL = {"width": 32, "depth": 2, "heads": 2, "image_size": 8}
FORMS = {
    "linear": {},
    "softmax": {"attention": "softmax"},
    "patches of two pixels": {"patch": 2},
    "zero padding": {"border": "zero"},
    "attention alone mixes group elements": {"pose_maps": "pose"},
    "all options": {"dropout": 0.1, "drop_path": 0.1, "local": 5, "pool": "mean", "kernel": "relu"},
}


def model_for(group="C4", **options):
    torch.manual_seed(0)
    return create_model("group_performer", group=group, **(SMALL | options)).double().eval()


def random_images(rows=8, cols=8, channels=1, batch=2):
    return torch.rand(batch, channels, rows, cols, dtype=torch.float64)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("group", ["C4", "D4"])
def test_the_logits_are_invariant(group, form):
    model = model_for(group, **FORMS[form])
    assert equivariance_error(model, group, random_images()) < 1e-10


@pytest.mark.parametrize("group", ["C1", "D1", "C2", "C8", "C12"])
def test_invariance_under_the_exact_subgroup_of_every_group(group):
    model = model_for(group, width=48)
    assert equivariance_error(model, model.group.exact_subgroup(), random_images()) < 1e-10


def test_invariance_in_training():
    assert equivariance_error(model_for("D4").train(), "D4", random_images()) < 1e-10


@pytest.mark.parametrize("group", ["C4", "D4"])
def test_the_features_of_a_rectangle_are_equivariant(group):
    model, images = model_for(group, frequencies="free"), random_images(8, 6)
    field = model.forward_features(images)
    for element in range(model.group.order):
        transformed = model.forward_features(act_on_image(group, element, images))
        assert (transformed - act_on_field(group, element, field)).abs().max() < 1e-10


@pytest.mark.parametrize(("patch", "shift"), [(1, (1, 0)), (1, (3, -2)), (2, (2, 4))])
@pytest.mark.parametrize("attention", ["linear", "softmax"])
def test_circular_shifts_by_whole_tokens_change_nothing(attention, patch, shift):
    model, images = model_for("D4", attention=attention, patch=patch), random_images()
    assert (model(images.roll(shift, (2, 3))) - model(images)).abs().max() < 1e-10


@pytest.mark.parametrize(
    "options", [{"border": "zero"}, {"frequencies": "free"}, {"patch": 2}], ids=str
)
def test_negative_control_circular_shifts_change_the_logits_of_other_models(options):
    model, images = model_for("C4", **options), random_images()
    assert (model(images.roll(1, 3)) - model(images)).abs().max() > 1e-6


@pytest.mark.parametrize("group", ["C4", "D4"])
def test_it_passes_the_certificate(group):
    model = create_model("group_performer", group=group, **SMALL)
    assert certify(model, group, torch.rand(3, 1, 8, 8), angles=1).holds


def test_logits_differ_between_images_and_under_other_transformations():
    model, images = model_for("C4"), random_images()
    assert (model(images)[0] - model(images)[1]).abs().max() > 1e-5
    flipped = act_on_image("D4", 4, images)
    assert (model(flipped) - model(images)).abs().max() > 1e-7


@pytest.mark.parametrize("part", ["matrices", "relative"])
def test_negative_control_a_wrong_table_breaks_invariance(part):
    model = model_for("C4", frequencies="free")
    for name, table in model.named_buffers():
        if name.endswith(part):
            table.copy_(table.index_select(0, torch.tensor([1, 0, 2, 3])))
    assert equivariance_error(model, "C4", random_images()) > 1e-6


def test_definition_stem_blocks_norm_pooling():
    model, images = model_for("C4"), random_images()
    tokens = regular_to_tokens(model.stem(images))
    for block in model.blocks:
        normed = tokens_to_regular(block.norm_attention(tokens), 8, 8)
        tokens = tokens + regular_to_tokens(block.attention(normed))
        tokens = tokens + block.mlp(block.norm_mlp(tokens))
    pooled = invariant(model.norm(tokens), "mean", "both")
    torch.testing.assert_close(model(images), model.head(pooled))


def test_both_kinds_of_attention_have_the_same_weights():
    linear, softmax = model_for(), model_for(attention="softmax")
    softmax.load_state_dict(linear.state_dict())
    assert (linear(random_images()) - softmax(random_images())).abs().max() > 1e-6


def test_an_output_does_not_depend_on_the_rest_of_the_batch():
    model, images = model_for(), random_images(batch=3)
    images[2] *= 30
    torch.testing.assert_close(model(images)[:1], model(images[:1]), atol=1e-12, rtol=1e-10)


def test_gradients_reach_every_parameter():
    model = model_for("D4", frequencies="free")
    model(random_images()).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().max() > 0, name


def test_it_learns():
    """A few steps suffice to distinguish a cross from a square, rotated and shifted."""
    torch.manual_seed(0)
    model = create_model("group_performer", **(SMALL | {"num_classes": 2, "depth": 1}))
    cross, square = torch.zeros(2, 8, 8)
    cross[2:5, 3] = cross[3, 2:5] = 1
    square[2:5, 2:5] = 1
    images = torch.stack([cross, square])[:, None]
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(15):
        loss = torch.nn.functional.cross_entropy(model(images), torch.arange(2))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    transformed = images.rot90(1, (2, 3)).roll((2, -1), (2, 3))
    assert model.eval()(transformed).argmax(-1).tolist() == [0, 1]


def test_first_loss_is_that_of_uniform_probabilities():
    model = create_model("group_performer", image_size=12)
    loss = torch.nn.functional.cross_entropy(model(torch.rand(8, 1, 12, 12)), torch.arange(8))
    assert abs(loss.item() - 2.3026) < 0.3


def test_number_of_parameters():
    for group in ("C4", "D4"):
        model = create_model("group_performer", group=group)
        assert sum(p.numel() for p in model.parameters()) < 250_000


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"width": 30}, r"multiple of 8 \(it is split over 4 group elements and 2 heads"),
        ({"border": "mirror"}, "unknown border 'mirror'"),
        ({"pose_maps": "poses"}, "Did you mean 'pose'"),
        ({"patch": 3}, "must be a power of 2"),
        ({"patch": 8}, "at most 4"),
        ({"patch": 4, "image_size": 10}, "try 8 or 12"),
        ({"pool": "sum"}, "unknown pool 'sum'"),
        ({"dropout": 1.0}, "dropout = 1.0 must be from 0 to below 1"),
        ({"attention": "linaer"}, "unknown attention"),
    ],
)
def test_bad_options_are_refused(options, words):
    with pytest.raises(InputError, match=words):
        model_for(**options)


def test_wrong_channels_and_sizes_are_refused():
    with pytest.raises(InputError, match="takes images with 1 channels, got 3"):
        model_for()(random_images(channels=3))
    with pytest.raises(InputError, match="try 8 or 10"):
        model_for(patch=2, frequencies="free")(random_images(9, 9))
    assert model_for(patch=2, frequencies="free").exact_size(9) == (8, 10)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kernels": ("a",)}, "kernels\\[0\\] must be a whole number, got 'a'"),
        ({"kernels": (5.0,)}, "kernels\\[0\\] must be a whole number, got 5.0"),
        ({"kernels": (4, 3)}, "kernels = .4, 3. must be odd"),
        ({"local": 2}, "local = 2 must be odd"),
    ],
)
def test_wrong_kernels_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        model_for(**options)


def test_negative_control_shifts_are_not_exact_for_rotations_off_the_grid():
    """A rotation by 45° does not map whole numbers of periods to whole numbers."""
    images = random_images()
    for group, exact in (("C4", True), ("C8", False)):
        model = model_for(group)
        change = (model(images.roll(3, dims=2)) - model(images)).abs().max()
        assert (change < 1e-10) == exact


@pytest.mark.parametrize("size", [(10, 10), (8, 10), (16, 8)])
def test_torus_frequencies_have_one_image_size(size):
    """At another size the waves would not have whole periods, and shifts would not be exact."""
    model = model_for()
    with pytest.raises(InputError, match=rf"takes images of 8 x 8 pixels, got {size[0]} x"):
        model(random_images(*size))
    assert model.exact_size(10) == model.exact_size(8) == (8,)
    assert model_for(frequencies="free")(random_images(*size)).isfinite().all()


ONE_GRAPH = """
import copy, torch, turnwise
from turnwise.groups import act_on_image
for options in ({}, {"attention": "softmax"}):
    torch._dynamo.reset()
    model = turnwise.create_model(
        "group_performer", group="D4", width=32, depth=1, image_size=8, **options
    ).double().eval()
    images = torch.rand(2, 1, 8, 8, dtype=torch.float64)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    for element in (0, 1, 4):
        transformed = act_on_image("D4", element, images).contiguous()
        torch.testing.assert_close(compiled(transformed), model(images))
    exported = torch.export.export(model, (images,)).module()
    torch.testing.assert_close(exported(images.roll(3, 2)), model(images))
torch._dynamo.reset()
model = turnwise.create_model("group_performer", width=16, depth=1, image_size=8).double()
eager = copy.deepcopy(model)
compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
for run in (compiled, eager):
    run(images).square().sum().backward()
for one, other in zip(model.parameters(), eager.parameters(), strict=True):
    torch.testing.assert_close(one.grad, other.grad)
"""


def test_it_compiles_in_one_graph_with_its_gradients_and_exports():
    """In a process of its own: the run-time type checks of the tests would break the graph."""
    subprocess.run([sys.executable, "-c", ONE_GRAPH], check=True)
