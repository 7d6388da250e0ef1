"""Two models, one page: after a single epoch the promise already holds to the last digit."""

import contextlib
import io
import json

import pytest

import turnwise as library
from turnwise.cli.demo import clear_earlier_demo, recipe_of
from turnwise.cli.main import main
from turnwise.errors import InputError


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The folder, the exit status and the words of one short demo."""
    output, said = tmp_path_factory.mktemp("demo") / "new" / "page", io.StringIO()
    with contextlib.redirect_stdout(said):
        status = main(["demo", "--epochs", "1", "--output", str(output)])
    return output, status, said.getvalue()


def quarters(output, name):
    angles = json.loads((output / name / "test.json").read_text())["angles"]
    by_angle = dict(zip(angles["degrees"], angles["accuracy"], strict=True))
    return [by_angle[degrees] for degrees in (0.0, 90.0, 180.0, 270.0)]


def test_a_page_is_written(demo):
    output, status, said = demo
    page = (output / "index.html").read_text()
    assert status == 0
    assert f"open the page: {output.resolve() / 'index.html'}" in said
    assert "turnwise demo --epochs 1" in page
    assert "equivariant" in page
    assert "ordinary" in page
    assert "turnwise_vit_nano.rotmnist comes trained" in page
    assert "http://" not in page and "https://" not in page


def test_quarter_turns_do_not_change_the_accuracy_of_the_equivariant_model(demo):
    accuracies = quarters(demo[0], "equivariant")
    assert len(set(accuracies)) == 1
    assert accuracies[0] > 0.1  # better than a guess


def test_control_they_do_change_that_of_its_twin(demo):
    assert len(set(quarters(demo[0], "ordinary"))) > 1


def test_both_are_runs_like_any_other(demo):
    for name, model in (("equivariant", "orbit_vit"), ("ordinary", "vit")):
        run = demo[0] / name
        assert json.loads((run / "test.json").read_text())["times_examined"] == 1
        assert library.load(run).config.name == model


def test_the_outcome_is_told(demo):
    said = demo[2]
    assert "the equivariant model: " in said and ", invariant under C4" in said
    assert "the ordinary model: " in said and ", NOT invariant under C4" in said


def test_the_verdicts_are_on_the_page(demo):
    page = (demo[0] / "index.html").read_text()
    assert page.count("NOT INVARIANT under C4") == 1
    assert page.count("INVARIANT under C4") == 2


def test_the_twins_differ_in_nothing_but_the_orbit():
    one, other = recipe_of("orbit_vit", 3).plain(), recipe_of("vit", 3).plain()
    shared = {key: one["model"][key] for key in other["model"]}
    assert {**one, "model": {**shared, "name": "vit"}} == other
    assert one["trainer"]["max_epochs"] == 3


@pytest.mark.parametrize("epochs", [0, -3])
def test_no_epochs(refused, epochs, empty_place):
    assert f"--epochs {epochs} must be at least 1." in refused("demo", "--epochs", epochs)
    assert not (empty_place / "turnwise-demo").exists()


def test_an_output_that_cannot_be_written(refused, empty_place):
    (empty_place / "file").touch()
    said = refused("demo", "--epochs", 1, "--output", "file/demo")
    assert "choose another place with --output" in said


def test_what_is_not_an_earlier_demo_is_left_alone(tmp_path):
    (tmp_path / "ordinary").mkdir()
    (tmp_path / "ordinary" / "thesis.txt").write_text("years of work")
    with pytest.raises(InputError, match="exists and is not an earlier demo; choose another"):
        clear_earlier_demo(tmp_path / "ordinary")
    assert (tmp_path / "ordinary" / "thesis.txt").read_text() == "years of work"


def test_an_earlier_demo_is_replaced(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "environment.json").write_text('{"command": "turnwise demo --epochs 1"}')
    clear_earlier_demo(tmp_path / "run")
    assert not (tmp_path / "run").exists()
    clear_earlier_demo(tmp_path / "run")  # nothing there is fine
