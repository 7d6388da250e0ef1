"""The test split is touched once, unless asked for again, and the count is kept."""

import json
from pathlib import Path

import pytest


def result(run):
    return json.loads((run / "test.json").read_text())


@pytest.fixture
def tested(run, turnwise):
    """A run after its first test, and what was said."""
    status, said, _ = turnwise("test", run)
    assert status == 0
    return run, said


def test_the_figures_are_shown_and_kept(tested):
    run, said = tested
    kept = result(run)
    assert kept["times_examined"] == 1
    assert said.startswith("orbit_vit on 500 test pictures of digits")
    for name in ("accuracy", "balanced accuracy", "macro f1", "auc"):
        assert name in said
    assert f"{100 * kept['scores']['accuracy']['value']:.2f} % (" in said
    assert "turned in 4 steps through 360°" in said
    assert "same answer over all exact elements of C4: 100.00 % of the pictures" in said
    assert said.endswith(f"kept in {run / 'test.json'}\n")


def test_every_class_has_its_row(tested):
    run, said = tested
    table = [line.split() for line in said.splitlines()]
    for each in result(run)["classes"]:
        (row,) = [cells for cells in table if cells[:2] == [each["name"], "50"]]
        assert row[2] == f"{100 * each['recall']:.1f}"


def test_a_second_call_shows_the_kept_result(tested, turnwise, monkeypatch):
    run, first = tested
    content = (run / "test.json").read_bytes()
    monkeypatch.setattr("turnwise.evaluation.evaluate_run", None)  # a call would fail
    status, said, _ = turnwise("test", run)
    assert status == 0
    assert said == ("already tested; this is the kept result (--again repeats the test):\n" + first)
    assert (run / "test.json").read_bytes() == content
    assert result(run)["times_examined"] == 1


def test_again_is_counted(tested, turnwise):
    run, first = tested
    status, said, _ = turnwise("test", run, "--again")
    assert status == 0
    assert said == first
    assert result(run)["times_examined"] == 2


@pytest.mark.parametrize("content", ["{", "3", "{}"])
@pytest.mark.parametrize("flags", [[], ["--again"]])
def test_a_damaged_result(run, refused, content, flags):
    (run / "test.json").write_text(content)
    said = refused("test", run, *flags)
    assert "test.json is damaged" in said
    assert "remove it to test again" in said


def test_a_run_that_is_not_there(refused):
    assert "cannot read the recipe nowhere/recipe.yaml" in refused("test", "nowhere")


def test_a_run_without_its_model(run, refused):
    (run / "model" / "config.json").unlink()
    assert "has not finished training: it has no model/config.json" in refused("test", run)


def test_weights_that_were_changed(run, refused):
    with (run / "model" / "model.safetensors").open("r+b") as file:
        file.seek(-4, 2)
        file.write(b"\x7f\x7f\x7f\x7f")
    assert "its hash differs" in refused("test", run)
    assert not (run / "test.json").exists()


def test_a_device_that_is_not_there(run, refused):
    assert "device 'abacus' cannot be used here" in refused("test", run, "--device", "abacus")
    assert not (run / "test.json").exists()


def test_the_test_split_of_another_set(run, turnwise, monkeypatch):
    """Where it is kept, and that it is asked for by name; what is sound is tested elsewhere."""
    asked = []

    def examined(run, data, **_):
        asked.append(data)
        (run_of := Path(run) / "elsewhere" / data).mkdir(parents=True)
        figures = {**result(Path(run)), "data": data}
        (run_of / "test.json").write_text(json.dumps(figures))
        return figures

    assert turnwise("test", run)[0] == 0
    monkeypatch.setattr("turnwise.evaluation.elsewhere.evaluate_elsewhere", examined)
    for _ in range(2):  # the second call shows what is kept
        status, said, _ = turnwise("test", run, "--data", "mnist_rotated")
        assert status == 0
        assert "orbit_vit on 500 test pictures of mnist_rotated" in said
        assert said.endswith(f"kept in {run / 'elsewhere' / 'mnist_rotated' / 'test.json'}\n")
    assert asked == ["mnist_rotated"]


def test_another_set_with_other_pictures(run, refused):
    said = refused("test", run, "--data", "digit")
    assert "Did you mean 'digits'" in said
    text = (run / "environment.json").read_text()
    (run / "environment.json").write_text(text.replace('"train": "', '"train": "0'))
    said = refused("test", run, "--data", "digits")
    assert "the training pictures of digits are not those of digits, which " in said


@pytest.mark.parametrize("times", [1, 2])
def test_the_table_is_written_though_nobody_reads_the_answer(run, unread, empty_place, times):
    """As in `turnwise test RUN --output one.csv | head -1`."""
    for _ in range(times):  # the second call shows what is kept
        assert unread("test", run, "--output", "one.csv") == 141
    assert (empty_place / "one.csv").read_text().count("\n") == 2
