"""Where files are looked for, and that writing is all or nothing."""

from pathlib import Path

import pytest

from turnwise.data.storage import (
    Shelves,
    cache_folder,
    shelves,
    where_to_put,
)
from turnwise.errors import InputError


def test_the_cache_follows_the_environment(monkeypatch):
    monkeypatch.setenv("TURNWISE_CACHE", "/one")
    monkeypatch.setenv("XDG_CACHE_HOME", "/two")
    assert cache_folder() == Path("/one")
    monkeypatch.delenv("TURNWISE_CACHE")
    assert cache_folder() == Path("/two/turnwise")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "turnwise"


def test_order_of_search(monkeypatch, tmp_path):
    given, variable = tmp_path / "given", tmp_path / "variable"
    given.mkdir(), variable.mkdir()
    monkeypatch.setenv("TURNWISE_DATA", str(variable))
    found = shelves(given)
    assert found.folders == (given, variable, tmp_path / "cache")
    assert found.cache == tmp_path / "cache"


def test_a_folder_that_is_not_there(monkeypatch, tmp_path):
    with pytest.raises(InputError, match=r"data_dir = .*nowhere is not a folder"):
        shelves(tmp_path / "nowhere")
    monkeypatch.setenv("TURNWISE_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match=r"TURNWISE_DATA = .*nowhere is not a folder"):
        shelves()


@pytest.mark.parametrize("variable", ["TURNWISE_CACHE", "TURNWISE_DATA"])
def test_the_home_of_nobody(monkeypatch, variable):
    monkeypatch.setenv(variable, "~nobody-of-this-name/x")
    message = rf"^{variable} = ~nobody-of-this-name/x begins with a home .* write the whole path\.$"
    with pytest.raises(InputError, match=message):
        shelves()


def test_the_home_of_nobody_as_an_argument_or_as_the_shared_cache(monkeypatch):
    with pytest.raises(InputError, match=r"^data_dir = ~nobody-of-this-name begins with a home"):
        shelves("~nobody-of-this-name")
    monkeypatch.delenv("TURNWISE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "~nobody-of-this-name")
    with pytest.raises(InputError, match=r"^the cache folder ~nobody-of-this-name begins with"):
        shelves()


def test_files_are_found_together_in_the_first_folder_that_has_all(tmp_path):
    first, second = tmp_path / "1", tmp_path / "2"
    for folder, names in ((first, "a"), (second, "ab")):
        (folder / "set").mkdir(parents=True)
        for name in names:
            (folder / "set" / name).touch()
    shelf = Shelves((first, second), second)
    assert shelf.find("set/a") == [first / "set" / "a"]
    assert shelf.find("set/a", "set/b") == [second / "set" / "a", second / "set" / "b"]
    assert shelf.find("set/c") is None


def test_a_folder_counts_before_a_form(tmp_path):
    """What the given folder has in any form is taken before another folder's best form."""
    given, other = tmp_path / "given", tmp_path / "other"
    for folder, names in ((given, ["a/1", "a/2"]), (other, ["a/a.npz", "a/1", "a/2"])):
        (folder / "a").mkdir(parents=True)
        for name in names:
            (folder / name).touch()
    found = Shelves((given, other), tmp_path)
    assert found.find_any(["a/a.npz"], ["a/1", "a/2"]) == [given / "a/1", given / "a/2"]
    assert Shelves((other, given), tmp_path).find_any(["a/a.npz"], ["a/1"]) == [other / "a/a.npz"]
    assert found.find_any(["b"]) is None


def test_files_named_after_their_set_may_lie_in_the_data_folder_itself(tmp_path):
    (tmp_path / "set_64.npz").touch()
    assert Shelves((tmp_path,), tmp_path).find("set/set_64.npz") == [tmp_path / "set_64.npz"]


def test_files_that_two_sets_share_by_name_must_lie_in_their_own_folder(tmp_path):
    """Or Fashion-MNIST would be read from the files of MNIST."""
    (tmp_path / "train-images-idx3-ubyte.gz").touch()
    shelf = Shelves((tmp_path,), tmp_path)
    assert shelf.find("fashionmnist/train-images-idx3-ubyte.gz") is None


def test_the_cure_names_files_and_folder():
    cure = where_to_put(["mnist/a.gz", "mnist/b.gz"], Path("/c"))
    assert cure.startswith("put a.gz, b.gz into /c/mnist/, or set TURNWISE_DATA")
