"""GE-ViT behind patches and behind convolutions: invariance, negative controls, definitions."""

import pytest
import torch
import torch.nn.functional as F

from turnwise.errors import InputError
from turnwise.geometry.layouts import regular_to_field
from turnwise.geometry.neighbourhoods import Neighbourhood
from turnwise.groups import PlanarGroup, act_on_field, act_on_image, equivariance_error
from turnwise.layers.conv.stem import PatchLift
from turnwise.layers.gsa.attention import AttentionPlan
from turnwise.layers.gsa.published import EXACT_GE_VIT
from turnwise.models import create_model
from turnwise.models.hybrids import KEEP, PoolPosesAndLift

SMALL = {
    "patch_ge_vit": {"patch": 2, "embedding": 6, "width": 8, "blocks": [1, 1], "heads": 2},
    "hybrid_ge_vit": {
        "kernels": [3, 3], "pools": [2, 0], "stem_width": 4, "width": 8, "blocks": [1, 1],
        "heads": 2, "window": 3,
    },
}  # fmt: skip
CASES = [(name, keep) for name in SMALL for keep in KEEP]


def network(name, group="C4", size=16, **options):
    chosen = {**SMALL[name], **options}
    return create_model(name, group=group, image_size=size, **chosen).double().eval()


def random_images(rows=16, cols=16, channels=1):
    """Return noise that is darker on one side: pools cannot distinguish plain noise."""
    ramp = torch.linspace(0, 1, rows)[:, None] * torch.linspace(0.2, 1, cols)
    return ramp.double() * torch.randn(2, channels, rows, cols).double()


@pytest.mark.parametrize("group", ["C1", "C2", "C4", "D1", "D2", "D4"])
@pytest.mark.parametrize(("name", "keep"), CASES)
def test_the_logits_are_invariant_and_the_features_equivariant(name, keep, group):
    model, x = network(name, group, keep=keep), random_images()
    assert equivariance_error(model, group, x) < 1e-10
    error = equivariance_error(model.forward_features, group, x, act_out=act_on_field)
    assert error < 1e-10


@pytest.mark.parametrize("name", SMALL)
def test_invariance_with_all_queries_as_published(name):
    model, own = network(name, "D4", queries="all"), network(name, "D4")
    assert equivariance_error(model, "D4", x := random_images()) < 1e-10
    model.load_state_dict(own.state_dict())
    assert (model(x) - own(x)).abs().max() > 1e-6, "another network"


@pytest.mark.parametrize(("name", "keep"), CASES)
def test_invariance_in_training_and_after_it(name, keep):
    off = {"attention_dropout": 0.0, "value_dropout": 0.0}
    model = network(name, "D4", keep=keep, **off).train()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(3):
        optimiser.zero_grad()
        F.cross_entropy(model(random_images()), torch.arange(2)).backward()
        optimiser.step()
    assert equivariance_error(model, "D4", random_images()) < 1e-10
    assert equivariance_error(model.eval(), "D4", random_images()) < 1e-10


@pytest.mark.parametrize("name", SMALL)
def test_invariance_on_a_rectangle(name):
    assert equivariance_error(network(name, "D2"), "D2", random_images(16, 20)) < 1e-10


@pytest.mark.parametrize(("name", "keep"), CASES)
def test_outputs_differ_between_images_and_features_between_orientations(name, keep):
    model, x = network(name, keep=keep), random_images()
    assert (model(x[:1]) - model(x[1:])).abs().max() > 1e-5
    field = model.forward_features(x)
    assert all((act_on_field("C4", g, field) - field).abs().max() > 1e-3 for g in range(1, 4))


@pytest.mark.parametrize("name", SMALL)
def test_negative_control(name):
    """A model of a smaller group, and a mark in one corner of the image, fail the same check."""
    assert equivariance_error(network(name, "C2"), "C4", x := random_images()) > 1e-5
    model = network(name, "C4")

    def marked(images):
        other = images.clone()
        other[..., :6, :6] += 5
        return model(other)

    assert equivariance_error(marked, "C4", x) > 1e-5


def patches_alike():
    """Return two different images of one patch that have the same mean over D4."""
    one = torch.zeros(1, 1, 2, 2, dtype=torch.float64)
    one[..., 0, 0] = one[..., 1, 1] = 1.0
    other = torch.zeros_like(one)
    other[..., 0, :] = 1.0
    return one, other


def test_the_published_embedding_depends_on_the_mean_patch_only():
    """The mean over D4 of a linear map is the map of the mean, unless the group axis is kept."""
    torch.manual_seed(1)
    lift = PatchLift("D4", 1, 6, patch=2).double()
    one, other = (regular_to_field(lift(x)) for x in patches_alike())
    torch.testing.assert_close(one.mean(dim=1), other.mean(dim=1))
    assert (one - other).abs().max() > 0.1
    assert (one.max(dim=1).values - other.max(dim=1).values).abs().max() > 0.01


def tiled(patch):
    return patch.repeat(1, 1, 8, 8)


def test_so_the_published_model_confuses_images_that_the_corrected_one_distinguishes():
    one, other = (tiled(patch) for patch in patches_alike())
    published, corrected = (network("patch_ge_vit", "D4", keep=k) for k in ("mean", "poses"))
    assert (published(one) - published(other)).abs().max() < 1e-12
    assert (corrected(one) - corrected(other)).abs().max() > 1e-6


@pytest.mark.parametrize("by_maximum", [False, True])
def test_definition_of_pooling_and_lifting_again(by_maximum):
    """Pool the group axis, normalise pixel by pixel, lift; on a rectangle."""
    group = PlanarGroup.named("D4")
    plan = AttentionPlan(group, Neighbourhood(3), heads=2, convention=EXACT_GE_VIT)
    layer = PoolPosesAndLift(plan, 5, 8, by_maximum).double()
    field = torch.randn(1, 8, 3, 4, 5, dtype=torch.float64)
    image = torch.zeros(1, 5, 3, 4, dtype=torch.float64)
    for row in range(3):
        for col in range(4):
            by_element = field[0, :, row, col]
            pooled = by_element.amax(0) if by_maximum else by_element.sum(0) / 8
            std = (pooled.var(unbiased=False) + layer.norm.eps).sqrt()
            image[0, :, row, col] = (pooled - pooled.mean()) / std
    torch.testing.assert_close(layer(field), regular_to_field(layer.lift(image)))


def test_definition_of_the_pooling():
    model, x = network("hybrid_ge_vit"), random_images()
    field = model.forward_features(x)
    for b in range(2):
        scores = [
            sum(model.head(field[b, h, r, c]) for r in range(field.shape[2])
                for c in range(field.shape[3])) / (field.shape[2] * field.shape[3])
            for h in range(4)
        ]  # fmt: skip
        torch.testing.assert_close(model(x)[b], torch.stack(scores).amax(dim=0))


def test_backends_agree():
    model, x = network("patch_ge_vit", "D4"), random_images()
    plain = network("patch_ge_vit", "D4", backend="plain")
    plain.load_state_dict(model.state_dict())
    torch.testing.assert_close(plain(x), model(x))


def test_the_published_sizes():
    """PCam: patches of 6, E = 128, 20 channels, blocks [2, 3], window 3."""
    model = create_model(
        "patch_ge_vit", num_classes=2, in_chans=3, image_size=96, patch=6, embedding=128,
        keep="mean",
    )  # fmt: skip
    parameters = sum(p.numel() for p in model.parameters())
    assert parameters == pytest.approx(92_966, rel=0.1), "92,966 published"
    assert model.exact_size(96) == (96,)


@pytest.mark.parametrize("name", SMALL)
def test_first_loss_is_that_of_uniform_probabilities(name):
    model = create_model(name, width=8, heads=2)
    loss = F.cross_entropy(model(torch.rand(8, 1, 28, 28)), torch.arange(8))
    assert loss.item() == pytest.approx(2.303, abs=0.2)


@pytest.mark.parametrize(("name", "keep"), CASES)
def test_gradients_reach_every_parameter(name, keep):
    model = network(name, keep=keep).eval()
    model(random_images()).square().sum().backward()
    dead = {n for n, p in model.named_parameters() if p.grad is None or p.grad.abs().max() == 0}
    assert all(n.endswith(("to_key.bias", "mix.bias")) for n in dead)  # softmax ignores constants


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: network("patch_ge_vit", size=17), r"image_size = 17 .* try 16 or 18"),
        (lambda: network("hybrid_ge_vit", size=17), r"image_size = 17 .* try 16 or 18"),
        (lambda: network("hybrid_ge_vit", keep="all"), "unknown keep 'all'"),
        (lambda: network("patch_ge_vit", blocks=[]), r"blocks must list one stage or more"),
        (
            lambda: network("patch_ge_vit", blocks=["2"]),
            "blocks\\[0\\] must be a whole",
        ),
        (lambda: network("patch_ge_vit", width=4), "width = 4 must be from 6"),
        (lambda: network("patch_ge_vit", crop=-1), "crop = -1 must be from 0"),
        (lambda: network("hybrid_ge_vit", value_dropout=1.0), "value_dropout = 1.0 must be"),
        (lambda: network("hybrid_ge_vit", pools=[2.5, 0]), "pools\\[0\\] must be a whole"),
        (lambda: network("hybrid_ge_vit", pools=[2]), "must have one entry for each convolution"),
        (
            lambda: network("hybrid_ge_vit")(random_images(17, 17)),
            "image_size = 17 cannot be exact",
        ),
        (lambda: network("hybrid_ge_vit")(random_images(channels=3)), "with 1 channels, got 3"),
    ],
)
def test_bad_input_is_refused(call, words):
    with pytest.raises(InputError, match=words):
        call()


def test_invariance_in_float32():
    for name in SMALL:
        model, x = network(name, "D4").float(), random_images().float()
        for g in range(8):
            transformed = model(act_on_image("D4", g, x))
            torch.testing.assert_close(transformed, model(x), rtol=1e-4, atol=1e-5)
