"""Records are written whole, and state where they come from."""

import json
import math
import os
import subprocess
from datetime import datetime

import pytest
import torch
from records import (
    append_record,
    code_version,
    machine_description,
    read_records,
)

from turnwise.errors import InputError


def git(folder, *arguments):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    identity = ["-c", "user.name=T", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    command = ["git", "-C", str(folder), *identity, *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=clean)
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path):
    """A repository with one commit that tracks src/code.py."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "code.py").write_text("1\n")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--no-verify", "-m", "first")
    return tmp_path


def test_appended_records_are_read_back(tmp_path):
    path = tmp_path / "benchmarks" / "speed.jsonl"
    first = append_record(path, "turnwise bench gsa", {"ms": 12.5, "sizes": [28, 29]})
    second = append_record(path, "turnwise bench vit", {"ms": 3.0})
    assert read_records(path) == [first, second]
    assert first["figures"] == {"ms": 12.5, "sizes": [28, 29]}
    assert first["machine"] == machine_description()
    assert datetime.fromisoformat(first["date"]).tzinfo is not None
    assert len(path.read_text().splitlines()) == 2


def test_nan_and_infinity_become_strings(tmp_path):
    path = tmp_path / "a.jsonl"
    append_record(path, "c", {"error": math.inf, "nested": {"auc": [math.nan, 1.0]}})

    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    figures = json.loads(path.read_text(), parse_constant=refuse)["figures"]
    assert figures == {"error": "inf", "nested": {"auc": ["nan", 1.0]}}


def test_a_missing_last_line_break_is_added(tmp_path):
    path = tmp_path / "a.jsonl"
    first = append_record(path, "c", {"a": 1})
    path.write_text(path.read_text().rstrip("\n"))
    second = append_record(path, "c", {"a": 2})
    assert read_records(path) == [first, second]


def test_a_broken_line_is_named(tmp_path):
    path = tmp_path / "a.jsonl"
    append_record(path, "c", {"a": 1})
    with path.open("a") as file:
        file.write('\n{"command": \n')
    with pytest.raises(InputError, match=rf"^{path}, line 3: not a record \(Expecting value"):
        read_records(path)


@pytest.mark.parametrize("line", ["[1, 2]", '{"command": "c", "commit": "x", "machine": "m"}'])
def test_json_that_is_not_a_record_is_named(tmp_path, line):
    path = tmp_path / "a.jsonl"
    path.write_text(line)
    with pytest.raises(InputError, match=r"line 1: not a record \(.*date, figures missing\)"):
        read_records(path)


def test_a_missing_file_is_reported_in_one_line(tmp_path):
    with pytest.raises(InputError, match=r"cannot read the records .*nowhere\.jsonl: No such file"):
        read_records(tmp_path / "nowhere.jsonl")


def test_a_path_that_cannot_be_written_is_reported_in_one_line(tmp_path):
    with pytest.raises(InputError, match=r"cannot write .*: is a directory; choose another path"):
        append_record(tmp_path, "c", {})


def test_a_line_cut_short_is_removed(tmp_path, monkeypatch):
    """A full disk may take half a line; the file must then be as it was before."""
    path = tmp_path / "a.jsonl"
    append_record(path, "c", {"a": 1})
    before, write = path.read_bytes(), os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:10]))
    with pytest.raises(InputError, match="no space left on device"):
        append_record(path, "c", {"a": 2})
    assert path.read_bytes() == before


def test_the_machine_is_described():
    assert f"torch {torch.__version__}" in machine_description()
    assert "core" in machine_description()


def test_a_gpu_is_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Some GPU")
    assert "Some GPU" in machine_description()


def test_a_clean_checkout_is_its_commit(checkout):
    assert code_version(checkout / "src") == git(checkout, "rev-parse", "--short=12", "HEAD")


def test_changes_are_marked(checkout):
    (checkout / "recipe.yaml").write_text("new")
    assert code_version(checkout / "src").endswith("+changes")


def test_a_record_does_not_count_as_a_change(checkout):
    (checkout / "benchmarks").mkdir()
    (checkout / "benchmarks" / "speed.jsonl").write_text("{}")
    assert "+changes" not in code_version(checkout / "src")


def test_outside_a_checkout_the_version_is_unknown(tmp_path, checkout):
    installed = checkout / "venv"  # inside somebody's checkout, but not tracked by it
    installed.mkdir()
    (installed / "code.py").write_text("1")
    assert code_version(installed) == "unknown"
    assert code_version(tmp_path / "nowhere") == "unknown"


def test_a_hook_does_not_mislead_git(checkout, monkeypatch):
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    assert code_version(checkout / "src") != "unknown"
