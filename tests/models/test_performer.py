"""Four Performers: published sizes, shifts, dropouts, redraws, differentiation, compilation."""

import copy
import subprocess
import sys

import pytest
import torch
from torch.autograd import forward_ad

from turnwise.errors import InputError
from turnwise.models import create_model, model_options

SMALL = {"width": 16, "depth": 2, "heads": 2, "image_size": 8, "clipping_distance": 3}
FAMILIES = ("performer", "nopos_performer", "relative_performer", "clipped_relative_performer")
EVERY_FAMILY = pytest.mark.parametrize("name", FAMILIES)
EVERY_VARIANT = pytest.mark.parametrize("variant", ["exact", "tep-2021"])
FAR = torch.tensor([100.0, -31.0], dtype=torch.float64)


def model_for(name, **options):
    given = SMALL | options
    if name != "clipped_relative_performer":
        given.pop("clipping_distance")
    torch.manual_seed(0)
    model = create_model(name, **given).double().eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if key.endswith(("table", "lead")):
                parameter.normal_()
    return model


def random_images(batch=2, channels=1, side=8):
    return torch.rand(batch, channels, side, side, dtype=torch.float64)


def change(a, b):
    return float((a - b).detach().abs().max() / a.detach().abs().max())


PUBLISHED = {
    "performer": (794_794, 4_741_962, 4_742_474),
    "nopos_performer": (794_762, 4_741_898, 4_742_410),
    "relative_performer": (795_022, 4_742_670, 4_743_182),
    "clipped_relative_performer": (762_890, 4_546_250, 4_546_762),
}


def parameter_count(name, **options):
    model = create_model(name, image_size=32, **options)
    return sum(parameter.numel() for parameter in model.parameters())


@EVERY_FAMILY
def test_published_numbers_of_parameters(name):
    large = {"width": 256, "depth": 6, "heads": 8}
    found = (
        parameter_count(name, variant="tep-2021"),
        parameter_count(name, variant="tep-2021", **large),
        parameter_count(name, variant="tep-2021", in_chans=3, **large),
    )
    assert found == PUBLISHED[name]


@pytest.mark.parametrize(
    ("name", "option", "count"),
    [
        ("relative_performer", {"pos_scales": 16}, 4_744_986),
        ("clipped_relative_performer", {"clipping_distance": 2}, 4_545_098),
        ("clipped_relative_performer", {"clipping_distance": 4}, 4_545_482),
        ("clipped_relative_performer", {"clipping_distance": 6}, 4_545_866),
    ],
)
def test_published_numbers_with_options(name, option, count):
    assert parameter_count(name, variant="tep-2021", width=256, depth=6, heads=8, **option) == count


def test_exact_variants_add_phases_and_directions_only():
    assert parameter_count("performer") == PUBLISHED["performer"][0]
    assert parameter_count("nopos_performer") == PUBLISHED["nopos_performer"][0]
    phases = 4 * 4 * 32
    assert parameter_count("relative_performer") == PUBLISHED["nopos_performer"][0] + phases
    directions = 4 * 32 * (114 - 9)
    clipped = PUBLISHED["clipped_relative_performer"][0]
    assert parameter_count("clipped_relative_performer") == clipped + directions


@pytest.mark.parametrize(
    ("embedding", "count"), [("linear", 256), ("MLP", 66_688), ("lookup", 32_768)]
)
def test_published_numbers_of_the_embeddings(embedding, count):
    model = create_model("performer", image_size=32, embedding=embedding)
    assert sum(p.numel() for p in model.embedding.parameters()) == count


def test_options_belong_to_the_models_that_use_them():
    options = {name: set(model_options(name)) for name in FAMILIES}
    special = {"pos_scales", "frequencies", "clipping_distance"}
    assert options["performer"] == options["nopos_performer"]
    assert not options["performer"] & special
    assert options["relative_performer"] & special == {"pos_scales", "frequencies"}
    assert options["clipped_relative_performer"] & special == {"clipping_distance"}
    defaults = model_options("performer")
    assert defaults["variant"] == "exact"
    assert (defaults["attention_dropout"], defaults["redraw_interval"]) == (0.1, 1000)


RELATIVE = {
    "waves": ("relative_performer", {}),
    "waves of random features": ("relative_performer", {"kernel": "favor"}),
    "clipped": ("clipped_relative_performer", {}),
    "no positions": ("nopos_performer", {}),
}
ABSOLUTE = {
    "absolute": ("performer", {}),
    "published": ("relative_performer", {"variant": "tep-2021"}),
}


def change_by_translated_coordinates(name, options):
    """Return how much the features change if a constant is added to all positions."""
    model, images = model_for(name, **options), random_images()
    before = model.forward_features(images)
    model.positions += FAR
    return change(before, model.forward_features(images))


@pytest.mark.parametrize("form", RELATIVE)
def test_features_do_not_depend_on_the_origin_of_coordinates(form):
    assert change_by_translated_coordinates(*RELATIVE[form]) < 1e-10


def test_free_frequencies_and_the_softmax_are_relative_too():
    assert change_by_translated_coordinates("relative_performer", {"frequencies": "free"}) < 1e-10
    published = {"kernel": "softmax", "variant": "tep-2021"}
    assert change_by_translated_coordinates("relative_performer", published) < 1e-10


@pytest.mark.parametrize("form", ABSOLUTE)
def test_negative_control_absolute_and_published_models_depend_on_the_origin(form):
    assert change_by_translated_coordinates(*ABSOLUTE[form]) > 1e-4


@pytest.mark.parametrize("form", RELATIVE)
@pytest.mark.parametrize("shift", [(1, 0), (0, 3), (-2, 5)])
def test_circular_shifts_permute_the_pixel_tokens_and_change_nothing_else(form, shift):
    name, options = RELATIVE[form]
    model, images = model_for(name, **options), random_images()
    tokens = model.forward_features(images)
    shifted = model.forward_features(images.roll(shift, dims=(2, 3)))
    grid = tokens[:, 1:].unflatten(1, (8, 8)).roll(shift, dims=(1, 2)).flatten(1, 2)
    assert change(grid, shifted[:, 1:]) < 1e-10
    assert change(model.forward_head(tokens), model.forward_head(shifted)) < 1e-10


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("performer", {}),
        ("relative_performer", {"variant": "tep-2021"}),
        ("relative_performer", {"variant": "tep-2021", "kernel": "softmax"}),
        ("relative_performer", {"frequencies": "free"}),
        ("clipped_relative_performer", {"variant": "tep-2021"}),
    ],
)
def test_negative_control_circular_shifts_change_the_logits_of_other_models(name, options):
    model, images = model_for(name, **options), random_images()
    assert change(model(images), model(images.roll(3, dims=3))) > 1e-6


@EVERY_VARIANT
@EVERY_FAMILY
def test_logits_depend_on_the_image_and_on_the_order_of_its_pixels(name, variant):
    model, images = model_for(name, variant=variant), random_images()
    logits = model(images)
    assert change(logits[:1], logits[1:]) > 1e-4
    shuffled = images.flatten(2)[..., torch.randperm(64)].view_as(images)
    gap = change(logits, model(shuffled))
    assert gap < 1e-10 if name == "nopos_performer" else gap > 1e-7


def test_definition_embedding_sinusoids_class_token_blocks_head():
    model, images = model_for("performer"), random_images()
    pixels = images.permute(0, 2, 3, 1).flatten(1, 2) @ model.embedding.map[0].weight.T
    pixels = pixels + model.embedding.map[0].bias
    omega = 8000.0 ** (-torch.arange(4) / 4)
    encoding = []
    for row in range(8):
        for col in range(8):
            phase = torch.cat([row * omega, col * omega])
            encoding.append(torch.stack([phase.sin(), phase.cos()], dim=-1).flatten())
    first = model.class_token.expand(2, 1, 16)
    tokens = torch.cat([first, pixels + torch.stack(encoding)], dim=1)
    for block in model.blocks:
        tokens = tokens + block.attention(block.norm_attention(tokens))
        tokens = tokens + block.mlp(block.norm_mlp(tokens))
    torch.testing.assert_close(model(images), model.head(tokens[:, 0]), atol=1e-6, rtol=1e-5)


@EVERY_VARIANT
@EVERY_FAMILY
def test_the_last_block_computes_the_class_token_only(name, variant):
    """The logits and gradients are those of all tokens; the published variant computes all."""
    model, images, made = model_for(name, variant=variant), random_images(), []
    weights = list(model.parameters())
    features = model.forward_head(model.forward_features(images))
    model.blocks[-1].register_forward_hook(lambda _, given, out: made.append(out.shape[1]))
    logits = model(images)
    assert made == [1 if variant == "exact" else 65]
    torch.testing.assert_close(logits, features, rtol=1e-10, atol=1e-12)
    found = torch.autograd.grad(logits.square().sum(), weights)  # every one has a gradient
    expected = torch.autograd.grad(features.square().sum(), weights, materialize_grads=True)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)


@EVERY_FAMILY
def test_an_output_does_not_depend_on_the_rest_of_the_batch(name):
    model, images = model_for(name, kernel="favor"), random_images(3)
    images[2] *= 30
    assert change(model(images[:1]), model(images)[:1]) < 1e-12


def test_negative_control_in_the_published_variant_it_does():
    model, images = model_for("performer", variant="tep-2021"), random_images(3)
    images[2] *= 30
    assert change(model(images[:1]), model(images)[:1]) > 1e-8


@EVERY_VARIANT
@EVERY_FAMILY
def test_dropouts_are_on_except_in_the_published_clipped_model(name, variant):
    images = random_images()
    for option in ("attention_dropout", "ff_dropout"):
        rates = {"attention_dropout": 0.0, "ff_dropout": 0.0} | {option: 0.5}
        model = model_for(name, variant=variant, redraw_interval=0, **rates).train()
        dead = (name, variant) == ("clipped_relative_performer", "tep-2021")
        assert (change(model(images), model(images)) < 1e-12) == dead


@EVERY_FAMILY
def test_random_features_are_redrawn_in_training_only(name):
    still = {"attention_dropout": 0.0, "ff_dropout": 0.0}
    model, images = model_for(name, kernel="favor", redraw_interval=2, **still), random_images()
    model(images), model(images)
    assert int(model.redraw.calls) == 0
    model.train()
    first, second, third = model(images), model(images), model(images)
    assert torch.equal(first, second)
    assert change(first, third) > 1e-6
    drawn = [int(value) for key, value in model.state_dict().items() if key.endswith("draws")]
    assert drawn and set(drawn) == {2}


@EVERY_FAMILY
def test_the_same_seed_gives_the_same_training(name):
    logits = []
    for _ in range(2):
        torch.manual_seed(4)
        model = model_for(name, kernel="favor", redraw_interval=1).train()
        torch.manual_seed(5)
        logits.append([model(torch.ones(1, 1, 8, 8).double()) for _ in range(3)][-1])
    assert torch.equal(*logits)


@EVERY_VARIANT
@EVERY_FAMILY
def test_gradients_reach_every_parameter(name, variant):
    """Of all tokens: the class token, which has no position, ignores the last phases."""
    model = model_for(name, variant=variant)
    tokens = model.forward_features(random_images())
    (tokens.square().sum() + model.forward_head(tokens).square().sum()).backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), key
        assert parameter.grad.abs().max() > 0, key


@EVERY_FAMILY
def test_single_precision_gives_the_logits_and_gradients_of_double_precision(name):
    """On several threads, where float32 takes the fast kernels."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    model, images = model_for(name, width=32, image_size=16), random_images(6, side=16)
    found = []
    for precise in (model, copy.deepcopy(model).float()):
        logits = precise(precise.preprocess(images.to(precise.head.weight.dtype)))
        weights = torch.linspace(-1, 1, logits.numel()).view(logits.shape)
        gradients = torch.autograd.grad((logits * weights).sum(), list(precise.parameters()))
        found.append([logits, *gradients])
    torch.set_num_threads(before)
    for fine, coarse in zip(*found, strict=True):
        assert (fine - coarse).abs().max() < 1e-4 * max(fine.abs().max(), 1e-2)


@EVERY_FAMILY
@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch's own
@pytest.mark.parametrize("training", [False, True])
def test_every_mode_of_differentiation_agrees(name, training):
    """Backward passes one by one and vectorised, forward mode, and torch.func."""
    still = {"attention_dropout": 0.0, "ff_dropout": 0.0}
    model, images = model_for(name, depth=1, **still).train(training), random_images(1)
    one_by_one = torch.autograd.functional.jacobian(model, images)
    assert one_by_one.abs().max() > 1e-4
    together = torch.autograd.functional.jacobian(model, images, vectorize=True)
    torch.testing.assert_close(together, one_by_one)
    direction = torch.randn_like(images)
    expected = (one_by_one * direction).sum(dim=(2, 3, 4, 5))
    with forward_ad.dual_level():
        dual = model(forward_ad.make_dual(images, direction))
        torch.testing.assert_close(forward_ad.unpack_dual(dual).tangent, expected)
    torch.testing.assert_close(torch.func.jvp(model, (images,), (direction,))[1], expected)


@EVERY_FAMILY
def test_the_state_dict_is_the_same_in_both_modes(name):
    model = model_for(name)
    assert model.train().state_dict().keys() == model.eval().state_dict().keys()


@pytest.mark.parametrize("kernel", ["favor", "elu", "relu", "softplus", "exp", "softmax"])
def test_every_kernel_gives_finite_logits(kernel):
    model = model_for("performer", kernel=kernel)
    assert model(random_images()).isfinite().all()


def test_the_lookup_recovers_the_grey_levels():
    model = model_for("performer", embedding="lookup", in_chans=2)
    levels = torch.randint(256, (2, 2, 8, 8))
    with torch.no_grad():
        model.preprocess.mean.copy_(torch.tensor([0.3, 0.1]))
        model.preprocess.spread.copy_(torch.tensor([0.2, 0.6]))
    found = model.embedding(model.preprocess(levels.double() / 255), model.preprocess)
    table = model.embedding.table.weight
    for channel in range(2):
        expected = table[256 * channel + levels[:, channel].flatten(1)]
        torch.testing.assert_close(found[..., 8 * channel : 8 * channel + 8], expected)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("performer", {"variant": "tep"}, "unknown variant 'tep'"),
        ("performer", {"embedding": "mlp"}, "Did you mean 'MLP'|Known: MLP, linear, lookup"),
        ("performer", {"embedding": "lookup", "in_chans": 3}, "width = 16 must be a multiple of 3"),
        ("performer", {"heads": 3}, "width = 16 must be a multiple of 3"),
        ("performer", {"width": 18}, "must be a multiple of 4"),
        ("clipped_relative_performer", {"clipping_distance": 5}, "try 4 or less"),
        ("performer", {"frequencies": "free"}, "unknown option of performer 'frequencies'"),
        ("performer", {"kernel": "sofmax"}, "Did you mean 'softmax'. Known: auto, elu"),
        ("relative_performer", {"kernel": "softmax"}, "set variant='tep-2021', or"),
    ],
)
def test_bad_options_are_refused(name, options, words):
    with pytest.raises(InputError, match=words):
        model_for(name, **options)


def test_the_error_for_a_wrong_shape_names_the_right_one():
    with pytest.raises(InputError, match=r"takes images of shape \(1, 8, 8\)"):
        model_for("performer")(random_images(side=9))
    assert model_for("performer").exact_size(31) == (31,)


COMPILED = """
import copy, torch, turnwise
small = dict(width=16, depth=1, heads=2, image_size=8, attention_dropout=0.0, ff_dropout=0.0)
images = torch.rand(2, 1, 8, 8, dtype=torch.float64)
model = turnwise.create_model("relative_performer", **small).double().eval()
exported = torch.export.export(model, (images,)).module()
torch.testing.assert_close(exported(images.roll(3, 2)), model(images))
for name in ("performer", "nopos_performer", "relative_performer", "clipped_relative_performer"):
    options = {"clipping_distance": 2} if name.startswith("clipped") else {}
    model = turnwise.create_model(name, **small, **options).double().eval()
    free = ({0: torch.export.Dim("batch", min=1, max=64)},)
    exported = torch.export.export(model, (images,), dynamic_shapes=free).module()
    more = torch.rand(5, 1, 8, 8, dtype=torch.float64)
    torch.testing.assert_close(exported(more), model(more))
for name, options in (
    ("performer", {}),
    ("relative_performer", {}),
    ("relative_performer", {"variant": "tep-2021"}),
    ("clipped_relative_performer", {"clipping_distance": 2}),
):
    torch._dynamo.reset()
    model = turnwise.create_model(name, redraw_interval=2, **small, **options).train()
    eager = copy.deepcopy(model)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    for step in range(4):
        for run in (compiled, eager):
            run(images.float()).square().sum().backward()
    for one, other in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=1e-4)
    for (key, one), other in zip(model.named_buffers(), eager.buffers(), strict=True):
        assert torch.equal(one, other), key
    if name == "performer":
        assert int(model.blocks[0].attention.kernel.projection.draws) == 2
torch._dynamo.reset()
for name, whole in (("relative_performer", True), ("performer", False)):
    inside = turnwise.orbit(turnwise.create_model(name, **small).eval(), "C4")
    around = torch.compile(inside, backend="eager", fullgraph=whole)
    torch.testing.assert_close(around(images.float()), inside(images.float()))
"""


def test_it_compiles_in_one_graph_with_its_gradients_and_exports():
    """Redraws happen before the graph, whose rows they replace, as in the eager model.

    In a process of its own: the run-time type checks of the tests would break the graph."""
    subprocess.run([sys.executable, "-c", COMPILED], check=True)


@EVERY_VARIANT
@EVERY_FAMILY
def test_an_empty_batch_gives_no_logits(name, variant):
    assert model_for(name, variant=variant)(random_images(0)).shape == (0, 10)
