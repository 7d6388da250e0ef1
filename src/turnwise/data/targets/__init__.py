"""Kinds of targets: each is one object that owns its loss, its scores and its output transform.

A module of this package adds a kind with `@register_kind`; there is no list of kinds elsewhere.
"""

from turnwise.data.targets.kind import (
    TargetKind,
    kind_of,
    known_kinds,
    make_kind,
    read_kind,
    register_kind,
)

__all__ = ["TargetKind", "kind_of", "known_kinds", "make_kind", "read_kind", "register_kind"]
