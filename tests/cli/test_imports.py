"""A file of another program becomes a model folder, or one line says why not."""

import json
from pathlib import Path

import pytest
import torch

from turnwise.cli.main import main
from turnwise.groups import PlanarGroup
from turnwise.models import load
from turnwise.models.importing.gsa import ORIGINS

KEYS = Path(__file__).parents[1] / "golden" / "keys.json"


@pytest.fixture
def file(empty_place):
    """A network of GE-ViT with p4, for rotated digits, as DataParallel names it."""
    case = json.loads(KEYS.read_text())["net_rotmnist_p4_p5"]
    state = {key: torch.randn(shape) for key, shape in case["parameters"]}
    state |= {key: torch.zeros(shape) for key, shape in case["buffers"]}
    table = torch.tensor(
        [[[(2 * g - m - v) % 4 for m in range(4)] for g in range(4)] for v in range(4)]
    )
    state |= {key: table for key in state if key.endswith("g_indices")}
    torch.save({f"module.{key}": values for key, values in state.items()}, empty_place / "net.pt")
    return "net.pt"


def test_a_file_becomes_a_model_folder(turnwise, file, empty_place):
    status, said, complaint = turnwise("import", file, "--from", "ge-vit", "--output", "new/net")
    assert (status, complaint) == (0, "")
    assert said == (
        "net.pt is ge_vit (gevit-2023), group C4 (p4), data rotmnist, window 5, 10 classes, "
        "44428 parameters\nwritten to new/net; measure it with: turnwise certify new/net\n"
    )
    model = load("new/net")
    head = torch.load(file, weights_only=True)["module.transformer.6.weight"]
    assert torch.equal(model.head.weight, head.flatten(1))
    names = {path.name for path in (empty_place / "new" / "net").iterdir()}
    assert names == {"model.safetensors", "config.json"}


def test_an_empty_folder_may_be_filled(turnwise, file, empty_place):
    (empty_place / "net").mkdir()
    assert turnwise("import", file, "--from", "ge-vit", "--output", "net")[0] == 0
    assert load("net").config.name == "ge_vit"


def test_global_attention_is_called_so(turnwise, file, empty_place):
    state = torch.load(file, weights_only=True)
    for key in state:
        if key.endswith(("row_indices", "col_indices")):
            state[key] = torch.zeros(1).expand(4, 28, 28, 28, 28)
    torch.save(state, file)
    _, said, _ = turnwise("import", file, "--from", "ge-vit", "--output", "net")
    assert "data rotmnist, window global, 10 classes" in said


@pytest.mark.parametrize(
    ("name", "origin", "said"),
    [
        ("net.pt", "gsa-nets", "these weights were made by ge-vit; use --from ge-vit."),
        ("net.pt", "gevit", "unknown program 'gevit'. Did you mean 'ge-vit'? Known: ge-vit, gsa-n"),
        ("net.pth", "ge-vit", "cannot read net.pth: no such file or directory; give a file that"),
        (".", "ge-vit", "cannot read .: is a directory"),
        ("text.pt", "ge-vit", "text.pt is damaged or holds more than tensors, and nothing in it"),
    ],
)
def test_nonsense_leaves_nothing_behind(refused, file, empty_place, name, origin, said):
    (empty_place / "text.pt").write_text("text")
    assert said in refused("import", name, "--from", origin, "--output", "new/net")
    assert {path.name for path in empty_place.iterdir()} == {"net.pt", "text.pt"}


def test_what_is_there_is_not_overwritten(refused, file, empty_place):
    (empty_place / "full").mkdir()
    (empty_place / "full" / "note").write_text("mine")
    for place in ("full", "net.pt"):
        said = refused("import", file, "--from", "ge-vit", "--output", place)
        assert f"{place} exists and is not an empty folder; choose another --output." in said
    assert [path.name for path in (empty_place / "full").iterdir()] == ["note"]


def test_an_output_that_cannot_be_written(refused, file, empty_place):
    said = refused("import", file, "--from", "ge-vit", "--output", "net.pt/net")
    assert "cannot write net.pt/net/model.safetensors" in said
    assert (empty_place / "net.pt").is_file()


def test_half_a_model_is_not_left(turnwise, file, empty_place, monkeypatch):
    def fail(path, value):
        assert (path.parent / "model.safetensors").is_file()
        raise KeyboardInterrupt

    monkeypatch.setattr("turnwise.models.storage.write_json", fail)
    assert turnwise("import", file, "--from", "ge-vit", "--output", "net")[0] == 130
    assert not (empty_place / "net").exists()


@pytest.mark.parametrize("words", [["net.pt"], ["net.pt", "--from", "ge-vit"], ["--output", "x"]])
def test_file_program_and_folder_must_be_given(words, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["import", *words])
    assert stop.value.code == 2
    assert "the following arguments are required" in capsys.readouterr().err


def test_help_names_every_program(capsys):
    with pytest.raises(SystemExit):
        main(["import", "--help"])
    told = capsys.readouterr().out
    assert told.startswith("usage: turnwise import ")
    assert all(origin in told for origin in ORIGINS)


def test_a_metaformer_needs_the_size_of_its_pictures_told(turnwise, empty_place):
    keys = json.loads(KEYS.with_name("roto.keys.json").read_text())["poolformer_s12"]
    torch.save({key: torch.randn(shape) for key, shape in keys["parameters"]}, "roto.pt")
    words = ("--from", "roto-metaformer", "--size", "64", "--output", "net")
    status, said, complaint = turnwise("import", "roto.pt", *words)
    assert (status, complaint) == (0, "")
    assert said.startswith("roto.pt is roto_poolformer_s12, group D4 (p4m), ")
    assert load("net").config.options["image_size"] == 64


def test_a_size_is_refused_where_the_file_tells_it(turnwise, file):
    words = ("--from", "ge-vit", "--size", "28", "--output", "net")
    status, _, complaint = turnwise("import", file, *words)
    assert status == 2
    assert "--size goes with poolformer, metaformer, roto-metaformer" in complaint


@pytest.mark.parametrize("group", ["p4", "p4m"])
@pytest.mark.parametrize("classes", [10, 2])
def test_every_network_of_the_student_project(turnwise, empty_place, group, classes):
    """GE-ViT p4 and p4m, for 10 classes or for 2, as DataParallel names its weights."""
    case = json.loads(KEYS.read_text())[f"net_rotmnist_{group}_p5"]
    state = {key: torch.randn(shape) for key, shape in case["parameters"]}
    head = "transformer.6.weight"
    state[head] = torch.randn(classes, *state[head].shape[1:])
    state |= {key: torch.zeros(shape) for key, shape in case["buffers"]}
    table = ORIGINS["ge-vit"].kept_table(PlanarGroup.named(group))
    state |= {key: table for key in state if key.endswith("g_indices")}
    torch.save({f"module.{key}": values for key, values in state.items()}, "net.pt")
    status, said, complaint = turnwise("import", "net.pt", "--from", "ge-vit", "--output", "net")
    assert (status, complaint) == (0, "")
    assert f"({group}), data rotmnist, window 5, {classes} classes, " in said
    model = load("net")
    assert model(model.preprocess(torch.rand(1, 1, 28, 28))).shape == (1, classes)
    assert torch.equal(model.head.weight, state[head].flatten(1))
