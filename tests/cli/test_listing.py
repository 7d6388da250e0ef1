"""Models, data sets and groups are listed by name."""

import pytest

from turnwise.data import CATALOGUE
from turnwise.models import describe_options, list_models, model_options


def names_in(output):
    """Return the lines that are not indented, before the pretrained weights."""
    return [line for line in output.partition("\n\n")[0].splitlines() if not line.startswith(" ")]


def test_models_are_listed_with_their_options(turnwise):
    status, output, _ = turnwise("models")
    assert status == 0
    assert names_in(output) == list_models()
    for name, value in model_options("vit").items():
        assert f"{name}={value!r}" in output


def test_models_are_listed_by_pattern(turnwise):
    status, output, _ = turnwise("models", "orbit_*")
    assert status == 0
    assert names_in(output) == list_models("orbit_*")
    assert "vit" not in names_in(output)


@pytest.mark.parametrize("model", ["vit", "performer", "orbit_group_performer"])
def test_the_options_of_one_model_are_explained(turnwise, model):
    status, output, _ = turnwise("models", model)
    text = " ".join(output.split())
    assert status == 0
    for option in describe_options(model):
        assert f"{option.name}={option.default!r} {option.help}" in text


def test_an_unknown_model_has_exit_status_1(turnwise):
    status, output, _ = turnwise("models", "vgg*")
    assert status == 1
    assert output == f"no model matches 'vgg*'; known: {', '.join(list_models())}\n"


def test_data_sets_are_listed_with_folders_of_your_own(turnwise):
    status, output, _ = turnwise("datasets")
    assert status == 0
    assert [line.split()[0] for line in output.splitlines()[2:]] == [
        *CATALOGUE,
        "folder:PATH",
        "PATH.csv",
    ]


@pytest.mark.parametrize("name", ["digits", "mnist", "rotmnist"])
def test_one_data_set_is_described_in_full(name, turnwise):
    status, output, _ = turnwise("datasets", name)
    entry = CATALOGUE[name]
    assert status == 0
    assert output.startswith(f"{name}: {entry.title}\n")
    for fact in (entry.licence, entry.citation, entry.splits, ", ".join(entry.classes)):
        assert fact in output
    assert ("inside the package" in output) is (name == "digits")


def test_an_unknown_data_set_is_refused(refused):
    assert "'digitss'. Did you mean 'digits'?" in refused("datasets", "digitss")


def test_groups_are_listed_with_their_exact_elements(turnwise):
    status, output, _ = turnwise("groups")
    rows = {line.split()[0]: line.split() for line in output.splitlines()[2:]}
    assert status == 0
    assert rows["C4"][-2:] == ["4", "all"]
    assert rows["D4"][-2:] == ["8", "all"]
    assert rows["C8"][-4:] == ["8", "4", "of", "8"]
    assert rows["C3"][-4:] == ["3", "1", "of", "3"]
    assert "p4m," in rows["D4"] and "z2," in rows["C1"]
