"""Making pretrained weights from runs and their record, and the commands that take their name."""

import csv
import importlib.util
import io
import json
import re
import shutil
from pathlib import Path

import pytest
import torch

import turnwise
from turnwise.cli.main import main as command
from turnwise.data import load_dataset
from turnwise.data.catalogue import entry
from turnwise.errors import InputError
from turnwise.groups import PlanarGroup
from turnwise.models import weights as pretrained
from turnwise.reports import loaded_models
from turnwise.runs import Run
from turnwise.runs.train import build_model
from turnwise.training.recipe import make_recipe

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "ship_weights.py"
NAME = "orbit_vit.digits"
RECIPE = {
    "model": {"name": "orbit_vit", "group": "D4", "patch": 7, "width": 16, "depth": 1, "heads": 2},
    "data": {"name": "digits"},
    "evaluation": {"angles": 4},
}
SCORES = {0: (0.75, 0.99), 1: (0.9, 0.5), 2: (0.9, 0.6)}  # validation, test


@pytest.fixture(scope="module")
def script():
    found = importlib.util.spec_from_file_location("ship_weights", SCRIPT)
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def write_run(run, recipe, dataset, val, test):
    """Write a run folder as training and testing leave it, with made-up scores."""
    model = build_model(recipe, dataset)
    for parameter in model.parameters():
        parameter.data = parameter.data.half().float()  # exact in half precision
    run.save_model(model, dataset.classes)
    run.write_recipe(recipe)
    data = {"name": "digits", "classes": dataset.classes, "sha256": dataset.digests()}
    run.write_environment({"data": data | {"provenance": "made up"}})
    metrics = f"epoch,val_accuracy\n0,0.1\n1,{val}\n2,0.2\n"
    run.training_files().metrics.write_text(metrics)
    result = dict.fromkeys(("images", "classes", "angles", "orbit_agreement", "rotation_agreement"))
    scores = {"accuracy": {"value": test, "low": 0, "high": 1}}
    run.write_evaluation({"times_evaluated": 1, "scores": scores, **result})


def write_record(path, recipe, scores):
    rest = {"epochs": 3, "training_seconds": 1.5, "times_examined": 1, "angles": 4}
    rest |= {"worst_angle": 0.4, "orbit_agreement": 1.0, "turn_agreement": 1.0}
    seeds = {
        str(s): {"val_accuracy": v, "test_accuracy": t, **rest} for s, (v, t) in scores.items()
    }
    record = dict.fromkeys(("command", "commit", "machine", "date"), "made up")
    with path.open("a") as file:
        file.write(json.dumps(record | {"figures": {"recipe": recipe, "seeds": seeds}}) + "\n")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a folder with runs of three seeds, and their records."""
    folder, dataset = tmp_path_factory.mktemp("made"), load_dataset("digits")
    for seed, (val, test) in SCORES.items():
        run = Run(folder / "tiny" / f"seed_{seed}")
        write_run(run, make_recipe(RECIPE | {"seed": seed}), dataset, val, test)
    write_record(folder / "records.jsonl", "tiny", {0: (1.0, 1.0)})  # an older one
    write_record(folder / "records.jsonl", "tiny", SCORES)
    return folder


@pytest.fixture
def runs(made, tmp_path, monkeypatch, script):
    """Return a copy of the runs; there are no pretrained weights, and work is in another folder."""
    monkeypatch.setattr(pretrained, "ROOT", tmp_path / "weights")
    monkeypatch.setattr(pretrained, "MORE", ())
    page = tmp_path / "weights.md"
    page.write_text(script.PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.setattr(script, "PAGE", page)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return shutil.copytree(made, tmp_path / "made")


@pytest.fixture
def ship(runs, script):
    def run(*words, name=NAME, run=runs / "tiny"):
        given = ["--name", name, "--records", str(runs / "records.jsonl"), *words]
        return script.main([str(run), *given])

    return run


def weights(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_the_seed_is_chosen_by_validation_and_not_by_test(ship, runs, capsys):
    """Seed 0 is the best on test; 1 and 2 are equal on validation, so the first is chosen."""
    assert ship() == 0
    assert "seed 1 of" in capsys.readouterr().out
    assert torch.equal(weights(turnwise.load(NAME)), weights(turnwise.load(runs / "tiny/seed_1")))


def test_seeds_are_compared_as_numbers(script):
    seeds = {"10": {"val_accuracy": 0.5}, "9": {"val_accuracy": 0.5}}
    assert script.chosen_seed({"figures": {"seeds": seeds}}) == 9


def test_the_card_holds_the_record_and_the_measurements(ship, runs):
    assert ship() == 0
    card = pretrained.read_card(pretrained.ROOT / NAME)
    assert card["record"] == json.loads((runs / "records.jsonl").read_text().splitlines()[-1])
    assert (card["seed"], card["licence"]) == (1, "MIT")
    assert card["stored"] | {"before": 0, "after": 0} == {
        "precision": "float16", "pictures": 500, "before": 0, "after": 0
    }  # fmt: skip
    assert card["stored"]["before"] == card["stored"]["after"]
    assert card["equivariance"]["group"] == "D4"
    assert 0 < card["equivariance"]["float64"] <= 1e-10
    assert card["data"]["provenance"] == "made up"
    assert card["recipe"] == make_recipe(RECIPE | {"seed": 1}).plain()
    assert card["weights"] == len(weights(turnwise.load(NAME)))
    assert {p.name for p in pretrained.ROOT.iterdir()} == {NAME}
    assert {p.name for p in (pretrained.ROOT / NAME).iterdir()} == {
        "card.json", "card.md", "config.json", "model.safetensors"
    }  # fmt: skip


def test_every_option_is_stored_because_defaults_may_change(ship):
    assert ship() == 0
    options = turnwise.load(NAME).config.options
    assert options["drop_path"] == 0.0 and options["backend"] == "auto"  # not in the recipe


def test_the_table_of_the_page_is_made_from_the_cards(ship, script):
    assert ship() == 0
    text = script.PAGE.read_text()
    assert f"| {NAME} | D4 |" in text and "50.00 %" in text
    assert "No weights are shipped yet" not in text
    shutil.rmtree(pretrained.ROOT / NAME)
    assert script.main([]) == 0
    assert "No weights are shipped yet" in script.PAGE.read_text()


def test_the_page_in_docs_is_up_to_date(script):
    for page, text in script.refreshed().items():
        assert page.read_text(encoding="utf-8") == text, "run python benchmarks/ship_weights.py"


def make_near_ties(run):
    """Let the logits of the classes differ by less than half precision resolves."""
    model = turnwise.load(run)
    with torch.no_grad():
        head = model.model.head
        head.weight.copy_(head.weight[:1].expand_as(head.weight).clone())
        head.bias.copy_(1 + 1e-5 * torch.arange(10))
    turnwise.save(model, run / "model")


def test_half_precision_that_changes_a_prediction_is_not_used(ship, runs, capsys):
    make_near_ties(runs / "tiny/seed_1")
    assert ship() == 0
    assert "of 500 validation answers" in capsys.readouterr().out
    assert pretrained.read_card(pretrained.ROOT / NAME)["stored"] == {"precision": "float32"}
    assert torch.equal(weights(turnwise.load(NAME)), weights(turnwise.load(runs / "tiny/seed_1")))


def test_single_precision_on_request(ship):
    assert ship("--float32") == 0
    single = pretrained.read_card(pretrained.ROOT / NAME)
    assert ship("--replace") == 0
    half = pretrained.read_card(pretrained.ROOT / NAME)
    assert (single["stored"]["precision"], half["stored"]["precision"]) == ("float32", "float16")
    assert single["bytes"] > 1.5 * half["bytes"]


def other_scores(runs):
    (runs / "tiny/seed_1/metrics.csv").write_text("epoch,val_accuracy\n0,0.8\n")


def untested(runs):
    (runs / "tiny/seed_1/test.json").unlink()


def lost(runs):
    shutil.rmtree(runs / "tiny/seed_1")


def other_seed(runs):
    shutil.copy(runs / "tiny/seed_2/recipe.yaml", runs / "tiny/seed_1/recipe.yaml")


def already_there(runs):
    (pretrained.ROOT / NAME).mkdir(parents=True)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (other_scores, "has val_accuracy = 0.8, the record has 0.9; it is of other runs"),
        (untested, "seed_1 has no test.json of its weights; test it first"),
        (lost, "validation chooses seed 1; "),
        (other_seed, "validation chooses seed 1, but .*seed_1 is of seed 2"),
        (already_there, "exists; say --replace"),
    ],
)
def test_runs_that_do_not_fit_are_refused(ship, runs, spoil, words, capsys):
    spoil(runs)
    assert ship() == 2
    printed = capsys.readouterr().err
    assert re.search(words, printed) and printed.count("\n") == 1


def test_names_must_contain_model_and_data(ship, runs, capsys):
    for name in ("vit.digits", "orbit_vit.mnist", "orbit_vit", "orbit_vit.digits/.."):
        assert ship(name=name) == 2
        assert "orbit_vit.digits, or orbit_vit.digits_more" in capsys.readouterr().err
    assert ship(name="orbit_vit.digits_d4") == 0
    assert ship("--recipe", "other") == 2
    assert "has no record of 'other'" in capsys.readouterr().err
    assert ship(run=runs / "tiny/seed_2") == 2, "not the seed that validation chooses"


def test_a_single_run_suffices(ship, runs):
    assert ship(run=runs / "tiny/seed_1") == 0


def test_too_many_bytes_are_refused_and_leave_nothing(ship, script, monkeypatch, capsys):
    assert ship() == 0
    size = (pretrained.ROOT / NAME / "model.safetensors").stat().st_size
    monkeypatch.setattr(script, "LARGEST", 2 * size - 1)
    assert ship(name=f"{NAME}_more") == 2
    assert f"all shipped weights would have {2 * size:,} bytes" in capsys.readouterr().err
    assert [p.name for p in pretrained.ROOT.iterdir()] == [NAME]
    assert ship("--replace") == 0, "what is replaced does not count"
    monkeypatch.setattr(script, "LARGEST", 2 * size)
    assert ship(name=f"{NAME}_more") == 0


def test_what_is_not_invariant_is_refused(script):
    plain = turnwise.create_model("vit", width=16, depth=1, heads=2)
    with pytest.raises(InputError, match="promises no symmetry"):
        script.measured_invariance(plain)
    plain.group = PlanarGroup.named("C4")
    with pytest.raises(InputError, match="not invariant under C4, or constant"):
        script.measured_invariance(plain)
    constant = turnwise.create_model("orbit_vit", width=16, depth=1, heads=2)
    torch.nn.init.zeros_(constant.model.head.weight)
    with pytest.raises(InputError, match=r"not invariant under C4, or constant: error 0\.0e\+00"):
        script.measured_invariance(constant)


def test_weights_have_the_licence_of_non_commercial_data(script):
    assert script.licence_of(entry("rotmnist").licence) == "MIT"
    assert script.licence_of(entry("dermamnist").licence) == "CC BY-NC 4.0"
    assert "non-commercial" in script.licence_of("private non-commercial use")


def save_digit(path):
    from PIL import Image

    Image.fromarray(load_dataset("digits").test.images[7, 0].numpy()).save(path)
    return str(path)


def test_commands_take_the_name(ship, runs, tmp_path, capsys):
    assert ship() == 0
    run, image = str(runs / "tiny/seed_1"), save_digit(tmp_path / "7.png")
    capsys.readouterr()
    predictions = []
    for model in (NAME, run):
        assert command(["predict", model, image, "--device", "cpu"]) == 0
        predictions.append(list(csv.reader(io.StringIO(capsys.readouterr().out))))
    assert predictions[0] == predictions[1]
    few = ["--images", "4", "--angles", "2", "--no-layers", "--shifts", "0"]
    assert command(["certify", NAME, *few, "--output", "c.json"]) == 0
    assert json.loads(Path("c.json").read_text())["target"] == NAME
    assert command(["verify", "c.json"]) == 0
    assert command(["certify", NAME, "width=3"]) == 2
    assert command(["test", NAME]) == 0
    assert "| test accuracy | 50.00 % |" in capsys.readouterr().out
    assert command(["test", NAME, "--again"]) == 2
    assert not list((pretrained.ROOT / NAME).glob("test*"))
    assert command(["orbit", NAME, "--output", "o"]) == 2
    assert "is an orbit already" in capsys.readouterr().err


def test_the_models_command_lists_pretrained_weights(ship, capsys):
    assert ship() == 0
    capsys.readouterr()
    assert command(["models", NAME]) == 0
    row = capsys.readouterr().out.splitlines()[-1].split()
    assert row[:3] == [NAME, "D4", f"{len(weights(turnwise.load(NAME))):,}"]
    assert "50.00" in row


@pytest.mark.parametrize("words", [["predict", NAME, "x.png"], ["certify", NAME], ["models", NAME]])
def test_damaged_weights_are_refused_in_one_line_with_status_2(ship, words, capsys):
    assert ship() == 0
    capsys.readouterr()
    damaged = "card.json" if words[0] == "models" else "model.safetensors"
    (pretrained.ROOT / NAME / damaged).write_bytes(b"garbage")
    assert command(words) == 2
    printed = capsys.readouterr().err
    assert printed.startswith(f"turnwise {words[0]}: ") and printed.count("\n") == 1


def test_weights_are_shown_digits_if_these_are_their_classes(ship, monkeypatch):
    assert ship() == 0
    (loaded,) = loaded_models.load_models([NAME])
    assert (loaded.name, loaded.group.name, loaded.origin) == (NAME, "D4", "embedded digits")
    requested = []

    def own_data(recipe, data_dir):
        requested.append(recipe)
        return load_dataset("digits")

    monkeypatch.setattr(loaded_models, "load_recipe_data", own_data)
    for name in ("card.json", "config.json"):
        path = pretrained.ROOT / NAME / name
        text = json.loads(path.read_text())
        (text["model"] if "card" in name else text)["classes"][0] = "zero"
        path.write_text(json.dumps(text))
    (loaded,) = loaded_models.load_models([NAME])
    assert loaded.classes[0] == "zero" and loaded.origin == "validation images of digits"
    assert [recipe.plain() for recipe in requested] == [make_recipe(RECIPE | {"seed": 1}).plain()]
