"""Two models and one page; after a single epoch the orbit is already exactly invariant."""

import contextlib
import io
import json
from dataclasses import replace

import pytest
import torch

import turnwise as library
from turnwise.cli.demo import COMPARISONS, remove_earlier_demo
from turnwise.cli.main import main
from turnwise.data.readers import find_reader
from turnwise.errors import InputError
from turnwise.runs.run import Run


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """Return the folder, the exit status and the output of a short demo of a narrow network."""
    tiles = COMPARISONS["tiles"]
    narrow = {
        name: {**getattr(tiles, name), "width": 64, "stem_width": 16}
        for name in ("equivariant", "baseline")
    }
    folder, output = tmp_path_factory.mktemp("demo") / "new" / "page", io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(output):
        patch.setattr("turnwise.data.load.find_reader", few_of(find_reader))
        patch.setattr("turnwise.cli.demo.ANGLES", 4)
        patch.setattr("turnwise.cli.demo.CERTIFIED", 4)
        patch.setitem(COMPARISONS, "tiles", replace(tiles, **narrow))
        status = main(["demo", "--share", "0.05", "--output", str(folder)])
    return folder, status, output.getvalue()


def few_of(find):
    """Return a function like `find_reader` whose readers keep every tenth image that is tested."""

    def find_few(name):
        def read(*arguments):
            source = find(name)(*arguments)
            steps = {split: 1 if split == "train" else 10 for split in source.splits}
            few = {
                split: part.take(torch.arange(0, len(part), steps[split]))
                for split, part in source.splits.items()
            }
            return replace(source, splits=few)

        return read

    return find_few


def quarter_turn_accuracy(folder, name):
    angles = json.loads((folder / name / "test.json").read_text())["angles"]
    by_angle = dict(zip(angles["degrees"], angles["accuracy"], strict=True))
    return [by_angle[degrees] for degrees in (0.0, 90.0, 180.0, 270.0)]


def test_a_page_is_written(demo):
    folder, status, output = demo
    page = (folder / "index.html").read_text()
    assert status == 0
    assert f"open the page: {folder.resolve() / 'index.html'}" in output
    assert "turnwise demo --data tiles --share 0.05" in page
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
    for name, group in (("equivariant", "D4"), ("baseline", "C1")):
        run = demo[0] / name
        assert json.loads((run / "test.json").read_text())["times_evaluated"] == 1
        assert library.load(run).group.name == group


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
        comparison.recipe(data, name).plain() for name in ("equivariant", "baseline")
    )
    assert equivariant["model"].pop("name").removeprefix("orbit_") == baseline["model"].pop("name")
    around = equivariant["model"].keys() - baseline["model"].keys()  # options of the orbit
    assert bool(around) == (data == "digits")
    for key in around:
        del equivariant["model"][key]
    groups = [recipe["model"].pop("group") for recipe in (equivariant, baseline)]
    assert groups == (["D4", "C1"] if data == "tiles" else ["C4", "C4"])
    epochs = [recipe["trainer"].pop("max_epochs") for recipe in (equivariant, baseline)]
    assert epochs == [comparison.epochs["equivariant"], comparison.epochs["baseline"]]
    baseline["optimisation"]["warmup_epochs"] = equivariant["optimisation"]["warmup_epochs"]
    assert equivariant == baseline


def test_a_share_of_the_epochs_is_at_least_one():
    comparison = COMPARISONS["digits"]
    for share, epochs in ((0.001, 1), (0.5, comparison.epochs["baseline"] // 2)):
        assert comparison.recipe("digits", "baseline", share).trainer.max_epochs == epochs


@pytest.mark.parametrize("share", [0, -3])
def test_a_positive_share_is_required(refused, share, empty_folder):
    assert f"--share {share} must be above 0" in refused("demo", "--share", share)
    assert not (empty_folder / "turnwise-demo").exists()


def test_an_output_that_cannot_be_written_is_refused(refused, empty_folder):
    (empty_folder / "file").touch()
    error = refused("demo", "--share", 0.01, "--output", "file/demo")
    assert "cannot write file/demo" in error


def test_a_folder_that_is_no_earlier_demo_is_not_removed(tmp_path):
    (tmp_path / "baseline").mkdir()
    (tmp_path / "baseline" / "thesis.txt").write_text("years of work")
    with pytest.raises(InputError, match="exists and is not an earlier demo; choose another"):
        remove_earlier_demo(Run(tmp_path / "baseline"))
    assert (tmp_path / "baseline" / "thesis.txt").read_text() == "years of work"


def test_an_earlier_demo_is_replaced(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "environment.json").write_text('{"command": "turnwise demo --share 1"}')
    remove_earlier_demo(Run(tmp_path / "run"))
    assert not (tmp_path / "run").exists()
    remove_earlier_demo(Run(tmp_path / "run"))  # a missing folder is no error
