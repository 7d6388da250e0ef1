"""The orbit of a model: invariance around any classifier, definitions, chunks, maps, tuning."""

import copy
import subprocess
import sys

import pytest
import torch
from torch import nn

import turnwise
from turnwise.errors import InputError
from turnwise.geometry.grids import pixel_centres
from turnwise.geometry.warps import warp_image
from turnwise.groups import (
    GRID_GROUPS,
    PlanarGroup,
    act_on_image,
    act_on_regular,
    equivariance_error,
    equivariance_errors,
)
from turnwise.layers.orbit.combinations import COMBINATIONS, LEARNED, OF_LOGITS, takes_features
from turnwise.models import create_model, orbit

SMALL = {"width": 16, "depth": 2, "heads": 2, "image_size": 8}


def asymmetric(size=6):
    """Return a classifier without any symmetry."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(size * size, 4), nn.Tanh(), nn.Linear(4, 3)
    ).double()


class Residual(nn.Module):
    """A small residual network with batch norms and dropout."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU())
        self.block = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.dropout = nn.Dropout(0.5)
        self.fc = nn.Linear(8, 3)

    def forward(self, images):
        maps = self.stem(images)
        maps = maps + self.block(maps)
        return self.fc(self.dropout(maps.mean(dim=(2, 3))))


def train_a_little(model, steps=4, size=8):
    """Take random steps, after which no learned parameter has its initial value."""
    optimiser = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.05)
    for _ in range(steps):
        optimiser.zero_grad()
        images = torch.rand(6, 1, size, size, dtype=next(model.parameters()).dtype)
        nn.functional.cross_entropy(model(images), torch.arange(6) % 3).backward()
        optimiser.step()
    return model


def random_images(size=6):
    return torch.rand(3, 1, size, size, dtype=torch.float64)


@pytest.mark.parametrize("name", GRID_GROUPS)
@pytest.mark.parametrize("training", [True, False])
def test_the_logits_are_invariant(name, training):
    model = create_model("orbit_vit", group=name, **SMALL).double().train(training)
    assert equivariance_error(model, name, random_images(8)) < 1e-12


@pytest.mark.parametrize("name", ["C4", "D4"])
def test_invariance_around_any_module(name):
    turnwise.assert_equivariant(orbit(asymmetric(), name), name, random_images())


def test_the_features_are_an_equivariant_function_on_the_group():
    model = orbit(asymmetric(), "D4")

    def act(group, g, x):
        return act_on_regular(group, g, x)

    assert equivariance_error(model.forward_features, "D4", random_images(), act_out=act) < 1e-12


def test_logits_differ_between_images_and_features_between_views():
    model = orbit(asymmetric(), "C4")
    assert (model(random_images()) - model(random_images())).abs().max() > 1e-3
    assert model.forward_features(random_images()).std(dim=1).min() > 1e-3


def test_negative_control():
    """The same check fails without the orbit, and with the orbit of a smaller group."""
    inner = asymmetric()
    assert equivariance_error(inner, "C4", x := random_images()) > 0.01
    assert equivariance_error(orbit(inner, "C2"), "C4", x) > 0.01
    assert equivariance_error(orbit(inner, "C2"), "C2", x) < 1e-12


def test_definition_of_the_mean():
    """1/|G| Σ_h φ(h⁻¹f) as a loop, on D4, where an element and its inverse differ."""
    inner, x, group = asymmetric(), random_images(), PlanarGroup.named("D4")
    total = torch.zeros(3, 3, dtype=torch.float64)
    for h in range(8):
        view = inner(act_on_image(group, group.invert(h), x))
        torch.testing.assert_close(orbit(inner, "D4").view_outputs(x)[:, h], view)
        total += view
    torch.testing.assert_close(orbit(inner, "D4")(x), total / 8)


def test_definition_on_a_rectangle():
    """Rotations by 180° and reflections preserve rectangles."""
    inner = nn.Sequential(nn.Flatten(), nn.Linear(15, 2)).double()
    x = torch.rand(1, 1, 3, 5, dtype=torch.float64)
    by_hand = (inner(x) + inner(x.flip(-1)) + inner(x.flip(-2)) + inner(x.flip(-1, -2))) / 4
    torch.testing.assert_close(orbit(inner, "D2")(x), by_hand)


def test_invariance_after_training():
    model = create_model("orbit_vit", group="D4", **SMALL)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(torch.rand(4, 1, 8, 8)), torch.arange(4)).backward()
        optimiser.step()
    assert equivariance_error(model.double().eval(), "D4", random_images(8)) < 1e-12


def test_unknown_options_are_refused():
    with pytest.raises(InputError, match=r"unknown combine 'median'\. Did you mean 'mean'"):
        orbit(asymmetric(), "C4", combine="median")
    with pytest.raises(InputError, match=r"unknown option of an orbit 'chunks'\. Did you mean"):
        orbit(asymmetric(), "C4", chunks=2)
    with pytest.raises(InputError, match="unknown tune 'top'"):
        orbit(asymmetric(), "C4", tune="top")
    with pytest.raises(InputError, match=r"chunk = -1 must be at least 0"):
        orbit(asymmetric(), "C4", chunk=-1)


@pytest.mark.parametrize("level", [float("nan"), -0.1, 1.5, float("inf"), 255.0])
def test_a_background_outside_0_to_1_is_refused(level):
    with pytest.raises(InputError, match=rf"background = {level} must be (from 0 to 1|finite)"):
        orbit(asymmetric(), "C4", background=level)
    with pytest.raises(InputError, match=rf"background = {level} must be"):
        create_model("orbit_vit", group="C8", background=level, **SMALL)


@pytest.mark.parametrize("level", [0.0, 0.5, 1.0])
def test_a_background_from_0_to_1_is_accepted(level):
    assert orbit(asymmetric(), "C8", background=level).design.background == level


def test_preprocessing_and_sizes_are_those_of_the_model_inside():
    model = create_model("orbit_vit", **SMALL)
    images = torch.rand(2, 1, 8, 8)
    assert torch.equal(model.preprocess(images), model.model.preprocess(images))
    assert torch.equal(orbit(asymmetric(), "C4").preprocess(images), images)
    assert model.exact_size(9) == (8,)


@pytest.mark.parametrize("name", ["C4", "D4"])
@pytest.mark.parametrize("combine", COMBINATIONS)
@pytest.mark.parametrize("make", [Residual, lambda: create_model("vit", num_classes=3, **SMALL)])
def test_every_combination_is_invariant_before_and_after_training(name, combine, make):
    model = orbit(make().double(), name, combine)
    assert equivariance_error(model.eval(), name, random_images(8)) < 1e-10
    train_a_little(model.train()).eval()
    turnwise.assert_equivariant(model, name, random_images(8), tolerance=1e-10)


@pytest.mark.parametrize("combine", LEARNED)
def test_learned_combinations_differ_from_the_mean_after_training(combine):
    """The mean of the features is where they start."""
    model = train_a_little(orbit(Residual(), "C4", combine).train()).eval()
    mean = orbit(model.model, "C4", "mean_features")
    x = torch.rand(3, 1, 8, 8)
    assert (model(x) - mean(x)).abs().max() > 1e-3


@pytest.mark.parametrize("combine", COMBINATIONS)
def test_every_combination_uses_all_elements_of_its_group_and_no_others(combine):
    """C16 has 16 views and no reflection."""
    model = orbit(Residual().eval().double(), "C16", combine)
    x = random_images(8)
    assert model.forward_features(x).shape[1] == 16
    assert equivariance_error(model, "C4", x) < 1e-10
    assert equivariance_error(model, "D1", x) > 1e-4


def test_invariance_around_a_model_of_timm():
    timm = pytest.importorskip("timm")
    inner = timm.create_model("resnet18", num_classes=3, in_chans=1).double().eval()
    for combine in COMBINATIONS:
        turnwise.assert_equivariant(orbit(inner, "D4", combine), "D4", random_images(32))


def test_a_model_may_return_the_logits_as_hugging_face_models_do():
    class Output:
        def __init__(self, logits):
            self.logits = logits

    class HuggingFaceLike(nn.Module):
        def __init__(self):
            super().__init__()
            self.classifier = asymmetric()

        def forward(self, images):
            return Output(self.classifier(images))

    model = HuggingFaceLike()
    x = random_images()
    torch.testing.assert_close(orbit(model, "D4")(x), orbit(model.classifier, "D4")(x))
    assert equivariance_error(orbit(model, "D4", "max_features"), "D4", x) < 1e-12


def test_features_are_combined_before_the_classifier():
    inner, x = asymmetric(), random_images()
    vectors = [inner[:3](act_on_image("C4", -h % 4, x)) for h in range(4)]
    for combine, wanted in {
        "mean_features": sum(vectors) / 4,
        "sum_features": sum(vectors),
        "max_features": torch.stack(vectors).amax(dim=0),
    }.items():
        torch.testing.assert_close(orbit(inner, "C4", combine)(x), inner[3](wanted))


def test_mean_and_sum_agree_for_a_classifier_that_begins_with_a_norm():
    inner = nn.Sequential(
        nn.Flatten(), nn.Linear(36, 8), nn.Sequential(nn.LayerNorm(8, eps=0), nn.Linear(8, 3))
    ).double()
    mean = orbit(inner, "C4", "mean_features", head="2")(x := random_images())
    torch.testing.assert_close(orbit(inner, "C4", "sum_features", head="2")(x), mean)
    assert (orbit(inner, "C4", "sum_features")(x) - mean).abs().max() > 1e-3


@pytest.mark.parametrize("name", ["C8", "C12", "C16", "D8"])
@pytest.mark.parametrize("mask", [False, True])
def test_finer_groups_are_exact_on_the_elements_of_the_grid(name, mask):
    group = PlanarGroup.named(name)
    model, exact = orbit(asymmetric(8), name, mask=mask), group.grid_elements()
    x = random_images(8)
    assert max(equivariance_errors(model, group, x, elements=exact)) < 1e-12
    other = next(g for g in range(group.order) if g not in exact)
    error = equivariance_errors(model, group, x, act_in=warp_image, elements=[other])[0]
    assert error > 1e-6, "rotations between pixels are approximate"


def test_a_mask_reduces_the_error_at_45_degrees():
    """The corners of unmasked views depend on the rotation; smooth images fill the square."""
    wave = pixel_centres(28, 28).double() / 6
    x = (1 + torch.sin(wave[..., 0] + 1.3 * wave[..., 1]))[None, None] / 2

    def error(mask):
        torch.manual_seed(0)
        model = orbit(asymmetric(28), "C8", "mean", mask=mask)
        elements = [1, 3, 5, 7]
        return max(equivariance_errors(model, "C8", x, act_in=warp_image, elements=elements))

    assert error(mask=True) < 0.5 * error(mask=False)


def test_the_error_at_45_degrees_is_smaller_for_c8_than_for_c4():
    wave = pixel_centres(28, 28).double()
    spot = torch.exp(-(wave - torch.tensor([5.0, 2.0])).square().sum(-1) / 20)[None, None]

    def error(name):
        torch.manual_seed(0)
        model = orbit(asymmetric(28), name, mask=True)
        return equivariance_errors(model, "C8", spot, act_in=warp_image, elements=[1])[0]

    assert error("C8") < 0.2 * error("C4")


def test_corners_of_views_have_the_normalised_background():
    """After normalisation black is not 0, and a rotated black image must stay black."""
    inner = create_model("vit", num_classes=3, **SMALL).double().eval()
    inner.preprocess.fit(torch.randint(0, 99, (9, 1, 8, 8), dtype=torch.uint8))
    model = orbit(inner, "C8")
    black = model.preprocess(torch.zeros(1, 1, 8, 8).double())
    torch.testing.assert_close(model(black), inner(black))
    white = model.preprocess(torch.ones(1, 1, 8, 8).double())
    torch.testing.assert_close(orbit(inner, "C8", background=1.0, mask=True)(white), inner(white))
    assert (model(white) - inner(white)).abs().max() > 1e-4


class Counting(nn.Module):
    """Records how many images it is given in each forward pass."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.seen = inner, []

    def forward(self, images):
        self.seen.append(len(images))
        return self.inner(images)


@pytest.mark.parametrize("combine", COMBINATIONS)
@pytest.mark.parametrize("chunk", [1, 3])
def test_chunks_give_the_same_logits_and_gradients(combine, chunk):
    inner, x = asymmetric(), random_images()
    together, apart = (orbit(copy.deepcopy(inner), "D4", combine, chunk=c) for c in (0, chunk))
    apart.readout.load_state_dict(together.readout.state_dict())
    torch.testing.assert_close(apart(x), together(x))
    for model in (together, apart):
        model(x).square().sum().backward()
    pairs = zip(together.parameters(), apart.parameters(), strict=True)
    for one, other in pairs:
        torch.testing.assert_close(one.grad, other.grad)


def test_chunks_bound_the_number_of_views_per_forward_pass():
    inner = Counting(asymmetric())
    with torch.no_grad():
        orbit(inner, "D4", chunk=3)(random_images())
    assert inner.seen == [9, 9, 6]
    inner.seen.clear()
    orbit(inner, "D4", chunk=1)(random_images()).sum().backward()
    assert inner.seen == [3] * 16, "training recomputes each chunk in the backward pass"


def test_chunks_that_would_update_batch_norms_twice_are_refused():
    model = orbit(Residual(), "C4", chunk=1).train()
    with pytest.raises(InputError, match=r"chunk = 1 would update the statistics of batch norms"):
        model(torch.rand(2, 1, 8, 8))
    assert model.tune("head").train()(torch.rand(2, 1, 8, 8)).shape == (2, 3)


def confident(factor):
    """Return a classifier whose probabilities are closer to 0 and 1 for a larger factor."""
    inner = asymmetric()
    with torch.no_grad():
        inner[3].weight.mul_(factor)
    return inner


@pytest.mark.parametrize("chunk", [0, 3])
@pytest.mark.parametrize("combine", OF_LOGITS)
def test_decisions_are_those_of_all_views(combine, chunk):
    model = orbit(confident(20), "D4", combine, chunk=chunk)
    x = torch.rand(200, 1, 6, 6, dtype=torch.float64)
    classes, views = model.decide(x)
    assert torch.equal(classes, model(x).argmax(dim=1))
    if combine == "mean_probability":
        assert views.min() > 4, "the other half of the views could still change the class"
        assert views.min() < 8 and len(views.unique()) > 1
    else:
        assert (views == 8).all(), "logits have no bound, so every view counts"


def test_no_view_is_computed_after_the_decision():
    inner = Counting(confident(1000))
    views = orbit(inner, "D4", "mean_probability").decide(random_images()).views
    assert sum(inner.seen) == views.sum() < 24


def test_negative_control_a_lead_that_can_be_lost_is_not_final():
    """After 5 of 8 views the leading class has 3, the other one 2: three more would change it."""
    classes = iter([0, 0, 0, 1, 1, 1, 1, 1])

    class Prescribed(nn.Module):
        def forward(self, images):
            return 100 * nn.functional.one_hot(torch.tensor([next(classes)]), 2).double()

    decision = orbit(Prescribed(), "D4", "mean_probability").decide(random_images()[:1])
    assert (decision.classes.item(), decision.views.item()) == (1, 8)


def segmenter():
    """Return a model without symmetry that classifies pixels, at half the size."""
    return nn.Conv2d(1, 3, 4, stride=2, padding=1).double()


@pytest.mark.parametrize("name", ["C4", "D4"])
@pytest.mark.parametrize("combine", OF_LOGITS)
def test_maps_are_equivariant(name, combine):
    model = orbit(segmenter(), name, combine, output="map")
    x = random_images(8)
    assert model(x).shape == (3, 3, 4, 4)
    assert equivariance_error(model, name, x, act_out=act_on_image) < 1e-12
    assert equivariance_error(model, name, x) > 0.01, "the map rotates with the image"


def test_definition_of_maps():
    inner, x, group = segmenter(), random_images(8), PlanarGroup.named("D4")
    views = [
        act_on_image(group, h, inner(act_on_image(group, group.invert(h), x))) for h in range(8)
    ]
    torch.testing.assert_close(orbit(inner, "D4", output="map")(x), sum(views) / 8)


def test_negative_control_maps_that_are_not_rotated_back():
    inner = segmenter()
    flat = nn.Sequential(inner, nn.Flatten()).double()
    model = orbit(flat, "D4")

    def as_maps(images):
        return model(images).view(-1, 3, 4, 4)

    assert equivariance_error(as_maps, "D4", random_images(8), act_out=act_on_image) > 0.01


def test_maps_of_finer_groups_and_of_vectors_are_refused():
    with pytest.raises(InputError, match="C8 does not map pixels to pixels"):
        orbit(segmenter(), "C8", output="map")
    with pytest.raises(InputError, match=r"'max_features' needs the vector .* use mean, max, sum"):
        orbit(segmenter(), "C4", "max_features", output="map")
    with pytest.raises(InputError, match=r"a map is \(batch, class, row, col\)"):
        orbit(asymmetric(), "C4", output="map")(random_images())


def state(model):
    return {key: value.clone() for key, value in model.state_dict().items()}


@pytest.mark.parametrize(("combine", "tune"), [("learned_weights", "none"), ("mean", "head")])
def test_frozen_parts_do_not_change(combine, tune):
    """Neither weights nor statistics of batch norms change, and dropout is off."""
    model = orbit(Residual(), "C4", combine, tune=tune).train()
    before = state(model)
    train_a_little(model)
    changed = {key for key, value in model.state_dict().items() if not value.equal(before[key])}
    allowed = {"none": ("readout.",), "head": ("readout.", "model.fc.")}[tune]
    assert changed and all(key.startswith(allowed) for key in changed)
    x = torch.rand(2, 1, 8, 8)
    assert torch.equal(model(x), model(x))
    assert model.training and not model.model.stem.training


def test_everything_changes_where_everything_is_tuned():
    model = orbit(Residual(), "C4").train()
    before = state(model)
    train_a_little(model)
    assert all(not value.equal(before[key]) for key, value in model.state_dict().items())
    x = torch.rand(2, 1, 8, 8)
    assert not torch.equal(model(x), model(x)), "dropout is on"


def test_the_tuning_regime_can_be_changed():
    model = orbit(Residual(), "C4", "learned_attention").tune("none")
    assert {n.split(".")[0] for n, p in model.named_parameters() if p.requires_grad} == {"readout"}
    model.tune("head")
    assert {n for n, p in model.named_parameters() if p.requires_grad} >= {"model.fc.weight"}
    assert model.train().head.training and not model.model.dropout.training
    model.tune("all")
    assert all(p.requires_grad for p in model.parameters())
    assert model.train().model.dropout.training


def test_a_model_in_eval_mode_stays_in_it():
    inner = Residual().eval()
    assert not orbit(inner, "C4").training
    assert not inner.training


def test_combinations_of_features_need_a_classifier_of_vectors():
    assert [c for c in COMBINATIONS if takes_features(c)]
    with pytest.raises(InputError, match="no linear layer was found in a Flatten"):
        orbit(nn.Flatten(), "C4", "max_features")


COMPILED = """
import torch, turnwise
model = turnwise.create_model("orbit_vit", group="D4", width=16, depth=1, heads=2, image_size=8)
model = model.double().eval()
compiled = torch.compile(model, backend="eager", fullgraph=True)
images = torch.rand(2, 1, 8, 8, dtype=torch.float64)
torch.testing.assert_close(compiled(images), model(images))
turnwise.assert_equivariant(compiled, "D4", images)
"""
# interpolated views in a disc, the vector before the classifier, and the backward pass
TRAINED_COMPILED = """
import copy, torch, turnwise
torch.manual_seed(0)
for name, combine, own in (
    ("vit", "learned_attention", {"width": 8, "depth": 1, "heads": 2, "tune": "head"}),
    ("resnet18", "mean_features", {"stem": "small", "depths": (1,), "widths": (8,)}),
):
    model = turnwise.create_model(
        f"orbit_{name}", group="C16", combine=combine, mask=True, image_size=8, **own
    ).train()
    images, results = torch.rand(2, 1, 8, 8), []
    for each in (model, torch.compile(copy.deepcopy(model), backend="eager", fullgraph=True)):
        logits = each(images)
        logits.square().sum().backward()
        used = [p.grad for p in each.parameters() if p.grad is not None]
        results.append([logits, *used])
    assert len(results[0]) > 2
    torch.testing.assert_close(*results)
"""


def test_it_compiles_in_one_graph():
    """In a process of its own: the run-time type checks of the tests would break the graph."""
    subprocess.run([sys.executable, "-c", COMPILED + TRAINED_COMPILED], check=True)


def test_a_classifier_replaced_inside_the_model_is_used():
    model = orbit(Residual(), "C4", combine="mean_features").eval()
    before = model(x := torch.rand(2, 1, 8, 8))
    model.model.fc = nn.Linear(8, 5)
    assert before.shape == (2, 3) and model(x).shape == (2, 5)


@pytest.mark.parametrize("combine", ["mean", "mean_features"])
def test_the_classifier_can_be_replaced_through_the_orbit(combine):
    """It becomes that of the model inside, so it is used, trained and saved."""
    wrapped = create_model("orbit_vit", width=8, depth=1, heads=2, combine=combine)
    wrapped.head = nn.Linear(8, 3)
    assert wrapped.model.head is wrapped.head
    assert wrapped(torch.rand(2, 1, 28, 28)).shape == (2, 3)
    assert not [key for key in wrapped.state_dict() if key.startswith("head")]


def test_the_last_layer_of_a_sequential_model_can_be_replaced():
    wrapped = orbit(nn.Sequential(nn.Flatten(), nn.Linear(16, 3)), "C4")
    wrapped.head = nn.Linear(16, 5)
    assert wrapped(torch.rand(2, 1, 4, 4)).shape == (2, 5)


def test_maps_are_not_mistaken_for_logits():
    wrapped = orbit(nn.Conv2d(1, 2, 3, padding=1), "C4")
    with pytest.raises(InputError, match=r'got .*; maps must be rotated back .*output="map"'):
        wrapped(torch.rand(1, 1, 8, 8))


def test_chunks_with_redraws_are_refused_in_training():
    """A recomputation would count as a step, and the rows would change between two chunks."""
    sizes = {"width": 8, "depth": 1, "heads": 2, "image_size": 8}
    wrapped = create_model("orbit_performer", chunk=1, redraw_interval=3, **sizes)
    with pytest.raises(InputError, match=r"count the redraws .* use chunk = 0, or redraw_interval"):
        wrapped.train()(torch.rand(1, 1, 8, 8))
    wrapped.eval()(torch.rand(1, 1, 8, 8))
    create_model("orbit_performer", chunk=1, redraw_interval=0, **sizes)(torch.rand(1, 1, 8, 8))


@pytest.mark.parametrize("combine", ["mean", "mean_features", "learned_attention"])
def test_it_exports_for_any_number_of_images(combine):
    wrapped = create_model("orbit_vit", width=8, depth=1, heads=2, combine=combine).eval()
    images = torch.rand(5, 1, 28, 28)
    sizes = {"images": {0: torch.export.Dim("batch", min=2)}}
    program = torch.export.export(wrapped, (images[:3],), dynamic_shapes=sizes).module()
    torch.testing.assert_close(program(images), wrapped(images))


@pytest.mark.parametrize(("group", "mask"), [("C4", False), ("C4", True), ("C8", False)])
def test_an_empty_batch_gives_no_logits(group, mask):
    inside = create_model("vit", image_size=8, patch=4, width=16, depth=1, heads=2)
    assert orbit(inside, group, mask=mask)(torch.zeros(0, 1, 8, 8)).shape == (0, 10)


@pytest.mark.parametrize("combine", ["mean", "mean_features", "learned_attention"])
def test_an_orbit_without_a_classifier_returns_combined_features(combine):
    options = {"width": 8, "depth": 1, "heads": 2, "combine": combine, "image_size": 8}
    wrapped = create_model("orbit_vit", num_classes=0, **options).eval()
    assert isinstance(wrapped.get_classifier(), nn.Identity)
    images = torch.rand(2, 1, 8, 8)
    pooled = wrapped.forward_head(wrapped.forward_features(images), pre_logits=True)
    assert pooled.shape == (2, wrapped.num_features)
    torch.testing.assert_close(wrapped(images), pooled)  # learned weights start at the mean


def test_the_classifier_of_any_module_can_be_reset():
    wrapped = orbit(asymmetric(), "C4")
    assert (wrapped.num_classes, wrapped.num_features) == (3, 4)
    for num_classes, width in ((5, 5), (0, 4)):
        wrapped.reset_classifier(num_classes)
        assert wrapped.num_classes == num_classes
        assert wrapped(random_images()).shape == (3, width)


def test_the_layers_of_any_module_are_not_known():
    with pytest.raises(InputError, match="a Sequential has no forward_intermediates"):
        orbit(asymmetric(), "C4").forward_intermediates(random_images())
