"""The programs in examples/ run and certify what they build."""

import inspect
import runpy
from pathlib import Path

import pytest
import torch

import turnwise

EXAMPLE = Path(__file__).parents[1] / "examples" / "own_networks.py"
BUILDERS = ("equivariant_cnn", "equivariant_vit")


@pytest.fixture(scope="module")
def example():
    return runpy.run_path(str(EXAMPLE))


@pytest.mark.parametrize("name", BUILDERS)
def test_networks_built_from_public_layers_are_certified(example, name):
    torch.manual_seed(0)
    network = example[name]("D4", 10).eval()
    assert turnwise.certify(network, "D4", torch.rand(4, 3, 24, 24), angles=4).holds


@pytest.mark.parametrize("name", BUILDERS)
def test_a_network_of_the_trivial_group_fails(example, name):
    network = example[name]("C1", 10).eval()
    assert not turnwise.certify(network, "D4", torch.rand(4, 3, 24, 24), angles=4).holds


def test_each_network_takes_fewer_than_30_lines(example):
    assert all(len(inspect.getsourcelines(example[name])[0]) < 30 for name in BUILDERS)


def test_the_program_prints_both_certificates(example, capsys):
    example["main"]()
    assert capsys.readouterr().out.splitlines() == [f"{name}: D4: True" for name in BUILDERS]
