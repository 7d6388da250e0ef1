"""Two models and one page; after a single epoch the orbit is already exactly invariant."""

import contextlib
import io
import json

import pytest

import turnwise as library
from turnwise.cli.demo import COMPARISONS, remove_earlier_demo, timed_recipe
from turnwise.cli.main import main
from turnwise.errors import InputError
from turnwise.runs.run import Run


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """Return the folder, the exit status and the output of one short demo."""
    folder, output = tmp_path_factory.mktemp("demo") / "new" / "page", io.StringIO()
    with contextlib.redirect_stdout(output):
        status = main(["demo", "--seconds", "0.1", "--output", str(folder)])
    return folder, status, output.getvalue()


def quarter_turn_accuracy(folder, name):
    angles = json.loads((folder / name / "test.json").read_text())["angles"]
    by_angle = dict(zip(angles["degrees"], angles["accuracy"], strict=True))
    return [by_angle[degrees] for degrees in (0.0, 90.0, 180.0, 270.0)]


def test_a_page_is_written(demo):
    folder, status, output = demo
    page = (folder / "index.html").read_text()
    assert status == 0
    assert f"open the page: {folder.resolve() / 'index.html'}" in output
    assert "turnwise demo --data tiles --seconds 0.1" in page
    assert "Test images that both models classify correctly upright" in page
    assert "equivariant" in page
    assert "baseline" in page
    assert "http://" not in page and "https://" not in page


def test_the_equivariant_model_has_one_accuracy_for_all_quarter_turns(demo):
    accuracies = quarter_turn_accuracy(demo[0], "equivariant")
    assert len(set(accuracies)) == 1
    assert accuracies[0] > 0.1  # better than a guess


def test_control_the_baseline_has_several(demo):
    assert len(set(quarter_turn_accuracy(demo[0], "baseline"))) > 1


def test_both_models_are_ordinary_runs(demo):
    for name, model in (("equivariant", "roto_resnet18"), ("baseline", "resnet18")):
        run = demo[0] / name
        assert json.loads((run / "test.json").read_text())["times_evaluated"] == 1
        assert library.load(run).config.name == model


def test_the_results_are_printed(demo):
    output = demo[2]
    assert "the equivariant model: " in output and ", invariant under D4" in output
    assert "the baseline model: " in output and ", NOT invariant under D4" in output


def test_the_verdicts_are_on_the_page(demo):
    page = (demo[0] / "index.html").read_text()
    assert page.count("NOT INVARIANT under D4") == 1
    assert page.count("INVARIANT under D4") == 2


@pytest.mark.parametrize("data", COMPARISONS)
def test_the_two_recipes_differ_only_in_the_symmetry(data):
    comparison = COMPARISONS[data]
    equivariant, baseline = (
        comparison.recipe(data, name, 3).plain() for name in ("equivariant", "baseline")
    )
    name = baseline["model"].pop("name")
    symmetry = {"name", "roto", "oriented", "combine", "base_group", "chunk", "mask", "tune"}
    assert equivariant["model"].pop("name").endswith(name)
    shared = baseline["model"].keys() - symmetry
    assert {"group", "widths" if data == "tiles" else "width"} <= shared
    for key in shared:
        assert equivariant["model"][key] == baseline["model"][key]
    del equivariant["model"], baseline["model"]
    assert equivariant == baseline


def test_more_time_gives_more_epochs():
    comparison, dataset = COMPARISONS["digits"], library.data.load_dataset("digits")
    few, many = (
        timed_recipe(comparison, "digits", "baseline", dataset, seconds).trainer.max_epochs
        for seconds in (0.01, 60.0)
    )
    assert few == 1
    assert many > 2


@pytest.mark.parametrize("seconds", [0, -3])
def test_a_positive_time_is_required(refused, seconds, empty_folder):
    assert f"--seconds {seconds} must be above 0" in refused("demo", "--seconds", seconds)
    assert not (empty_folder / "turnwise-demo").exists()


def test_an_output_that_cannot_be_written_is_refused(refused, empty_folder):
    (empty_folder / "file").touch()
    error = refused("demo", "--seconds", 0.1, "--output", "file/demo")
    assert "cannot write file/demo" in error


def test_a_folder_that_is_no_earlier_demo_is_not_removed(tmp_path):
    (tmp_path / "baseline").mkdir()
    (tmp_path / "baseline" / "thesis.txt").write_text("years of work")
    with pytest.raises(InputError, match="exists and is not an earlier demo; choose another"):
        remove_earlier_demo(Run(tmp_path / "baseline"))
    assert (tmp_path / "baseline" / "thesis.txt").read_text() == "years of work"


def test_an_earlier_demo_is_replaced(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "environment.json").write_text('{"command": "turnwise demo --seconds 1"}')
    remove_earlier_demo(Run(tmp_path / "run"))
    assert not (tmp_path / "run").exists()
    remove_earlier_demo(Run(tmp_path / "run"))  # a missing folder is no error
