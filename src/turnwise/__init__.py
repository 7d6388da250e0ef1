"""Turnwise: image models whose answer does not change when the picture turns or mirrors.

The public names are found on first use: `import turnwise` and `turnwise --help` are instant.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
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
    "from_pretrained": "turnwise.models",
    "list_models": "turnwise.models",
    "load": "turnwise.models",
    "orbit": "turnwise.models",
    "save": "turnwise.models",
    "load_dataset": "turnwise.data",
    "certify": "turnwise.evaluation",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'turnwise' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__


if TYPE_CHECKING:
    from turnwise.data import load_dataset as load_dataset
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
    from turnwise.models import create_model as create_model
    from turnwise.models import from_pretrained as from_pretrained
    from turnwise.models import list_models as list_models
    from turnwise.models import load as load
    from turnwise.models import orbit as orbit
    from turnwise.models import save as save
