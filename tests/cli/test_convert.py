"""`turnwise import` and `turnwise orbit` write new model folders and runs."""

import json
import shlex
import shutil
from pathlib import Path

import pytest
import torch
import yaml

from turnwise.cli.convert import new_folder
from turnwise.cli.main import main
from turnwise.errors import InputError
from turnwise.evaluation import certify
from turnwise.groups import PlanarGroup
from turnwise.models import create_model, load, save
from turnwise.models.importing.gsa import ORIGINS
from turnwise.models.importing.programs import PROGRAMS
from turnwise.runs.train import train
from turnwise.training.recipe import make_recipe

KEYS = Path(__file__).parents[1] / "golden" / "keys.json"
SMALL = {"patch": 7, "width": 16, "depth": 1, "heads": 2}
PLAIN = {
    "model": {"name": "vit", "group": "C4", **SMALL},
    "data": {"name": "digits"},
    "optimisation": {"batch_size": 400, "learning_rate": 0.003},
    "trainer": {"max_epochs": 1, "accelerator": "cpu"},
    "evaluation": {"angles": 4},
}


@pytest.fixture
def file(empty_folder):
    """Write the weights of a GE-ViT with p4 for rotated MNIST, with the names of DataParallel."""
    case = json.loads(KEYS.read_text())["net_rotmnist_p4_p5"]
    state = {key: torch.randn(shape) for key, shape in case["parameters"]}
    state |= {key: torch.zeros(shape) for key, shape in case["buffers"]}
    table = torch.tensor(
        [[[(2 * g - m - v) % 4 for m in range(4)] for g in range(4)] for v in range(4)]
    )
    state |= {key: table for key in state if key.endswith("g_indices")}
    torch.save({f"module.{key}": values for key, values in state.items()}, empty_folder / "net.pt")
    return "net.pt"


def test_a_file_becomes_a_model_folder(turnwise, file, empty_folder):
    status, output, error = turnwise("import", file, "--from", "ge-vit", "--output", "new/net")
    assert (status, error) == (0, "")
    assert output == (
        "net.pt is ge_vit (gevit-2023), group C4 (p4), data rotmnist, window 5, images transposed "
        "first (--upright: not), 10 classes, 44428 parameters\n"
        "written to new/net; measure it with: turnwise certify new/net\n"
    )
    model = load("new/net")
    head = torch.load(file, weights_only=True)["module.transformer.6.weight"]
    assert torch.equal(model.head.weight, head.flatten(1))
    names = {path.name for path in (empty_folder / "new" / "net").iterdir()}
    assert names == {"model.safetensors", "config.json"}


def test_an_empty_folder_is_filled(turnwise, file, empty_folder):
    (empty_folder / "net").mkdir()
    assert turnwise("import", file, "--from", "ge-vit", "--output", "net")[0] == 0
    assert load("net").config.name == "ge_vit"


def test_global_attention_is_recognised(turnwise, file, empty_folder):
    state = torch.load(file, weights_only=True)
    for key in state:
        if key.endswith(("row_indices", "col_indices")):
            state[key] = torch.zeros(1).expand(4, 28, 28, 28, 28)
    torch.save(state, file)
    _, output, _ = turnwise("import", file, "--from", "ge-vit", "--output", "net")
    assert "data rotmnist, window global, images transposed" in output


@pytest.mark.parametrize(
    ("name", "origin", "message"),
    [
        ("net.pt", "gsa-nets", "these weights come from ge-vit, not from gsa-nets"),
        ("net.pt", "gevit", "unknown program 'gevit'. Did you mean 'ge-vit'? Known: dl2-modern,"),
        ("net.pth", "ge-vit", "cannot read net.pth: no such file or directory; give a file that"),
        (".", "ge-vit", "cannot read .: is a directory"),
        ("text.pt", "ge-vit", "text.pt is damaged or holds more than tensors, and nothing in it"),
    ],
)
def test_a_wrong_request_leaves_no_files(refused, file, empty_folder, name, origin, message):
    (empty_folder / "text.pt").write_text("text")
    assert message in refused("import", name, "--from", origin, "--output", "new/net")
    assert {path.name for path in empty_folder.iterdir()} == {"net.pt", "text.pt"}


def test_existing_files_are_not_overwritten(refused, file, empty_folder):
    (empty_folder / "full").mkdir()
    (empty_folder / "full" / "note").write_text("mine")
    for output in ("full", "net.pt"):
        error = refused("import", file, "--from", "ge-vit", "--output", output)
        assert f"{output} exists and is not an empty folder; choose another --output." in error
    assert [path.name for path in (empty_folder / "full").iterdir()] == ["note"]


def test_an_output_that_cannot_be_written_is_refused(refused, file, empty_folder):
    error = refused("import", file, "--from", "ge-vit", "--output", "net.pt/net")
    assert "cannot write net.pt/net/model.safetensors" in error
    assert (empty_folder / "net.pt").is_file()


def test_an_interruption_leaves_no_half_model(turnwise, file, empty_folder, monkeypatch):
    def fail(path, value):
        assert (path.parent / "model.safetensors").is_file()
        raise KeyboardInterrupt

    monkeypatch.setattr("turnwise.models.storage.write_json", fail)
    assert turnwise("import", file, "--from", "ge-vit", "--output", "net")[0] == 130
    assert not (empty_folder / "net").exists()


@pytest.mark.parametrize("words", [["net.pt"], ["net.pt", "--from", "ge-vit"], ["--output", "x"]])
def test_file_program_and_folder_are_required(words, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["import", *words])
    assert stop.value.code == 2
    assert "the following arguments are required" in capsys.readouterr().err


def test_help_names_every_program(capsys):
    with pytest.raises(SystemExit):
        main(["import", "--help"])
    text = capsys.readouterr().out
    assert text.startswith("usage: turnwise import ")
    assert all(program in text for program in PROGRAMS)


def test_a_metaformer_needs_the_size_of_its_images(turnwise, empty_folder):
    keys = json.loads(KEYS.with_name("roto.keys.json").read_text())["poolformer_s12"]
    state = {key: torch.randn(shape) for key, shape in keys["parameters"]}
    torch.save({key.replace(".proj.", ".proj.conv1."): v for key, v in state.items()}, "roto.pt")
    words = ("--from", "roto-metaformer", "--size", "64", "--classes", "7", "--output", "net")
    status, output, error = turnwise("import", "roto.pt", *words)
    assert (status, error) == (0, "")
    assert output.startswith("roto.pt is roto_poolformer_s12, group D4 (p4m), 7 classes, ")
    assert load("net").config.options["image_size"] == 64


def test_a_size_is_refused_if_the_weights_determine_it(turnwise, file):
    words = ("--from", "ge-vit", "--size", "28", "--output", "net")
    status, _, error = turnwise("import", file, *words)
    assert status == 2
    assert "--size is for poolformer, metaformer, roto-metaformer, relative-perf" in error
    words = ("--from", "ge-vit", "--classes", "3", "--output", "net")
    assert "roto-metaformer; leave it out for ge-vit" in turnwise("import", file, *words)[2]


def test_upright_digits_are_not_transposed(turnwise, file):
    status, output, _ = turnwise("import", file, "--from", "ge-vit", "--upright", "--output", "net")
    assert status == 0 and "transposed" not in output
    assert load("net").config.options["transposed"] is False


@pytest.mark.parametrize("group", ["p4", "p4m"])
@pytest.mark.parametrize("classes", [10, 2])
def test_every_network_of_a_student_project_is_imported(turnwise, empty_folder, group, classes):
    """They are GE-ViT p4 and p4m, for 10 or 2 classes, with the names of DataParallel."""
    case = json.loads(KEYS.read_text())[f"net_rotmnist_{group}_p5"]
    state = {key: torch.randn(shape) for key, shape in case["parameters"]}
    head = "transformer.6.weight"
    state[head] = torch.randn(classes, *state[head].shape[1:])
    state |= {key: torch.zeros(shape) for key, shape in case["buffers"]}
    table = ORIGINS["ge-vit"].stored_table(PlanarGroup.named(group))
    state |= {key: table for key in state if key.endswith("g_indices")}
    torch.save({f"module.{key}": values for key, values in state.items()}, "net.pt")
    status, output, error = turnwise("import", "net.pt", "--from", "ge-vit", "--output", "net")
    assert (status, error) == (0, "")
    assert f"({group}), data rotmnist, window 5, " in output
    assert f", {classes} classes, " in output
    model = load("net")
    assert model(model.preprocess(torch.rand(1, 1, 28, 28))).shape == (1, classes)
    assert torch.equal(model.head.weight, state[head].flatten(1))


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """Return a run of a plain transformer."""
    return train(make_recipe(PLAIN), tmp_path_factory.mktemp("runs") / "plain").path


@pytest.fixture
def folder(empty_folder):
    return save(create_model("vit", image_size=14, **SMALL), empty_folder / "vit")


def test_a_run_becomes_a_run_that_can_be_tested_and_certified(turnwise, plain, empty_folder):
    status, output, error = turnwise(
        "orbit", plain, "--group", "D4", "--combine", "most_certain", "--output", "new"
    )
    assert (status, error) == (0, "")
    assert output == (
        "vit on 8 transformed copies (D4), combined by most_certain; exactly invariant under D4\n"
        "written to new; measure it with: turnwise test new\n"
    )
    recipe = yaml.safe_load((empty_folder / "new" / "recipe.yaml").read_text())
    assert recipe["model"]["name"] == "orbit_vit"
    assert (recipe["model"]["group"], recipe["model"]["combine"]) == ("D4", "most_certain")
    assert recipe["model"]["width"] == 16
    environment = json.loads((empty_folder / "new" / "environment.json").read_text())
    assert environment["orbit_of"] == str(plain)
    assert torch.equal(load("new").model.position, load(plain).position)
    status, output, _ = turnwise("test", "new")
    assert status == 0
    assert "same prediction over all exact elements of D4: 100.00 %" in output
    assert json.loads((empty_folder / "new" / "test.json").read_text())["model"] == "orbit_vit"
    assert turnwise("certify", "new", "--angles", "4", "--images", "4")[0] == 0


def test_control_the_run_itself_is_not_invariant(turnwise, plain, empty_folder):
    status, output, _ = turnwise(
        "certify", plain, "--group", "D4", "--angles", "4", "--images", "4", "--output", "c.json"
    )
    assert status == 1
    assert "NOT INVARIANT" in output


def test_a_model_folder_becomes_a_model_folder(turnwise, folder, empty_folder):
    (empty_folder / "new").mkdir()
    words = ("--group", "C16", "--mask", "--chunk", "4", "--background", "0.5", "--output", "new")
    status, output, _ = turnwise("orbit", folder, *words)
    assert status == 0
    assert "exactly invariant under C4; other angles are interpolated and approximate" in output
    assert "turnwise certify new" in output
    assert {p.name for p in (empty_folder / "new").iterdir()} == {
        "model.safetensors",
        "config.json",
    }
    model = load("new")
    assert (model.design.mask, model.design.chunk, model.design.background) == (True, 4, 0.5)
    assert certify(model, "C16", torch.rand(4, 1, 14, 14), angles=2).holds


def test_a_learned_combination_prints_how_to_train_it(turnwise, plain, empty_folder):
    status, output, _ = turnwise("orbit", plain, "--combine", "learned_weights", "--output", "new")
    assert status == 0
    command = next(line.split() for line in output.splitlines() if line.startswith("  turnwise"))
    assert command[1] == "train"
    assert turnwise("train", *command[2:], "--output", "tuned")[0] == 0
    tuned, base = load("tuned"), load(plain)
    assert torch.equal(tuned.model.position, base.position), "the model inside is frozen"
    assert tuned.readout.score[2].weight.abs().max() > 0, "the combination was trained"
    assert certify(tuned, "C4", torch.rand(4, 1, 28, 28), angles=2).holds


def test_the_printed_command_trains_the_same_orbit(turnwise, plain, folder, empty_folder):
    """With a group other than the model's own, a mask, and a background outside of it."""
    how = ("--group", "D4", "--mask", "--background", "0.3", "--combine", "learned_attention")
    output = turnwise("orbit", plain, *how, "--output", "new")[1]
    command = shlex.split(
        next(line for line in output.splitlines() if line.startswith("  turnwise"))
    )
    assert turnwise("train", *command[2:], "--output", "tuned")[0] == 0
    made, tuned = load("new").config.options, load("tuned").config.options
    differ = {key for key in made if made[key] != tuned[key]}
    assert differ == {"tune"}
    assert "write a recipe for your data" in turnwise("orbit", folder, *how, "--output", "bare")[1]


def test_a_wrong_orbit_is_refused(refused, run, folder, empty_folder):
    assert "is an orbit already (orbit_vit)" in refused("orbit", run, "--output", "new")
    assert "is not a model or run folder" in refused("orbit", "nothing", "--output", "new")
    words = ("--output", "new", "--combine", "median")
    assert "Did you mean 'mean'" in refused("orbit", folder, *words)
    assert "unknown group 'Q4'" in refused("orbit", folder, "--group", "Q4", "--output", "new")
    assert not (empty_folder / "new").exists()


def test_an_orbit_overwrites_no_files(refused, folder):
    assert "exists and is not an empty folder" in refused("orbit", folder, "--output", folder)


def test_an_incomplete_run_leaves_no_files(refused, plain, empty_folder):
    half = shutil.copytree(plain, empty_folder / "half")
    (half / "environment.json").unlink()
    error = refused("orbit", half, "--output", "new")
    assert "environment.json" in error
    assert not (empty_folder / "new").exists()


def test_a_new_folder_is_removed_if_filling_it_fails(empty_folder):
    with pytest.raises(KeyboardInterrupt), new_folder("new") as folder:
        folder.mkdir()
        (folder / "half").touch()
        raise KeyboardInterrupt
    assert not (empty_folder / "new").exists()


def test_a_folder_that_holds_files_is_no_new_folder(empty_folder):
    (empty_folder / "full").mkdir()
    (empty_folder / "full" / "note").touch()
    message = "full exists and is not an empty folder; choose another --output"
    with pytest.raises(InputError, match=message), new_folder("full"):
        pass
    assert (empty_folder / "full" / "note").exists()
