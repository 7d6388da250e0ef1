"""Names of data sets: own images are recognised by how the name begins or ends."""

from pathlib import Path

import pytest

from turnwise.data.sources import own_path, own_reader, short_name, with_full_path
from turnwise.errors import InputError

NAMES = {"folder:x/y": "folders", "x/y.csv": "manifests", "Y.PARQUET": "manifests",
         "y.npz": "arrays", "mnist": None, "csv": None}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_what_reads_a_name(name):
    assert own_reader(name) == NAMES[name]


def test_full_paths_mean_the_same_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert with_full_path("folder:x") == f"folder:{tmp_path.resolve() / 'x'}"
    assert with_full_path("x/t.csv") == str(tmp_path.resolve() / "x" / "t.csv")
    assert with_full_path("mnist") == "mnist"
    assert with_full_path(with_full_path("folder:x")) == with_full_path("folder:x")


def test_short_names_and_homes():
    assert [short_name(n) for n in ("folder:a/b.c", "a/t.csv", "mnist")] == ["b.c", "t", "mnist"]
    assert own_path("~/t.csv") == Path.home() / "t.csv"
    with pytest.raises(InputError, match="begins with a home folder that is not known here"):
        own_path("~nobody-of-this-name/t.csv")
