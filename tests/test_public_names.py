"""The public names of the package, which are imported on first use."""

import ast
from pathlib import Path

import pytest

import turnwise

STABLE = {"create_model", "list_models", "orbit", "load", "save", "equivariance_error",
          "assert_equivariant", "certify", "Predictor", "export", "layers"}  # fmt: skip


def test_stable_names_are_public():
    assert set(turnwise.__all__) >= STABLE
    assert dir(turnwise) == turnwise.__all__


@pytest.mark.parametrize("name", turnwise.__all__)
def test_a_public_name_can_be_imported(name):
    assert getattr(turnwise, name) is not None


def test_type_checkers_see_the_same_names():
    tree = ast.parse(Path(turnwise.__file__).read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    names = [alias.asname for statement in block.body for alias in statement.names]
    assert sorted(names) == turnwise.__all__


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'turnwise' has no attribute 'lode'"):
        turnwise.lode  # noqa: B018
