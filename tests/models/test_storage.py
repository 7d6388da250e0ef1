"""Saved models are loaded exactly; damaged folders are refused with a one-line error."""

import json

import pytest
import torch
from torch import nn

import turnwise
from turnwise.errors import InputError

SMALL = {"width": 16, "depth": 1, "heads": 2, "image_size": 8}


@pytest.fixture
def folder(tmp_path):
    model = turnwise.create_model("orbit_vit", group="D4", num_classes=3, **SMALL)
    return turnwise.save(model, tmp_path / "model", classes=["a", "b", "c"])


def test_a_saved_model_is_loaded_exactly(tmp_path):
    model = turnwise.create_model("orbit_vit", group="D4", **SMALL)
    model.model.preprocess.fit(torch.randint(0, 99, (5, 1, 8, 8), dtype=torch.uint8))
    turnwise.save(model, tmp_path / "m", classes=[str(n) for n in range(10)])
    again = turnwise.load(tmp_path / "m")
    images = torch.rand(2, 1, 8, 8)
    assert torch.equal(again(again.preprocess(images)), model.eval()(model.preprocess(images)))
    assert again.classes == tuple("0123456789")
    assert again.group.name == "D4"
    assert not again.training
    assert {p.name for p in (tmp_path / "m").iterdir()} == {"model.safetensors", "config.json"}


def test_the_fill_mode_is_stored_with_the_model(tmp_path):
    model = turnwise.create_model("vit", **SMALL)
    assert turnwise.load(turnwise.save(model, tmp_path / "any")).fill == ""
    model.fill = "disc"
    assert turnwise.load(turnwise.save(model, tmp_path / "disc")).fill == "disc"


def test_a_run_folder_opens_as_its_model(folder):
    assert turnwise.from_pretrained(folder.parent).config == turnwise.load(folder).config


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"has no config\.json\. \(A run has none before"):
        turnwise.load(tmp_path)


def test_an_unregistered_module_is_refused(tmp_path):
    with pytest.raises(InputError, match="a Linear that create_model did not build"):
        turnwise.save(nn.Linear(2, 2), tmp_path)
    assert not list(tmp_path.iterdir())


def damage_weights(folder):
    (folder / "model.safetensors").write_bytes(b"garbage")


def cut_config(folder):
    (folder / "config.json").write_text('{"format": 1')


def drop_key(folder):
    config = json.loads((folder / "config.json").read_text())
    del config["sha256"], config["name"]
    (folder / "config.json").write_text(json.dumps(config))


def change(key, value):
    def damage(folder):
        config = json.loads((folder / "config.json").read_text())
        config[key] = value
        (folder / "config.json").write_text(json.dumps(config))

    return damage


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (damage_weights, r"its hash differs\); copy the whole folder again"),
        (cut_config, r"config\.json cannot be read"),
        (drop_key, r"config\.json lacks name, sha256"),
        (change("format", 9), "has format 9, this version reads 1"),
        (change("name", "vit_huge"), "does not hold a usable model: unknown model"),
        (
            change("options", {**SMALL, "num_classes": 3, "width": 32}),
            "does not hold a usable model",
        ),
        (change("classes", ["a"]), "must name as many classes as the model has"),
        (change("classes", None), "must name as many classes as the model has"),
        (change("options", 7), "must name as many classes as the model has"),
        (lambda folder: (folder / "model.safetensors").unlink(), r"has no model\.safetensors"),
        (lambda folder: (folder / "config.json").unlink(), r"it has no config\.json"),
    ],
)
def test_damaged_folders_are_refused(folder, damage, words):
    damage(folder)
    with pytest.raises(InputError, match=words):
        turnwise.load(folder)


def test_a_path_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("in the way")
    model = turnwise.create_model("vit", **SMALL)
    with pytest.raises(InputError, match=r"cannot write .*model\.safetensors: not a directory;"):
        turnwise.save(model, tmp_path / "file" / "model")


def test_a_compiled_model_is_saved_as_the_model_inside(tmp_path):
    """torch.compile(model) is a module around the model, with other keys."""
    model = turnwise.create_model("vit", width=8, depth=1, heads=2)
    compiled = nn.Module()
    compiled._orig_mod = model
    turnwise.save(compiled, tmp_path)
    images = torch.rand(2, 1, 28, 28)
    assert torch.equal(turnwise.load(tmp_path)(images), model.eval()(images))


def test_a_model_that_could_not_be_loaded_is_not_written(tmp_path):
    model = turnwise.create_model("vit", width=8, depth=1, heads=2)
    with pytest.raises(InputError, match="2 class names were given for a model of 10"):
        turnwise.save(model, tmp_path / "a", classes=["a", "b"])
    model.head = torch.nn.Linear(8, 3)
    with pytest.raises(InputError, match=r"head.weight is \(3, 8\) and must be \(10, 8\)"):
        turnwise.save(model, tmp_path / "b")
    assert list(tmp_path.iterdir()) == []


def test_saving_draws_no_random_numbers(tmp_path):
    model = turnwise.create_model("vit", width=8, depth=1, heads=2)
    before = torch.get_rng_state()
    turnwise.save(model, tmp_path)
    assert torch.equal(torch.get_rng_state(), before)


class Net(nn.Module):
    """A network of a user: tied weights, a buffer, and its own preprocessing."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)
        self.second.weight = self.first.weight
        self.last = nn.Linear(64, 3)
        self.register_buffer("scale", torch.rand(1))

    def preprocess(self, images):
        return 2 * images - 1

    def forward(self, images):
        return self.last(self.second(self.first(images.flatten(1)).relu()).relu()) * self.scale


@pytest.fixture
def orbit_folder(tmp_path):
    model = turnwise.orbit(Net(), "D4", "mean_features", head="last").eval()
    return model, turnwise.save(model, tmp_path / "m", classes=("a", "b", "c"))


def test_an_orbit_around_any_module_is_opened_by_its_factory(orbit_folder):
    model, folder = orbit_folder
    again = turnwise.load(folder, factory=Net)
    images = torch.rand(3, 1, 8, 8)
    assert torch.equal(again(images), model(images))
    assert torch.equal(again.preprocess(images), model.preprocess(images))
    assert (again.group.name, again.classes) == ("D4", ("a", "b", "c")) and not again.training
    assert not torch.equal(turnwise.orbit(Net(), "D4", "mean_features", head="last")(images),
                           model(images)), "control: other weights"  # fmt: skip


def test_nothing_is_built_from_the_folder_of_such_an_orbit(orbit_folder):
    with pytest.raises(InputError, match=r"orbit around a Net of your own.* factory=…\) with"):
        turnwise.load(orbit_folder[1])


def test_a_factory_of_another_module_is_refused(orbit_folder):
    with pytest.raises(InputError, match="does not hold a usable model"):
        turnwise.load(
            orbit_folder[1], factory=lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
        )


def test_a_factory_is_refused_where_the_name_builds_the_model(folder):
    with pytest.raises(InputError, match="built by its name; give no factory"):
        turnwise.load(folder, factory=Net)


@pytest.mark.parametrize("damage", [{"group": 4}, {"combine": "no"}, {"chunk": "x"}, {"evil": 1}])
def test_damaged_options_of_such_an_orbit_are_refused(orbit_folder, damage):
    path = orbit_folder[1] / "config.json"
    config = json.loads(path.read_text())
    config["options"] |= damage
    path.write_text(json.dumps(config))
    with pytest.raises(InputError, match="does not hold a usable model"):
        turnwise.load(orbit_folder[1], factory=Net)
