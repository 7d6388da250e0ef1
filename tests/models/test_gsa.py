"""GSA-Net and GE-ViT: invariance, negative controls, definitions, sizes, precisions, errors."""

import pickle
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

import turnwise
from turnwise.errors import InputError
from turnwise.geometry.layouts import regular_to_field
from turnwise.geometry.neighbourhoods import Neighbourhood
from turnwise.groups import act_on_field, equivariance_error, equivariance_errors
from turnwise.layers.gsa.attention import GroupSelfAttention
from turnwise.models import create_model
from turnwise.models.registry import stored_options

SMALL = {"width": 12, "widths": [[12], [12]], "crops": [[2], [1]], "heads": 2, "window": 3}
PCAM = SMALL | {
    "data": "pcam",
    "widths": [[], [12], [12, 12], [12]],
    "crops": [[], [0], [2, 1], [1]],
    "image_size": 96,
    "in_chans": 3,
    "num_classes": 2,
}


def model_for(name="gsa_net", **options):
    return create_model(name, **SMALL | options).double().eval()


def random_images(size=28, channels=1, batch=1):
    """Return the letter F, which has no symmetry, in noise."""
    images = 0.3 * torch.rand(batch, channels, size, size, dtype=torch.float64)
    low, middle, high = size // 4, size // 2, 3 * size // 4
    images[..., low:high, low] += 1
    images[..., low, low:high] += 1
    images[..., middle, low:middle] += 1
    return images


@pytest.mark.parametrize("size", [28, 32])
@pytest.mark.parametrize("queries", ["all", "own"])
@pytest.mark.parametrize("group", ["C4", "D1"])
@pytest.mark.parametrize("name", ["gsa_net", "ge_vit"])
def test_the_logits_are_invariant(name, group, queries, size):
    model = model_for(name, group=group, queries=queries, image_size=size)
    assert equivariance_error(model, group, random_images(size)) < 1e-10


@pytest.mark.parametrize("name", ["gsa_net", "ge_vit"])
@pytest.mark.parametrize(("queries", "size"), [("all", 28), ("own", 28), ("own", 32)])
def test_invariance_under_rotations_and_reflections(name, queries, size):
    """A rotation by 90° and a reflection generate D4."""
    model = model_for(name, group="D4", queries=queries, image_size=size)
    assert max(equivariance_errors(model, "D4", random_images(size), elements=[1, 4])) < 1e-10


@pytest.mark.parametrize(
    "options",
    [{"encoding": "table"}, {"shape": "disc", "window": 5}, {"window": 28}, {"data": "cifar10"}],
    ids=str,
)
def test_invariance_with_other_options(options):
    model = model_for(group="D4", queries="own", image_size=13, **options)
    assert equivariance_error(model, "D4", random_images(13)) < 1e-10


@pytest.mark.parametrize(
    ("group", "queries", "size", "generators"), [("C4", "all", 28, [1]), ("D4", "own", 22, [1, 4])]
)
def test_invariance_in_the_published_sizes(group, queries, size, generators):
    """Whole networks of 9 heads and 5 blocks."""
    model = create_model("gsa_net", group=group, queries=queries).double().eval()
    assert max(equivariance_errors(model, group, random_images(size), elements=generators)) < 1e-10


@pytest.mark.parametrize("group", ["C8", "D8"])
def test_finer_groups_are_exact_on_the_elements_of_the_grid(group):
    model = model_for(group=group, queries="own", image_size=14)
    exact = turnwise.groups.PlanarGroup.named(group).grid_elements()
    assert max(equivariance_errors(model, group, random_images(14), elements=exact)) < 1e-10


@pytest.mark.parametrize("size", [14, 15])
@pytest.mark.parametrize("group", ["C4", "D4"])
def test_the_features_are_equivariant(group, size):
    model = model_for(group=group, queries="own")
    features = model.forward_features
    assert equivariance_error(features, group, random_images(size), act_out=act_on_field) < 1e-10


def test_invariance_on_rectangles():
    x = torch.rand(1, 1, 15, 20, dtype=torch.float64)
    assert equivariance_error(model_for(group="D4", queries="own"), "D4", x) < 1e-10


def test_invariance_where_the_published_pool_breaks_it():
    """PCam, 96 × 96: the last pool is applied to 7 × 7 pixels."""
    model = model_for(**PCAM)
    assert model.exact_size(96) == (96,)
    assert equivariance_error(model, "C4", random_images(96, 3)) < 1e-10


@pytest.mark.parametrize("training", [True, False])
def test_invariance_in_float32_after_training(training):
    """In both modes, without dropout, which is random."""
    model = create_model("gsa_net", attention_dropout=0.0, value_dropout=0.0, **SMALL)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimiser.zero_grad()
        F.cross_entropy(model(torch.rand(4, 1, 20, 20)), torch.arange(4)).backward()
        optimiser.step()
    x = torch.rand(2, 1, 20, 20)
    assert equivariance_error(model.train(training), "C4", x) < 1e-4
    assert equivariance_error(model.double(), "C4", x.double()) < 1e-10


@pytest.mark.parametrize("name", ["gsa_net", "ge_vit"])
def test_outputs_differ_between_images_and_features_between_orientations(name):
    model = model_for(name, group="D4", queries="own")
    x = random_images(batch=2)
    logits, features = model(x), model.forward_features(x)
    assert (logits[0] - logits[1]).abs().max() > 1e-3 * logits.abs().max()
    assert features.std(dim=1).max() > 1e-3
    assert features.flatten(2, 3).std(dim=2).max() > 1e-2


def test_logits_depend_on_more_than_the_histogram():
    """A bar and a cross of as many bright pixels have different logits."""
    x = torch.zeros(2, 1, 28, 28, dtype=torch.float64)
    x[0, :, 13, 6:23] = 1
    x[1, :, 13, 9:18] = 1
    x[1, :, 9:18, 13] = 1
    assert x[0].sum() == x[1].sum()
    logits = model_for(group="D4", queries="own")(x)
    assert (logits[0] - logits[1]).abs().max() > 1e-3 * logits.abs().max()


@pytest.mark.parametrize("heads", [1, 9])
def test_features_depend_on_grey_levels(heads):
    """The norm of each pixel must not leave only the sign of its grey level."""
    model = create_model("gsa_net", heads=heads).double().eval()
    x = torch.full((1, 1, 12, 20), 0.2, dtype=torch.float64)
    x[..., 10:] = 0.9
    field = F.silu(model.norm(regular_to_field(model.lift(x))))
    assert (field[:, :, 6, 3] - field[:, :, 6, 16]).abs().max() > 0.1 * field.abs().max()


def test_negative_control_the_published_gsa_net_is_not_invariant():
    model = model_for(group="C4", variant="gsa-2021")
    assert equivariance_error(model, "C4", random_images()) > 1e-5


def test_negative_control_the_published_ge_vit_is_not_invariant_under_d4():
    """It is invariant under rotations and under one reflection, but not under both."""
    for group in ("C4", "D1"):
        model = model_for("ge_vit", group=group, variant="gevit-2023")
        assert equivariance_error(model, group, random_images()) < 1e-9
    model = model_for("ge_vit", group="D4", variant="gevit-2023", image_size=14)
    assert equivariance_error(model, "D4", random_images(14)) > 1e-5


def test_negative_control_the_published_pool_is_not_symmetric():
    """It drops one row of 7; the network names the sizes at which it is exact."""
    model = model_for("ge_vit", variant="gevit-2023", **PCAM)
    assert model.exact_size(96) == (88, 104)
    assert max(equivariance_errors(model, "C4", random_images(96, 3), elements=[1])) > 1e-3
    assert max(equivariance_errors(model, "C4", random_images(88, 3), elements=[1])) < 1e-9


def test_negative_control_a_larger_group_than_that_of_the_model():
    assert equivariance_error(model_for(group="C4"), "D4", random_images()) > 1e-4
    assert equivariance_error(model_for(group="C1"), "C4", random_images()) > 1e-4


def test_definition_of_the_pooling():
    """A linear map without bias, the mean over the pixels, the maximum over the group."""
    model, x = model_for(group="D4", queries="own"), random_images(14, batch=2)
    features, logits = model.forward_features(x), model(x)
    for b, c in torch.cartesian_prod(torch.arange(2), torch.arange(10)).tolist():
        scores = features[b] @ model.head.weight[c]  # (group, row, col)
        expected = max(of_element.mean() for of_element in scores)
        torch.testing.assert_close(logits[b, c], expected)


@pytest.mark.parametrize("data", ["rotmnist", "cifar10", "pcam"])
def test_definition_of_the_features(data):
    """Lift, norm, activation; then stages of blocks, the norms between them, and pools."""
    options = {"data": data, "widths": [[12, 12], [8]], "crops": [[1, 0], [1]]}
    model, x = model_for(**options), random_images(14)
    field = F.silu(model.norm(regular_to_field(model.lift(x))))
    blocks = [[0, 3, 6] if n == 0 else [0, 3] for n in range(2)]  # with a norm and an activation
    for n, stage in enumerate(model.stages):
        between = data != "rotmnist"
        for block in range(2 - n):
            field = stage[blocks[n][block] if between else block](field)
            if between:
                field = F.silu(stage[blocks[n][block] + 1](field))
        if n == 0 or data == "pcam":
            field = stage[-2](field)
    torch.testing.assert_close(model.forward_features(x), field, rtol=0, atol=1e-12)
    assert field.shape[2:] == ((2, 2, 8) if data == "pcam" else (4, 4, 8))


COUNTS = {
    "rotmnist": "z2 44368, p4 44428, p8 44508, p12 44588, p16 44668, mz2 44388, p4m 44508, "
    "p8m 44668",
    "cifar10": "z2 3001648, mz2 3001808, p4 3002128, p4m 3002768",
    "pcam": "z2 206926, p4 207034, p8 207178, p4m 207178",
}
TASKS = {
    "rotmnist": {},
    "cifar10": {"in_chans": 3, "image_size": 32},
    "pcam": {"in_chans": 3, "image_size": 96, "num_classes": 2},
}


@pytest.mark.parametrize("data", COUNTS)
@pytest.mark.parametrize("variant", ["exact", "gsa-2021", "gevit-2023"])
def test_the_numbers_of_parameters_are_the_published_ones(data, variant):
    for pair in COUNTS[data].split(", "):
        group, count = pair.split()
        model = create_model("gsa_net", group=group, data=data, variant=variant, **TASKS[data])
        assert sum(p.numel() for p in model.parameters()) == int(count), group


def test_first_loss_is_that_of_uniform_probabilities():
    with torch.no_grad():
        logits = create_model("gsa_net", window=3)(torch.rand(2, 1, 28, 28))
    assert F.cross_entropy(logits, torch.arange(2)).item() == pytest.approx(2.303, abs=0.3)


def test_the_first_loss_of_the_published_programs_is_in_the_hundreds():
    """165 in the originals: logits are sums over pixels of sums over the group."""
    model = create_model("gsa_net", window=3, variant="gsa-2021")
    with torch.no_grad():
        loss = F.cross_entropy(model(torch.rand(2, 1, 28, 28)), torch.arange(2))
    assert loss.item() > 50


@pytest.mark.parametrize("variant", ["exact", "gsa-2021"])
def test_the_initial_biases_of_the_encodings_depend_on_the_variant(variant):
    model = model_for(variant=variant)
    biases = [model.lift.place.row.spread.bias, model.stages[0][0].attention.place.col.spread.bias]
    assert all((bias.std() > 0.5) == (variant == "exact") for bias in biases)


def striped(batch, size):
    """Return fine and coarse stripes with noise, which no rotation confuses."""
    label = torch.arange(batch) % 2
    stripes = torch.arange(size) // (1 + 2 * label[:, None]) % 2  # (batch, col)
    images = stripes[:, None, None, :].expand(batch, 1, size, size)
    return images + 0.1 * torch.randn(batch, 1, size, size), label


@pytest.mark.parametrize("backend", ["plain", "streaming"])
@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_mixed_precision(kind, backend):
    """bfloat16, and float16 with scaled gradients, stay finite, and the loss falls."""
    model = create_model("gsa_net", num_classes=2, backend=backend, **SMALL)
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", enabled=kind is torch.float16)
    images, labels = striped(8, 12)
    losses = []
    for _ in range(20):
        with torch.autocast("cpu", kind):
            loss = F.cross_entropy(model(images), labels)
        optimiser.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimiser)
        scaler.update()
        losses.append(loss.item())
    assert all(torch.isfinite(p).all() for p in model.parameters())
    assert sum(losses[-3:]) / 3 < 0.7 * losses[0]


def test_gradients_reach_every_parameter():
    """Except those that add one number to all scores of a query, which the softmax ignores."""
    model = model_for(group="D4", queries="own")
    model(random_images(14)).square().sum().backward()
    dead = {n for n, p in model.named_parameters() if p.grad is None or not p.grad.abs().max()}
    ignored = (".to_key.bias", "row.mix.bias", "col.mix.bias")
    assert all(name.endswith(ignored) for name in dead)


ONE_GRAPH = """
import warnings
import torch, turnwise
small = dict(width=12, widths=[[12], []], crops=[[1], []], heads=2, window=3, image_size=8)
model = turnwise.create_model("gsa_net", group="D4", queries="own", **small).double().eval()
images = torch.rand(2, 1, 8, 8, dtype=torch.float64)
exported = torch.export.export(model, (images,)).module()
torch.testing.assert_close(exported(images), model(images))
assert type(model(images)) is torch.Tensor, "export left something behind"
warnings.simplefilter("error")
compiled = torch.compile(model, backend="eager", fullgraph=True)
torch.testing.assert_close(compiled(images), model(images))
turnwise.assert_equivariant(compiled, "D4", images)
larger = torch.rand(2, 1, 12, 12, dtype=torch.float64)
torch.testing.assert_close(compiled(larger), model(larger))
"""


def test_it_compiles_in_one_graph_and_exports():
    """In a process of its own: the run-time type checks of the tests would break the graph."""
    subprocess.run([sys.executable, "-c", ONE_GRAPH], check=True)


def test_training_after_a_forward_pass_in_inference_mode():
    """Lightning does so: first a sanity check of the validation, then training."""
    model, images = create_model("ge_vit", group="C2", **SMALL), torch.rand(1, 1, 19, 21)
    with torch.inference_mode():
        model(images)
    model(images).sum().backward()
    assert model.head.weight.grad.abs().max() > 0


@pytest.mark.parametrize("window", [*range(3, 28, 2), 28])
def test_every_window_of_the_papers(window):
    model = create_model("gsa_net", window=window)
    expected = Neighbourhood(0 if window == 28 else window)
    layers = [m for m in model.modules() if isinstance(m, GroupSelfAttention)]
    assert len(layers) == 5
    assert {layer.project.plan.neighbourhood for layer in layers} == {expected}


def test_a_window_as_large_as_the_image_is_global_attention():
    whole = model_for(window=0, image_size=14)
    for window in (14, 15, 99):
        model = model_for(window=window, image_size=14)
        model.load_state_dict(whole.state_dict())
        x = random_images(14)
        assert torch.equal(model(x), whole(x))


def test_one_network_takes_images_of_several_sizes():
    """28 and 36 pixels with the same weights, both exactly."""
    model = model_for(group="C4")
    assert model.exact_size(28) == (28,)
    assert model.exact_size(36) == (36,)
    assert equivariance_error(model, "C4", random_images(36)) < 1e-10


def test_the_state_dict_is_the_same_in_both_modes():
    model = create_model("gsa_net", **SMALL)
    assert model.train().state_dict().keys() == model.eval().state_dict().keys()
    assert not any("table" in key for key in model.state_dict())


def test_dropout_is_on_in_training_only():
    x = torch.rand(2, 1, 20, 20)
    for option in ("attention_dropout", "value_dropout"):
        none = {"attention_dropout": 0.0, "value_dropout": 0.0}
        model = create_model("gsa_net", **SMALL | none | {option: 0.5})
        assert not torch.equal(model.train()(x), model(x)), option
        assert torch.equal(model.eval()(x), model(x))


def test_widths_and_crops_can_be_chosen():
    model = model_for(widths=[[6], [8, 10]], crops=[], num_classes=3)
    assert model.forward_features(random_images(14)).shape == (1, 4, 7, 7, 10)
    assert model(random_images(14)).shape == (1, 3)
    assert model_for(widths=((6,), (8,)), crops=((0,), (0,)))(random_images(14)).shape == (1, 10)


@pytest.mark.parametrize("name", ["gsa_net", "ge_vit"])
def test_a_saved_model_is_loaded_exactly(name, tmp_path):
    model = create_model(name, group="D4", queries="own", **SMALL).eval()
    turnwise.save(model, tmp_path / "model")
    again = turnwise.load(tmp_path / "model")
    images = torch.rand(2, 1, 28, 28)
    assert torch.equal(again(images), model(images))
    assert again.config.options["widths"] == [[12], [12]]


def test_gsa_net_and_ge_vit_relate_group_elements_differently():
    gsa, gevit = model_for("gsa_net", group="D4"), model_for("ge_vit", group="D4")
    gevit.load_state_dict(gsa.state_dict())
    x = random_images(14)
    assert (gsa(x) - gevit(x)).abs().max() > 1e-5 * gsa(x).abs().max()
    tables = [model.stages[0][0].attention.table for model in (gsa, gevit)]
    assert not torch.equal(*tables)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"window": 4}, r"window = 4 must be odd and positive, .*try 3 or 5"),
        ({"window": 26}, "window = 26 must be odd and positive"),
        ({"shape": "disk"}, "unknown shape 'disk'. Did you mean 'disc'"),
        ({"shape": "disc", "window": 28}, r"the whole image \(window = 0\) is not a disc"),
        ({"variant": "exakt"}, "unknown variant 'exakt'. Did you mean 'exact'"),
        ({"data": "mnist"}, "unknown data 'mnist'. Did you mean 'rotmnist'"),
        ({"encoding": "tabel"}, "unknown encoding 'tabel'. Did you mean 'table'"),
        ({"encoding": "table", "group": "C8"}, "C8 does not map pixels to pixels"),
        ({"queries": "one"}, "unknown queries 'one'"),
        ({"heads": 0}, "heads = 0 must be from 1"),
        ({"attention_dropout": 1.0}, r"dropout = 1\.0 must be from 0 to below 1"),
        ({"image_size": 21}, "image_size = 21 is too small .* must be at least 22"),
        ({"data": "pcam", "image_size": 28}, "image_size = 28 is too small .* at least 56"),
        ({"widths": [[6]], "crops": [[1], [1]]}, "must list as many stages"),
        ({"widths": [[6, 6]], "crops": [[1]]}, "in each stage as many blocks"),
        ({"crops": [[1]]}, "crops need widths: give both, or neither"),
        ({"widths": 20}, "widths must be a list, got 20"),
        ({"widths": [20]}, "widths\\[0\\] must be a list, got 20"),
        ({"widths": [[20]], "crops": [2]}, "crops\\[0\\] must be a list, got 2"),
        ({"widths": [[4]]}, "dim = 2 must be at least 3"),
    ],
)
def test_bad_options_are_refused(options, words):
    with pytest.raises(InputError, match=words):
        create_model("gsa_net", **options)


def test_the_smallest_size_works():
    """22 → 18, pooled to 9 → 5 → 3 → 1; and 56 for PCam's layout, in small."""
    assert create_model("gsa_net", image_size=22).exact_size(21) == (22,)
    assert model_for()(random_images(8 + 2)).shape == (1, 10)
    assert model_for(**PCAM)(random_images(56, 3)).shape == (1, 2)


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((1, 3, 28, 28), "takes images with 1 channels, got 3"),
        ((1, 1, 8, 8), "2 x 2 pixels has none left 1 pixels from its border"),
        ((1, 1, 28, 5), "a field of 24 x 1 pixels is too small to pool"),
    ],
)
def test_images_that_do_not_fit_are_refused(shape, words):
    with pytest.raises(InputError, match=words):
        create_model("gsa_net", **SMALL)(torch.rand(shape))


@pytest.mark.parametrize("name", ["gsa_net", "ge_vit"])
def test_a_model_can_be_pickled_and_given_an_empty_batch(name):
    model = create_model(name, "C4", image_size=22, window=3, heads=1).eval()
    again = pickle.loads(pickle.dumps(model))
    images = torch.rand(1, 1, 22, 22)
    assert torch.equal(again(images), model(images))
    assert model(images[:0]).shape == (0, 10)


def queries_of(model):
    layers = [part for part in model.modules() if isinstance(part, GroupSelfAttention)]
    return {layer.project.plan.queries for layer in layers}


def test_new_networks_take_own_queries_and_published_or_stored_ones_all():
    assert queries_of(create_model("gsa_net", **SMALL)) == {"own"}
    assert queries_of(create_model("gsa_net", queries="all", **SMALL)) == {"all"}
    for name, variant in (("gsa_net", "gsa-2021"), ("ge_vit", "gevit-2023")):
        assert queries_of(create_model(name, variant=variant, **SMALL)) == {"all"}
    stored = stored_options("ge_vit", {"window": 3})  # before there was a choice
    assert queries_of(create_model("ge_vit", **SMALL | stored)) == {"all"}
