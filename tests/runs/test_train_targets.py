"""Every kind of target through training, test, prediction and certificate, on generated images."""

import csv
import json

import pytest
import torch
from PIL import Image

from turnwise.cli.main import main
from turnwise.data.targets import kind_of
from turnwise.errors import InputError
from turnwise.evaluation import evaluate_run
from turnwise.runs.run import Run
from turnwise.runs.selection import selected_epoch, target_kind
from turnwise.runs.train import train
from turnwise.training.recipe import make_recipe

# columns of a manifest, by kind of target, from (brightness 0 to 3, has a bar)
COLUMNS = {
    "class": lambda level, bar: {"label": "ill" if level >= 2 else "well"},
    "ordinal": lambda level, bar: {"label": str(level)},
    "multilabel": lambda level, bar: {"bright": int(level >= 2), "bar": int(bar)},
    "number": lambda level, bar: {"light": 100 + 10 * level, "bars": float(bar)},
}


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """Return a manifest for each kind: 96 images of 48 patients, whose brightness is the target."""
    folder = tmp_path_factory.mktemp("images")
    torch.manual_seed(0)
    rows = []
    for i in range(96):
        patient = i // 2
        level, bar = patient % 4, bool(patient // 4 % 2)
        pixels = 20 + 60 * level + 20 * torch.rand(8, 8)
        pixels[3:5, 1:7] += 60 * bar - 30
        image = Image.fromarray(pixels.clamp(0, 255).byte().numpy())
        image.save(folder / f"{i}.png")
        split = ("train", "train", "train", "train", "val", "test")[patient // 8]
        rows.append({"path": f"{i}.png", "patient": f"p{patient}", "split": split,
                     "facts": (level, bar)})  # fmt: skip
    found = {}
    for kind, columns in COLUMNS.items():
        found[kind] = folder / f"{kind}.csv"
        with found[kind].open("w", newline="") as file:
            lines = [{k: v for k, v in r.items() if k != "facts"} | columns(*r["facts"])
                     for r in rows]  # fmt: skip
            writer = csv.DictWriter(file, list(lines[0]))
            writer.writeheader()
            writer.writerows(lines)
    return found


def recipe_for(tables, kind, *overrides):
    labels = list(COLUMNS[kind](0, False))
    values = {
        "model": {"name": "orbit_vit", "patch": 4, "width": 16, "depth": 1, "heads": 2},
        "data": {"name": str(tables[kind]), "target": kind, "group_by": "patient",
                 "columns": {"label": labels}, "unit": "mm" if kind == "number" else ""},
        "optimisation": {"batch_size": 16, "learning_rate": 0.01},
        "trainer": {"max_epochs": 8, "accelerator": "cpu"},
        "evaluation": {"angles": 4},
    }  # fmt: skip
    return make_recipe(values, overrides)


@pytest.fixture(scope="module", params=COLUMNS)
def trained(request, tables, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param) / "run"
    return request.param, train(recipe_for(tables, request.param), folder)


def test_a_kind_is_trained_tested_and_stored(trained):
    name, run = trained
    kind = target_kind(run)
    assert kind.kind == name == kind_of(run.model()).kind
    column, best = selected_epoch(run)
    assert column == f"val_{kind.selection}" == f"val_{run.recipe.trainer.select}"
    better = min if kind.is_better_lower(kind.selection) else max
    assert best[column] == better(row[column] for row in run.metrics)
    result = evaluate_run(run)
    assert result["target"] == kind.plain()
    assert result["scores"].keys() >= set(kind.score_names)
    assert result["angles"]["score"] == kind.selection
    assert result["groups"]["count"] == 8 and result["groups"]["mixed"] == 0
    assert result["orbit_agreement"] == 1.0, "the model is invariant"


def test_training_learns_the_target(trained):
    """Brightness is easy: every kind is far better than a constant prediction."""
    name, run = trained
    scores = {k: v["value"] for k, v in evaluate_run(run)["scores"].items()}
    limits = {"class": ("auc", 0.9), "ordinal": ("kappa", 0.7), "multilabel": ("map", 0.7),
              "number": ("r2", 0.3)}  # fmt: skip
    score, limit = limits[name]
    assert scores[score] > limit, scores


def test_the_command_line_follows_the_kind(trained, tables, tmp_path, capsys):
    name, run = trained
    kind, output = target_kind(run), tmp_path / "p.csv"
    assert main(["test", str(run.path)]) == 0
    shown = capsys.readouterr().out
    assert "8 groups, mean prediction of their images" in shown and "corners filled by" in shown
    images = [str(tables[name].parent / f"{i}.png") for i in range(3)]
    assert main(["predict", str(run.path), *images, "--output", str(output)]) == 0
    header, *rows = csv.reader(output.read_text().splitlines())
    first = ["image"] if name == "number" else ["image", "label"]
    assert header == [*first, *kind.names] and len(rows) == 3
    if name == "number":
        assert all(50 < float(row[1]) < 200 for row in rows), "in the unit of the targets"
    if name == "multilabel":
        assert all(set(row[1].split("|")) <= {"", *kind.names} for row in rows)
    arguments = ["certify", str(run.path), "--images", "4", "--angles", "2", "--no-layers"]
    assert main(arguments) == 0
    assert "INVARIANT under C4" in capsys.readouterr().out
    assert json.loads(run.certificate_file.read_text())["holds"]


def test_a_threshold_is_chosen_on_validation_and_used_everywhere(tables, tmp_path, capsys):
    settings = ("evaluation.sensitivity=0.9", "evaluation.positive=ill", "trainer.max_epochs=3")
    run = train(recipe_for(tables, "class", *settings), tmp_path / "run")
    kind = target_kind(run)
    assert kind.threshold is not None and kind.names[kind.positive] == "ill"
    result = evaluate_run(run)
    assert {"sensitivity", "specificity"} <= result["scores"].keys()
    assert main(["test", str(run.path)]) == 0
    assert "decides for “ill” from a probability of" in capsys.readouterr().out


def test_weighted_and_balanced_training_is_repeatable(tables, tmp_path):
    """An interrupted run continues with the same batches: its weights are the same to the bit."""
    chosen = ("data.sampling=balanced", "optimisation.class_weights=balanced",
              "trainer.select=balanced_accuracy", "optimisation.schedule=constant")  # fmt: skip

    def last(run):
        return run.read_checkpoint("last")["state_dict"].values()

    whole = train(recipe_for(tables, "class", *chosen, "trainer.max_epochs=2"), tmp_path / "a")
    cut = train(recipe_for(tables, "class", *chosen, "trainer.max_epochs=1"), tmp_path / "b")
    train(cut.read_recipe(("trainer.max_epochs=2",)), cut.path, resume=True)
    assert all(torch.equal(a, b) for a, b in zip(last(whole), last(cut), strict=True))
    plain = ("optimisation.schedule=constant", "trainer.max_epochs=2")
    other = train(recipe_for(tables, "class", *plain), tmp_path / "c")
    assert not all(torch.equal(a, b) for a, b in zip(last(whole), last(other), strict=True))


@pytest.mark.parametrize(
    ("kind", "setting", "words"),
    [
        ("number", "evaluation.sensitivity=0.9", "have no threshold"),
        ("ordinal", "evaluation.specificity=0.9", "for two classes, and there are 4"),
        ("class", "evaluation.positive=il", "needs evaluation.sensitivity"),
        ("number", "data.sampling=balanced", "balanced sampling needs classes"),
        ("multilabel", "optimisation.class_weights=[1, 2, 3]", "3 weights were given for 2 label"),
        ("multilabel", "optimisation.label_smoothing=0.1", "no label smoothing"),
        ("number", "trainer.select=accuracy", "unknown score of the kind 'number'"),
        ("class", "optimisation.class_weights=even", "unknown class_weights 'even'"),
    ],
)
def test_what_a_kind_cannot_do_is_refused_before_training(tables, tmp_path, kind, setting, words):
    with pytest.raises(InputError, match=words):
        train(recipe_for(tables, kind, setting), tmp_path / "run")
    assert not Run(tmp_path / "run").path.exists()
