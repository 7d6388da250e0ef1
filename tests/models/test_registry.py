"""Models by name, their options, and the errors for wrong ones."""

import pytest
import torch

import turnwise
from turnwise.errors import InputError
from turnwise.models import create_model, describe_model, list_models, model_options
from turnwise.models.registry import OrbitOptions, config_of
from turnwise.options import describe


@torch.no_grad()
def test_every_model_can_be_created_and_described():
    """Orbits repeat the model inside, so one of them is enough."""
    for name in [*list_models("[!o]*"), "orbit_vit"]:
        model = create_model(name, group="C2", num_classes=3, image_size=32).eval()
        assert model(torch.rand(1, 1, 32, 32)).shape[:2] == (1, 3)
    assert all(describe_model(name) for name in list_models())


@pytest.mark.parametrize("name", list_models())
def test_every_model_can_be_created_without_memory(name):
    """On the meta device; tables that are read while the model is built must not be there."""
    random = name.removeprefix("orbit_") in ("performer", "nopos_performer")
    options = {"kernel": "elu"} if random else {}  # random rows are drawn by a seed, which is read
    with torch.device("meta"):
        model = create_model(name, group="C4", num_classes=3, image_size=32, **options)
    assert {x.device.type for x in model.state_dict().values()} == {"meta"}
    assert {x.device.type for x in model.buffers()} == {"meta"}


def test_list_models_matches_patterns():
    assert "vit" in list_models()
    assert list_models("orbit_*") == [name for name in list_models() if name.startswith("orbit_")]
    assert list_models("nothing*") == []


def test_every_classifier_has_an_orbit_variant():
    plain = [name for name in list_models() if not name.startswith("orbit_")]
    assert plain
    assert all(f"orbit_{name}" in list_models() for name in plain)


def test_each_model_has_its_own_options():
    assert model_options("vit")["patch"] == 4
    assert model_options("orbit_vit")["combine"] == "mean"
    assert create_model("vit", patch=7, width=8, heads=2).patches.project.kernel_size == (7, 7)


def test_the_config_builds_the_same_model():
    made = create_model("orbit_vit", group="p4m", image_size=8, width=16, heads=2)
    config = config_of(made)
    assert config.options["group"] == "D4"
    again = create_model(config.name, **config.options)
    assert again.state_dict().keys() == made.state_dict().keys()
    by_hand = turnwise.orbit(
        create_model("vit", group="p4m", image_size=8, width=16, heads=2), "D4"
    )
    assert config_of(by_hand) == config


def test_options_of_orbits_and_models_have_different_names():
    """Otherwise one of the two could not be set."""
    for name in list_models("[!o]*"):
        assert not model_options(name).keys() & {o.name for o in describe(OrbitOptions)}


def test_an_orbit_is_loaded_with_all_its_options(tmp_path):
    chosen = {"combine": "learned_attention", "chunk": 2, "mask": True, "tune": "head"}
    made = create_model("orbit_vit", group="C8", image_size=8, width=16, heads=2, **chosen)
    torch.nn.init.normal_(made.readout.correct.weight)
    again = turnwise.load(turnwise.save(made, tmp_path / "model"))
    assert again.config == made.config
    assert again.design == made.design
    x = torch.rand(2, 1, 8, 8)
    torch.testing.assert_close(again(x), made.eval()(x))
    assert config_of(made.tune("all")).options["tune"] == "all"


def test_an_orbit_around_a_model_of_another_group(tmp_path):
    """A model for C4 in an orbit of D4: both groups are stored."""
    small = {"image_size": 14, "widths": [[6]], "width": 6, "heads": 1, "window": 3}
    inner = create_model("gsa_net", group="C4", **small)
    folder = turnwise.save(turnwise.orbit(inner.eval(), "D4"), tmp_path / "model")
    again = turnwise.load(folder)
    assert (again.group.name, again.model.group.name) == ("D4", "C4")
    assert again.config.options["base_group"] == "C4"
    torch.testing.assert_close(again(x := torch.rand(1, 1, 14, 14)), turnwise.orbit(inner, "D4")(x))


SMALL = {"image_size": 8, "width": 16, "depth": 1, "heads": 2}


def test_an_orbit_starts_from_trained_weights(tmp_path):
    trained = create_model("vit", **SMALL)
    folder = turnwise.save(trained, tmp_path / "base")
    model = create_model("orbit_vit", weights=str(folder), tune="head", **SMALL)
    assert torch.equal(model.model.position, trained.position)
    assert "weights" not in model.config.options, "the weights are stored in its own folder"


def test_initial_weights_that_do_not_fit_are_refused(tmp_path):
    folder = str(turnwise.save(create_model("vit", **SMALL), tmp_path / "base"))
    with pytest.raises(InputError, match=r"weights = .*base do not fit this vit: .*size mismatch"):
        create_model("orbit_vit", num_classes=3, weights=folder, **SMALL)
    with pytest.raises(InputError, match=r"holds a vit, not a turnwise_vit_nano"):
        create_model("orbit_turnwise_vit_nano", weights=folder)
    with pytest.raises(InputError, match=r"leave nothing to train; wrap the trained model"):
        create_model("orbit_vit", weights=folder, tune="none", **SMALL)
    with pytest.raises(InputError, match="is not a model or run folder"):
        create_model("orbit_vit", weights=str(tmp_path / "nowhere"))


def test_initial_weights_of_equal_shapes_and_other_options_are_refused(tmp_path):
    """The shapes depend neither on the number of heads nor on the group, only on its order."""
    folder = str(turnwise.save(create_model("vit", **SMALL), tmp_path / "vit"))
    with pytest.raises(
        InputError, match=r"trained with heads = 2, and this vit has 4; set heads=2"
    ):
        create_model("orbit_vit", weights=folder, **(SMALL | {"heads": 4}))
    small = {"width": 64, "depths": [1], "kernels": [3, 3, 3], "image_size": 8}
    folder = str(turnwise.save(create_model("turnwise_vit_nano", "C8", **small), tmp_path / "net"))
    with pytest.raises(InputError, match=r"trained with group = C8, .* set base_group=C8"):
        create_model("orbit_turnwise_vit_nano", "D4", weights=folder, **small)


def test_an_orbit_in_an_orbit_is_not_saved(tmp_path):
    twice = turnwise.orbit(create_model("orbit_vit", **SMALL), "D4")
    with pytest.raises(InputError, match="a Orbit that create_model did not build"):
        config_of(twice)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: create_model("vti"), r"unknown model 'vti'\. Did you mean 'vit'\?"),
        (
            lambda: create_model("vit", widht=8),
            r"unknown option of vit 'widht'\. Did you mean 'width'",
        ),
        (lambda: create_model("vit", group="Q8"), "unknown group 'Q8'"),
        (lambda: create_model("vit", width="foo"), "width must be a whole number, got 'foo'"),
        (lambda: create_model("vit", drop_path="a"), "drop_path must be a number, got 'a'"),
        (lambda: create_model("vit", heads=0), "heads = 0 must be from 1"),
        (lambda: create_model("vit", patch=0), "patch = 0 must be from 1"),
        (lambda: create_model("vit", num_classes=-1), "num_classes = -1 must be at least 0"),
        (lambda: create_model("vit", pretrained=True), "no pretrained weights of 'vit'"),
        (lambda: describe_model("vti"), "unknown model"),
    ],
)
def test_bad_input_is_refused_with_what_would_work(call, words):
    with pytest.raises(InputError, match=words):
        call()


FITTED = [
    ("turnwise_vit_nano", "pad", 50, 52),
    ("turnwise_vit_nano", "crop", 50, 48),
    ("turnwise_vit_nano", "resize", 50, 52),
    ("turnwise_vit_nano", "pad", 51, 52),  # resampled, because padding keeps the centre
    ("orbit_vit", "pad", 22, 24),
    ("hybrid_ge_vit", "pad", 18, 20),
]


@pytest.mark.parametrize(("name", "fit", "size", "fitted"), FITTED)
@torch.no_grad()
def test_images_of_an_inexact_size_are_fitted(name, fit, size, fitted, tmp_path):
    """Preprocessing changes them, and the whole remains exact at the size of the images."""
    small = {"depths": (1,)} if name.startswith("turnwise") else {}
    model = create_model(name, group="C4", image_size=size, fit=fit, **small).double().eval()
    images = torch.rand(2, 1, size, size, dtype=torch.float64)
    assert model.preprocess(images).shape[-1] == fitted
    turnwise.assert_equivariant(lambda x: model(model.preprocess(x)), "C4", images)
    with pytest.raises(InputError, match=f"image_size = {size} cannot be exact"):
        create_model(name, group="C4", image_size=size, **small)
    turnwise.save(model.float(), tmp_path / "model")
    again, images = turnwise.load(tmp_path / "model"), images.float()
    assert config_of(again).options["image_size"] == size
    assert torch.equal(again(again.preprocess(images)), model(model.preprocess(images)))


def test_exact_sizes_are_not_fitted():
    plain, fitted = (create_model("vit", image_size=28, fit=fit) for fit in (None, "pad"))
    assert fitted.preprocess.fit_size is None
    assert config_of(plain) == config_of(fitted)


def test_maps_are_not_fitted():
    with pytest.raises(InputError, match="cannot be exact in a U-Net"):
        create_model("unet", image_size=17, fit="pad")
