"""A new model with a new layer works everywhere after it was registered.

Both are defined in this file only.  The layer makes declarations (`layers.declarations`), and the
model is registered with a design.  Flags, help, recipes, storage, weight decay, training, the
certificate, figures and pages must follow without any change in src.
"""

from dataclasses import dataclass

import pytest
import torch
import yaml
from torch import nn

import turnwise
from turnwise.cli.main import main
from turnwise.errors import InputError
from turnwise.evaluation import Scope, certify
from turnwise.geometry.grids import pixel_centres
from turnwise.groups import equivariance_error
from turnwise.layers.conv.conv import LiftingConv2d
from turnwise.layers.declarations import AttentionTaps
from turnwise.layers.normalise import Normalise
from turnwise.models.contract import ImageModel
from turnwise.models.registry import register, unregister
from turnwise.options import Options, option
from turnwise.training.optim import split_by_decay
from turnwise.training.recipe import make_recipe

SMALL = {"channels": 3, "image_size": 8}


class DistanceAttention(nn.Module):
    """Attention among the pixels of each group element by content and by learned distance.

    w_s = softmax_s(x_t·x_s + table[|t − s|]): distances do not change under rotations.
    """

    feature_layout = "regular"
    no_weight_decay = ("table",)

    def __init__(self, channels, side):
        super().__init__()
        self.to_value = nn.Conv3d(channels, channels, 1)
        self.to_output = nn.Conv3d(channels, channels, 1)
        centres = pixel_centres(side, side).flatten(0, 1)
        distances = torch.cdist(centres, centres).mul(100).round().long()
        known, index = distances.unique(return_inverse=True)
        self.register_buffer("index", index, persistent=False)
        self.table = nn.Parameter(torch.randn(1, len(known)))

    def forward(self, x):
        value = self.to_value(x).flatten(3)  # (batch, channel, group, pixel)
        content = torch.einsum("bcgt,bcgs->bgts", x.flatten(3), x.flatten(3))
        weights = (content + self.table[0, self.index]).softmax(dim=-1)
        mixed = torch.einsum("bgts,bcgs->bcgt", weights, value).view_as(x)
        return x + self.to_output(mixed)

    def attention_taps(self):
        return AttentionTaps(self.to_value, 0, self.to_output, 1, "regular")

    def position_maps(self):
        side = round(len(self.index) ** 0.5)
        middle = (side // 2) * side + side // 2
        return {"score": self.table[0, self.index[middle]].detach().view(1, side, side)}


@dataclass(frozen=True)
class ToyDesign(Options):
    """The options of the toy model."""

    channels: int = option(
        4, "channels of each group element", at_least=1, at_most=64, aliases=("toy_width",)
    )
    reduce: str = option("max", "how the group axis is reduced", choices=("max", "mean"))


class ToyModel(ImageModel):
    """A lifting convolution, the new layer, the mean over pixels and a reduction over the group."""

    def __init__(self, task, design):
        super().__init__()
        self.group, self.design, self.side = task.group, design, task.image_size
        self.num_classes, self.num_features = task.num_classes, design.channels
        self.preprocess = Normalise(task.in_chans)
        self.lift = LiftingConv2d(task.group, task.in_chans, design.channels, 4, 4, 0)
        self.mix = DistanceAttention(design.channels, task.image_size // 4)
        self.head = self.make_head(task.num_classes)

    def exact_size(self, size):
        return (self.side,)

    def forward_features(self, images):
        self.require_shape(images, self.side)
        return self.mix(self.lift(images))

    def pool(self, features):
        pooled = features.mean(dim=(3, 4))
        return pooled.amax(2) if self.design.reduce == "max" else pooled.mean(2)


@pytest.fixture(autouse=True)
def toy(monkeypatch, tmp_path):
    """Register the model during the test, and work in an empty folder."""
    register("toy", ToyDesign, "A toy model with attention by distance.")(ToyModel)
    monkeypatch.delenv("TURNWISE_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    yield
    unregister("toy")


@pytest.fixture
def run(capsys):
    """Run a command that must succeed, and return its output."""

    def command(*words):
        status = main([str(word) for word in words])
        printed = capsys.readouterr()
        assert status == 0, printed.err
        return printed.out

    return command


def test_it_is_listed_and_described(run):
    assert {"toy", "orbit_toy"} <= set(turnwise.list_models())
    printed = run("models", "toy")
    assert "A toy model with attention by distance." in printed
    assert "channels=4" in printed and "channels of each group element (default: 4)" in printed
    assert "how the group axis is reduced: max, mean (default: max)" in printed


def test_the_help_of_the_command_line_has_its_flags(capsys):
    with pytest.raises(SystemExit):
        main(["train", "toy", "digits", "--help"])
    printed = " ".join(capsys.readouterr().out.split())
    assert "--channels VALUE channels of each group element (default: 4)" in printed
    assert "--reduce VALUE how the group axis is reduced: max, mean (default: max)" in printed


def test_its_options_are_checked_in_recipes(tmp_path):
    values = {"model": {"name": "toy", "toy_width": 3}, "data": {"name": "digits"}}
    recipe = make_recipe(values)
    assert recipe.model.options == {"channels": 3}
    assert yaml.safe_load(recipe.yaml())["model"]["reduce"] == "max"
    values["model"].pop("toy_width")
    for change, message in (
        ("model.chanels=3", r"unknown option of toy 'chanels'\. Did you mean 'channels'"),
        ("model.channels=many", "channels must be a whole number, got 'many'"),
    ):
        with pytest.raises(InputError, match=message):
            make_recipe(values, [change])
    for options, message in (
        ({"channels": 0}, "channels = 0 must be from 1 to 64"),
        ({"reduce": "median"}, "unknown reduce 'median'"),
    ):
        with pytest.raises(InputError, match=message):
            turnwise.create_model("toy", **options)


@pytest.mark.parametrize("name", ["toy", "orbit_toy"])
def test_it_is_saved_and_loaded(name, tmp_path):
    model = turnwise.create_model(name, "D4", num_classes=3, **SMALL).eval()
    loaded = turnwise.load(turnwise.save(model, tmp_path / "model", classes=["a", "b", "c"]))
    images = torch.rand(2, 1, 8, 8)
    assert torch.equal(loaded(images), model(images))
    assert loaded.config == model.config and loaded.classes == ("a", "b", "c")


def test_its_positions_do_not_decay():
    model = turnwise.create_model("toy", **SMALL)
    decayed, others = split_by_decay(model)
    assert any(p is model.mix.table for p in others) and model.mix.table.ndim == 2
    assert model.no_weight_decay() == {"mix.table"}
    assert any(p is model.mix.to_value.weight for p in decayed)


def test_its_intermediate_features_are_those_of_the_new_layer():
    model = turnwise.create_model("toy", "D4", **SMALL).eval()
    _, maps = model.forward_intermediates(images := torch.rand(2, 1, 8, 8))
    assert [x.shape for x in maps] == [(2, 3, 8, 2, 2)]
    assert torch.equal(maps[0], model.forward_features(images))


@pytest.mark.parametrize("group", ["C4", "D4"])
def test_its_certificate_traces_the_new_layer(group):
    model = turnwise.create_model("toy", group, **SMALL).eval()
    assert equivariance_error(model.double(), group, torch.rand(2, 1, 8, 8).double()) < 1e-10
    certificate = certify(model.float(), group, torch.rand(3, 1, 8, 8), scope=Scope(shifts=0))
    assert certificate.holds
    layers = {check.layer: check for check in certificate.layers}
    assert layers["mix"].layout == f"regular of {group}"
    assert layers["mix"].output_error < 1e-4


def test_the_certificate_finds_the_layer_that_breaks_the_symmetry():
    model = turnwise.create_model("toy", "C4", **SMALL).eval()
    model.mix.index = model.mix.index.roll(1, dims=1)
    certificate = certify(model, "C4", torch.rand(3, 1, 8, 8), scope=Scope(shifts=0))
    assert not certificate.holds
    layers = {check.layer: check for check in certificate.layers}
    assert layers["lift"].output_error < 1e-4 < layers["mix"].output_error


def test_it_trains_and_is_shown_by_the_commands(run, tmp_path):
    """Training, test, certificate, figures of attention, positions and features, a report."""
    trained = tmp_path / "run"
    short = ("epochs=1", "batch_size=500", "trainer.accelerator=cpu", "evaluation.angles=2")
    run("train", "toy", "digits", "--channels", "2", *short, "--output", trained)
    assert yaml.safe_load((trained / "recipe.yaml").read_text())["model"]["channels"] == 2
    assert turnwise.load(trained).mix.table.ndim == 2
    run("test", trained)
    run("certify", trained, "--images", "4", "--angles", "2", "--shifts", "0")
    for figure in ("attention", "positions", "features"):
        run("show", figure, trained, "--image", "0", "--output", f"{figure}.png")
        assert (tmp_path / f"{figure}.png").stat().st_size > 1000
    run("report", trained, "--images", "1", "--output", "report.html")
    assert "toy" in (tmp_path / "report.html").read_text(encoding="utf-8")
