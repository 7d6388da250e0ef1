"""Models, data sets and groups are listed by name."""

import re
from dataclasses import dataclass

import pytest

from turnwise.data import CATALOGUE
from turnwise.models import create_model, describe_options, list_models, register
from turnwise.models.registry import unregister
from turnwise.options import Options
from turnwise.options import option as setting


def names_in(output):
    """Return the first words of the lines that name a model."""
    lines = output.partition("pretrained weights:")[0].splitlines()
    return sorted({line.split()[0] for line in lines if line} & set(list_models()))


def test_models_are_listed_by_family(turnwise):
    """Orbits are left out, but named in the last line."""
    status, output, _ = turnwise("models")
    assert status == 0
    assert names_in(output) == [n for n in list_models() if not n.startswith("orbit_")]
    assert "GSA-Net and GE-ViT: group self-attention throughout" in output
    assert "orbit_NAME runs NAME on every view" in output


def test_parameters_and_results_are_listed(turnwise):
    _, output, _ = turnwise("models", "gsa*")
    line = next(line for line in output.splitlines() if line.startswith("gsa_net"))
    model = create_model("gsa_net", group="C4", in_chans=3, image_size=64)
    assert f"{sum(p.numel() for p in model.parameters()):,}" in line
    assert re.search(r"rotmnist \d\d\.\d\d ± .* % \(3\)", line)


def test_a_model_of_ones_own_is_listed_too(turnwise):
    @dataclass(frozen=True)
    class Design(Options):
        width: int = setting(4, "channels")

    register("mine_alone", Design, "A model.")(lambda task, design: None)
    try:
        status, output, _ = turnwise("models", "mine*")
    finally:
        unregister("mine_alone")
    assert status == 0 and "mine_alone  " in output and "–" in output


def test_models_are_listed_by_pattern(turnwise):
    status, output, _ = turnwise("models", "orbit_*")
    assert status == 0
    assert names_in(output) == list_models("orbit_*")


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
