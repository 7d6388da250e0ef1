"""What there is, by name."""

import pytest

from turnwise.data import CATALOGUE
from turnwise.models import list_models, model_options


def test_models_come_with_their_options(turnwise):
    status, said, _ = turnwise("models")
    assert status == 0
    listed, _, _ = said.partition("\n\n")  # shipped weights follow
    assert [line for line in listed.splitlines() if not line.startswith(" ")] == list_models()
    for name, value in model_options("vit").items():
        assert f"{name}={value!r}" in said


def test_models_by_pattern(turnwise):
    status, said, _ = turnwise("models", "orbit_*")
    names = [line for line in said.partition("\n\n")[0].splitlines() if not line.startswith(" ")]
    assert status == 0
    assert names == list_models("orbit_*")
    assert "vit" not in names


def test_no_model_of_that_name(turnwise):
    status, said, _ = turnwise("models", "vgg*")
    assert status == 1
    assert said == f"no model matches 'vgg*'; known: {', '.join(list_models())}\n"


def test_all_data_sets_and_folders_of_your_own(turnwise):
    status, said, _ = turnwise("datasets")
    names = [line.split()[0] for line in said.splitlines()[2:]]
    assert status == 0
    assert names == [*CATALOGUE, "folder:PATH"]


@pytest.mark.parametrize("name", ["digits", "mnist", "rotmnist"])
def test_one_data_set_in_full(name, turnwise):
    status, said, _ = turnwise("datasets", name)
    entry = CATALOGUE[name]
    assert status == 0
    assert said.startswith(f"{name}: {entry.title}\n")
    for fact in (entry.licence, entry.citation, entry.splits, ", ".join(entry.classes)):
        assert fact in said
    assert ("inside the package" in said) is (name == "digits")


def test_an_unknown_data_set(refused):
    assert "'digitss'. Did you mean 'digits'?" in refused("datasets", "digitss")


def test_groups_say_what_is_exact(turnwise):
    status, said, _ = turnwise("groups")
    rows = {line.split()[0]: line.split() for line in said.splitlines()[2:]}
    assert status == 0
    assert rows["C4"][-2:] == ["4", "all"]
    assert rows["D4"][-2:] == ["8", "all"]
    assert rows["C8"][-4:] == ["8", "4", "of", "8"]
    assert rows["C3"][-4:] == ["3", "1", "of", "3"]
    assert "p4m," in rows["D4"] and "z2," in rows["C1"]
