"""`turnwise test` uses the test split once, unless --again is given, and counts how often."""

import csv
import json
import shutil

import pytest


def result(run):
    return json.loads((run / "test.json").read_text())


def table(path):
    return list(csv.DictReader(path.read_text().splitlines()))


@pytest.fixture
def tested(run, turnwise):
    """Return a run after its first test, and the output."""
    status, output, _ = turnwise("test", run)
    assert status == 0
    return run, output


@pytest.fixture
def three(run, empty_folder):
    """Return a folder with two complete runs and one without its model, at several depths."""
    folder = empty_folder / "logs"
    shutil.copytree(run, folder / "a" / "version_0")
    shutil.copytree(run, folder / "a" / "version_1")
    shutil.copytree(run, folder / "b")
    (folder / "a" / "version_1" / "model" / "config.json").unlink()
    return folder


def test_the_figures_are_printed_and_stored(tested):
    run, output = tested
    stored = result(run)
    assert stored["times_evaluated"] == 1
    assert output.startswith("orbit_vit on 500 test images of digits")
    for name in ("accuracy", "balanced accuracy", "macro F1", "AUC"):
        assert name in output
    assert f"{100 * stored['scores']['accuracy']['value']:.2f} % (" in output
    assert "rotated in 4 steps over 360°" in output
    assert "same prediction over all exact elements of C4: 100.00 % of the images" in output
    assert output.endswith(f"stored in {run / 'test.json'}\n")


def test_every_class_has_a_row(tested):
    run, output = tested
    lines = [line.split() for line in output.splitlines()]
    for each in result(run)["classes"]:
        (row,) = [cells for cells in lines if cells[:2] == [each["name"], "50"]]
        assert row[2] == f"{100 * each['recall']:.1f}"


def test_a_second_call_prints_the_stored_result(tested, turnwise, monkeypatch):
    run, first = tested
    content = (run / "test.json").read_bytes()
    monkeypatch.setattr("turnwise.evaluation.evaluate_run", None)  # a call would fail
    status, output, _ = turnwise("test", run)
    assert status == 0
    assert output == (
        "already tested; this is the stored result (--again repeats the test):\n" + first
    )
    assert (run / "test.json").read_bytes() == content
    assert result(run)["times_evaluated"] == 1


def test_a_repeated_test_is_counted(tested, turnwise):
    run, first = tested
    status, output, _ = turnwise("test", run, "--again")
    assert status == 0
    assert output == first
    assert result(run)["times_evaluated"] == 2


@pytest.mark.parametrize("content", ["{", "3", "{}"])
@pytest.mark.parametrize("flags", [[], ["--again"]])
def test_a_damaged_result_is_refused(run, refused, content, flags):
    (run / "test.json").write_text(content)
    error = refused("test", run, *flags)
    assert "test.json is damaged" in error
    assert "remove it to test again" in error


def test_a_missing_run_is_refused(refused):
    assert "cannot read the recipe nowhere/recipe.yaml" in refused("test", "nowhere")


def test_a_run_without_its_model_is_refused(run, refused):
    (run / "model" / "config.json").unlink()
    error = refused("test", run)
    assert "run has not finished training. Continue it with: turnwise train --resume" in error


def test_changed_weights_are_refused(run, refused):
    with (run / "model" / "model.safetensors").open("r+b") as file:
        file.seek(-4, 2)
        file.write(b"\x7f\x7f\x7f\x7f")
    assert "its hash differs" in refused("test", run)
    assert not (run / "test.json").exists()


def test_an_unknown_device_is_refused(run, refused):
    assert "device 'abacus' cannot be used here" in refused("test", run, "--device", "abacus")
    assert not (run / "test.json").exists()


def test_the_test_split_of_another_data_set(run, turnwise, monkeypatch):
    """Its result is stored in a folder of its own; tests/evaluation tests what is allowed."""
    requested = []

    def evaluate_run(run, data, **_):
        if data is not None:
            requested.append(data)
            run.write_evaluation({**result(run.path), "data": data}, data)
        return run.evaluation(data)

    assert turnwise("test", run)[0] == 0
    monkeypatch.setattr("turnwise.evaluation.evaluate_run", evaluate_run)
    for _ in range(2):  # the second call prints the stored result
        status, output, _ = turnwise("test", run, "--data", "mnist_rotated")
        assert status == 0
        assert "orbit_vit on 500 test images of mnist_rotated" in output
        file = run / "elsewhere" / "mnist_rotated" / "test.json"
        assert output.endswith(f"stored in {file}\n")
    assert requested == ["mnist_rotated"]


def test_another_data_set_with_other_training_images_is_refused(run, refused):
    error = refused("test", run, "--data", "digit")
    assert "Did you mean 'digits'" in error
    text = (run / "environment.json").read_text()
    (run / "environment.json").write_text(text.replace('"train": "', '"train": "0'))
    error = refused("test", run, "--data", "digits")
    assert "the training images of digits are not those of digits, which " in error


@pytest.mark.parametrize("times", [1, 2])
def test_the_table_is_written_even_if_nobody_reads_the_output(run, unread, empty_folder, times):
    """As in `turnwise test RUN --output one.csv | head -1`."""
    for _ in range(times):  # the second call prints the stored result
        assert unread("test", run, "--output", "one.csv") == 141
    assert (empty_folder / "one.csv").read_text().count("\n") == 2


def test_pretrained_weights_show_their_card(turnwise, refused):
    status, output, _ = turnwise("test", "turnwise_vit_nano.rotmnist")
    assert status == 0
    assert output.startswith("tested before it was published; this is its card:\n\n")
    error = refused("test", "turnwise_vit_nano.rotmnist", "--again")
    assert "turnwise_vit_nano.rotmnist is not tested again, because it is no run" in error
    assert "leave --again out" in error


def test_recursive_tests_every_run_and_reports_the_one_that_fails(three, turnwise, empty_folder):
    status, output, error = turnwise("test", "--recursive", three, "--output", "results.csv")
    assert status == 1
    (reason,) = [line for line in error.splitlines() if line.startswith("turnwise test: ")]
    assert reason.startswith(f"turnwise test: {three / 'a/version_1'}: ")
    assert "has not finished training" in reason
    rows = table(empty_folder / "results.csv")
    names = [str(three / name) for name in ("a/version_0", "a/version_1", "b")]
    assert [row["run_dir"] for row in rows] == names
    assert [bool(row["reason"]) for row in rows] == [False, True, False]
    assert [name in output for name in names] == [True, False, True]
    assert "written to results.csv" in output
    stored = result(three / "b")
    assert float(rows[2]["test_accuracy"]) == stored["scores"]["accuracy"]["value"]
    assert rows[0]["test_accuracy"] == rows[2]["test_accuracy"]


def test_recursive_prints_stored_results(three, turnwise, monkeypatch):
    shutil.rmtree(three / "a" / "version_1")
    assert turnwise("test", "--recursive", three)[0] == 0
    monkeypatch.setattr("turnwise.evaluation.evaluate_run", None)  # a call would fail
    status, output, error = turnwise("test", "--recursive", three, "--output", "again.csv")
    assert (status, error) == (0, "")
    assert {row["times_evaluated"] for row in table(three.parent / "again.csv")} == {"1"}
    assert output.count("orbit_vit") == 2


def test_recursive_counts_repeated_tests(run, turnwise, empty_folder):
    for _ in range(2):
        assert turnwise("test", "--recursive", empty_folder, "--again", "--output", "o.csv")[0] == 0
    (row,) = table(empty_folder / "o.csv")
    assert row["times_evaluated"] == "2"


def test_one_run_is_a_table_of_one_row(run, turnwise, empty_folder):
    status, output, _ = turnwise("test", run, "--output", "one.csv")
    assert status == 0
    assert output.endswith("written to one.csv\n")
    (row,) = table(empty_folder / "one.csv")
    assert (row["run_dir"], row["model.width"]) == (str(run), "16")


def test_an_error_that_concerns_all_runs_is_reported_once(run, refused, empty_folder):
    words = ("test", "--recursive", run.parent, "--output", "o.csv")
    assert "unknown data set 'digist'" in refused(*words, "--data", "digist")
    assert "tpu" in refused(*words, "--device", "tpu")
    assert not (empty_folder / "o.csv").exists()


def test_a_folder_without_runs_is_refused(refused):
    assert "there is no run in ." in refused("test", "--recursive", ".")
    assert "nowhere is not a folder" in refused("test", "--recursive", "nowhere")


def test_a_table_that_cannot_be_written_is_refused_in_advance(run, refused, empty_folder):
    (empty_folder / "file").touch()
    for recursive in ([], ["--recursive"]):
        words = ("test", *recursive, run, "--output", "file/o.csv")
        assert "cannot write file/o.csv" in refused(*words)
    assert not (run / "test.json").exists()


def test_recursive_writes_the_table_even_if_nobody_reads_the_output(three, unread, empty_folder):
    """The notes on stderr are not read either."""
    assert unread("test", "--recursive", three, "--output", "o.csv") == 141
    assert [bool(row["reason"]) for row in table(empty_folder / "o.csv")] == [False, True, False]
