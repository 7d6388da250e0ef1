"""Turnwise: image models that are invariant under rotations, reflections and shifts.

Public names are imported on first use, so that `import turnwise` and `turnwise --help` are instant.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_MODULES = {
    "InputError": "turnwise.errors",
    "PlanarGroup": "turnwise.groups",
    "act_on_field": "turnwise.groups",
    "act_on_image": "turnwise.groups",
    "act_on_points": "turnwise.groups",
    "act_on_regular": "turnwise.groups",
    "assert_equivariant": "turnwise.groups",
    "equivariance_error": "turnwise.groups",
    "equivariance_errors": "turnwise.groups",
    "create_model": "turnwise.models",
    "from_pretrained": "turnwise.deploy.hub",
    "push_to_hub": "turnwise.deploy.hub",
    "list_models": "turnwise.models",
    "load": "turnwise.models",
    "orbit": "turnwise.models",
    "save": "turnwise.models",
    "load_dataset": "turnwise.data",
    "Run": "turnwise.runs.run",
    "Predictor": "turnwise.inference.predictor",
    "certify": "turnwise.evaluation",
    "export": "turnwise.deploy.export",
}
__all__ = sorted([*_MODULES, "layers"])


def __getattr__(name: str) -> Any:
    if name == "layers":
        return import_module("turnwise.layers")
    if name not in _MODULES:
        raise AttributeError(f"module 'turnwise' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return __all__


if TYPE_CHECKING:
    from turnwise import layers as layers
    from turnwise.data import load_dataset as load_dataset
    from turnwise.deploy.export import export as export
    from turnwise.deploy.hub import from_pretrained as from_pretrained
    from turnwise.deploy.hub import push_to_hub as push_to_hub
    from turnwise.errors import InputError as InputError
    from turnwise.evaluation import certify as certify
    from turnwise.groups import PlanarGroup as PlanarGroup
    from turnwise.groups import act_on_field as act_on_field
    from turnwise.groups import act_on_image as act_on_image
    from turnwise.groups import act_on_points as act_on_points
    from turnwise.groups import act_on_regular as act_on_regular
    from turnwise.groups import assert_equivariant as assert_equivariant
    from turnwise.groups import equivariance_error as equivariance_error
    from turnwise.groups import equivariance_errors as equivariance_errors
    from turnwise.inference.predictor import Predictor as Predictor
    from turnwise.models import create_model as create_model
    from turnwise.models import list_models as list_models
    from turnwise.models import load as load
    from turnwise.models import orbit as orbit
    from turnwise.models import save as save
    from turnwise.runs.run import Run as Run
