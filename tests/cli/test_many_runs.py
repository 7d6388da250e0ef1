"""Every run below a folder is tested once, in one table; those that cannot be say why."""

import csv
import json
import shutil

import pytest


@pytest.fixture
def three(run, empty_place):
    """Two sound runs and one without its model, at different depths."""
    place = empty_place / "logs"
    shutil.copytree(run, place / "a" / "version_0")
    shutil.copytree(run, place / "a" / "version_1")
    shutil.copytree(run, place / "b")
    (place / "a" / "version_1" / "model" / "config.json").unlink()
    return place


def table(path):
    return list(csv.DictReader(path.read_text().splitlines()))


def test_one_row_for_each_run_and_the_reason_of_the_one_that_failed(three, turnwise, empty_place):
    status, said, complaint = turnwise("test", "--recursive", three, "--output", "results.csv")
    assert status == 1
    reasons = [line for line in complaint.splitlines() if line.startswith("turnwise test: ")]
    (reason,) = reasons
    assert reason.startswith(f"turnwise test: {three / 'a/version_1'}: ")
    assert "it has no model/config.json" in reason
    rows = table(empty_place / "results.csv")
    names = [str(three / name) for name in ("a/version_0", "a/version_1", "b")]
    assert [row["run_dir"] for row in rows] == names
    assert [bool(row["reason"]) for row in rows] == [False, True, False]
    assert [name in said for name in names] == [True, False, True]
    assert "written to results.csv" in said
    kept = json.loads((three / "b" / "test.json").read_text())
    assert float(rows[2]["test_accuracy"]) == kept["scores"]["accuracy"]["value"]
    assert rows[0]["test_accuracy"] == rows[2]["test_accuracy"]


def test_kept_results_are_not_measured_again(three, turnwise, monkeypatch):
    shutil.rmtree(three / "a" / "version_1")
    assert turnwise("test", "--recursive", three)[0] == 0
    monkeypatch.setattr("turnwise.evaluation.evaluate_run", None)  # a call would fail
    status, said, complaint = turnwise("test", "--recursive", three, "--output", "again.csv")
    assert (status, complaint) == (0, "")
    assert {row["times_examined"] for row in table(three.parent / "again.csv")} == {"1"}
    assert said.count("orbit_vit") == 2


def test_again_is_counted_in_every_run(run, turnwise, empty_place):
    for _ in range(2):
        assert turnwise("test", "--recursive", empty_place, "--again", "--output", "o.csv")[0] == 0
    (row,) = table(empty_place / "o.csv")
    assert row["times_examined"] == "2"


def test_one_run_as_a_table_of_one_row(run, turnwise, empty_place):
    status, said, _ = turnwise("test", run, "--output", "one.csv")
    assert status == 0
    assert said.endswith("written to one.csv\n")
    (row,) = table(empty_place / "one.csv")
    assert (row["run_dir"], row["model.width"]) == (str(run), "16")


def test_what_is_wrong_for_all_is_said_once(run, refused, empty_place):
    words = ("test", "--recursive", run.parent, "--output", "o.csv")
    assert "unknown data set 'digist'" in refused(*words, "--data", "digist")
    assert "tpu" in refused(*words, "--device", "tpu")
    assert not (empty_place / "o.csv").exists()


def test_nothing_to_test(refused, empty_place):
    assert "there is no run below ." in refused("test", "--recursive", ".")
    assert "nowhere is not a folder" in refused("test", "--recursive", "nowhere")


def test_a_table_that_cannot_be_written(run, refused, empty_place):
    (empty_place / "file").touch()
    for recursive in ([], ["--recursive"]):
        words = ("test", *recursive, run, "--output", "file/o.csv")
        assert "cannot write file/o.csv" in refused(*words)
    assert not (run / "test.json").exists(), "it was refused before the work"


def test_the_table_is_written_though_nobody_reads_the_answer(three, unread, empty_place):
    """Neither that nor which run is being tested."""
    assert unread("test", "--recursive", three, "--output", "o.csv") == 141
    assert [bool(row["reason"]) for row in table(empty_place / "o.csv")] == [False, True, False]
