"""Runs are found at any depth, through links, and once each."""

import pytest

from turnwise.errors import InputError
from turnwise.runs import Run
from turnwise.runs.find import find_runs


@pytest.fixture
def run(tmp_path):
    """A folder that is a run because it has a recipe."""
    return Run(make_run(tmp_path / "run"))


def make_run(folder):
    folder.mkdir(parents=True)
    Run(folder).recipe_file.touch()
    return folder


def paths_below(folder):
    return [run.path for run in find_runs(folder)]


def test_runs_are_found_at_any_depth_by_name(run, tmp_path):
    make_run(tmp_path / "also" / "deep")
    assert paths_below(tmp_path) == [tmp_path / "also" / "deep", run.path]
    assert paths_below(run.path) == [run.path]


def test_links_are_followed_and_each_run_is_found_once(run, tmp_path):
    logs = tmp_path / "logs"
    make_run(logs / "b" / "version_0")
    (tmp_path / "other").mkdir()
    run.path.rename(tmp_path / "other" / "run")
    (logs / "a").symlink_to(tmp_path / "other")
    (logs / "latest").symlink_to(logs / "b" / "version_0")
    (logs / "b" / "circle").symlink_to(logs)
    (logs / "gone").symlink_to(tmp_path / "nowhere")
    assert paths_below(logs) == [logs / "a" / "run", logs / "b" / "version_0"]
    assert paths_below(logs / "latest") == [logs / "latest"]


def test_a_folder_without_runs_is_refused(tmp_path):
    with pytest.raises(InputError, match="there is no run in"):
        find_runs(tmp_path)
    with pytest.raises(InputError, match="is not a folder"):
        find_runs(tmp_path / "nowhere")
